"""Splits a report by processes, so that what is measured of large ones is small at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int8, Int64
from perfmodel.readers.trace import Trace, rows
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.steps import Steps

_ROWS: Final = 500_000
"""Rows of a part, at least: smaller ones gain nothing."""
_PARTS: Final = 16


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of some processes of a report.

    Attributes
    ----------
    trace : Trace
        Threads, processes and strings are those of the whole report.
    steps : Steps
        Those of the processes.
    op, step : int64
        Rows of the report's `GpuOps` and of its `Steps` that the part's are.
    """

    trace: Trace
    steps: Steps
    op: Int64
    step: Int64


def by_process(trace: Trace, steps: Steps) -> Iterator[Part]:
    """Yield the parts of a report in the order of their processes, those with steps.

    A range that never ended is given the last moment of the whole report.
    """
    groups = _groups(trace, steps)
    count = int(groups.max(initial=-1)) + 1
    if count < 2:
        everything = np.arange(len(trace.ops)), np.arange(len(steps))
        yield Part(trace, steps, *everything)
        return
    ended = replace(trace.ranges, end_ns=closed_ends(trace.ranges))
    of_thread = groups[trace.thread_process]
    tables: dict[str, Any] = {
        "ranges": ended,
        "api": trace.api,
        "mpi": trace.mpi,
        "nccl": trace.nccl,
    }
    where = {name: of_thread[table.thread] for name, table in tables.items()}
    of_op = np.append(groups, np.int8(-1))[trace.ops.process]
    of_step = groups[steps.process]
    for group in range(count):
        op, step = np.flatnonzero(of_op == group), np.flatnonzero(of_step == group)
        chosen = {
            name: rows(table, np.flatnonzero(where[name] == group))
            for name, table in tables.items()
        }
        part = replace(trace, ops=rows(trace.ops, op), **chosen)
        yield Part(part, _chosen(steps, step), op, step)


def _chosen(steps: Steps, rows: Int64) -> Steps:
    """Some of the steps, as intervals that are no rows of the part's ranges."""
    names = ("process", "thread", "number", "start_ns", "end_ns")
    columns = {name: getattr(steps, name)[rows] for name in names}
    return replace(steps, row=np.full(len(rows), -1, np.int64), **columns)


def _groups(trace: Trace, steps: Steps) -> Int8:
    """Part of every process, -1 for one without steps, shape (processes,)."""
    size = np.zeros(len(trace.processes), np.int64)
    tables: tuple[Any, ...] = (trace.ranges, trace.api, trace.mpi)
    for table in tables:
        by_thread = np.bincount(table.thread, minlength=len(trace.threads))
        np.add.at(size, trace.thread_process, by_thread)
    with_steps = np.zeros(len(trace.processes), np.bool_)
    with_steps[steps.process] = True
    least = max(_ROWS, int(size.sum()) // _PARTS)
    groups = np.full(len(trace.processes), -1, np.int8)
    group, filled = 0, 0
    for process in np.flatnonzero(with_steps).tolist():
        if filled >= least:
            group, filled = group + 1, 0
        groups[process] = group
        filled += int(size[process])
    return groups
