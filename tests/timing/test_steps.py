"""Steps of any program: found by ranges, by the sequence of operations, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.arrays import Int64
from perfmodel.base.errors import SchemaError
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.ranges import name_of
from perfmodel.readers import read
from perfmodel.readers.nvtx import parse
from perfmodel.readers.trace import NULL
from perfmodel.readers.trace import rows as select
from perfmodel.timing.candidates import find_steps
from perfmodel.timing.evidence import chain, evidence, score
from perfmodel.timing.intervals import covered, lengths, union
from perfmodel.timing.loops import Operations, find_loops
from perfmodel.timing.spans import Steps, pattern_of
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000


def launch(thread: Thread, name: str, at: int, start: int, end: int) -> None:
    """A kernel from `start` to `end` ms that was launched at `at` ms."""
    thread.kernel(name, (at * MS, at * MS + 1000), (start * MS, end * MS))


def found(builder: ReportBuilder, tmp_path: Path, asked: str | None = None) -> Steps:
    return find_steps(read(builder.write(tmp_path / "r.sqlite")), asked)


def steps_of(names: list[str], *, inner: str = "forward") -> ReportBuilder:
    """One step of 10 ms per name, with a range inside and a kernel from another thread."""
    builder = ReportBuilder()
    main, autograd = builder.thread(), builder.thread(tid=101)
    builder.gpu()
    for i, name in enumerate(names):
        at = 10 * i
        main.range(name, at * MS, (at + 9) * MS)
        main.range(inner, (at + 1) * MS, (at + 3) * MS)
        launch(main, "forward_kernel", at + 1, at + 2, at + 4)
        launch(autograd, "backward_kernel", at + 5, at + 5, at + 8)
    return builder


@pytest.mark.parametrize(
    ("names", "label"),
    [
        ([f"step {i}" for i in range(4)], "step *"),
        ([f"iteration/{i}" for i in range(4)], "iteration/*"),
        ([f"ProfilerStep#{i}" for i in range(4)], "ProfilerStep#*"),
        (["train_step"] * 4, "train_step"),
        ([f"Iteration {i}" for i in range(9, 13)], "Iteration *"),
        (["huit"] * 4, "huit"),
    ],
)
def test_ranges_that_differ_in_digits_only_are_steps(
    names: list[str], label: str, tmp_path: Path
) -> None:
    steps = found(steps_of(names), tmp_path)
    assert (steps.label, steps.found_by, steps.confidence) == (label, "declared", 1.0)
    assert steps.number.tolist() == [0, 1, 2, 3]


def test_a_step_is_preferred_to_what_holds_it_and_to_what_it_holds(tmp_path: Path) -> None:
    builder = steps_of([f"step {i}" for i in range(8)])
    thread = builder.threads[0]
    thread.range("epoch 0", 0, 40 * MS - 1)
    thread.range("epoch 1", 40 * MS, 80 * MS)
    assert found(builder, tmp_path).label == "step *"


def test_an_operation_belongs_to_the_step_in_which_its_process_launched_it(tmp_path: Path) -> None:
    steps = found(steps_of(["step"] * 3), tmp_path)
    process = np.zeros(4, np.int32)
    at = np.array([5, 15, 29, 9.5]) * MS
    assert steps.holding(process, at.astype(np.int64)).tolist() == [0, 1, 2, -1]


def test_a_step_without_a_range_is_warned_of(tmp_path: Path) -> None:
    """Its work counts as the step's before it; other steps keep their times."""
    names = [f"step {i}" for i in range(8)]
    whole = analyze_reports([steps_of(names).write(tmp_path / "w.sqlite")], Options()).fitted
    assert not [w for w in whole.warnings if "is in no step" in w]
    builder = steps_of(["", *names[1:5], "evaluation", *names[6:]])
    found = analyze_reports([builder.write(tmp_path / "m.sqlite")], Options()).fitted
    (said,) = [w for w in found.warnings if "is in no step" in w]
    assert "rank 0: after step 3 ('step *') 1.0 steps' time" in said
    assert found.steps is not None
    assert whole.steps is not None
    assert found.run_steps.step_s == whole.run_steps.step_s


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("", "no operation is launched there"),
        ("fbo", "all operations of a step are launched there"),
        ("fb", "but not all of them, as where an optimizer's step is skipped"),
        ("fff", "none by one of its threads (in PyTorch: no backward pass), as in an evaluation"),
        ("ee", "other operations than a step's are launched there"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_pause_is_warned_of_with_what_is_known_of_it(
    between: str, said: str, named: bool, tmp_path: Path
) -> None:
    """Steps launch a forward pass (f), a backward pass (b) on another thread, an optimizer (o)."""
    builder = ReportBuilder()
    builder.gpu()
    main, other = builder.thread(), builder.thread(tid=500)
    at = 0
    for step in range(12):
        for i, part in enumerate("fbo" + (between or " ") * 2 * (step == 7)):
            for k in range(3 * (part != " ")):
                launch(other if part == "b" else main, f"{part}{k}", at, at, at + 1)
                at += 1
            at += 40 * (part == " ")
            if i == 2 and named:
                main.range(f"step {step}", (at - 9) * MS, at * MS - 1)
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    warned = [w for w in run.warnings if "is in no step" in w]
    if not named and between in ("", "fbo"):  # then the sequence repeats without a pause
        assert not warned
    else:
        (text,) = warned
        assert said in text


def test_parts_of_a_step_give_way_to_the_sequence_of_kernels(tmp_path: Path) -> None:
    """`backward` holds 3 of a step's 5 ms of work, the period of the kernels everything."""
    builder = ReportBuilder()
    main = builder.thread()
    builder.gpu()
    for i in range(5):
        at = 10 * i
        main.range("backward", (at + 4) * MS, (at + 9) * MS)
        launch(main, "forward_kernel", at + 1, at + 2, at + 4)
        launch(main, "backward_kernel", at + 5, at + 5, at + 8)
    steps = found(builder, tmp_path)
    assert steps.found_by == "found"
    assert len(steps) == 5
    assert steps.confidence == pytest.approx(1.0)


def repetitions_of(ops: Operations) -> tuple[Int64, Int64] | None:
    """Where the repetitions of the likeliest level begin, and what comes after each."""
    loops = find_loops(ops.codes)
    until = np.concatenate([[0], np.cumsum(ops.spent_ns)])
    likely = chain([score(evidence(ops, loop, until).features) for loop in loops])
    best = int(np.argmax(likely))
    return (loops[best].first, loops[best].after) if best < len(loops) else None


def _repetitions(codes: Int64) -> tuple[Int64, Int64] | None:
    return repetitions_of(Operations.of(codes))


def test_what_does_not_repeat_is_one_step(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    for i in range(6):
        launch(thread, f"kernel_{i}", i, i, i + 1)
    steps = found(builder, tmp_path)
    assert (steps.found_by, len(steps)) == ("whole", 1)


def test_mpi_calls_repeat_where_there_is_no_gpu_and_no_range(tmp_path: Path) -> None:
    builder = ReportBuilder()
    for rank in range(2):
        thread = builder.thread(pid=100 + rank, rank=rank)
        for step in range(6):
            at = 10 * step * MS
            thread.mpi("MPI_Allreduce", at, at + MS, 8000)
            thread.mpi("MPI_Barrier", at + 5 * MS, at + 6 * MS)
    steps = found(builder, tmp_path)
    assert steps.found_by == "found"
    assert np.bincount(steps.process).tolist() == [5, 5]  # the last has no end


def test_a_range_with_little_work_is_refused_with_the_better_one_named(tmp_path: Path) -> None:
    builder = steps_of([f"step {i}" for i in range(4)], inner="idle")
    thread = builder.threads[0]
    for i in range(4):
        thread.range("log", (10 * i + 4) * MS, (10 * i + 4) * MS + 1000)
    with pytest.raises(SchemaError, match=r"most of the work is in ranges called 'step \*'"):
        found(builder, tmp_path, "log")
    with pytest.raises(SchemaError, match="expected ranges called 'nosuch'"):
        found(builder, tmp_path, "nosuch")


@pytest.mark.parametrize("asked", ["step *", "step [0-3]", r"/^step \d$/", "/step/"])
def test_a_range_is_asked_for_by_name_glob_or_expression(asked: str, tmp_path: Path) -> None:
    steps = found(steps_of([f"step {i}" for i in range(4)]), tmp_path, asked)
    assert len(steps) == 4


def _operations(codes: list[int], *marked: set[int]) -> Operations:
    every = np.array(codes, np.int64)
    marks = (np.isin(every, list(kinds)) for kinds in marked)
    return Operations(every, np.ones(len(every), np.int64), *marks)


def test_time_steps_of_varying_iterations_are_steps() -> None:
    """Iterations of many operations, of which the host reads a residual."""
    rng = np.random.default_rng(0)
    iteration = [0, 1, 2, 9, 3, 4, 1, 2, 9, 5]
    steps = [[*range(10, 15), *iteration * n] for n in rng.integers(20, 60, 40).tolist()]
    found = repetitions_of(_operations(list(np.concatenate(steps)), {8}, {9}, set()))
    assert found is not None
    assert len(found[0]) == 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_unnamed", "bert_shapes", "gpt_ddp8", "llama_shapes"])
def test_layers_of_one_recorded_step_are_no_steps(name: str) -> None:
    trace = read(PROGRAMS / f"{name}.sqlite.xz")
    trace = replace(trace, ranges=select(trace.ranges, np.empty(0, np.int64)))
    steps = find_steps(trace)
    assert steps.found_by == "found"
    mine = trace.thread_process[trace.api.thread] == 0
    first, second = np.sort(steps.start_ns[steps.process == 0])[:2]
    inside = mine & (trace.api.start_ns >= first) & (trace.api.start_ns < second)
    one = replace(trace, api=select(trace.api, np.flatnonzero(inside)))
    found = find_steps(one)
    assert (found.found_by, len(found)) == ("whole", 1)


def test_steps_after_autotuning_are_found_by_their_ranges(tmp_path: Path) -> None:
    """Kernels that are tried first take most of the GPU's time."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(40):
        launch(thread, f"try {k * k % 17}", 10 * k, 10 * k, 10 * k + 9)
    for k in range(12):
        at = 400 + 10 * k
        thread.range("jit_step", at * MS, (at + 2) * MS)
        launch(thread, "forward", at, at + 1, at + 3)
        launch(thread, "backward", at + 1, at + 3, at + 6)
    steps = found(builder, tmp_path)
    assert (steps.found_by, len(steps)) == ("declared", 12)
    assert (steps.start_ns >= 400 * MS).all()


def test_names_lose_their_digits_and_operators_their_sizes() -> None:
    assert pattern_of("step 12 of 30") == "step * of *"
    assert name_of("aten::mm, seq = 3, op_id = 5, sizes = [[2, 3], [3, 4]]") == "aten::mm"


# --- intervals

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), max_size=30)


@given(spans)
def test_a_union_covers_every_moment_once(drawn: list[tuple[int, int, int]]) -> None:
    group, start, length = (np.array(c, np.int64) for c in zip(*drawn, strict=True)) if drawn else (
        np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))  # fmt: skip
    moments = [
        {t for g, s, n in drawn if g == which for t in range(s, s + n)} for which in range(3)
    ]
    assert lengths(group, start, start + length, 3).tolist() == [len(m) for m in moments]
    merged = union(group, start, start + length)
    for which in range(3):
        cover = covered(np.array([which]), np.array([10]), np.array([30]), merged)
        assert cover.tolist() == [len(moments[which] & set(range(10, 30)))]


# --- payloads


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '{"Message size [bytes]":4}', '{"NCCL communicator ID":1' + "[" * 5000],
)
def test_what_is_no_payload_of_nccl_is_left_out(text: str) -> None:
    assert parse(text) is None


def test_payloads_keep_64_bits_and_refuse_what_does_not_fit() -> None:
    assert parse('{"NCCL communicator ID":18446744073709551615}') == (-1, NULL)
    text = '{"NCCL communicator ID":3,"Message size [bytes]":%d}'
    assert [parse(text % size) for size in (2**48, 2**48 + 1)] == [(3, 2**48), (3, NULL)]
    text = '{"NCCL communicator ID":-3,"Message size [bytes]":1e9}'
    assert parse(text) == (NULL, NULL)


# --- NCCL

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
UTC = 1_700_000_000_000_000_000


def rank_report(path: Path, rank: int, *, late_ms: int, shift_ms: int = 0) -> Path:
    """Five steps of 20 ms of one rank that comes `late_ms` to its all-reduce of 4 MB.

    The report's own clock starts `shift_ms` after the other's.
    """
    builder = ReportBuilder("2025.3.2", utc_start_ns=UTC + shift_ms * MS)
    thread = builder.thread(pid=100 + rank)
    builder.gpu()
    said = json.dumps({"NCCL communicator ID": 2**63 + 5, "Message size [bytes]": 4_000_000})
    for step in range(5):
        at = (20 * step + 1) * MS - shift_ms * MS + 50 * MS
        thread.range("step", at, at + 18 * MS)
        thread.kernel("work", (at, at + 1000), (at, at + 5 * MS), device=rank)
        thread.range("ncclAllReduce", at + 100, at + 9000, domain="NCCL", jsonText=said)
        gpu = (at + late_ms * MS, at + 9 * MS)
        thread.kernel(KERNEL, (at + 200, at + 900), gpu, device=rank, stream=20)
    return builder.write(path)


def test_reports_of_single_ranks_are_one_run_by_nccl_s_communicator(tmp_path: Path) -> None:
    paths = [
        rank_report(tmp_path / "rank0.sqlite", 0, late_ms=3),
        rank_report(tmp_path / "rank1.sqlite", 1, late_ms=7, shift_ms=30),
    ]
    run = analyze_reports(paths, Options()).fitted
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [rank.gpu for rank in run.ranks] == [0, 1]
    (group,) = run.collectives
    assert (group.name, group.library, group.algorithm) == ("NCCL AllReduce", "nccl", "RING_LL")
    assert (group.bytes, group.ranks, group.communicator) == (4_000_000, 2, 2**63 + 5)
    assert group.seconds == pytest.approx((6e-3 + 2e-3) / 2)
    assert group.transfer_s == pytest.approx(2e-3)
    assert group.waiting_s == pytest.approx(2e-3)
    assert group.bus_bytes_per_s == pytest.approx(4_000_000 / 2e-3)
    assert [rank.waiting_s for rank in run.ranks] == pytest.approx([4e-3, 0.0])
    assert [rank.collectives_s for rank in run.ranks] == pytest.approx([6e-3, 2e-3])
    assert [rank.communication_s for rank in run.ranks] == pytest.approx([0.0, 2e-3], abs=1e-9)
    assert [rank.idle_s for rank in run.ranks] == pytest.approx([11e-3, 13e-3])


def test_one_rank_of_two_cannot_tell_waiting_from_transfer(tmp_path: Path) -> None:
    run = analyze_reports([rank_report(tmp_path / "r.sqlite", 0, late_ms=3)], Options()).fitted
    assert run.ranks[0].waiting_s is None
    assert run.collectives[0].transfer_s is None
