"""Steps of programs without a GPU: the period of their MPI calls and of ranges that are no steps.

All ranks of a program take the same steps, so that their sequences, which differ, are cut alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import MPI_COLLECTIVE, NULL, Trace
from perfmodel.timing.intervals import running_maximum
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.period import pattern_of, period_of

_FIRST: Final = ("MPI_Init",)
_LAST: Final = ("MPI_Finalize",)
_IRREGULAR: Final = (
    "MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Request_get_status", "MPI_Waitsome", "MPI_File_",
)  # fmt: skip
"""Calls that some steps make and others do not, or a number of times that differs."""
_LEAST: Final = 3
"""Ranges of a name that are part of a step occur at least so often."""
_SELDOM: Final = 1 / 3
"""A code that occurs at most this often, beside the usual one, may be in some of the steps only."""
_STAGES: Final = 5
"""So many exchanges without a collective may be the stages of one step, as of Runge and Kutta."""
_FEW: Final = 0.25
"""Codes of some of the steps only are at most this share of all."""
_UNEQUAL: Final = 4.0
"""Nine of ten steps take at most so many times the median one."""
_APART: Final = 0.05
"""Two ranks' numbers of steps differ by at most this share (or by 2): set-up may look alike."""
_TIMES: Final = 4
"""A rank that does what is in a step up to so many times takes as many of its own."""
_AS_LONG: Final = 0.2
"""Where ranks were stopped, whose last calls are lost, their median steps differ by this share."""
_WHOLE: Final = 0.8
"""A last step that takes less than this share of the usual time has not been recorded whole."""


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


@dataclass(frozen=True, slots=True)
class HostSteps:
    """Steps of one process: `begin_ns` has one more than there are steps, the end of the last."""

    process: int
    thread: int
    begin_ns: Int64


def host_steps(trace: Trace) -> tuple[HostSteps, ...]:
    """Find the steps of every process without a GPU; none where the processes do not repeat."""
    events = tuple(host_events(trace))
    for kind in range(3):
        cuts = _cut_alike(events, [e.codes[kind] for e in events])
        longest = max((int(np.diff(cut).max()) for cut in cuts), default=0)
        if longest > 1 or (longest and any(e.calls for e in events)):  # else ranges of one name
            return tuple(
                HostSteps(e.process, e.thread, np.append(e.start_ns, e.end_ns.max())[cut])
                for e, cut in zip(events, _finished(events, cuts), strict=True)
            )
    return ()


def _finished(events: Sequence[HostEvents], cuts: Sequence[Int64]) -> Iterator[Int64]:
    """Leave out the last step where no event follows it and it is shorter than usual.

    What it computes after its last event is not recorded. So is, of a process that was stopped,
    the step in which it was.
    """
    last_ns, usual_ns = 0.0, 0.0
    for e, cut in zip(events, cuts, strict=True):
        begin = e.start_ns[cut[:-1]]
        if cut[-1] == len(e.start_ns) and len(begin) > 1:
            last_ns += float(e.end_ns.max() - begin[-1])
            usual_ns += float(np.median(np.diff(begin)))
    unfinished = last_ns < _WHOLE * usual_ns
    for e, cut in zip(events, cuts, strict=True):
        usual = np.median(np.diff(e.start_ns[cut[:-1]]))
        stuck = e.cut_short and e.end_ns[-1] - e.start_ns[-1] > usual
        yield cut[:-1] if (stuck or unfinished) and cut[-1] == len(e.start_ns) else cut


def extents(trace: Trace) -> dict[int, tuple[int, int]]:
    """When every process did what is recorded of it: its MPI calls and ranges.

    Not MPI_Init, MPI_Finalize, and what was before the one and after the other; nor the call in
    which a process was stopped.
    """
    times: dict[int, list[tuple[int, int]]] = {}
    calls, ends = trace.mpi, closed_ends(trace.ranges)
    inner = ~(_named(trace, _FIRST) | _named(trace, _LAST))
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
    telling = ~_named(trace, (*_FIRST, *_LAST, *_IRREGULAR))
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
    ended = set(process[_named(trace, _LAST)].tolist())
    order = np.argsort(calls.start_ns, kind="stable")
    last = dict(zip(process[order].tolist(), order.tolist(), strict=True))
    return {p: row for p, row in last.items() if p not in ended}


def _named(trace: Trace, beginnings: tuple[str, ...]) -> Bool:
    """Which MPI calls have names that begin so."""
    named = np.array([s.startswith(beginnings) for s in trace.strings] + [False], np.bool_)
    return named[trace.mpi.name]


def _repeated(trace: Trace) -> Int64:
    """Rows of ranges whose names, but for digits, occur several times on their thread."""
    ranges = trace.ranges
    patterns: dict[str, int] = {}
    code = np.array(
        [
            -1 if domain == MPI_DOMAIN else patterns.setdefault(pattern_of(text), len(patterns))
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
    """Which moments lie in ranges that do not overlap, given in time order."""
    if len(start) == 0:
        return np.zeros(len(at), np.bool_)
    row = np.searchsorted(start, at, side="right") - 1
    return (row >= 0) & (at < end[row])


def _cut_alike(events: Sequence[HostEvents], codes: Sequence[Int64]) -> list[Int64]:
    """Where every process's steps begin, as indices of its events; empty where they differ.

    Events that are not in every step, such as a norm in every tenth, do not make the step longer.
    """
    whole = [_begins(period_of(c), np.arange(len(c))) for c in codes]
    usual = [np.flatnonzero(_usual(c)) for c in codes]
    within = [
        _begins(period_of(c[kept]), kept, len(c)) for c, kept in zip(codes, usual, strict=True)
    ]
    long, short = _agreed(events, whole), _agreed(events, within)
    if not short:
        return long
    calls = [len(kept) / (len(cut) - 1) for kept, cut in zip(usual, short, strict=True)]
    if max(calls) < 2:  # one call that is alike may be there several times in a step
        return long or (short if _regular(events, short) else [])
    if not long:
        return short
    times = (len(short[0]) - 1) / (len(long[0]) - 1)
    synchronized = any(e.together[kept].any() for e, kept in zip(events, usual, strict=True))
    return short if times >= (_LEAST if synchronized else _STAGES) else long


def _begins(cut: tuple[int, int, int] | None, rows: Int64, count: int | None = None) -> Int64:
    """Rows at which the periods begin, and that behind the last one."""
    if cut is None:
        return np.empty(0, np.int64)
    first, period, repeats = cut
    every = np.append(rows, len(rows) if count is None else count)
    return every[first + period * np.arange(repeats + 1)]


def _usual(codes: Int64) -> Bool:
    """Which events are not of the few codes that occur seldom."""
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    often = counts[inverse]
    seldom = often <= _SELDOM * np.median(often) if len(often) else np.zeros(0, np.bool_)
    return ~seldom if len(often) and seldom.mean() <= _FEW else np.ones(len(codes), np.bool_)


def _regular(events: Sequence[HostEvents], cuts: Sequence[Int64]) -> bool:
    """Whether most steps of most processes take about as long.

    One that is rarely waited for may run ahead of the others and then wait itself.
    """
    times = [np.diff(e.start_ns[cut[:-1]]) for e, cut in zip(events, cuts, strict=True)]
    unequal = [np.quantile(t, 0.9) / max(float(np.median(t)), 1.0) for t in times if len(t)]
    return not unequal or float(np.median(unequal)) <= _UNEQUAL


def _agreed(events: Sequence[HostEvents], cuts: Sequence[Int64]) -> list[Int64]:
    """The cuts if all processes have about as many steps, or whole multiples; none if not."""
    counts = np.array([len(cut) - 1 for cut in cuts])
    if not len(counts) or counts.min() < _LEAST:
        return []
    stopped = any(e.cut_short for e in events)
    usual = [
        float(np.median(np.diff(e.start_ns[c[:-1]]))) for e, c in zip(events, cuts, strict=True)
    ]
    found = []
    for cut, count, step_ns in zip(cuts, counts.tolist(), usual, strict=True):
        if stopped:
            times = max(round(max(usual) / max(step_ns, 1.0)), 1)
            apart = abs(times * step_ns - max(usual)) > _AS_LONG * max(usual)
        else:
            times = round(count / int(counts.min()))
            apart = abs(count - times * int(counts.min())) > max(2, _APART * count)
        if apart or times > _TIMES:
            return []
        found.append(cut[::times])
    return found if min(len(cut) for cut in found) > _LEAST else []
