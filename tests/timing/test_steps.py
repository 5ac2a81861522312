"""Steps of any program: found by ranges, by the sequence of operations, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.summary import what_ran
from perfmodel.timing.intervals import covered, lengths, union
from perfmodel.timing.period import Operations, pattern_of, repetitions_of
from perfmodel.timing.steps import Steps, find_steps
from support.build_report import ReportBuilder
from support.build_thread import Thread

GOLDEN = Path(__file__).parents[1] / "golden" / "programs"
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
    assert (steps.label, steps.found_by, steps.confidence) == (label, "range", 1.0)
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
    assert found.steps.median_s == whole.steps.median_s


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


def test_without_ranges_the_sequence_of_kernels_repeats(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    for i in range(3):  # set-up
        launch(thread, f"setup_{i}", i, i, i + 1)
    for step in range(5):
        for k, name in enumerate(["a", "b", "a", "c"]):
            at = 10 + 10 * step + 2 * k
            launch(thread, name, at, at, at + 1)
    steps = found(builder, tmp_path)
    assert steps.found_by == "kernels"
    assert (steps.start_ns // MS).tolist() == [10, 20, 30, 40, 50]


def test_a_step_of_equal_iterations_says_how_many(tmp_path: Path) -> None:
    """A solver that checks its residual in every tenth iteration."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for i in range(60):
        launch(thread, "update", 10 * i, 10 * i, 10 * i + 5)
        launch(thread, "exchange", 10 * i + 5, 10 * i + 5, 10 * i + 6)
        if i % 10 == 9:
            launch(thread, "residual", 10 * i + 7, 10 * i + 7, 10 * i + 8)
    path = builder.write(tmp_path / "r.sqlite")
    steps = find_steps(read(path))
    assert (steps.found_by, len(steps), steps.inner) == ("kernels", 6, 10)
    said = list(what_ran(analyze_reports([path], Options()).fitted))
    assert any("each of which repeats a shorter one 10 times" in line for line in said)


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
    assert steps.found_by == "kernels"
    assert len(steps) == 5
    assert steps.confidence == pytest.approx(1.0)


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
    assert steps.found_by == "kernels"
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


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(3, 8),
    st.lists(st.integers(6, 9), max_size=5),
)  # fmt: skip
def test_a_repeated_sequence_has_a_period_that_repeats(
    pattern: list[int], repeats: int, setup: list[int]
) -> None:
    codes = np.array(setup + pattern * repeats, np.int64)
    cut = _repetitions(codes)
    assert cut is not None
    first, after = cut
    period = int(after[0] - first[0])
    assert (after - first == period).all()
    assert len(first) >= 3
    assert (np.diff(first) >= period).all()
    inside = codes[first[:, None] + np.arange(period)]
    assert (inside == inside[0]).all()
    assert period * len(first) >= len(pattern) * (repeats - 1)


def test_steps_before_and_after_a_validation_are_steps() -> None:
    train, validate = [0, 1, 2, 3, 4, 5, 2, 6], [0, 1, 7]
    epoch = train * 12 + validate * 3
    found = _repetitions(np.array([8, 8, *epoch * 2], np.int64))
    assert found is not None
    first, after = found
    assert (after - first == len(train)).all()
    assert len(first) == 24
    pauses = np.flatnonzero(np.diff(first) != len(train))
    assert np.diff(first)[pauses].tolist() == [len(train) + 3 * len(validate)]


def _operations(codes: list[int], *marked: set[int]) -> Operations:
    every = np.array(codes, np.int64)
    marks = (np.isin(every, list(kinds)) for kinds in marked)
    return Operations(every, np.ones(len(every), np.int64), *marks)


STEP = [8, 0, 1, 2, 3, 4, 5, 4, 6, 9]  # copies to the GPU are 8, to the host 9


def _of_epochs(epochs: int, rest: list[int]) -> tuple[Int64, Int64]:
    """What is found in epochs of twelve steps and a rest, behind a set-up."""
    codes = [40, 41, *([*STEP * 12, *rest] * epochs)]
    found = repetitions_of(_operations(codes, {8}, {9}, {30, 31, 32, 33}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "rest",
    [
        [8, 0, 1, 2, 3, 20, 21] * 4 + [9, 22],  # an evaluation, and its result
        [9],  # the loss, copied to the host
    ],
)
@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
def test_steps_of_epochs_are_steps(rest: list[int], epochs: int) -> None:
    first, after = _of_epochs(epochs, rest)
    assert set((after - first).tolist()) == {len(STEP)}
    assert 12 * epochs - 1 <= len(first) <= 12 * epochs


@pytest.mark.parametrize(
    "rest",
    [
        [30, 31, 32, 33],  # an optimizer: what repeats are micro-batches
        [*range(20, 28)],  # other work: time steps of a solver that iterates
    ],
)
@pytest.mark.parametrize("epochs", [3, 5])  # less is not told from a set-up
def test_micro_batches_and_iterations_are_no_steps(rest: list[int], epochs: int) -> None:
    first, after = _of_epochs(epochs, rest)
    assert (after - first).tolist() == [len(STEP * 12 + rest)] * epochs


@pytest.mark.parametrize("optimizer", [[0, 3] * 4, [2] * 4, [30, 31] * 4, [20, 21] * 4])
@pytest.mark.parametrize("first", [[8, 0, 1, 2, 3, 4, 5, 4, 6], [8, 0, 1, 2, 3, 4, 6]])
@pytest.mark.parametrize("often", [4, 16, 64])
def test_micro_batches_are_no_steps_whatever_updates_the_parameters(
    optimizer: list[int], first: list[int], often: int
) -> None:
    """Its kernels may be a forward pass's, too; the first batch need not add to gradients."""
    batch = [8, 0, 1, 2, 3, 4, 5, 4, 6]
    step = [*first, *batch * (often - 1), *optimizer]
    found = repetitions_of(_operations(step * 6, {8}, {9}, {30, 31}))
    assert found is not None
    assert len(found[0]) in (5, 6)
    assert (found[1] - found[0] == len(step)).all()


def test_what_a_network_is_trained_for_is_a_part_of_the_step() -> None:
    """Every fifth update of a critic the generator is updated, by an equal optimizer."""
    critic = [8, 0, 1, 2, 3, 4, 5, 6, 7, 30, 31, 9]
    step = [*critic * 5, 0, 1, 2, 3, 10, 11, 30, 31, 9]
    found = repetitions_of(_operations(step * 8, {8}, {9}, {30, 31}))
    assert found is not None
    assert (found[1] - found[0] == len(step)).all()


@pytest.mark.parametrize("others", [[10, 11, 12, 13, 14], [0, 1, 2]])
def test_iterations_that_the_host_checks_are_no_time_steps(others: list[int]) -> None:
    """Conjugate gradients: a residual goes to the host; they may begin with the same kernels."""
    step = [*others, *[0, 1, 2, 9, 3, 4, 1, 2, 9, 5] * 50]
    found = repetitions_of(_operations(step * 10, {8}, {9}, set()))
    assert found is not None
    assert (found[1] - found[0] == len(step)).all()


def test_time_steps_of_varying_iterations_are_steps() -> None:
    """Iterations of many operations, of which the host reads a residual."""
    rng = np.random.default_rng(0)
    iteration = [0, 1, 2, 9, 3, 4, 1, 2, 9, 5]
    steps = [[*range(10, 15), *iteration * n] for n in rng.integers(20, 60, 40).tolist()]
    found = repetitions_of(_operations(list(np.concatenate(steps)), {8}, {9}, set()))
    assert found is not None
    assert len(found[0]) == 40


def test_iterations_of_few_kinds_of_kernels_are_steps() -> None:
    """Of every kind an iteration has several, and rarer ones belong to the set-up."""
    rng = np.random.default_rng(1)
    setup = np.repeat(np.arange(20, 60), 3)
    iteration = [*rng.integers(0, 4, 200), 4]
    codes = np.concatenate([rng.permutation(setup), iteration * 40])
    codes[codes == 4] = 3
    found = _repetitions(codes)
    assert found is not None
    assert len(found[0]) == 40
    assert (found[1] - found[0] == len(iteration)).all()


@pytest.mark.parametrize("name", ["gpt_unnamed", "bert_shapes", "gpt_ddp8", "llama_shapes"])
def test_layers_of_one_recorded_step_are_no_steps(name: str) -> None:
    trace = read(PROGRAMS / f"{name}.sqlite.xz")
    trace = replace(trace, ranges=select(trace.ranges, np.empty(0, np.int64)))
    steps = find_steps(trace)
    assert steps.found_by == "kernels"
    mine = trace.thread_process[trace.api.thread] == 0
    first, second = np.sort(steps.start_ns[steps.process == 0])[:2]
    inside = mine & (trace.api.start_ns >= first) & (trace.api.start_ns < second)
    one = replace(trace, api=select(trace.api, np.flatnonzero(inside)))
    found = find_steps(one)
    assert (found.found_by, len(found)) == ("whole", 1)


def test_layers_that_repeat_within_steps_are_no_steps() -> None:
    forward, backward = [0, 1, 2, 3] * 6, [4, 5, 6, 7, 8] * 6
    step = [9, *forward, 10, 11, *backward, 12, 13]
    assert _repetitions(np.array(step * 2, np.int64)) is None


def test_steps_follow_a_long_setup() -> None:
    setup = np.random.default_rng(0).integers(10, 60, 2000)
    steps = [0, 1, 2, 3] * 12
    found = _repetitions(np.concatenate([setup, steps, [0, 1]]))
    assert found is not None
    assert found[0].tolist() == list(range(2002, 2050, 4))  # until the recording ends
    assert (found[1] - found[0] == 4).all()
    assert _repetitions(np.concatenate([steps, setup])) is None


def test_steps_of_which_the_data_decide_what_they_launch() -> None:
    """Of a mixture of experts every step launches other GEMMs, so many as experts have tokens."""
    rng = np.random.default_rng(0)
    steps = [[0, 1, *rng.integers(10, 20, rng.integers(5, 30)), 2, 3, 4, 5] for _ in range(8)]
    begins = np.cumsum([0, *map(len, steps)])
    found = _repetitions(np.array([7, 7, *np.concatenate(steps)], np.int64))
    assert found is not None
    assert found[0].tolist() == (begins[:-1] + 2).tolist()
    assert found[1][:-1].tolist() == (begins[1:-1] + 2).tolist()
    assert found[1][-1] <= begins[-1] + 2
    shuffled = rng.permutation(np.concatenate(steps))
    assert _repetitions(shuffled) is None


def test_layers_and_batches_of_one_kind_are_no_steps() -> None:
    """What repeats is a part of a step, or every step of one length of several."""
    rng = np.random.default_rng(0)
    layers = [[*range(10), *rng.integers(10, 14, rng.integers(3, 6))] for _ in range(16)]
    one_step = [*np.concatenate(layers), *range(20, 26)]
    assert _repetitions(np.array([*layers[0], *one_step], np.int64)) is None
    two_steps = [*np.concatenate(layers[:8]), *range(20, 26)] * 2
    assert _repetitions(np.array(two_steps, np.int64)) is None
    rng = np.random.default_rng(0)
    steps = [[0, 1, *np.arange(20) + 100 * rng.integers(1, 4), 2] for _ in range(30)]
    assert _repetitions(np.concatenate(steps).astype(np.int64)) is None


def test_iterations_of_time_steps_that_repeat_by_chance_are_steps() -> None:
    """Some time steps in a row have 26 and 24 iterations in turns; one kernel begins each of them.

    An iteration begins with a product, and the host reads both its dot products.
    """
    begin, iteration = [0, 1, 2, 3, 4, 9], [1, 3, 4, 9, 2, 2, 3, 4, 9, 5]
    counts = [*range(20, 27), 26, 24, 26, 24, 26, 24, *range(27, 19, -1)]
    codes = [code for count in counts for code in [*begin, *iteration * count]]
    found = repetitions_of(_operations(codes, set(), {9}, set()))
    assert found is not None
    first, after = found
    assert (after - first).tolist() == [len(iteration)] * sum(counts)


@pytest.mark.parametrize(
    ("inner", "after", "found"), [(3, 5, 40), (1, 5, 40), (2, 2, 40), (2, 1, 0)]
)
def test_a_solver_s_inner_iterations_are_no_steps(inner: int, after: int, found: int) -> None:
    """Every time step iterates until it converges; with one other kernel it is not found."""
    rng = np.random.default_rng(0)
    steps = [
        [*range(inner)] * n + [*range(10, 10 + after)] for n in rng.integers(20, 60, 40).tolist()
    ]
    cut = _repetitions(np.concatenate(steps).astype(np.int64))
    assert (0 if cut is None else len(cut[0])) == found
    if cut is not None:
        lengths = [len(step) for step in steps]
        assert np.diff(cut[0]).tolist() in (lengths[1:], lengths[:-1])


@pytest.mark.parametrize("named", [True, False])
def test_steps_after_autotuning_are_found_by_their_ranges(named: bool, tmp_path: Path) -> None:
    """Kernels that are tried first take most of the GPU's time; unnamed, they may be the step."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(40):
        launch(thread, f"try {k * k % 17}", 10 * k, 10 * k, 10 * k + 9)
    for k in range(12):
        at = 400 + 10 * k
        if named:
            thread.range("jit_step", at * MS, (at + 2) * MS)
        launch(thread, "forward", at, at + 1, at + 3)
        launch(thread, "backward", at + 1, at + 3, at + 6)
    steps = found(builder, tmp_path)
    if not named:
        assert (steps.found_by, len(steps)) == ("whole", 1)
        return
    assert (steps.found_by, len(steps)) == ("range", 12)
    assert (steps.start_ns >= 400 * MS).all()


def test_the_last_part_of_one_step_is_no_step(tmp_path: Path) -> None:
    """An optimizer that launches three kernels for every weight, after forward and backward."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    kernels = [f"gemm_{k * k % 37}" for k in range(60)]
    for i, name in enumerate(kernels):
        launch(thread, name, 10 * i, 10 * i, 10 * i + 9)
    for i in range(120):
        at = 10 * (60 + i)
        launch(thread, ["mul", "add", "addcdiv"][i % 3], at, at, at + 1)
    steps = found(builder, tmp_path)
    assert (steps.found_by, len(steps)) == ("whole", 1)


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


# --- golden results


@pytest.mark.parametrize("name", ["gpt_ddp", "gpt_unnamed"])
def test_golden(name: str) -> None:
    analysis = analyze_reports([PROGRAMS / f"{name}.sqlite.xz"], Options())
    document = analysis_document(analysis)
    keys = ("program", "batch", "ranks", "kernels", "collectives")
    assert_close(
        {key: document[key] for key in keys}, json.loads((GOLDEN / f"{name}.json").read_text())
    )


def assert_close(got: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, dict):
        assert got.keys() >= expected.keys(), path
        for key, value in expected.items():
            assert_close(got[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for i, value in enumerate(expected):
            assert_close(got[i], value, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=1e-9), path
    else:
        assert got == expected, path


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
    assert [rank.communication_s for rank in run.ranks] == pytest.approx([6e-3, 2e-3])
    assert [rank.exposed_communication_s for rank in run.ranks] == pytest.approx([4e-3, 2e-3])
    assert [rank.idle_s for rank in run.ranks] == pytest.approx([11e-3, 13e-3])


def test_one_rank_of_two_cannot_tell_waiting_from_transfer(tmp_path: Path) -> None:
    run = analyze_reports([rank_report(tmp_path / "r.sqlite", 0, late_ms=3)], Options()).fitted
    assert run.ranks[0].waiting_s is None
    assert run.collectives[0].transfer_s is None
