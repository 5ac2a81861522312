"""Traces made in memory, and brute-force answers to hold the fast ones against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.readers.trace import (
    KERNEL,
    NO_NAME,
    NULL,
    PUSH_POP,
    ApiCalls,
    GpuOps,
    MpiCalls,
    NcclRanges,
    Ranges,
    Trace,
)


class Interval(NamedTuple):
    """What happened on one thread from `start` to `end`: a range or a call."""

    thread: int
    start: int
    end: int

    def holds(self, other: Interval) -> bool:
        """Whether `other` lies inside, borders included, on the same thread."""
        return self.thread == other.thread and self.start <= other.start and other.end <= self.end

    def crosses(self, other: Interval) -> bool:
        """Whether the two overlap, and neither lies inside the other."""
        first, second = sorted([self[1:], other[1:]])
        return self.thread == other.thread and first[0] < second[0] < first[1] < second[1]


class Call(NamedTuple):
    """An API call."""

    interval: Interval
    correlation: int


class Op(NamedTuple):
    """A GPU operation; `process` is -1 where the report does not say."""

    process: int
    correlation: int
    start: int
    end: int


def ints(values: Iterable[int], kind: Any = np.int64) -> Any:
    return np.array([*values], kind)


def make_ranges(intervals: Sequence[Interval], names: Sequence[int] | None = None) -> Ranges:
    """Push/pop ranges, one name for all by default."""
    count = len(intervals)
    return Ranges(
        start_ns=ints(i.start for i in intervals),
        end_ns=ints(i.end for i in intervals),
        thread=ints((i.thread for i in intervals), np.int32),
        name=np.zeros(count, np.int32) if names is None else ints(names, np.int32),
        style=np.full(count, PUSH_POP, np.int8),
        other_thread=np.zeros(count, np.bool_),
        number=np.zeros(count, np.int64),
    )


def make_ops(ops: Sequence[Op]) -> GpuOps:
    """Kernels without names."""
    count = len(ops)
    none = np.full(count, -1, np.int8)
    return GpuOps(
        kind=np.full(count, KERNEL, np.int8),
        start_ns=ints(o.start for o in ops),
        end_ns=ints(o.end for o in ops),
        device=np.zeros(count, np.int32),
        stream=np.zeros(count, np.int32),
        process=ints((o.process for o in ops), np.int32),
        correlation=ints(o.correlation for o in ops),
        name=np.full(count, NO_NAME, np.int32),
        bytes=np.full(count, NULL),
        copy_kind=none,
        src_kind=none,
        dst_kind=none,
        node=np.full(count, -1, np.int32),
    )


def make_api(calls: Sequence[Call]) -> ApiCalls:
    return ApiCalls(
        start_ns=ints(c.interval.start for c in calls),
        end_ns=ints(c.interval.end for c in calls),
        thread=ints((c.interval.thread for c in calls), np.int32),
        correlation=ints(c.correlation for c in calls),
        name=np.full(len(calls), NO_NAME, np.int32),
    )


def make_trace(
    ranges: Sequence[Interval] = (),
    calls: Sequence[Call] = (),
    ops: Sequence[Op] = (),
    *,
    thread_process: Sequence[int] = (0,),
    names: Sequence[int] | None = None,
    labels: Sequence[str] = ("range",),
) -> Trace:
    """A trace whose threads belong to the processes `thread_process` says."""
    processes = max(thread_process) + 1
    none, small = ints(()), ints((), np.int32)
    source = small.astype(np.int8)
    return Trace(
        source=Path("made.sqlite"),
        product_version="none",
        schema_version="none",
        tables=frozenset(),
        strings=(),
        range_names=tuple(labels),
        range_labels=tuple(labels),
        range_domains=("",) * len(labels),
        threads=np.arange(len(thread_process)),
        processes=np.arange(processes),
        thread_process=ints(thread_process, np.int32),
        ranges=make_ranges(ranges, names),
        ops=make_ops(ops),
        api=make_api(calls),
        mpi=MpiCalls(none, none, small, small, source, *[none] * 7),
        nccl=NcclRanges(none, small, none, none),
        marks=(),
        gpus=(),
        cuda_devices={},
        diagnostics=(),
        ranks={},
        world_size=None,
        nvtx_last_ns=max((r.end for r in ranges), default=None),
        utc_start_ns=None,
        mpi_from_nvtx=False,
    )


def parents(intervals: Sequence[Interval]) -> list[int]:
    """Row of every range's tightest container, -1 for none.

    Of identical ranges the earlier row is the container; of containers of one length the one that
    starts last is the tightest, then the one of the last row.
    """
    found = []
    for i, mine in enumerate(intervals):
        holders = [
            (o.end - o.start, -o.start, -j)
            for j, o in enumerate(intervals)
            if j != i and o.holds(mine) and (o != mine or j < i)
        ]
        found.append(-min(holders)[2] if holders else -1)
    return found


def levels(parent: Sequence[int]) -> list[int]:
    """Number of parents above every range."""

    def level(i: int) -> int:
        return 0 if parent[i] < 0 else 1 + level(parent[i])

    return [level(i) for i in range(len(parent))]


def is_tangled(intervals: Sequence[Interval], thread: int) -> bool:
    """Whether ranges cross on a thread, or one of no length lies where two of some length touch."""
    mine = [i for i in intervals if i.thread == thread]
    longer = [i for i in mine if i.start < i.end]
    starts, ends = {i.start for i in longer}, {i.end for i in longer}
    return any(a.crosses(b) for a in mine for b in mine) or any(
        i.start == i.end and i.start in starts & ends for i in mine
    )


def joined(trace: Trace, ops: Sequence[Op], calls: Sequence[Call]) -> list[tuple[int, int]]:
    """All (operation, call) rows that agree on process and correlation id."""
    return [
        (o, c)
        for o, op in enumerate(ops)
        for c, call in enumerate(calls)
        if op.correlation != NULL
        and op.correlation == call.correlation
        and op.process == trace.thread_process[call.interval.thread]
    ]


def projections(
    trace: Trace, ranges: Sequence[Interval], calls: Sequence[Call], ops: Sequence[Op]
) -> dict[int, tuple[int, int, int]]:
    """First start, last end and distinct correlation ids inside every range that has any."""
    pairs = joined(trace, ops, calls)
    found = {}
    for row, r in enumerate(ranges):
        inside = [ops[o] for o, c in pairs if r.holds(calls[c].interval)]
        if inside:
            found[row] = (
                min(op.start for op in inside),
                max(op.end for op in inside),
                len({op.correlation for op in inside}),
            )
    return found
