"""The ladder's harness: statistics of rounds, rows, the floor, the check, peers, the document."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common import pages, results
from benchmarks.common.folders import PROFILES, RESULTS, ROOT
from benchmarks.ladder import __main__ as main
from benchmarks.ladder import cell as ladder_check
from benchmarks.ladder import configurations as ladder
from benchmarks.ladder import floor as ladder_floor
from benchmarks.ladder import join as ladder_join
from benchmarks.ladder import report as ladder_report
from benchmarks.ladder import rows as ladder_rows
from benchmarks.ladder import sections as ladder_notes
from benchmarks.ladder import sections as ladder_targets
from benchmarks.ladder.cell import batches_of_visit
from support.trainer_runs import environment, mpirun_command
from trainer.backends import choice
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.train import sequential

RUN = {
    "date": "2026-01-02T03:04:05+00:00", "ranks": 2, "command": "mpirun -n 2 python ladder.py",
    "versions": {"torch": "2.11.0", "gpu": "NVIDIA H200", "blas": None},
    "ceilings": {"gemm_flops": {"fp32": 50e12}, "copy_bytes_per_s": 4.18e12},
}  # fmt: skip
FLOOR = {"gemm_s": 40e-6, "elementwise_s": 5e-6, "allreduce_s": 12e-6, "launch_s": 3e-6}
SMALL = ladder.Cell(hidden=16, batch=60, math="fp32", images=200)


# --- statistics


@pytest.mark.parametrize(
    ("count", "place", "confidence"),
    [(1, 0, 0.0), (5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 0.9609375), (20, 5, 0.95861053)],
)
def test_interval_of_the_median(count: int, place: int, confidence: float) -> None:
    """By hand from the binomial: 9 values, 2nd and 8th, 1 - 2 (1 + 9) / 512 = 0.9609."""
    values = [float(v) for v in np.random.default_rng(0).permutation(count)]
    low, high, found = ladder_rows.median_interval(values)
    assert (low, high) == (place, count - 1 - place)
    assert found == pytest.approx(confidence, abs=1e-8)


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = [
        low <= 0 <= high
        for low, high, _ in (ladder_rows.median_interval(v) for v in rng.standard_cauchy((4000, 9)))
    ]
    assert np.mean(inside) == pytest.approx(0.961, abs=0.01)


def test_quartiles_are_linear_between_order_statistics() -> None:
    assert ladder_rows.spread([4.0, 1.0, 2.0, 8.0]) == {
        "min_s": 1, "q1_s": 1.75, "q3_s": 5.0, "max_s": 8,
    }  # fmt: skip
    assert set(ladder_rows.spread([3.0]).values()) == {3.0}


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that drifts by a factor of 4 slows both: the ratio does not spread."""
    drift = [1.0, 2.0, 4.0, 3.0, 2.5, 1.5, 1.0]
    found = ladder_rows.compare([0.5 * d for d in drift], drift)
    assert found["ratio"] == found["ratio_low"] == found["ratio_high"] == 0.5


def test_the_best_peer_has_the_smallest_median_of_the_timed() -> None:
    times = {"a": [3.0, 3.0, 1.0], "b": [2.0, 2.0, 9.0], "c": []}
    assert ladder_rows.best_peer(times, ["a", "b", "c"]) == "b"
    assert ladder_rows.best_peer(times, ["a", "c"]) == "a"
    assert ladder_rows.best_peer(times, ["c"]) is None


@pytest.mark.parametrize(
    ("batch_s", "batches"), [(15e-6, 2000), (1e-3, 30), (5e-3, 20), (20e-3, 12), (1.0, 5)]
)
def test_a_visit_is_filled_but_not_for_long(batch_s: float, batches: int) -> None:
    assert batches_of_visit(batch_s, visit_s=0.03, least=20) == batches


# --- rows


def row(rung: str, seconds: float | None, *, place: int = 0, valid: bool = True, **about) -> dict:
    about = {
        "rung": rung, "H": 512, "B": 3000, "p": 2, "dtype": "fp32", "kind": "rung",
        "place": place, "text": "", "parallel": "data", "valid": valid, "reason": None,
        "error": 1e-6, "gemms_at_shapes_s": {"forward 1": 30e-6, "backward 3": 30e-6}, **about,
    }  # fmt: skip
    times = [] if seconds is None else [seconds * (1 + 0.01 * k) for k in range(7)]
    peer = ("torch graph", [100e-6 * (1 + 0.01 * k) for k in range(7)])
    return ladder_rows.make_row(about, times, peer, FLOOR)


def test_a_row_adds_up() -> None:
    found = row("nccl", 80e-6)
    assert found["floor_s"] == pytest.approx(60e-6)
    assert found["median_s"] == pytest.approx(82.4e-6)
    assert found["ratio"] == pytest.approx(0.8)
    assert found["peer"] == "torch graph"
    assert found["peer_median_s"] == pytest.approx(103e-6)


def test_what_computes_the_wrong_thing_is_timed_but_not_ranked() -> None:
    found = row("nccl", 80e-6, valid=False, reason="differs")
    assert found["median_s"] is not None
    assert found["ratio"] is None
    assert found["peer"] is None


def test_a_later_run_adds_its_launch_or_replaces_what_it_repeats() -> None:
    first = ladder_rows.merge({}, RUN, [row("nccl", 80e-6, place=1), row("document", 2e-3)])
    assert [r["rung"] for r in first["rows"]] == ["document", "nccl"]
    later = {**RUN, "date": "2026-02-02T03:04:05+00:00"}
    fresh = [row("nccl", 70e-6, place=1), row("graph", 9e-5, p=1)]
    second = ladder_rows.merge(first, later, fresh)
    assert [(r["p"], r["rung"], len(r["launches"])) for r in second["rows"]] == [
        (1, "graph", 1), (2, "document", 1), (2, "nccl", 2),
    ]  # fmt: skip
    assert len(second["runs"]) == 2
    assert ladder_rows.merge(second, later, fresh) == second, "the same launch again"
    third = ladder_rows.merge(second, later, [row("document", 2e-3)], replace=True)
    assert [len(r["launches"]) for r in third["rows"]] == [1, 1, 2]
    third = ladder_rows.merge(third, later, fresh, replace=True)
    assert [name[:7] for name in third["runs"]] == ["2026-02"], "runs without rows go"


def launched(*medians: float, peers: tuple[float, ...] = (100e-6,) * 9) -> dict:
    """A row of several launches, each of seven equal rounds."""
    about = row("nccl", None)
    record: dict = {}
    for day, (median, peer) in enumerate(zip(medians, peers, strict=False), 1):
        run = {**RUN, "date": f"2026-01-0{day}T03:04:05+00:00"}
        known = {k: about[k] for k in ("rung", "H", "B", "p", "dtype", "kind", "place", "parallel",
                                       "valid", "reason", "error")}  # fmt: skip
        made = ladder_rows.make_row(known, [median] * 7, ("torch graph", [peer] * 7), FLOOR)
        record = ladder_rows.merge(record, run, [made])
    return record


def test_launches_are_put_together_with_the_interval_of_another_one() -> None:
    """By hand of 0.8, 0.9, 1.0: t(0.975, 2) = 4.3027, s of the logs 0.11160, sqrt(4/3).

    Of one launch t(10) = 2.22814, of two t(11) = 2.20099: batches that the host queues are taken
    to differ by 0.18, PyTorch's graph by 0.0175.
    """
    assumed = 0.18**2 + 0.0175**2
    (one,) = launched(80e-6)["rows"]
    assert one["launches"][0]["round_s"] == [80e-6] * 7
    assert one["launches"][0]["ratio_confidence"] == 0.984375, "of its rounds"
    assert (one["ratio"], one["ratio_confidence"]) == (0.8, 0.95)
    width = 2.22814 * np.sqrt(2 * assumed)
    assert one["ratio_high"] == pytest.approx(0.8 * np.exp(width), rel=1e-4)
    (two,) = launched(80e-6, 90e-6)["rows"]
    assert (two["median_s"], two["ratio"]) == (pytest.approx(85e-6), pytest.approx(0.85))
    width = 2.20099 * np.sqrt(1.5 * assumed)  # they differ by less than is assumed
    assert two["ratio_low"] == pytest.approx(np.sqrt(0.72) * np.exp(-width), rel=1e-4)
    (three,) = launched(80e-6, 90e-6, 100e-6)["rows"]
    assert three["median_s"] == three["launches"][1]["median_s"] == 90e-6
    assert (three["min_s"], three["max_s"]) == (80e-6, 100e-6)
    width = 4.30265 * np.std(np.log([0.8, 0.9, 1.0]), ddof=1) * np.sqrt(4 / 3)
    middle = np.exp(np.mean(np.log([0.8, 0.9, 1.0])))
    assert three["ratio_low"] == pytest.approx(middle * np.exp(-width), rel=1e-4)
    assert three["ratio_high"] == pytest.approx(middle * np.exp(width), rel=1e-4)
    assert three["ratio"] == pytest.approx(0.9)


def test_two_launches_that_differ_by_more_than_is_assumed_widen_the_interval() -> None:
    """By hand: 0.4 and 1.6 have logs 1.3863 apart, 0.9609 seen of 11 degrees of freedom."""
    found = ladder_rows.ratio_over([0.4, 1.6], 0.05)
    width = 2.20099 * np.sqrt(1.5 * (10 * 0.0025 + np.log(4) ** 2 / 2) / 11)
    assert found["ratio_high"] == pytest.approx(0.8 * np.exp(width), rel=1e-3)
    assert ladder_rows.ratio_over([0.8], 0.05)["ratio_high"] == pytest.approx(
        0.8 * np.exp(2.22814 * np.sqrt(2) * 0.05), rel=1e-4
    )


def test_intervals_hold_another_launch_as_often_as_they_say() -> None:
    """Drawn from what is assumed, of 1 to 4 launches."""
    rng = np.random.default_rng(2)
    rows = [
        {"rung": "graph", "p": 1, "valid": True, "median_s": 1.0, "launches": [
            {"ratio": r, "peer": "torch graph"}
            for r in np.exp(0.005 * np.sqrt(2) * rng.standard_normal(2 + n % 4))
        ]}
        for n in range(800)
    ]  # fmt: skip
    held, among = ladder_rows.coverage(rows)
    assert among == 200 * (2 + 3 + 4 + 5)
    assert 0.93 <= held / among <= 0.98
    rows[0]["launches"][0]["peer"] = "graph"  # its own best: a ratio of 1 that says nothing
    assert ladder_rows.coverage(rows)[1] == among - 2


def test_one_wrong_launch_takes_the_ratio_away() -> None:
    late = {**RUN, "date": "2026-03-02T03:04:05+00:00"}
    wrong = row("nccl", 80e-6, valid=False, reason="differs")
    (found,) = ladder_rows.merge(launched(80e-6, 90e-6), late, [wrong])["rows"]
    assert not found["valid"]
    assert found["ratio"] is found["ratio_low"] is None


def test_launches_on_another_gpu_are_refused() -> None:
    other = {**RUN, "versions": {**RUN["versions"], "gpu": "NVIDIA H100"}}
    with pytest.raises(ValueError, match="one GPU; got NVIDIA H"):
        ladder_rows.merge(launched(80e-6), other, [row("nccl", 80e-6)])


def test_launches_without_rounds_are_named() -> None:
    record = ladder_rows.merge({}, {**RUN, "ranks": 4}, [row("nccl", 80e-6, p=4)])
    for found in record["rows"]:
        for each in (found, *found["launches"]):
            each["round_s"] = None
    joined = ladder_join.join(record, ladder_rows.merge({}, RUN, [row("nccl", 70e-6)]))
    assert "; launches of p = 4 are without" in ladder_report.markdown(joined)


def test_launches_of_other_files_are_added_run_by_run() -> None:
    """What was added twice counts once; a launch that could not time a row takes none away."""
    record, other = launched(80e-6), launched(80e-6, 90e-6, 100e-6)
    assert ladder_join.join(record, other) == other
    assert ladder_join.join(other, other) == other
    beside = launched(90e-6)  # in the same second, on another GPU of the host
    (only,) = beside["runs"].values()
    only["ceilings"] = {**only["ceilings"], "copy_bytes_per_s": 4.19e12}
    both = ladder_join.join(record, beside)
    assert [launch["median_s"] for launch in both["rows"][0]["launches"]] == [80e-6, 90e-6]
    assert [name[-6:] for name in both["runs"]] == ["00 p=2", " p=2 b"]
    assert ladder_join.join(both, beside) == both
    late = {**RUN, "date": "2026-03-02T03:04:05+00:00"}
    missing = ladder_rows.merge(other, late, [row("nccl", None, valid=False, reason="no MPI")])
    assert missing["rows"][0]["median_s"] == other["rows"][0]["median_s"]
    assert missing["rows"][0]["reason"] is None
    wrong = ladder_rows.merge(other, late, [row("nccl", 80e-6, valid=False, reason="differs")])
    assert not wrong["rows"][0]["valid"], "one launch that computes the wrong thing is enough"


def test_a_note_goes_with_the_rows_that_it_is_about() -> None:
    """A rung measured again leaves its note; the note goes with its last row."""
    old = "2026-01-02T03:04:05+00:00 p=2"
    note = {"text": "before a change", "runs": [old], "rungs": ["thin", "graph"], "dtype": ["fp32"]}
    rungs = [row("thin", 80e-6), row("thin", 80e-6, H=64), row("thin", 8e-6, dtype="tf32")]
    first = ladder_rows.merge({"notes": [note]}, RUN, [*rungs, row("graph", 9e-5, place=1)])
    said = "\nTo be measured again:\n\n- thin, graph (p = 2, H = 512, fp32): before a change.\n"
    assert ladder_notes.notes({**first, "rows": [r for r in first["rows"] if r["H"] != 64]}) == said
    assert "- thin (p = 2, H = 64, fp32): before a change.\n" in ladder_notes.notes(first)
    later = {**RUN, "date": "2026-02-02T03:04:05+00:00"}
    again = [row("graph", 8e-5), row("thin", 8e-5, H=64)]
    second = ladder_rows.merge(first, later, again, replace=True)
    assert ladder_notes.notes(second) == said.replace("thin, graph", "thin")
    assert ladder_notes.notes(second) in ladder_report.markdown(second)
    third = ladder_rows.merge(second, later, [row("thin", 7e-5)], replace=True)
    assert (third["notes"], ladder_notes.notes(third)) == ([], "")
    assert old in third["runs"], "of the TF32 row, which the note is not about"


def test_notes_name_all_cells_together_or_each() -> None:
    note = {"text": "t", "runs": ["2026-01-02T03:04:05+00:00 p=2"], "rungs": ["thin"]}
    rows = [row("thin", 8e-5, H=h, dtype=d) for h in (64, 512) for d in ("fp32", "tf32")]
    whole = ladder_rows.merge({"notes": [note]}, RUN, rows)
    assert "- thin (p = 2, H = 64 and 512, fp32 and tf32): t." in ladder_notes.notes(whole)
    part = ladder_rows.merge({"notes": [note]}, RUN, rows[:3])
    places = "p = 2, H = 64, fp32; p = 2, H = 64, tf32; p = 2, H = 512, fp32"
    assert f"- thin ({places}): t." in ladder_notes.notes(part)


def test_the_file_holds_six_digits_and_no_infinity(tmp_path: Path) -> None:
    path = tmp_path / "results" / "ladder.json"
    ladder_rows.write(path, RUN, [row("nccl", 80.1234567e-6, error=float("inf"))])
    (found,) = json.loads(path.read_text())["rows"]
    assert found["min_s"] == 8.01235e-05
    assert found["error"] is None
    assert not list(path.parent.glob("*.partial"))


# --- the ladder


def test_rungs_lead_from_the_document_up_by_small_changes() -> None:
    seen: dict[str, dict] = {}
    for rung in ladder.RUNGS:
        assert rung.name not in seen
        if rung.after is None:
            assert rung.name == "document"
        else:
            before = seen[rung.after]
            changed = {k for k in {**before, **rung.settings}
                       if before.get(k) != rung.settings.get(k)}  # fmt: skip
            assert 1 <= len(changed) <= 2, (rung.name, changed)
            assert rung.removes
        seen[rung.name] = rung.settings


@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.name)
def test_rungs_are_settings_the_trainer_knows(rung: ladder.Rung) -> None:
    for math in rung.maths:
        config = ladder.Cell(512, 3000, math).config(rung.settings)
        assert config.math == rung.settings.get("math", "tf32" if math == "tf32" else "ieee")
        assert (config.hidden_size, config.batch_size) == (512, 3000)


def test_the_command_line_names_cells_and_leaves_out() -> None:
    found = main.parse(["--sizes", "64:3200", "512:3000", "--leave-out", "document", "graph"])
    assert [str(cell) for cell in found.cells] == [
        "H=64 B=3200 fp32", "H=64 B=3200 tf32", "H=512 B=3000 fp32", "H=512 B=3000 tf32",
    ]  # fmt: skip
    assert "document" not in found.rungs
    assert "graph" not in found.peers
    assert "naive gemm" not in [rung.name for _, rung in found.cells[0].rungs]
    assert "naive gemm" in [rung.name for _, rung in found.cells[2].rungs]
    assert main.command(2, ["--out", "x/y.json", "--rungs", "naive gemm"]) == (
        "mpirun -n 2 python -m benchmarks.ladder --rungs 'naive gemm'"
    )


# --- the floor


def ceilings(ranks: int = 2) -> ladder_floor.Ceilings:
    """As measured on two H200s."""
    comm = Communicator()
    comm.size = ranks
    return ladder_floor.Ceilings(
        gemm_flops={"fp32": 50e12, "tf32": 392e12}, copy_bytes_per_s=4.18e12, launch_s=1e-6,
        allreduce_s={1_628_200: 26e-6, 64: 12e-6, 120_000: 14e-6}, comm=comm,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("math", "gemm_us", "exposed_us"), [("fp32", 49.1, 12), ("tf32", 6.26, 22.93)]
)
def test_floor_of_the_document_s_size(math: str, gemm_us: float, exposed_us: float) -> None:
    """By hand, B' = 1500: large 2 784 512 1500 = 1.204224e9, thin 15.36e6; FLOPs 2.454528e9.

    Element-wise 4 (5 512 1500 + 3 10 1500 + 3 407050) = 20,424,600 bytes. The last product takes
    24.1 µs in fp32, which leaves an empty all-reduce, and 3.07 µs in TF32.
    """
    sizes = ladder_floor.Sizes.of(ladder.Cell(512, 3000, math), 2, "data")
    assert (sizes.images, sizes.parameters) == (1500, 407_050)
    assert sizes.elementwise_bytes == 20_424_600
    found = ladder_floor.terms(sizes, ceilings(), math, "data", 2, sizes.images)
    assert found["gemm_s"] * 1e6 == pytest.approx(gemm_us, rel=1e-3)
    assert found["allreduce_s"] * 1e6 == pytest.approx(exposed_us, rel=1e-3)
    assert found["elementwise_s"] * 1e6 == pytest.approx(4.886, rel=1e-3)
    assert found["launch_s"] * 1e6 == pytest.approx(5)


@pytest.mark.parametrize("name", ["ladder.json", "scaling_8.json"])
def test_a_cpu_writes_none_of_the_recorded_results(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder_check, "Clock", lambda *_: SimpleNamespace(say=print))
    monkeypatch.setitem(sys.modules, "benchmarks.ladder.torch_peers", None)
    monkeypatch.setattr(choice, "choose", lambda *_: SimpleNamespace(on_device=False))
    for out in (RESULTS / name, os.path.relpath(RESULTS / name)):
        options = main.parse(["--out", str(out)])
        with pytest.raises(SystemExit, match="expected a GPU; got none"):
            main.run(options, Communicator())


def test_floor_of_one_rank_and_of_model_parallelism() -> None:
    cell = ladder.Cell(512, 3000, "fp32")
    alone = ladder_floor.Sizes.of(cell, 1, "data")
    assert ladder_floor.terms(alone, ceilings(1), "fp32", "data", 1, 3000)["allreduce_s"] == 0
    shared = ladder_floor.Sizes.of(cell, 2, "model")
    assert (shared.images, shared.hidden, shared.parameters) == (3000, 256, 256 * 795 + 10)
    found = ladder_floor.terms(shared, ceilings(), "fp32", "model", 2, shared.images)
    assert found["allreduce_s"] == 14e-6, "C B b = 120,000 bytes, hidden behind nothing"
    data = ladder_floor.terms(
        ladder_floor.Sizes.of(cell, 2, "data"), ceilings(), "fp32", "data", 2, 1500
    )
    assert found["gemm_s"] == pytest.approx(data["gemm_s"]), "the same FLOPs, cut the other way"


def test_a_short_last_batch_counts_with_the_others() -> None:
    """60000 images in batches of 3200: 18 and one of 2400."""
    sizes = ladder_floor.Sizes.of(ladder.Cell(64, 3200, "fp32"), 2, "data")
    assert sizes.images == pytest.approx(60000 / 19 / 2)


# --- the check


def test_the_reference_is_the_sequential_trainer() -> None:
    config = SMALL.config({"test_size": 10, "dtype": "float64"})
    data = synthetic(config)
    reference = ladder_check.Reference.compute(config, data, Communicator())
    assert reference.steps == 5
    wanted = sequential(config, data, parameters=reference.initial).parameters
    found = ladder_check._train(
        config, data, ladder_check.Split(200, 60), reference.initial, reference.steps - 1
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


@pytest.fixture(scope="module")
def reference() -> ladder_check.Reference:
    """The small configuration in single precision."""
    config = SMALL.config({"test_size": 10})
    return ladder_check.Reference.compute(config, synthetic(config), Communicator())


def test_the_error_is_relative_to_the_way_gone(reference: ladder_check.Reference) -> None:
    assert reference.error(reference.final) == 0
    assert reference.error(reference.initial) == pytest.approx(1)
    broken = reference.final.copy()
    broken[0] = np.nan
    assert reference.error(broken) == float("inf")
    assert replace(reference, final=None).error(reference.initial) is None


def test_the_bounds_see_forgotten_regularization(reference: ladder_check.Reference) -> None:
    config = SMALL.config({"test_size": 10, "regularization": 0.0})
    wrong = ladder_check.Reference.compute(config, synthetic(config), Communicator())
    assert reference.error(wrong.final) > ladder_check.BOUNDS["fp32"]
    right = reference.final.astype(np.float32)
    assert reference.error(right) < ladder_check.BOUNDS["fp32"] / 10


# --- peers


@pytest.mark.parametrize(
    "name", ["ddp_eager", "graph", "graph_manual", "graph_branches", "graph_overlap"]
)
def test_peers_compute_what_the_trainer_does(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from benchmarks.ladder import torch_graphs, torch_peers

    torch.set_num_threads(1)
    config = SMALL.config({"test_size": 10})
    data, comm = synthetic(config), Communicator()
    reference = ladder_check.Reference.compute(config, data, comm)
    problem = torch_peers.Problem.make(
        config, data, reference.initial, comm, torch_peers.join(comm)
    )
    peer = torch_graphs.kinds()[name].make(problem, "fp32")
    peer.prepare()
    assert reference.error(peer.parameters()) == pytest.approx(1), "prepared, but not trained"
    peer.run_batches(2)
    peer.run_batches(reference.steps - 2)
    peer.synchronize()
    assert reference.error(peer.parameters()) < ladder_check.BOUNDS["fp32"]
    peer.close()


def _gpus() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


@pytest.mark.slow
@pytest.mark.mpi
def test_two_ranks_time_what_they_can_and_say_why_not_the_rest(tmp_path: Path) -> None:
    if _gpus() == 1:
        pytest.skip("one GPU: NCCL takes no two ranks on it; needs none or two")
    out = tmp_path / "ladder.json"
    flags = ["--out", str(out), "--sizes", "16:60", "--images", "200", "--maths", "fp32",
             "--rounds", "5", "--visit-ms", "1", "--least", "2", "--peers", "graph_manual",
             "--rungs", "document", "resident", "cuda-aware", "fused alone",
             "model host"]  # fmt: skip
    done = subprocess.run(
        mpirun_command(2, "-m", "benchmarks.ladder", *flags),
        capture_output=True, text=True, timeout=120, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    rows = {r["rung"]: r for r in record["rows"]}
    for name in ("document", "resident", "model host"):
        assert rows[name]["valid"], rows[name]
        assert rows[name]["error"] < ladder_check.BOUNDS["fp32"]
        assert rows[name]["rounds"] == 5
        assert len(rows[name]["round_s"]) == 5
        assert rows[name]["min_s"] <= rows[name]["median_s"] <= rows[name]["max_s"]
    assert rows["fused alone"]["reason"] == "expected one rank"
    assert "CUDA" in rows["cuda-aware"]["reason"] or "GPU" in rows["cuda-aware"]["reason"]
    assert rows["cuda-aware"]["median_s"] is None
    peer = rows["torch graph_manual"]
    assert peer["valid"] or peer["reason"] == "expected the package torch; got none"
    (run,) = record["runs"].values()
    if peer["valid"]:  # n = 16 (784 + 11) + 10 elements, C B of model parallelism, and an empty one
        assert {"64", "50920", "2000"} <= set(run["ceilings"]["allreduce_s"])
    assert str(tmp_path) not in out.read_text()
    assert ladder_report.markdown(record)


# --- the document


def record() -> dict:
    rows = [
        row("document", 2e-3),
        row("nccl", 96e-6, place=8),
        row("graph", 80e-6, place=10),
        row("cuda-aware", None, place=7, valid=False, error=None, reason="MPI has no CUDA"),
        row("fused", 50e-6, place=17, valid=False, error=0.1, reason="parameters differ"),
        row("torch graph", 100e-6, kind="peer"),
        row("torch ddp_eager", 300e-6, kind="peer", place=1),
    ]
    return ladder_rows.merge({}, RUN, rows)


def test_the_document_says_what_the_rows_say() -> None:
    text = ladder_report.markdown(record())
    assert "GPUs: 1 faster." in text
    line = "| 2 | 512 | 3000 | fp32 | 2060 | graph 82.4 | graph 103 | 0.80 [0.74, 0.86] | 0.80 "
    assert line + "| faster | 60.0 | 1.37 | 1 |" in text, "an invalid rung is not the best"
    # the rung before was not timed here: the nearest one below it is named
    assert "| fp32 | document 2060 | 98.9 | 20.8 | 0.96 [0.54, 1.70] | 1.65 | +38.9 |" in text
    assert "| 512 | 3000 | fp32 | 98.9 | 82.4 | 1.20 | 0.80 [0.74, 0.86] | 1.37 | +22.4 |" in text
    assert "- not timed: `MPI has no CUDA` (H = 512, B = 3000, fp32)" in text
    assert "- invalid: `parameters differ` (H = 512, B = 3000, fp32)" in text
    # 60 µs of cuBLAS at these shapes, 40 at the best rate: 20 of the 22.4 above the floor
    assert "| +22.4 | +20.0 | +2.4 |" in text
    split = ladder_rows.merge(record(), RUN, [row("fused x3", 40e-6, place=18)])
    assert "| fused x3 41.2 | -18.8 |  |  |" in ladder_report.markdown(split), "not cuBLAS's"
    assert ladder_report.markdown(json.loads(json.dumps(record()))) == text


def test_the_register_kernel_s_row_says_what_wide_loads_gain_and_what_they_do_not() -> None:
    steps, gemm = (results.read(RESULTS / f"{name}.json") for name in ("gemm_steps", "gemm"))
    slow = ladder_rows.merge(record(), RUN, [row("register gemm", 90e-6, place=12)])
    section = ladder_report.markdown(slow, gemm, steps=steps).split("### register gemm")[1]
    section = section.partition("\n## ")[0].partition("\n### ")[0]
    assert "touches 26.4 sectors (tiled: 4.00)" in section
    assert "| backward GEMM 3, 2048 x 784 x 6000, NN | 3140 | 2197 | 1308 |" in section
    alone = {
        line.split(",")[0].removeprefix("| "): [float(n) for n in line.split("|")[2:4]]
        for line in section.splitlines() if " x 1500" in line or " 512 x 784 x 1500" in line
    }  # fmt: skip
    assert {name for name, (tiled, register) in alone.items() if register < tiled} == {
        "forward GEMM 1", "backward GEMM 3"
    }, "those with ten rows or columns are slower by registers"  # fmt: skip
    assert len(alone) == 5
    assert "16 bytes at a time" not in ladder_report.markdown(record(), gemm, steps=steps)


def test_rows_of_a_changed_kernel_take_the_place_of_their_earlier_launches() -> None:
    record, again = launched(80e-6, 90e-6), launched(70e-6)
    other = {**again["rows"][0], "rung": "graph"}
    again["rows"].append(other)
    kept, (only,) = ladder_join.replaced(record, [again], ["nccl"])
    assert [row["rung"] for row in only["rows"]] == ["nccl"]
    joined = ladder_join.join(kept, only)
    assert [row["median_s"] for row in joined["rows"]] == [70e-6]
    same, _ = ladder_join.replaced(record, [again], ["graph"])
    assert same["rows"] == record["rows"], "what the files do not time stays"


def test_products_alone_show_our_fastest_kernel_beside_cublas() -> None:
    about = {"what": "forward GEMM 2", "H": 512, "B_per_rank": 1500, "dtype": "tf32"}
    rows = [
        {**about, "kernel": kernel, "median_s": seconds, "floor_s": 2e-6}
        for kernel, seconds in (("cublas", 20e-6), ("naive", 50e-6), ("thin", 5e-6))
    ]
    rows.append({**rows[0], "what": "square", "n": 512, "kernel": "cublas"})
    text = ladder_report.products({"device": "GPU", "rows": rows})
    assert "| 512 | 1500 | TF32 | forward GEMM 2 | 20.0 | thin 5.00 | 4.00 | 2.50 |" in text
    assert text.count("\n| ") == 2, "one head and one row: cuBLAS alone is no row"
    assert ladder_report.products(None) == ""


def test_a_target_is_met_only_by_the_whole_interval_and_by_every_product() -> None:
    inside = {"ratio": 0.58, "ratio_low": 0.57, "ratio_high": 0.59}
    ends = {**inside, "ratio_high": 0.61}
    for row_, met in ((inside, "yes"), (ends, "**no**")):
        text = ladder_targets.targets({(2, 512, 3000, "fp32"): row_}, None)
        assert f"over PyTorch | ≤ 0.60 | 0.58 [0.57, {row_['ratio_high']}] | {met} |" in text
    about = {"kernel": "thin", "dtype": "float32", "H": 64, "B_per_rank": 100}
    rows = [
        {**about, "what": what, "median_s": 1.0, "peer_median_s": s, "share_of_cublas": s}
        for what, s in (("forward GEMM 2", 3.0), ("backward GEMM 1", 1.5))
    ]
    text = ladder_targets.targets({}, {"rows": rows})
    assert "| ≥ 2.00 | 1.50 to 3.00, together 2.25 | 1 of 2 |" in text
    assert ladder_targets.targets({}, None) == ladder_targets.sweep(None) == ""


def test_the_sweep_of_tiles_is_told_with_and_without_a_reader() -> None:
    seconds = {"cublas": 24e-6, "thin": 16e-6}
    outer = {"thin_outer STREAM=0": 16e-6, "thin_outer STREAM=1": 14e-6}
    read = {f"{name}, and a reader": 60e-6 + s for name, s in {**seconds, **outer}.items()}
    read["thin_outer STREAM=1, and a reader"] = 79e-6
    products = {
        "forward GEMM 2": {**seconds, "thin LANES=4": 17e-6},
        "backward GEMM 1": {**seconds, **outer, **read},
        "backward GEMM 2": seconds,
    }
    rows = [
        {"what": w, "H": 2048, "B_per_rank": 6000, "kernel": k, "median_s": s}
        for w, by_kernel in products.items() for k, s in by_kernel.items()
    ]  # fmt: skip
    text = " ".join(ladder_targets.sweep({"rows": rows}).split())
    assert "the best of 3 other tiles would save 12 % of a GEMM's time at most" in text
    assert "writes 49 MB: 10.2 µs" in text
    assert "twice cuBLAS's speed would be 12.0 µs" in text
    assert "2.00 µs faster alone" in text
    assert "3.00 µs slower" in text


def test_a_difference_is_claimed_only_beyond_the_interval() -> None:
    known = {"ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.01}
    assert ladder_report.verdict(known) == "no difference seen"
    assert ladder_report.verdict({**known, "ratio_high": 0.99}) == "faster"
    assert ladder_report.verdict({"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3}) == "slower"


def test_transports_of_gpu_pointers_have_a_table_of_their_own() -> None:
    about = {"what": "batch", "H": 64, "p": 2, "bits_equal": True, "max_relative_error": 0.0}
    rows = [
        {**about, "transport": name, "launch": n, "median_s": s}
        for name, each in (("host-flat", (200e-6, 220e-6)), ("cuda-aware", (300e-6, 330e-6)))
        for n, s in enumerate(each, 1)
    ]
    record = {"command": "mpirun ...", "versions": {"mpi": "Open MPI"}, "rows": rows}
    lines = ladder_targets.cuda_aware(record).splitlines()
    assert "| `cuda-aware` | 315 (300 to 330) | the same bits |" in lines
    assert ladder_targets.cuda_aware(None) == ""


def test_text_and_picture_are_about_two_ranks_if_they_can(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    found = ladder_report.cells(record())
    assert ladder_report.main_ranks(found) == 2
    assert ladder_report.main_ranks({(1, 0, 0, ""): {}, (4, 0, 0, ""): {}, (8, 0, 0, ""): {}}) == 4
    assert ladder_report.main_ranks({(1, 0, 0, ""): {}}) == 1
    ladder_report.draw(found, 2, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_docs_show_the_committed_results() -> None:
    committed = results.read(RESULTS / "ladder.json")
    document = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
    compared = ladder_report.profiles(PROFILES / "ladder")
    gemm, tiles, aware, steps = (
        results.read(RESULTS / f"{n}.json")
        for n in ("gemm", "thin_sweep", "cuda_aware", "gemm_steps")
    )
    made = pages.shorten(
        ladder_report.markdown(committed, gemm, compared, tiles, aware, steps),
        ROOT / "docs" / "ladder.md", ladder_report.SHOWN,
    )  # fmt: skip
    assert document == made.text, "run: python -m benchmarks.ladder.report"
    assert len(made.files) == len(ladder_report.SHOWN)
    assert made.differing() == []
    assert (ROOT / "docs" / "images" / "ladder.png").exists()
    for found in committed["rows"]:
        assert found["median_s"] is not None or found["reason"], found["rung"]
        if found["ratio"] is not None:
            assert found["valid"]
            assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
            assert found["floor_s"] == pytest.approx(sum(found["floor"].values()), rel=1e-4)
            assert (
                statistics.median([found["min_s"], found["median_s"], found["max_s"]])
                == (found["median_s"])
            )
