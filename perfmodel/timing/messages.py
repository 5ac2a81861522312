"""MPI's point-to-point messages: what every rank posted, and which send belongs to which receive.

The n-th send of a rank to another with one tag is the n-th receive there, since messages between
two ranks do not overtake each other (MPI standard 4.0, 3.5). Receives of any source or tag get what
is left then, in the order in which it was sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.trace import MPI_P2P, MPI_WAIT, NULL, Trace
from perfmodel.timing.completions import START, Completions
from perfmodel.timing.range_times import ranks_of

_BOTH: Final = "MPI_Sendrecv"
_RECEIVES: Final = ("MPI_Recv", "MPI_Irecv", "MPI_Mrecv", "MPI_Imrecv")
_RETURNS_AT_ONCE: Final = ("MPI_I", START)
_PERSISTENT: Final = "_init"
_ANY: Final = -1

Members = Mapping[tuple[int, int], int]
"""Rank by communicator and rank in it."""


@dataclass(slots=True)
class End:
    """One end of a message: when it was posted, and the call in which its rank was blocked, in ns.

    `peer` is -1 for a message of any source, `tag` `NULL` for any; `batch` is the number, of those
    that count, in which the rank was blocked.
    """

    rank: int
    peer: int
    communicator: int
    tag: int
    receives: bool
    posted: int
    begin: int
    end: int
    size: int
    batch: int = 0


Message = tuple[End, End]
"""A send and its receive."""


def _by_call(trace: Trace) -> Int64:
    """Rank of every MPI call, -1 where it is unknown."""
    rank_of = ranks_of(trace)
    rank = np.array([rank_of.get(p, -1) for p in range(len(trace.processes))], np.int64)
    return rank[trace.thread_process[trace.mpi.thread]]


def members_of(traces: Sequence[Trace]) -> dict[tuple[int, int], int]:
    """Find which ranks the communicators consist of: those whose calls name them."""
    found = {}
    for trace in traces:
        calls = trace.mpi
        mine = np.flatnonzero((calls.source == MPI_P2P) & (calls.own != NULL))
        table = np.column_stack([calls.communicator, calls.own, _by_call(trace)])[mine]
        found.update({(group, own): rank for group, own, rank in np.unique(table, axis=0).tolist()})
    return found


def ends_of(
    trace: Trace, shift_ns: int, begins: Mapping[int, Sequence[int]], members: Members
) -> Iterator[End]:
    """Yield the ends of one report's messages, in the order in which they were posted.

    Parameters
    ----------
    trace : Trace
    shift_ns : int
        What to add to its times.
    begins : mapping of int to sequence of int
        Of every rank, the starts of the batches that count, and the end of the last one.
    members : mapping
        As `members_of` returns it.
    """
    calls, whose = trace.mpi, _by_call(trace)
    names = (*trace.strings, "")  # the last is that of a call without a name
    done = Completions(trace, whose)
    both = _sendrecvs(trace, whose)
    for row, at in _posts(trace, whose):
        name, rank, start = names[calls.name[row]], int(whose[row]), int(calls.start_ns[at])
        window = begins.get(rank)
        if not window or not window[0] <= start <= window[-1]:
            continue
        begin, end = start, int(calls.end_ns[at])
        ways: tuple[bool, ...] = (name.startswith(_RECEIVES),)
        if name.startswith(_BOTH):
            parts = both[rank, start]
            ways = tuple(receives for receives in (False, True) if parts[receives] == row)
            end = int(calls.end_ns[parts[True]])
        elif names[calls.name[at]].startswith(_RETURNS_AT_ONCE):
            begin, end = done.next(rank, int(calls.request[at]), end)
        peer, group = int(calls.peer[row]), int(calls.communicator[row])
        if peer != NULL:  # MPI_PROC_NULL
            yield from (
                End(
                    rank, members.get((group, peer), peer), group, int(calls.tag[row]), receives,
                    start + shift_ns, begin + shift_ns, end + shift_ns, int(calls.size_bytes[row]),
                    bisect_right(window, begin, hi=len(window) - 1) - 1,
                )
                for receives in ways
            )  # fmt: skip


def _posts(trace: Trace, whose: Int64) -> list[tuple[int, int]]:
    """Calls that describe a message and those that post it: others for persistent requests."""
    calls, names = trace.mpi, (*trace.strings, "")
    known = (whose >= 0) & (calls.end_ns >= calls.start_ns)
    prepared: dict[tuple[int, int], list[int]] = {}
    found = []
    for row in np.flatnonzero(known & (calls.source == MPI_P2P)).tolist():  # by start
        if names[calls.name[row]].endswith(_PERSISTENT):
            prepared.setdefault((int(whose[row]), int(calls.request[row])), []).append(row)
        else:
            found.append((row, row))
    if prepared:
        for at in np.flatnonzero(known & (calls.source == MPI_WAIT)).tolist():
            if names[calls.name[at]].startswith(START):
                rows = prepared.get((int(whose[at]), int(calls.request[at])), [])
                earlier = [row for row in rows if calls.start_ns[row] <= calls.start_ns[at]]
                found += [(row, at) for row in earlier[-1:]]
        found.sort(key=lambda post: int(calls.start_ns[post[1]]))
    return found


def _sendrecvs(trace: Trace, whose: Int64) -> dict[tuple[int, int], tuple[int, int]]:
    """Rows of the send and the receive of every call that does both, by rank and start.

    They are one row if both are of one peer, tag and size. Else Nsight Systems records a send that
    takes no time, and a receive that takes the time of the call: the longer one comes first.
    """
    calls = trace.mpi
    named = np.array([name.startswith(_BOTH) for name in trace.strings] + [False], np.bool_)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for row in np.flatnonzero(named[calls.name]).tolist():
        key = int(whose[row]), int(calls.start_ns[row])
        _, receive = found.get(key, (row, row))
        found[key] = row, receive
    return found


def match(ends: Sequence[End]) -> tuple[list[Message], list[End], list[End]]:
    """Match the messages whose ends name each other.

    Returns
    -------
    list of Message
    list of End
        Sends that are left.
    list of End
        Receives that are left.
    """
    sides: tuple[dict[tuple[int, ...], list[End]], ...] = ({}, {})
    for end in ends:
        route = (end.peer, end.rank) if end.receives else (end.rank, end.peer)
        sides[end.receives].setdefault((end.communicator, *route, end.tag), []).append(end)
    matched: list[Message] = []
    left: list[End] = []
    for key, sent in sides[False].items():
        received = sides[True].get(key, [])
        matched += zip(sent, received, strict=False)
        left += sent[len(received) :]
    lacking = [
        end for key, received in sides[True].items()
        for end in received[len(sides[False].get(key, [])) :]
    ]  # fmt: skip
    return matched, left, lacking


def match_any(sends: Sequence[End], receives: Sequence[End]) -> list[Message]:
    """Match receives of any source or tag with the first message each could have received."""
    waiting: dict[tuple[int, int], list[End]] = {}
    for send in sorted(sends, key=lambda end: end.posted):
        waiting.setdefault((send.communicator, send.peer), []).append(send)
    matched: list[Message] = []
    for receive in sorted(receives, key=lambda end: end.posted):
        candidates = waiting.get((receive.communicator, receive.rank), [])
        for i, send in enumerate(candidates):
            if send.posted > receive.end:
                break
            if receive.peer in (_ANY, send.rank) and receive.tag in (NULL, send.tag):
                matched.append((candidates.pop(i), receive))
                break
    return matched
