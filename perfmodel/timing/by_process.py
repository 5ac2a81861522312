"""Splits a report by processes, so that what is measured of large ones is small at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int8, Int64
from perfmodel.readers.packed import EventsByProcess
from perfmodel.readers.trace import Trace, rows
from perfmodel.timing.launched import Launched, launched
from perfmodel.timing.spans import Steps

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


def by_process(trace: Trace, steps: Steps, events: EventsByProcess | None = None) -> Iterator[Part]:
    """Yield the parts of a report in the order of their processes.

    Parameters
    ----------
    trace : Trace
    steps : Steps
    events : EventsByProcess, optional
        The operations and calls, where the trace holds none; dropped part by part.
    """
    groups = _groups(trace, events)
    if groups.max(initial=0) == 0 and events is None:
        everything = np.arange(len(trace.ops)), np.arange(len(steps))
        yield Part(trace, steps, *everything)
        return
    of_step = groups[steps.process]
    for group, split in enumerate(_split(trace, groups, events)):
        step = np.flatnonzero(of_step == group)
        rows_of, op = split.pop()
        part = [Part(rows_of, _chosen(steps, step), op, step)]
        del rows_of, op  # what is measured of a part is freed before the next one
        yield part.pop()


def launches(trace: Trace, events: EventsByProcess) -> Iterator[tuple[Trace, Launched]]:
    """Yield the parts of a report and how their operations were launched; `events` stay."""
    for split in _split(trace, _groups(trace, events), events, keep=True):
        part = [split.pop()[0]]
        yield part[0], launched(part.pop())


def _split(
    trace: Trace, groups: Int8, events: EventsByProcess | None, *, keep: bool = False
) -> Iterator[list[tuple[Trace, Int64]]]:
    """Yield lists of one: the rows of each group of processes, and of which operations they are.

    Who takes it out of its list has the only reference.
    """
    of_thread = groups[trace.thread_process]
    if events is None:
        of_op = np.append(groups, np.int8(0))[trace.ops.process]
        of_call = of_thread[trace.api.thread]
    for group in range(int(groups.max(initial=0)) + 1):
        if events is None:
            op = np.flatnonzero(of_op == group)
            ops, api = rows(trace.ops, op), rows(trace.api, np.flatnonzero(of_call == group))
        else:
            mine = np.flatnonzero(groups == group).tolist()
            ops, api, op = events.take(trace, mine if group else [-1, *mine], keep=keep)
        tables: dict[str, Any] = {
            name: rows(table, np.flatnonzero(of_thread[table.thread] == group))
            for name, table in (("ranges", trace.ranges), ("mpi", trace.mpi), ("nccl", trace.nccl))
        }
        split = [(replace(trace, ops=ops, api=api, **tables), op)]
        del ops, api, op, tables
        yield split


def _chosen(steps: Steps, rows: Int64) -> Steps:
    """Some of the steps, as intervals that are no rows of the part's ranges."""
    names = ("process", "thread", "number", "start_ns", "end_ns")
    columns = {name: getattr(steps, name)[rows] for name in names}
    return replace(steps, row=np.full(len(rows), -1, np.int64), **columns)


def _groups(trace: Trace, events: EventsByProcess | None) -> Int8:
    """Part of every process, shape (processes,)."""
    size = np.zeros(len(trace.processes), np.int64) if events is None else events.count(trace)
    tables: tuple[Any, ...] = (trace.ranges, trace.api, trace.mpi)
    for table in tables:
        by_thread = np.bincount(table.thread, minlength=len(trace.threads))
        np.add.at(size, trace.thread_process, by_thread)
    least = max(_ROWS, int(size.sum()) // _PARTS)
    groups = np.zeros(len(trace.processes), np.int8)
    group, filled = 0, 0
    for process, count in enumerate(size.tolist()):
        if filled >= least:
            group, filled = group + 1, 0
        groups[process] = group
        filled += count
    return groups
