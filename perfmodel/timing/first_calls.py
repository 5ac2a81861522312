"""Cold starts: what the first call of each function costs beyond what such a call usually does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64, distinct_rows
from perfmodel.readers.trace import Trace
from perfmodel.timing.host_timeline import plain_call
from perfmodel.timing.intervals import union
from perfmodel.timing.launched import Launched
from perfmodel.timing.spans import Steps

_QUICK_NS: Final = 100_000
"""A call that only launches, or takes memory that is there, takes less anywhere: a quick launch
takes 4 µs on hosts of H200s, 10 to 20 µs under torch.profiler on slow ones."""
_WAITING: Final = ("Synchronize", "Memcpy", "Memset", "Query", "Wait")
"""Parts of names of calls that wait for work of the GPU, of this process or of others."""
_LOADING: Final = (
    "cuModuleLoad", "cuLibraryLoad", "cudaLibraryLoad", "hipModuleLoad", "cuLinkComplete",
)  # fmt: skip
"""Calls that load code: each loads another part."""


@dataclass(frozen=True, slots=True)
class FirstCall:
    """A call that took longer than such a call usually does, since it was the first one.

    Attributes
    ----------
    process : int
        Index into `Trace.processes`.
    name : str
        As `plain_call`.
    seconds : float
        Its time.
    longer_s : float
        The part of it beyond the usual time in which the GPU did nothing.
    """

    process: int
    name: str
    seconds: float
    longer_s: float


def first_calls(trace: Trace, steps: Steps, found: Launched) -> tuple[FirstCall, ...]:
    """Find first calls that took longer than later ones, by process, the longest first.

    Those before the last launch in the steps of their process, and before the end of these.

    The first one is that of each function of CUDA's API in a process; of those that launch
    kernels, of each kernel, whose code is loaded then. The usual time is the median of all other
    calls of that name.
    """
    api = trace.api
    waits = [any(part in name for part in _WAITING) for name in trace.strings]
    asked = np.flatnonzero(~np.array([*waits, False], np.bool_)[api.name] & (api.name >= 0))
    if len(asked) == 0:
        return ()
    kernel = np.full(len(api), -1, np.int64)
    kernel[found.call] = trace.ops.name[found.op]
    process, length = trace.thread_process[api.thread], api.end_ns - api.start_ns
    _, function = distinct_rows(process[asked], api.name[asked], kernel[asked])
    at = np.empty(int(function.max()) + 1, np.int64)
    at[function[::-1]] = np.arange(len(asked))[::-1]  # the first one is assigned last
    first = np.zeros(len(api), np.bool_)
    first[asked[at]] = True
    loads = [name.startswith(_LOADING) for name in trace.strings]
    first |= np.array([*loads, False], np.bool_)[api.name]
    ended, launched = (np.full(len(trace.processes), np.iinfo(np.int64).min) for _ in range(2))
    np.maximum.at(ended, steps.process, steps.end_ns)
    np.maximum.at(launched, found.process, found.at_ns)
    slow = first & (length > _QUICK_NS)
    slow &= api.start_ns <= np.minimum(ended, launched)[process]
    groups, group = distinct_rows(process[asked], api.name[asked])
    wanted = np.zeros(len(groups), np.bool_)
    wanted[group[slow[asked]]] = True
    later = np.flatnonzero(wanted[group] & ~first[asked])
    later = later[np.lexsort((length[asked[later]], group[later]))]
    known, begin, count = np.unique(group[later], return_index=True, return_counts=True)
    usual_of = np.full(len(groups), _QUICK_NS)
    usual_of[known] = np.maximum(_QUICK_NS, length[asked[later[begin + count // 2]]])
    rows, usual = asked[slow[asked]], usual_of[group[slow[asked]]]
    order = np.lexsort((api.start_ns[rows], process[rows]))
    rows, usual = rows[order], usual[order]
    longer = _idle_ns(trace, found, process, rows) - usual
    calls = [
        FirstCall(
            int(process[row]),
            plain_call(trace.strings[api.name[row]]),
            int(length[row]) * 1e-9,
            ns * 1e-9,
        )
        for row, ns in zip(rows.tolist(), longer.tolist(), strict=True)
        if ns > 0
    ]
    return tuple(sorted(calls, key=lambda call: (call.process, -call.longer_s)))


def _idle_ns(trace: Trace, found: Launched, process: Int32, rows: Int64) -> Int64:
    """Time of some calls, by process and start, in which no operation of their process runs.

    What is inside a call before counts with that one: calls of CUDA's runtime hold those of its
    driver.
    """
    ops, api = trace.ops, trace.api
    whose, begin, end = union(
        found.process.astype(np.int64), ops.start_ns[found.op], ops.end_ns[found.op]
    )
    idle = np.zeros(len(rows), np.int64)
    for one in np.unique(process[rows]).tolist():
        mine = np.flatnonzero(process[rows] == one)
        start, stop = api.start_ns[rows[mine]].copy(), api.end_ns[rows[mine]]
        reached = np.maximum.accumulate(stop)
        start[1:] = np.maximum(start[1:], reached[:-1])
        stop = np.maximum(stop, start)
        own = whose == one
        busy = np.array([_busy_ns(begin[own], end[own], at) for at in (start, stop)])
        idle[mine] = stop - start - (busy[1] - busy[0])
    return idle


def _busy_ns(begin: Int64, end: Int64, at: Int64) -> Int64:
    """Time of some intervals, which do not overlap, before each moment."""
    if len(begin) == 0:
        return np.zeros(len(at), np.int64)
    whole = np.append(0, np.cumsum(end - begin))
    last = np.searchsorted(begin, at, side="right")
    part = np.where(last > 0, np.minimum(at - begin[last - 1], (end - begin)[last - 1]), 0)
    busy: Int64 = whole[np.maximum(last - 1, 0)] + part
    return busy
