"""Spans: three clocks, operations, bytes and MPI of every range, per rank and batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.common.folders import BASE, ROOT
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, MEMCPY, NULL, MpiCalls, Trace
from perfmodel.timing.range_times import Attribution, RangeTimes, concatenate, time_ranges
from support.build_report import ReportBuilder
from support.foreign_reports import SHARED
from support.timelines import Call, Interval, Op, ints, joined, make_trace, parents

REPORTS = [SHARED, BASE, *sorted((ROOT / "tests" / "reports").glob("*.sqlite"))]
BATCH = "batch iteration"
COLUMNS = ("rank", "batch", "start_ns", "host_ns", "projection_ns", "busy_ns", "ops",
           "copy_bytes", "mpi_bytes", "mpi_ns")  # fmt: skip

bounded = settings(max_examples=100, deadline=None, derandomize=True)


def table(spans: RangeTimes) -> dict[tuple[Any, ...], dict[str, int]]:
    """Rows by path, rank, batch and start."""
    found = {}
    for i in range(len(spans)):
        row = {name: int(getattr(spans, name)[i]) for name in COLUMNS}
        key = (spans.paths[spans.path[i]], row["rank"], row["batch"], row["start_ns"])
        assert key not in found
        found[key] = row
    return found


def by_label(spans: RangeTimes, label: str) -> Any:
    """Positions of the ranges of one label."""
    return np.flatnonzero([spans.paths[p][-1] == label for p in spans.path])


def one_batch(path: Path) -> Path:
    report = ReportBuilder(world_size=2)
    t = report.thread(rank=0)
    t.range(BATCH, 0, 1000)
    t.range("forward", 100, 300)
    t.range("copy", 400, 600)
    t.kernel("a", (110, 120), (200, 260))
    t.kernel("b", (130, 140), (240, 300), stream=8)
    t.kernel("c", (150, 160), (400, 450))
    t.memcpy("h2d", 4000, (410, 500), (450, 490))
    t.memcpy("d2d", 9000, (501, 505), (450, 460))
    t.memset(80, (510, 520), (480, 500))
    t.mpi("MPI_Allreduce", 700, 800, 64)
    t.mpi("MPI_Wait", 900, 1100, source="start-wait")
    t.kernel("after", (1001, 1002), (2000, 3000))
    return report.write(path)


def test_a_hand_worked_batch(tmp_path: Path) -> None:
    spans, found = time_ranges(read(one_batch(tmp_path / "batch.sqlite")), BATCH)
    rows = {path: row for (path, *_), row in table(spans).items()}
    assert {row["rank"] for row in rows.values()} == {0}
    assert {row["batch"] for row in rows.values()} == {0}

    # Kernels a and b overlap in [240, 260], c runs after both: first start 200, last end 450;
    # busy are [200, 300] and [400, 450].
    forward = rows[(BATCH, "forward")]
    assert (forward["host_ns"], forward["projection_ns"], forward["busy_ns"]) == (200, 250, 150)
    assert (forward["ops"], forward["copy_bytes"]) == (3, 0)

    # Two copies and a set in [450, 490], [450, 460], [480, 500]; only the first crosses PCIe.
    copy = rows[(BATCH, "copy")]
    assert (copy["host_ns"], copy["projection_ns"], copy["busy_ns"]) == (200, 50, 50)
    assert (copy["ops"], copy["copy_bytes"]) == (3, 4000)

    # All six: [200, 300] and [400, 500]. The all-reduce lies inside, the wait straddles the end.
    batch = rows[(BATCH,)]
    assert (batch["host_ns"], batch["projection_ns"], batch["busy_ns"]) == (1000, 300, 200)
    assert (batch["ops"], batch["copy_bytes"]) == (6, 4000)
    assert (batch["mpi_ns"], batch["mpi_bytes"]) == (100, 64)
    assert (forward["mpi_ns"], forward["mpi_bytes"]) == (0, 0)

    # The last kernel is launched after the batch.
    assert (found.total, found.unlaunched, found.outside, found.by_time) == (7, 0, 1, 0)
    assert len(found.op) == 6


moment = st.integers(0, 15)
thread = st.integers(0, 2)
span = st.tuples(thread, moment, moment).map(lambda t: Interval(t[0], *sorted(t[1:])))
call = st.builds(Call, span, st.integers(1, 12))
times = st.tuples(moment, moment).map(sorted)
op = st.tuples(st.integers(0, 1), st.integers(1, 12), times).map(lambda o: Op(o[0], o[1], *o[2]))
copy = st.tuples(st.integers(0, 13), st.integers(0, 99))
mpi = st.tuples(span, st.sampled_from([NULL, 0, 7, 2**20]), st.booleans())


def trace_of(ranges: Any, names: Any, calls: Any, ops: Any, copies: Any, messages: Any) -> Trace:
    """The first `copies` of the operations are copies of some kind and size."""
    labels = ("batch", "other")
    trace = make_trace(ranges, calls, ops, thread_process=(0, 0, 1), names=names, labels=labels)
    kinds, sizes = ([*column] for column in zip(*copies, strict=True)) if copies else ([], [])
    rest = len(ops) - len(copies)
    gpu = replace(
        trace.ops,
        kind=ints([MEMCPY] * len(copies) + [KERNEL] * rest, np.int8),
        copy_kind=ints(kinds + [-1] * rest, np.int8),
        bytes=ints(sizes + [NULL] * rest),
    )
    count = len(messages)
    calls_of_mpi = MpiCalls(
        start_ns=ints(i.start for i, _, _ in messages),
        end_ns=ints(NULL if is_open else i.end for i, _, is_open in messages),
        thread=ints((i.thread for i, _, _ in messages), np.int32),
        name=np.zeros(count, np.int32),
        source=np.zeros(count, np.int8),
        size_bytes=ints(size for _, size, _ in messages),
        least_bytes=ints(size for _, size, _ in messages),
        communicator=np.full(count, NULL),
        own=np.full(count, NULL),
        peer=np.full(count, NULL),
        tag=np.full(count, NULL),
        request=np.full(count, NULL),
    )
    return replace(trace, ops=gpu, mpi=calls_of_mpi)


@bounded
@given(
    named=st.lists(st.tuples(span, st.integers(0, 1)), max_size=7),
    calls=st.lists(call, max_size=8),
    ops=st.lists(op, max_size=10),
    copies=st.lists(copy, max_size=10),
    messages=st.lists(mpi, max_size=6),
)
@example(
    named=[(Interval(0, 0, 9), 0), (Interval(0, 5, 15), 1)],
    calls=[Call(Interval(0, 6, 7), 1)],
    ops=[Op(0, 1, 8, 9)],
    copies=[],
    messages=[],
)
def test_spans_equal_their_definition(
    named: Any, calls: Any, ops: Any, copies: Any, messages: Any
) -> None:
    """Also where ranges cross, calls have no length and several calls share an id."""
    copies = copies[: len(ops)]
    ranges, names = [r for r, _ in named], [n for _, n in named]
    trace = trace_of(ranges, names, calls, ops, copies, messages)
    spans, found = time_ranges(trace, "batch")
    pairs = joined(trace, ops, calls)
    wanted = []
    for r in ranges:
        inside = {o for o, c in pairs if r.holds(calls[c].interval)}
        moments = {m for o in inside for m in range(ops[o].start, ops[o].end)}
        said = [(i, size) for i, size, is_open in messages if r.holds(i) and not is_open]
        wanted.append(
            (
                r.start,
                r.end - r.start,
                max(ops[o].end for o in inside) - min(ops[o].start for o in inside)
                if inside
                else NULL,
                len(moments) if inside else NULL,
                len(inside),
                sum(
                    copies[o][1] for o in inside if o < len(copies) and copies[o][0] in (1, 2, 3, 4)
                ),
                sum(max(size, 0) for _, size in said)
                if any(size != NULL and not is_open for _, size, is_open in messages)
                and (not said or any(size != NULL for _, size in said))
                else NULL,
                sum(i.end - i.start for i, _ in said),
            )
        )
    columns = [getattr(spans, name).tolist() for name in COLUMNS[2:]]
    assert sorted(zip(*columns, strict=True)) == sorted(wanted)
    assert found.total == len(ops)
    migrations = {o for o, (kind, _) in enumerate(copies) if kind in (11, 12, 13)}
    assert found.unlaunched == len({*range(len(ops))} - {o for o, _ in pairs} - migrations)
    parent = parents(ranges)

    def is_batched(row: int) -> bool:
        return row >= 0 and (names[row] == 0 or is_batched(parent[row]))

    assert set(found.op.tolist()) == {
        o
        for o, c in pairs
        for row, r in enumerate(ranges)
        if is_batched(row) and r.holds(calls[c].interval)
    }
    assert (found.op_batch >= 0).all()


@pytest.fixture(scope="module", params=REPORTS, ids=lambda path: path.stem)
def measured(request: pytest.FixtureRequest) -> tuple[Trace, RangeTimes, Attribution]:
    trace = read(request.param)
    return trace, *time_ranges(trace, BATCH)


def test_batches_account_for_every_copied_byte(
    measured: tuple[Trace, RangeTimes, Attribution],
) -> None:
    trace, spans, found = measured
    ops = trace.ops
    batches = by_label(spans, BATCH)
    host = np.isin(ops.copy_kind[found.op], (1, 2)) & (ops.kind[found.op] == MEMCPY)
    assert spans.copy_bytes[batches].sum() == ops.bytes[found.op][host].sum()
    assert spans.ops[batches].sum() == len(found.op)
    for rank in np.unique(spans.rank):
        mine = batches[spans.rank[batches] == rank]
        assert spans.ops[mine].tolist() == np.bincount(
            found.op_batch[found.op_rank == rank], minlength=len(mine)
        ).tolist()  # fmt: skip


def test_ranges_account_for_what_they_hold(measured: tuple[Trace, RangeTimes, Attribution]) -> None:
    """No clock of a range is less than an inner range's; siblings add up to no more."""
    _, spans, _ = measured
    rows = table(spans)
    children: dict[tuple[Any, ...], list[dict[str, int]]] = {}
    for (path, rank, _, start), row in rows.items():
        end = start + row["host_ns"]
        around = [
            key
            for key, outer in rows.items()
            if key[:2] == (path[:-1], rank) and key[3] <= start and end <= key[3] + outer["host_ns"]
        ]
        assert len(around) == (len(path) > 1)
        for key in around:
            children.setdefault(key, []).append(row)
    for key, inner in children.items():
        mine = rows[key]
        for name in ("projection_ns", "busy_ns"):
            assert all(mine[name] >= row[name] for row in inner), (key, name)
        for name in ("host_ns", "ops", "copy_bytes", "mpi_bytes", "mpi_ns"):
            total = sum(row[name] for row in inner if row[name] != NULL)
            assert mine[name] == NULL or mine[name] >= total, (key, name)


def test_the_gpu_is_busy_no_longer_than_its_operations(
    measured: tuple[Trace, RangeTimes, Attribution],
) -> None:
    trace, spans, found = measured
    worked = spans.ops > 0
    assert ((spans.projection_ns == NULL) == ~worked).all()
    assert (spans.busy_ns[worked] <= spans.projection_ns[worked]).all()
    assert (spans.busy_ns[worked] >= 0).all()
    took = (trace.ops.end_ns - trace.ops.start_ns)[found.op]
    for at in by_label(spans, BATCH):
        mine = (found.op_rank == spans.rank[at]) & (found.op_batch == spans.batch[at])
        assert spans.busy_ns[at] <= max(took[mine].sum(), 0) or not worked[at]


def test_batches_are_numbered_by_rank(measured: tuple[Trace, RangeTimes, Attribution]) -> None:
    trace, spans, _ = measured
    batches = by_label(spans, BATCH)
    assert len(batches) > 0
    for rank in np.unique(spans.rank[batches]):
        mine = batches[spans.rank[batches] == rank]
        in_time = mine[np.argsort(spans.start_ns[mine])]
        assert spans.batch[in_time].tolist() == list(range(len(mine)))
    assert set(spans.rank.tolist()) == set(trace.ranks.values())
    inside = np.array([BATCH in path for path in spans.paths])[spans.path]
    assert ((spans.batch >= 0) == inside).all()
    assert (spans.host_ns == NULL).sum() == 0


def test_concatenated_spans_merge_paths() -> None:
    parts = [
        time_ranges(
            make_trace([Interval(0, 0, 9), Interval(0, 1, 2)], names=names, labels="ab"), "a"
        )
        for names in ([0, 1], [1, 0], [0, 0])
    ]
    spans = concatenate([part for part, _ in parts])
    assert len(set(spans.paths)) == len(spans.paths)
    assert [spans.paths[p] for p in spans.path] == [
        ("a",), ("a", "b"), ("b",), ("b", "a"), ("a",), ("a", "a"),
    ]  # fmt: skip
    assert spans.batch.tolist() == [0, 0, -1, 0, 0, 0]
