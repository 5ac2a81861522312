"""Comparisons of built reports: what is matched, what is missing, what is said of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis import runs
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.compare.compare import (
    CompareOptions,
    Comparison,
    Row,
    compare_reports,
    compare_traces,
)
from perfmodel.analysis.steps import idle_causes
from perfmodel.base.errors import ReportError, SchemaError, WorkloadError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.compare import compare_document, result
from perfmodel.timing.host_timeline import CAUSE_NAMES
from support.build_report import ReportBuilder
from support.build_thread import Thread
from support.build_training import Training, shared_report, training_report

PLANTED = Path(os.environ.get("PROGRAM_REPORTS", os.devnull)) / "planted"
BATCHES = 8


def steady(**options: object) -> Training:
    return Training(pace=(1,) * BATCHES, **options)  # type: ignore[arg-type]


def compared(before: Path | list[Path], after: Path | list[Path], **options: object) -> Comparison:
    sides = ([read(p) for p in (s if isinstance(s, list) else [s])] for s in (before, after))
    return compare_traces(*sides, CompareOptions(**options))  # type: ignore[arg-type]


def row(found: Comparison, name: str) -> Row:
    (one,) = [r for r in found.rows if r.name == name]
    return one


def marked(**settings: object) -> str:
    config = {"perfmodel_config": 1, "input_size": 784, "hidden_size": 512, "num_classes": 10,
              "batch_size": 3000, "ranks": 2, "dtype": "float32", "transport": "host"}  # fmt: skip
    return json.dumps(config | settings)


@pytest.fixture(scope="module")
def base() -> Path:
    return shared_report(steady(), name="base")


@pytest.fixture(scope="module")
def slow() -> Path:
    """Every time of this report is three times as long."""
    return shared_report(Training(pace=(3,) * BATCHES), name="slow")


@pytest.fixture(scope="module")
def pinned() -> Path:
    return shared_report(steady(memory="pinned"), name="pinned")


# --- numbers


def test_times_by_hand(base: Path, slow: Path) -> None:
    """Every time of the slower report is three times as long; two ranks, no noise within."""
    found = compared(base, slow)
    batch = found.batch
    assert (batch.before_s, batch.after_s) == pytest.approx((1e-3, 3e-3))
    assert batch.ratio == pytest.approx(3.0)
    assert batch.low is not None
    assert 1.01 < batch.low < 3.0
    assert batch.verdict == "slower"
    reduce = row(found, "MPI_Allreduce")
    assert reduce.path == ("batch iteration", "backward", "MPI_Allreduce")
    assert (reduce.before_s, reduce.share_before) == pytest.approx((140e-6, 0.14))
    kernel = row(found, "gemm")
    assert kernel.before_s == pytest.approx((30 + 10 + 10 + 10 + 60 + 20) * 1e-6)
    copies = row(found, "Device-to-Host copies: pageable")
    assert copies.before_s == pytest.approx(90e-6, rel=1e-3)
    assert row(found, "GPU idle").verdict == "slower"
    assert found.addressed == ()


def test_faster_is_slower_the_other_way_round(base: Path, slow: Path) -> None:
    there, back = compared(base, slow), compared(slow, base)
    for one, other in zip(there.rows, back.rows, strict=True):
        assert one.path == other.path
        swapped = {"slower": "faster"}.get(one.verdict, one.verdict)
        assert other.verdict == swapped
        if one.ratio and other.ratio and one.low and other.high:
            assert one.ratio == pytest.approx(1 / other.ratio)
            assert one.low == pytest.approx(1 / other.high)
    assert [r.name for r in back.addressed] == ["MPI_Allreduce", "Host-to-Device copies: pageable"]


def test_a_report_is_no_different_from_itself(base: Path) -> None:
    found = compared(base, base, noise=0.0)
    assert {r.verdict for r in found.rows} == {"within noise"}
    assert "base.sqlite is on both sides: no difference can show" in found.warnings
    assert found.differences == ()
    assert "changed  nothing that the reports show" in result(found, "all").render()


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    """One rank twice as slow as the other: a batch takes as long as it does."""
    report = ReportBuilder()
    for rank in range(2):
        thread = report.thread(pid=1000 + rank, rank=rank)
        Training(pace=(rank + 1,) * BATCHES, gpu=False, p=2).run(thread)
    path = report.write(tmp_path / "r.sqlite")
    assert compared(path, path).batch.before_s == pytest.approx(2e-3)


def test_waiting_and_transfer(base: Path, tmp_path: Path) -> None:
    """The second rank comes 20 µs late to four calls of 35 µs each."""
    late = shared_report(steady(), name="late", lag_ns=20_000)
    found = compared(base, late)
    transfer = row(found, "collectives, transfer: MPI_Allreduce")
    waiting = row(found, "collectives, waiting: MPI_Allreduce")
    assert (transfer.before_s, waiting.before_s) == (pytest.approx(140e-6), 0.0)
    assert waiting.after_s == pytest.approx(4 * 20e-6)
    assert waiting.ratio is None
    assert waiting.verdict == "within noise"  # one launch cannot tell it


def test_the_warm_up_is_left_out(base: Path, tmp_path: Path) -> None:
    warm = training_report(tmp_path / "warm.sqlite", Training(pace=(9, 9, *(1,) * BATCHES)))
    found = compared(base, warm)
    assert found.after.launches[0].warmup == 2
    assert found.after.launches[0].batches == BATCHES
    assert found.batch.after_s == pytest.approx(1e-3)
    assert compared(base, warm, warmup=0).after.launches[0].batches == BATCHES + 2


# --- ranges, links and kernels of one side only


def test_pinned_buffers_replace_pageable_ones(base: Path, pinned: Path) -> None:
    found = compared(base, pinned)
    by_path = {r.path: r for r in found.rows}
    total = by_path["Host-to-Device copies",]
    assert total.verdict == "within noise"
    assert total.depth == 0
    assert by_path["Host-to-Device copies", "pageable"].verdict == "only before"
    only = by_path["Host-to-Device copies", "pinned"]
    assert (only.verdict, only.before_s, only.ratio, only.depth) == ("only after", None, None, 1)
    assert only.launches == (0, 1)
    assert found.addressed == ()  # what replaced it is no faster


def batches(thread: Thread, inside: list[tuple[str, int, int]], batch_us: int) -> None:
    for i in range(BATCHES):
        start = 1_000_000 + i * 2_000_000
        thread.range("batch iteration", start, start + 1000 * batch_us)
        for name, begin, end in inside:
            thread.range(name, start + 1000 * begin, start + 1000 * end)


def simple(path: Path, inside: list[tuple[str, int, int]], batch_us: int = 1000) -> Path:
    report = ReportBuilder()
    batches(report.thread(), inside, batch_us)
    return report.write(path)


def test_a_range_that_moved_is_the_same_range(tmp_path: Path) -> None:
    inside = [("backward", 100, 900), ("reduce", 500, 800)]
    outside = [("backward", 100, 400), ("reduce", 500, 600)]
    before, after = (
        simple(tmp_path / f"{n}.sqlite", r) for n, r in (("b", inside), ("a", outside))
    )
    moved = row(compared(before, after), "reduce")
    assert moved.path == ("batch iteration", "backward", "reduce")
    assert (moved.before_s, moved.after_s) == (pytest.approx(300e-6), pytest.approx(100e-6))
    assert moved.verdict == "faster"


def test_new_ranges_stand_beside_their_siblings(tmp_path: Path) -> None:
    before = simple(tmp_path / "b.sqlite", [("x", 0, 500), ("x1", 1, 100), ("y", 500, 900)])
    after = simple(tmp_path / "a.sqlite", [("x", 0, 500), ("x2", 1, 100), ("y", 500, 900),
                                           ("z", 900, 950)], 999)  # fmt: skip
    found = compared(before, after)
    assert [r.name for r in found.rows] == ["batch iteration", "x", "x1", "x2", "y", "z"]
    assert [r.depth for r in found.rows] == [0, 1, 2, 2, 1, 1]
    verdicts = {r.name: r.verdict for r in found.rows}
    assert (verdicts["x1"], verdicts["x2"], verdicts["z"]) == (
        "only before", "only after", "only after",
    )  # fmt: skip
    assert [r.name for r in found.addressed] == ["x1"]
    text = result(found, "all").render()
    assert "x1, 99.0 µs (10 % of the step) before, gone after; 99.0 µs saved" in text
    assert "    new after: x2 (99.0 µs), z (50.0 µs)\n" in text


def test_no_bottleneck_was_addressed_where_the_batch_did_not_become_faster(tmp_path: Path) -> None:
    before = simple(tmp_path / "b.sqlite", [("x", 0, 500), ("y", 500, 900)])
    after = simple(tmp_path / "a.sqlite", [("x", 0, 100), ("y", 500, 900)], 1001)
    found = compared(before, after)
    assert row(found, "x").verdict == "faster"
    assert found.addressed == ()


def graph_report(path: Path, *, whole: bool) -> Path:
    """Batches without ranges inside, whose kernels a CUDA graph launches."""
    report = ReportBuilder("2025.3.2")
    report.gpu(0)
    thread = report.thread()
    for i in range(BATCHES):
        start = 1_000_000 + i * 1_000_000
        thread.range("batch iteration", start, start + 200_000)
        gpu = (start + 20_000, start + 160_000)
        kernels = () if whole else (("gemm", gpu),)
        thread.graph_launch((start + 1_000, start + 9_000), gpu if whole else None, kernels=kernels)
    return report.write(path)


@pytest.mark.parametrize("whole", [True, False])
def test_a_graph_run_keeps_only_batches_and_kernels(
    base: Path, tmp_path: Path, whole: bool
) -> None:
    found = compared(base, graph_report(tmp_path / "graph.sqlite", whole=whole))
    assert found.batch.verdict == "faster"
    inside = [r for r in found.rows if r.group == "range"][1:]
    assert {r.verdict for r in inside} == {"only before"}
    assert all(r.group == "link" for r in found.addressed)  # ranges went elsewhere
    assert row(found, "GPU idle").verdict == "faster"
    kernels = {r.name: r.verdict for r in found.rows if r.group == "kernel"}
    copies = [r for r in found.rows if r.path[0].endswith("copies")]
    if whole:  # what it holds is not recorded, which is not the same as gone
        assert kernels == {"whole CUDA graphs": "only after"}
        assert copies == []
        assert any("--cuda-graph-trace=node" in w for w in found.warnings)
    else:
        assert kernels == {"gemm": "within noise"}
        assert {r.verdict for r in copies} == {"only before"}


def test_without_gpu_on_one_side_its_times_are_missing_not_zero(base: Path, tmp_path: Path) -> None:
    cpu = shared_report(steady(gpu=False), name="cpu")
    for found, side in ((compared(base, cpu), "after"), (compared(cpu, base), "before")):
        assert {r.path[0] for r in found.rows if r.group != "range"} == {
            "collectives, transfer", "collectives, waiting",
        }  # fmt: skip
        assert any(f"no GPU operations were recorded {side}" in w for w in found.warnings)


def test_without_mpi_on_one_side(base: Path, tmp_path: Path) -> None:
    quiet = shared_report(steady(mpi=False), name="quiet")
    found = compared(base, quiet)
    assert not [r for r in found.rows if r.path[0].startswith("collectives")]
    assert any("no MPI calls were recorded after" in w for w in found.warnings)


def nccl_report(path: Path, late_us: int) -> Path:
    """Two ranks whose all-reduce kernels end together, the second starting `late_us` later."""
    report = ReportBuilder("2025.3.2")
    for rank in range(2):
        report.gpu(rank)
    for rank in range(2):
        thread = report.thread(pid=1000 + rank, rank=rank)
        thread.mpi("MPI_Barrier", 10, 20)
        for i in range(BATCHES):
            start = 1_000_000 + i * 1_000_000
            thread.range("batch iteration", start, start + 500_000)
            gpu = (start + 1000 * (100 + rank * late_us), start + 150_000)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
            thread.kernel(name, (start + 1_000, start + 2_000), gpu, device=rank)
    return report.write(path)


def test_nccl_waits_in_its_kernels(base: Path, tmp_path: Path) -> None:
    found = compared(base, nccl_report(tmp_path / "nccl.sqlite", 30))
    by_path = {r.path: r for r in found.rows}
    moved = by_path["collectives, transfer", "NCCL AllReduce"]
    assert moved.after_s == pytest.approx(20e-6)
    assert by_path["collectives, waiting", "NCCL AllReduce"].after_s == pytest.approx(30e-6)
    total = by_path["collectives, transfer",]
    assert (total.before_s, total.after_s) == (pytest.approx(140e-6), pytest.approx(20e-6))
    assert total.verdict == "faster"
    assert by_path["collectives, transfer", "MPI_Allreduce"].verdict == "only before"
    assert not [r for r in found.rows if r.group == "kernel" and r.after_s]


# --- configurations


def test_what_differs_is_said(tmp_path: Path) -> None:
    before = shared_report(
        steady(), name="b", mark=marked(gemm="cublas", versions={"cupy": "14.1"})
    )
    after = shared_report(steady(), name="a",
        mark=marked(transport="nccl", overlap=True, versions={"cupy": "14.2"}),
    )  # fmt: skip
    found = compared(before, after)
    assert [str(d) for d in found.differences] == [
        "transport: host -> nccl",
        "gemm: cublas -> not given",
        "versions.cupy: 14.1 -> 14.2",
        "overlap: not given -> yes",
    ]
    assert not any("do not compute the same" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 256}, "hidden_size (H): 512 -> 256"),
        ({"batch_size": 6000}, "batch_size (B): 3000 -> 6000"),
        ({"dtype": "float64"}, "dtype: float32 -> float64"),
    ],
)
def test_another_workload_is_no_before_and_after(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    before = shared_report(steady(), name="b", mark=marked())
    after = shared_report(steady(), name="a", mark=marked(**change))
    (warning,) = [w for w in compared(before, after).warnings if "do not compute the same" in w]
    assert f"({said})" in warning


def test_the_mark_of_any_program_says_what_differs() -> None:
    """Two PyTorch runs whose mark is not the trainer's, with 3,000 and 12,000 images a batch."""
    reports = [PROFILES / f"ddp/ddp_p2_H512_B{size}.sqlite.xz" for size in (3000, 12000)]
    run = analyze([read(reports[0])], Options()).fitted
    assert (run.program.name, run.identity.config["batch_size"]) == ("pytorch", 3000)
    found = compared(reports[0], reports[1])
    assert [str(d) for d in found.differences] == ["batch_size (B): 3000 -> 12000"]
    assert [d.workload for d in found.differences] == [True]


def test_symbols_without_marks_come_from_the_messages(base: Path, tmp_path: Path) -> None:
    other = shared_report(steady(H=256), name="a")
    said = [str(d) for d in compared(base, other).differences]
    assert said == ["hidden_size (H): 512 -> 256"]


def test_launches_of_a_side_should_be_of_one_configuration(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{i}.sqlite", steady(), mark=marked(transport=t))
        for i, t in enumerate(("host", "pinned", "nccl"))
    ]
    found = compared(paths[:2], paths[2])
    assert any("runs before do not have one configuration (transport: host and pinned)" in w
               for w in found.warnings)  # fmt: skip


def test_all_that_changes_the_work_is_one_warning(tmp_path: Path) -> None:
    before = shared_report(steady(), name="b", mark=marked())
    after = shared_report(steady(), name="a",
                            mark=marked(hidden_size=256, ranks=4))  # fmt: skip
    said = [w for w in compared(before, after).warnings if "compute the same" in w]
    assert len(said) == 1
    assert "(hidden_size (H): 512 -> 256; ranks (p): 2 -> 4)" in said[0]


# --- launches


def test_three_launches_a_side_tell_their_noise(tmp_path: Path) -> None:
    """Batches of 10, 11, 12 against 5, 5, 6: Welch's interval, and no assumption in the text."""
    sides = [
        [training_report(tmp_path / f"{s}{i}.sqlite",
                         Training(pace=(pace,) * 3 + (pace + i,), gpu=False))
         for i, pace in enumerate(paces)]
        for s, paces in (("b", (10, 11, 12)), ("a", (5, 5, 6)))
    ]  # fmt: skip
    found = compared(*sides)
    assert found.launch_noise is None
    assert found.batch.launches == (3, 3)
    assert found.batch.before_s == pytest.approx((10 * 11 * 12) ** (1 / 3) * 1e-3)
    assert found.batch.ratio == pytest.approx((5 * 5 * 6 / 10 / 11 / 12) ** (1 / 3))
    assert found.batch.verdict == "faster"
    assert not any("do not show how much" in w for w in found.warnings)
    assert "runs are the unit" in result(found, "all").render()


def test_a_copied_report_is_no_launch_of_its_own(tmp_path: Path) -> None:
    """Three copies of one launch a side would else be three launches that do not differ at all."""
    made = {
        name: training_report(tmp_path / f"{name}.sqlite", Training(pace=(pace,) * 6, gpu=False))
        for name, pace in (("b", 10), ("a", 9))
    }
    sides = []
    for name, path in made.items():
        copies = [tmp_path / f"{name}{i}.sqlite" for i in range(3)]
        for copy in copies:
            copy.write_bytes(path.read_bytes())
        sides.append(copies)
    found = compared(*sides)
    assert found.batch.launches == (1, 1)
    assert found.batch.verdict == "within noise"
    assert sum("are copies of others" in warning for warning in found.warnings) == 2


def test_reports_of_the_ranks_of_one_run_are_one_launch(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{name}{rank}.sqlite", steady(), ranks=[rank], world_size=2,
                        mark=marked(run_id=name))
        for name in "ba" for rank in range(2)
    ]  # fmt: skip
    found = compared(paths[:2], paths[2:])
    assert found.batch.launches == (1, 1)
    assert found.before.launches[0].ranks == 2
    assert row(found, "collectives, transfer: MPI_Allreduce").before_s == pytest.approx(140e-6)


def test_other_gpus_are_another_machine(tmp_path: Path) -> None:
    paths = []
    for name in "ba":
        report = ReportBuilder("2025.3.2")
        report.gpu(0, uuid=f"0000000{name}-0000-0000-0000-000000000000")
        steady(p=1).run(report.thread(rank=0))
        paths.append(report.write(tmp_path / f"{name}.sqlite"))
    found = compared(*paths)
    assert found.other_machines
    assert any("the sides ran on different GPUs" in w for w in found.warnings)
    assert not compared(paths[0], paths[:1]).other_machines


# --- errors, text, JSON


def test_errors_say_what_to_do(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="at least one report after; got none"):
        compare_traces([read(base)], [])
    short = shared_report(Training(pace=(1,)), name="s")
    assert any("one finished step in s" in said for said in compared(base, short).warnings)
    with pytest.raises(SchemaError, match="no finished step is left: found 1 "):
        compared(base, short, warmup=1)
    with pytest.raises(SchemaError, match="expected ranges called 'nosuch'"):
        compared(base, base, batch_label="nosuch")
    with pytest.raises(WorkloadError, match="launch noise from 0 to 1000 percent; got -5"):
        compared(base, base, noise=-0.05)


def test_the_text_answers_the_question(base: Path, slow: Path) -> None:
    said = result(compared(slow, base), "all").render()
    assert "A step takes 3.000 ms before, 1.000 ms after, ratio 0.333 [" in said
    assert (
        "Bottleneck addressed, by range: MPI_Allreduce, 420 µs (14 % of the step) before, 140 µs "
        "after; 280 µs of the 2.00 ms saved"
    ) in said
    unsure = result(compared(base, base), "all").render()
    assert "not significant" in unsure
    assert "can be detected" in unsure
    assert "No range or link got significantly faster" in unsure


def test_the_document_holds_everything(base: Path, pinned: Path) -> None:
    found = compared(base, pinned)
    told = json.loads(json.dumps(compare_document(found), allow_nan=False))
    assert told["schema_version"] == 2
    assert told["before"]["launches"][0]["label"] == "base"
    assert told["intervals"] == found.intervals
    assert told["batch"] == told["rows"][0]
    assert len(told["rows"]) == len(found.rows)
    assert set(told["rows"][0]) == {
        "group", "name", "path", "before_s", "after_s", "difference_s", "share_before", "ratio",
        "ratio_low", "ratio_high", "p", "level", "verdict", "launches", "part",
    }  # fmt: skip


# --- idle time


@pytest.mark.parametrize(
    ("fault", "cause"), [("item", "blocking_sync"), ("dataloader", "host_compute")]
)
def test_the_cause_of_idle_time_that_a_fault_adds_is_named(fault: str, cause: str) -> None:
    paths = [PROFILES / f"programs/{name}_b32.sqlite.xz" for name in (fault, "healthy")]
    before, after = ([read(path)] for path in paths)
    found = compare_traces(before, after)
    most = found.idle[0]
    assert most.path == ("rank 0", cause)
    assert most.verdict == "not tested"
    for side, traces in (("before_s", before), ("after_s", after)):
        run = analyze(traces, Options()).fitted
        recorded = idle_causes(run.measured.steps, run.run_steps)
        known = {c.cause: c.seconds for c in recorded}
        assert {r.path[1]: getattr(r, side) for r in found.idle} == pytest.approx(
            {r.path[1]: known.get(r.path[1], 0.0) for r in found.idle}
        )
    text = result(found, "all").render()
    assert f"Idle time removed, by cause: rank 0: {CAUSE_NAMES[cause]} " in text
    back = compare_traces(after, before)
    assert [r.difference_s for r in back.idle] == pytest.approx(
        [-r.difference_s for r in found.idle]
    )
    assert (
        f"Idle time added, by cause: rank 0: {CAUSE_NAMES[cause]} " in result(back, "all").render()
    )
    assert f"idle,rank 0/{cause}," in result(found).render("csv")
    assert json.loads(result(found).render("json"))["idle"][0]["group"] == "idle"


def test_batches_of_other_names_are_compared(tmp_path: Path) -> None:
    paths = []
    for name in ("step", "train_step"):
        report = ReportBuilder()
        report.gpu()
        thread = report.thread()
        for i in range(6):
            at = 1_000_000 * i
            thread.range(f"{name} {i}", at, at + 900_000)
            thread.range("forward", at + 10, at + 400_000)
            thread.kernel("k", (at + 100, at + 200), (at + 300, at + 800_000))
        paths.append(report.write(tmp_path / f"{name}.sqlite"))
    found = compared(*paths)
    assert found.batch.ratio == pytest.approx(1)
    assert {r.verdict for r in found.rows} == {"within noise"}
    assert row(found, "forward").path == ("step *", "forward")


def test_a_rank_that_only_one_side_has_is_missing_not_zero() -> None:
    one, two = (
        [read(PROFILES / f"programs/{name}_b32.sqlite.xz")] for name in ("healthy", "straggler_p2")
    )
    found = compare_traces(one, two)
    for row in found.idle:
        assert (row.before_s is None) == (row.path[0] == "rank 1")
        assert row.launches == (int(row.path[0] == "rank 0"), 1)


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize(
    ("fault", "rank", "cause"),
    [
        ("item", 0, "blocking_sync"), ("launch", 0, "launch_bound"),
        ("loop_optimizer", 0, "launch_bound"), ("straggler", 1, "host_compute"),
        ("late_allreduce", 0, "launch_bound"), ("pageable", 0, "launch_bound"),
    ],
)  # fmt: skip
def test_planted_faults_add_their_cause_of_idle_time(fault: str, rank: int, cause: str) -> None:
    found = compared(PLANTED / "healthy.sqlite.xz", PLANTED / f"{fault}.sqlite.xz")
    assert found.idle[0].path == (f"rank {rank}", cause)
    assert found.idle[0].difference_s > 0.01 * (found.batch.before_s or 0)


@pytest.mark.slow
@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize("fault", ["fp32", "naive_attention"])
def test_faults_of_a_busy_gpu_add_no_idle_time(fault: str) -> None:
    found = compared(PLANTED / "healthy.sqlite.xz", PLANTED / f"{fault}.sqlite.xz")
    assert all(abs(r.difference_s) < 0.01 * (found.batch.before_s or 0) for r in found.idle)


# --- reports of which not all is kept


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("h200x2_2ranks_base_nsys2025.3.1.sqlite", "h200x2_2ranks_pinned_nsys2025.3.1.sqlite.xz"),
        ("programs/gpt_ddp.sqlite.xz", "programs/gpt_ddp.sqlite.xz"),
        ("ladder/nccl_1.sqlite.xz", "ladder/graph_1.sqlite.xz"),
    ],
)
def test_what_is_kept_of_reports_compares_as_all_of_them(
    before: str, after: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of large ones, which are measured one process after the other."""
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0 if large else 1 << 40)
    sides = PROFILES / before, PROFILES / after
    found = compare_reports([sides[0]], [sides[1]], CompareOptions(), lambda _: None)
    whole = compare_traces([read(sides[0])], [read(sides[1])])
    assert len(found.rows) > 10
    assert [compare_document(found), found.warnings] == [compare_document(whole), whole.warnings]
