"""Events of the host that tell a program's steps apart: its MPI calls and repeated ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import MPI_COLLECTIVE, NULL, Trace
from perfmodel.timing.intervals import running_maximum
from perfmodel.timing.mpi_calls import called
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.spans import pattern_of

_FIRST: Final = ("MPI_Init",)
_LAST: Final = ("MPI_Finalize",)
_IRREGULAR: Final = (
    "MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Request_get_status", "MPI_Waitsome", "MPI_File_",
)  # fmt: skip
"""Calls that some steps make and others do not, or a number of times that differs."""
_LEAST: Final = 3
"""Ranges of a name that are part of a step occur at least so often."""


@dataclass(frozen=True, slots=True)
class HostEvents:
    """MPI calls and outermost ranges of the thread of a process that makes most MPI calls.

    Attributes
    ----------
    process, thread : int
        Indices into `Trace.processes` and `Trace.threads`.
    start_ns, end_ns : int64, shape (n,)
        In time order.
    codes : tuple of int64, shape (n,)
        Equal for events that are alike: by name, size and other end; by name and size; by name.
    cut_short : bool
        Whether the process never came to MPI_Finalize.
    calls : int
        How many are MPI calls.
    together : bool, shape (n,)
        Which are collectives.
    """

    process: int
    thread: int
    start_ns: Int64
    end_ns: Int64
    codes: tuple[Int64, ...]
    cut_short: bool
    calls: int
    together: Bool


def extents(trace: Trace) -> dict[int, tuple[int, int]]:
    """When every process did what is recorded of it: its MPI calls, ranges and operators.

    Not MPI_Init, MPI_Finalize, and what was before the one and after the other; nor the call in
    which a process was stopped.
    """
    times = {p: [whole] for p, whole in trace.left_out_ns.items()}
    calls, ends = trace.mpi, closed_ends(trace.ranges)
    inner = ~(called(trace, *_FIRST) | called(trace, *_LAST))
    ours = np.array([d != MPI_DOMAIN for d in trace.range_domains] + [True], np.bool_)
    ours = ours[trace.ranges.name]
    for thread, start, end in (
        (calls.thread[inner], calls.start_ns[inner], calls.end_ns[inner]),
        (trace.ranges.thread[ours], trace.ranges.start_ns[ours], ends[ours]),
    ):
        process = trace.thread_process[thread]
        for p in np.unique(process).tolist():
            mine = process == p
            last = max(int(end[mine].max()), int(start[mine].max()))
            times.setdefault(p, []).append((int(start[mine].min()), last))
    found = {p: (min(t[0] for t in all_), max(t[1] for t in all_)) for p, all_ in times.items()}
    for row in np.flatnonzero(~inner).tolist():
        p = int(trace.thread_process[calls.thread[row]])
        low, high = found.get(p, (0, 0))
        if p not in found:
            continue
        if trace.strings[calls.name[row]].startswith(_FIRST):
            low = max(low, int(calls.end_ns[row]))
        else:
            high = min(high, int(calls.start_ns[row]))
        if low < high:
            found[p] = low, high
    for p, row in cut_short(trace).items():
        low, high = found.get(p, (0, 0))
        if low < calls.start_ns[row] < high == calls.end_ns[row]:
            found[p] = low, int(calls.start_ns[row])
    return found


def host_events(trace: Trace) -> Iterator[HostEvents]:
    """Yield the events of every process that tell its steps apart."""
    calls = trace.mpi
    telling = ~called(trace, *_FIRST, *_LAST, *_IRREGULAR)
    stopped = cut_short(trace)
    process = trace.thread_process[calls.thread]
    ends = closed_ends(trace.ranges)
    ranges = _repeated(trace)
    by_range = trace.thread_process[trace.ranges.thread[ranges]]
    for p in np.union1d(process[telling], by_range).tolist():
        mine = np.flatnonzero(telling & (process == p))
        own = ranges[by_range == p]
        thread = _busiest(calls.thread[mine] if len(mine) else trace.ranges.thread[own])
        mine = mine[calls.thread[mine] == thread]
        own = own[trace.ranges.thread[own] == thread]
        own = own[_uncovered(trace.ranges.start_ns[own], ends[own])]
        _, first = np.unique(calls.start_ns[mine], return_index=True)  # a row for every request
        mine = mine[first]
        mine = mine[~_inside(calls.start_ns[mine], trace.ranges.start_ns[own], ends[own])]
        start = np.concatenate([calls.start_ns[mine], trace.ranges.start_ns[own]])
        order = np.argsort(start, kind="stable")
        end = np.concatenate([np.maximum(calls.end_ns[mine], calls.start_ns[mine]), ends[own]])
        yield HostEvents(
            p, thread, start[order], end[order],
            tuple(c[order] for c in _codes(trace, mine, own)), p in stopped, len(mine),
            np.append(calls.source[mine] == MPI_COLLECTIVE, np.zeros(len(own), np.bool_))[order],
        )  # fmt: skip


def cut_short(trace: Trace) -> dict[int, int]:
    """Processes that called MPI and never came to MPI_Finalize, with the row of their last call."""
    calls = trace.mpi
    process = trace.thread_process[calls.thread]
    ended = set(process[called(trace, *_LAST)].tolist())
    order = np.argsort(calls.start_ns, kind="stable")
    last = dict(zip(process[order].tolist(), order.tolist(), strict=True))
    return {p: row for p, row in last.items() if p not in ended}


def _repeated(trace: Trace) -> Int64:
    """Rows of ranges whose names, but for digits, occur several times on their thread."""
    ranges = trace.ranges
    patterns: dict[str, int] = {}
    code = np.array(
        [
            -1
            if domain == MPI_DOMAIN or text in trace.operators
            else patterns.setdefault(pattern_of(text), len(patterns))
            for domain, text in zip(trace.range_domains, trace.range_labels, strict=True)
        ]
        + [-1],
        np.int64,
    )[ranges.name]
    known = np.flatnonzero((code >= 0) & ~ranges.other_thread)
    pair = code[known] * len(trace.threads) + ranges.thread[known]
    _, inverse, counts = np.unique(pair, return_inverse=True, return_counts=True)
    often: Int64 = known[counts[inverse] >= _LEAST]
    return often


def _codes(trace: Trace, calls: Int64, ranges: Int64) -> Iterator[Int64]:
    mpi = trace.mpi
    names = mpi.name.astype(np.int64)
    columns = [names, mpi.size_bytes, mpi.least_bytes, mpi.communicator, mpi.peer, mpi.tag]
    texts: dict[str, int] = {}
    called = [trace.range_labels[n] for n in trace.ranges.name[ranges].tolist()]
    label = np.array([texts.setdefault(pattern_of(t), len(texts)) for t in called], np.int64)
    for count in (6, 4, 1):
        table = np.column_stack([column[calls] for column in columns[:count]])
        code = np.unique(table, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        yield np.concatenate([code, label + code.max(initial=-1) + 1])


def _busiest(thread: Int32) -> int:
    values, counts = np.unique(thread, return_counts=True)
    return int(values[np.argmax(counts)])


def _uncovered(start: Int64, end: Int64) -> Int64:
    """Rows of one thread's ranges that no other one holds, in time order."""
    order: Int64 = np.lexsort((-end, start)).astype(np.int64)
    reached = running_maximum(np.zeros(len(order), np.int64), end[order])
    before = np.concatenate([[NULL], reached[:-1]]) if len(order) else reached
    first: Int64 = order[start[order] >= before]
    return first


def _inside(at: Int64, start: Int64, end: Int64) -> Bool:
    """Return whether moments lie in ranges that do not overlap, given in time order."""
    if len(start) == 0:
        return np.zeros(len(at), np.bool_)
    row = np.searchsorted(start, at, side="right") - 1
    return (row >= 0) & (at < end[row])
