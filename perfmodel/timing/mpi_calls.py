"""MPI's collectives and messages as exchanges, before they are matched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.readers.trace import MPI_COLLECTIVE, MPI_P2P, MPI_WAIT, NULL, Trace
from perfmodel.timing.batches import Batches
from perfmodel.timing.exchanges import COLLECTIVE, RECEIVE, SEND, Exchanges, joined
from perfmodel.timing.range_times import ranks_of

_START: Final = "MPI_Start"
_POLL: Final = "MPI_Test"
_BOTH: Final = "MPI_Sendrecv"
_FENCE: Final = "MPI_Win_fence"
_RECEIVES: Final = ("MPI_Recv", "MPI_Irecv", "MPI_Mrecv", "MPI_Imrecv")
_RETURNS_AT_ONCE: Final = ("MPI_I", _START)
_PERSISTENT: Final = "_init"


def mpi_exchanges(
    traces: Sequence[Trace], shifts: Sequence[int], batches: Batches, ranks: Sequence[int]
) -> Exchanges:
    """Collect the collectives that returned and the messages of some ranks.

    Messages count from the first batch on where a report does not hold MPI_Init: it may begin with
    messages whose other end was not recorded.

    Parameters
    ----------
    traces : sequence of Trace
    shifts : sequence of int
        What to add to the times of each report, in ns.
    batches : Batches
    ranks : sequence of int
    """
    whose = [_by_call(trace, ranks) for trace in traces]
    members: dict[tuple[int, int], int] = {}
    for trace, rank in zip(traces, whose, strict=True):
        mine = (trace.mpi.own != NULL) & (rank >= 0)
        table = np.column_stack([trace.mpi.communicator, trace.mpi.own, rank])[mine]
        members |= {(group, own): r for group, own, r in np.unique(table, axis=0).tolist()}
    begun = [rank[called(t, "MPI_Init")] for t, rank in zip(traces, whose, strict=True)]
    whole = set(ranks) <= {r for part in begun for r in part.tolist()}
    parts = [
        _of_report(i, trace, shift, rank, members, batches, ranks, whole=whole)
        for i, (trace, shift, rank) in enumerate(zip(traces, shifts, whose, strict=True))
    ]
    return joined(parts)


def collective_calls(trace: Trace) -> Bool:
    """Return whether all ranks of a communicator make an MPI call together: MPI_Win_fence, too."""
    found: Bool = (trace.mpi.source == MPI_COLLECTIVE) | called(trace, _FENCE)
    return found


def lost(trace: Trace) -> set[int]:
    """Processes whose last MPI calls may be lost: recorded from MPI_Init on, without its end."""
    process = trace.thread_process[trace.mpi.thread]
    begun, ended = (process[called(trace, name)] for name in ("MPI_Init", "MPI_Finalize"))
    return set(begun.tolist()) - set(ended.tolist())


def called(trace: Trace, *starts: str) -> Bool:
    """Return whether MPI calls have names that begin so."""
    named = np.array([name.startswith(starts) for name in trace.strings] + [False], np.bool_)
    return named[trace.mpi.name]


def _by_call(trace: Trace, ranks: Sequence[int]) -> Int64:
    """Rank of every MPI call, -1 where it is none of `ranks`."""
    rank_of = {p: r for p, r in ranks_of(trace).items() if r in ranks}
    rank = np.array([rank_of.get(p, -1) for p in range(len(trace.processes))] + [-1], np.int64)
    return rank[trace.thread_process[trace.mpi.thread]]


def _of_report(
    report: int,
    trace: Trace,
    shift: int,
    rank: Int64,
    members: dict[tuple[int, int], int],
    batches: Batches,
    ranks: Sequence[int],
    *,
    whole: bool,
) -> Exchanges:
    """Collect the exchanges of one report."""
    calls = trace.mpi
    collective = collective_calls(trace) & (rank >= 0)
    finished = np.flatnonzero(collective & (calls.end_ns != NULL))
    unfinished = np.bincount(rank[collective & (calls.end_ns == NULL)])
    row, at, way, end = _messages(trace, rank)
    row, at = np.append(finished, row), np.append(finished, at)
    way = np.append(np.full(len(finished), COLLECTIVE), way)
    post, end = calls.start_ns[at], np.append(calls.end_ns[finished], end)
    begin, completion = post.copy(), end.copy()
    at_once = np.flatnonzero(called(trace, *_RETURNS_AT_ONCE)[at])
    done = _completions(trace, rank) if len(at_once) else {}
    for i in at_once.tolist():
        request = done.get((int(rank[at[i]]), int(calls.request[at[i]])), [])
        n = bisect_left(request, (int(end[i]), 0, False))
        waits = n < len(request) and not request[n][2]
        begin[i], completion[i] = request[n][:2] if waits else (NULL, NULL)
    step, held = np.full(len(at), -1), np.full(len(at), -1)
    for one in np.unique(rank[at]).tolist():
        mine = rank[at] == one
        held[mine] = batches.holding(one, begin[mine])
        for between in (False, True):
            some = mine & ((way != COLLECTIVE) == between)
            step[some] = batches.holding(one, post[some], between=between)
    peers = zip(calls.communicator[row].tolist(), calls.peer[row].tolist(), strict=True)
    peer = np.array([members.get(one, one[1]) for one in peers], np.int64)
    kept = (way == COLLECTIVE) | ((peer != NULL) & (whole | (step >= 0)))  # MPI_PROC_NULL
    codes, name = np.unique(calls.name[row], return_inverse=True)
    texts = (*trace.strings, "")  # the last one is that of no name
    times = {"post_ns": post, "end_ns": end, "begin_ns": begin, "completion_ns": completion}
    columns = {
        "name": name.astype(np.int64), "rank": rank[at], "row": row, "way": way, "peer": peer,
        "communicator": calls.communicator[row], "bytes": calls.size_bytes[row],
        "tag": calls.tag[row], "step": step, "held_step": held,
        "report": np.full(len(row), report), "shift_ns": np.full(len(row), shift),
        **{key: np.where(t == NULL, NULL, t + shift) for key, t in times.items()},
    }  # fmt: skip
    warnings = [
        f"rank {r}: {unfinished[r]} collectives never returned and are left out: the run was cut "
        f"short"
        for r in np.flatnonzero(unfinished).tolist()
    ]
    here = {name: values[kept] for name, values in columns.items()}
    return Exchanges.of([texts[c] for c in codes.tolist()], ranks, here, warnings)


def _completions(trace: Trace, rank: Int64) -> dict[tuple[int, int], list[tuple[int, int, bool]]]:
    """Calls that complete requests, by rank and request: begin, end, and whether they only look."""
    calls, polls = trace.mpi, called(trace, _POLL)
    found: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    known = (calls.request != NULL) & (calls.end_ns >= calls.start_ns) & ~called(trace, _START)
    for i in np.flatnonzero(known & (calls.source == MPI_WAIT)).tolist():  # by start
        one = int(calls.start_ns[i]), int(calls.end_ns[i]), bool(polls[i])
        found.setdefault((int(rank[i]), int(calls.request[i])), []).append(one)
    return found


def _messages(trace: Trace, rank: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Ends of messages: the call that describes it, the one that posts it, its way, and its end.

    Persistent requests are described once and posted by MPI_Start. A call that sends and receives
    is one row if both are of one peer, tag and size. Else Nsight Systems records a send that takes
    no time, and a receive that takes the time of the call: the longer one comes first.
    """
    calls = trace.mpi
    known = (rank >= 0) & (calls.end_ns >= calls.start_ns)
    sent = known & (calls.source == MPI_P2P)
    names = (*trace.strings, "")
    init = np.array([name.endswith(_PERSISTENT) for name in names], np.bool_)[calls.name]
    posted = [(row, row) for row in np.flatnonzero(sent & ~init).tolist()]
    prepared: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(sent & init).tolist():
        prepared.setdefault((int(rank[row]), int(calls.request[row])), []).append(row)
    starts = known & (calls.source == MPI_WAIT) & called(trace, _START)
    for at in np.flatnonzero(starts).tolist() if prepared else ():
        rows = prepared.get((int(rank[at]), int(calls.request[at])), [])
        posted += [(row, at) for row in rows if calls.start_ns[row] <= calls.start_ns[at]][-1:]
    both: dict[tuple[int, int], tuple[int, int]] = {}
    for row in np.flatnonzero(sent & called(trace, _BOTH)).tolist():
        key = int(rank[row]), int(calls.start_ns[row])
        both[key] = row, both.get(key, (row, row))[1]
    apart = [
        (row, at, RECEIVE if names[calls.name[row]].startswith(_RECEIVES) else SEND, at)
        for row, at in posted
        if not names[calls.name[row]].startswith(_BOTH)
    ]
    for send, receive in both.values():
        apart += [(send, send, SEND, receive), (receive, receive, RECEIVE, receive)]
    table = np.array(apart, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], calls.end_ns[table[:, 3]]
