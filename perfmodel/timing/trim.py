"""Trims a measured report: keeps the rows that an analysis looks at, so that hundreds fit.

An analysis of trimmed reports equals that of whole ones. What stays is every range's span, every
copy and collective inside the batches, and one row of everything else that is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64, distinct_positions, distinct_rows
from perfmodel.readers.trace import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MPI_OTHER,
    NO_NAME,
    NO_STACKS,
    NULL,
    TO_HOST,
    GpuOps,
    MpiCalls,
    Ranges,
    Trace,
    rows,
)
from perfmodel.timing.kernels import communicating
from perfmodel.timing.mpi_calls import collective_calls
from perfmodel.timing.range_times import Attribution
from perfmodel.timing.run import TimedReport
from perfmodel.timing.step_report import lightened

LAUNCHES = ("cudaLaunch", "cuLaunch", "hipLaunch", "hipModuleLaunch")
"""Prefixes of calls that launch kernels."""
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


def trim(timed: TimedReport, *, replays: bool = False, most_ops: int | None = None) -> TimedReport:
    """Drop the rows of a report that an analysis does not look at.

    Of each rank's steps so many operations are kept for the replay: of thousands of ranks not all
    that one alone keeps has room in memory.

    Every kernel is kept where batches replay a CUDA graph: the report has such launches, or the
    workload says so (`replays`).
    """
    trace, found, steps = timed.trace, timed.attribution, timed.steps
    calls = (trace.mpi.source != MPI_OTHER) | collective_calls(trace) | _ends(trace)
    trimmed = replace(
        trace,
        whole=False,
        left_out=None,
        stacks=NO_STACKS,
        asleep=None,
        system_calls=None,
        all_to_all=None,
        single={},
        launch_threads={},
        ranges=rows(trace.ranges, _ranges(trace.ranges)),
        mpi=trace.mpi if calls.all() else rows(trace.mpi, calls),
    )
    if trace.whole:  # else it was measured part by part, and these were trimmed meanwhile
        op, call = needed(trace, found, replays=replays)
        trimmed = replace(trimmed, ops=rows(trace.ops, op), api=rows(trace.api, call))
        found = found.among(op)
        found = replace(found, op=(np.cumsum(op) - 1)[found.op])
        steps = steps and lightened(steps, most_ops)
    return replace(timed, trace=_without_unused_strings(trimmed), attribution=found, steps=steps)


def needed(trace: Trace, found: Attribution, *, replays: bool) -> tuple[Bool, Bool]:
    """Which operations and API calls an analysis looks at: those of a report, or of a part.

    What is needed of a report is among what is needed of its parts.
    """
    replays |= any(name.startswith(_GRAPH_LAUNCHES) for name in trace.strings)
    kernels = np.isin(trace.ops.kind, (KERNEL, GRAPH)).any()
    asked = ["Synchronize"] if kernels else ["Synchronize", *LAUNCHES]  # what launched them
    waits = np.array([any(a in s for a in asked) for s in trace.strings] + [False], np.bool_)
    return _operations(trace, found, replays=replays), waits[trace.api.name]


def _operations(trace: Trace, found: Attribution, *, replays: bool) -> Bool:
    """Copies, sets, graphs and kernels that communicate in batches, and one of everything else."""
    ops = trace.ops
    keep: Bool = ops.end_ns < ops.start_ns
    inside = distinct_positions(found.op, len(ops))
    asked = (ops.kind[inside] != KERNEL) | communicating(trace)[inside] | replays
    keep[inside[asked]] = True
    keep[inside[np.unique(ops.name[inside], return_index=True)[1]]] = True
    for chosen in _last(found, ops):
        keep[chosen] = True
    for process in range(-1, len(trace.processes)):
        mine = np.flatnonzero((ops.process == process) & (ops.device >= 0))
        several = len(mine) and (ops.device[mine] != ops.device[mine[0]]).any()
        keep[mine if several else mine[:1]] = True
    keep[:1] = True
    return keep


def _last(found: Attribution, ops: GpuOps) -> Iterator[Int64]:
    """Of every batch of every rank the operations that end last, and which kernels do.

    Of these only those count that begin before the first copy to the host: what a host that asks
    for results waits for.
    """
    op = found.op
    named, cell = distinct_rows(found.op_rank, found.op_batch)
    cells = len(named)
    out = (ops.kind[op] == MEMCPY) & np.isin(ops.copy_kind[op], TO_HOST)
    first_copy = np.full(cells, np.iinfo(np.int64).max)
    np.minimum.at(first_copy, cell[out], ops.start_ns[op[out]])
    before = (ops.kind[op] == KERNEL) & (ops.start_ns[op] < first_copy[cell])
    for at in (slice(None), before):
        end, mine = ops.end_ns[op[at]], cell[at]
        last = np.full(cells, np.iinfo(np.int64).min)
        np.maximum.at(last, mine, end)
        yield op[at][end == last[mine]]


def _ranges(ranges: Ranges) -> Bool:
    """Ranges that never ended or end before they start, and of every thread one of each extreme."""
    keep: Bool = (
        (ranges.end_ns == NULL) | (ranges.end_ns < ranges.start_ns) | _first_and_last(ranges)
    )
    keep[np.unique(ranges.thread, return_index=True)[1]] = True
    return keep


def _ends(trace: Trace) -> Bool:
    """MPI_Init and MPI_Finalize, which say whether a rank was stopped, and the extremes."""
    texts = (s.startswith(("MPI_Init", "MPI_Finalize")) for s in trace.strings)
    named = np.array([*texts, False], np.bool_)
    return named[trace.mpi.name] | _first_and_last(trace.mpi)


def _first_and_last(table: Ranges | MpiCalls) -> Bool:
    """Rows that hold a table's first start, last start and last end."""
    keep = np.zeros(len(table), np.bool_)
    if len(table):
        for row in (table.start_ns.argmin(), table.start_ns.argmax(), table.end_ns.argmax()):
            keep[row] = True
    return keep


def _without_unused_strings(trace: Trace) -> Trace:
    columns: Sequence[Int32] = (trace.ops.name, trace.api.name, trace.mpi.name)
    used = np.unique(np.concatenate(columns))
    used = used[used != NO_NAME]
    recode = np.full(len(trace.strings) + 1, NO_NAME, np.int32)
    recode[used] = np.arange(len(used), dtype=np.int32)

    def named(table: Any) -> Any:
        return replace(table, name=recode[table.name])

    return replace(
        trace,
        strings=tuple(trace.strings[i] for i in used.tolist()),
        ops=named(trace.ops),
        api=named(trace.api),
        mpi=named(trace.mpi),
    )
