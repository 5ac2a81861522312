"""Replays the nodes of many lanes at once: all that wait for nothing but earlier levels together.

A node's level is one more than the highest of what it waits for. A thousand lanes have about as
many levels as one, so that each level is a few operations on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64

_NEVER: Final = -(1 << 62)
"""When what a node does not wait for is over."""
_MOST: Final = 16
"""Arrivals for each end of a collective, on average, that are worth going through at once."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What the nodes of a replay wait for; see `critical_path`.

    Attributes
    ----------
    launch_base : int32, shape (k,)
        The base that each operation's launch counts from.
    before, other : int32, shape (k,)
        Operation before it on its stream, and one of another stream; -1 for none.
    overlaps : bool, shape (k,)
        Whether it waits for the start of the operation before it, not for its end.
    lag_ns : int64, shape (k,)
        For how long after the other one.
    collective : int64, shape (k,)
        Number of the collective that it is of, -1 for none.
    wait_base, wait_op : int64, shape (w,)
        The base that each call which waits counts from, and the operation that it waits for. It
        sets the base behind its own.
    tail_ns : int64, shape (w,)
    """

    launch_base: Int32
    before: Int32
    other: Int32
    overlaps: Bool
    lag_ns: Int64
    collective: Int64
    wait_base: Int64
    wait_op: Int64
    tail_ns: Int64


@dataclass(frozen=True, slots=True)
class _Meetings:
    """Operations that have come to a collective, and those that leave it then, by meeting.

    A collective is one meeting, but where clocks say that a rank came after another one had left.
    """

    coming: Int64
    first_coming: Int64
    leaving: Int64
    first_leaving: Int64


class Levels:
    """Nodes by level, ready to be replayed with other lengths.

    Times are one array: starts of the operations in the order of their levels, their ends, the
    bases, and `_NEVER`.

    Parameters
    ----------
    waits : Waits
    order : int64
        Nodes in the order of time: operations, then the ends of those of collectives (k + number
        of the operation), then calls that wait (2 k + number).
    bases : int
        How many bases there are.

    Raises
    ------
    ValueError
        If a node comes before one that it waits for: only a replay in that order has its result.
    """

    def __init__(self, waits: Waits, order: Int64, bases: int) -> None:
        count = len(waits.before)
        position = np.full(2 * count + len(waits.wait_op), -1, np.int64)
        position[order] = np.arange(len(order))
        _check_order(waits, position, bases)
        meetings = _meetings(waits, position)
        op_level, wait_level, met_level = _levels(waits, meetings, bases)
        self._meetings = meetings = _in_order(meetings, np.argsort(met_level, kind="stable"))
        self._ops = ops = np.argsort(op_level, kind="stable")
        place = np.empty(count + 1, np.int64)
        place[ops] = np.arange(count)
        place[-1] = 2 * count + bases  # of operation -1
        self._count, self._never = count, 2 * count + bases
        at_end = (waits.before[ops] >= 0) & ~waits.overlaps[ops]
        self._launched = _compact(2 * count + waits.launch_base[ops])
        self._before = _compact(place[waits.before[ops]] + np.where(at_end, count, 0))
        later = np.where(waits.other[ops] >= 0, count, 0)
        self._other = _compact(place[waits.other[ops]] + later)
        self._lag = waits.lag_ns[ops]
        self._waits = np.argsort(wait_level, kind="stable")
        self._base = 2 * count + waits.wait_base[self._waits]
        self._wait_end = count + place[waits.wait_op[self._waits]]
        self._tail = waits.tail_ns[self._waits]
        self._coming, self._ends = place[meetings.coming], count + place[meetings.leaving]
        levels = op_level, wait_level, met_level
        edges = np.arange(max(level.max(initial=0) for level in levels) + 2)
        cuts = (np.searchsorted(np.sort(level), edges).tolist() for level in levels)
        self._cuts = [*zip(*map(pairwise, cuts), strict=True)]

    def run(
        self,
        base: Int64,
        launch: Int64,
        gap: Int64,
        length: Int64,
        waits: Bool,
        passed: Int64,
    ) -> tuple[Int64, Int64, Int64, Bool, dict[int, int]]:
        """Return starts, ends, bases, whether calls had to wait, and what collectives waited for.

        Parameters
        ----------
        base : int64
            What bases are where no call has to wait.
        launch, gap, length : int64, shape (k,)
            From its base to the launch of each operation; after the one before it; its length.
        waits : bool, shape (w,)
            Calls that still wait.
        passed : int64, shape (w,)
            From its base to each wait's end.
        """
        count, ops, met = self._count, self._ops, self._meetings
        times = np.empty(self._never + 1, np.int64)
        times[2 * count : self._never] = base
        times[self._never] = _NEVER
        launch, gap, length = launch[ops], gap[ops], length[ops]
        still, tail = waits[self._waits], self._tail - passed[self._waits]
        bound = np.zeros(len(waits), np.bool_)
        ends_with = length[self._ends - count]
        for (a, b), (c, d), (m, n) in self._cuts:
            if b > a:
                now = times[self._launched[a:b]] + launch[a:b]
                np.maximum(now, times[self._before[a:b]] + gap[a:b], out=now)
                np.maximum(now, times[self._other[a:b]] + self._lag[a:b], out=now)
                times[a:b] = now
                times[count + a : count + b] = now + length[a:b]
            if n > m:
                first, last = met.first_coming[m], met.first_coming[n]
                here = slice(met.first_leaving[m], met.first_leaving[n])
                come = times[self._coming[first:last]]
                arrived = np.maximum.reduceat(come, met.first_coming[m:n] - first)
                arrived = np.repeat(arrived, np.diff(met.first_leaving[m : n + 1]))
                times[self._ends[here]] = arrived + ends_with[here]
            if d > c:
                at = self._base[c:d]
                now, waited = times[at], times[self._wait_end[c:d]] + tail[c:d]
                bound[c:d] = still[c:d] & (waited > now)
                times[at + 1] = np.where(bound[c:d], waited, now)
        start, end = np.empty(count, np.int64), np.empty(count, np.int64)
        start[ops], end[ops] = times[:count], times[count : 2 * count]
        had_to = np.empty(len(waits), np.bool_)
        had_to[self._waits] = bound
        return start, end, times[2 * count : self._never], had_to, self._last(start)

    def _last(self, start: Int64) -> dict[int, int]:
        """By operation of a collective, the one that came last of those that it waited for."""
        met = self._meetings
        of = np.repeat(np.arange(len(met.first_coming) - 1), np.diff(met.first_coming))
        order = np.lexsort((met.coming, start[met.coming], of))
        final = met.coming[order[met.first_coming[1:] - 1]]
        waited = np.repeat(final, np.diff(met.first_leaving))
        return dict(zip(met.leaving.tolist(), waited.tolist(), strict=True))


def _check_order(waits: Waits, position: Int64, bases: int) -> None:
    """Refuse positions in which a node comes before one that it waits for."""
    count = len(waits.before)
    start, called = position[:count], position[2 * count :]
    end = np.maximum(start, position[count : 2 * count])
    sets = np.full(bases, -1)
    sets[waits.wait_base + 1] = called
    some, rest = waits.before >= 0, waits.other >= 0
    before = np.where(waits.overlaps, start[waits.before], end[waits.before])
    known = (
        (before[some] < start[some]).all()
        and (end[waits.other[rest]] < start[rest]).all()
        and (sets[waits.launch_base] < start).all()
        and (end[waits.wait_op] < called).all()
        and (sets[waits.wait_base] < called).all()
    )
    if not known:
        raise ValueError("expected nodes behind those that they wait for; got some before them")


def _meetings(waits: Waits, position: Int64) -> _Meetings:
    """Find for every operation that leaves a collective those that had come by then.

    Raises
    ------
    ValueError
        If they are too many: clocks that drift make every end a meeting of its own.
    """
    count = len(waits.before)
    ops = np.flatnonzero(waits.collective >= 0)
    number = waits.collective[ops]
    coming = ops[np.lexsort((position[ops], number))]
    key = waits.collective[coming] * len(position) + position[coming]
    until = np.searchsorted(key, number * len(position) + position[count + ops])
    stops, of = np.unique(until, return_inverse=True)
    since = np.searchsorted(waits.collective[coming], waits.collective[coming[stops - 1]])
    if (stops - since).sum() > _MOST * len(ops):
        raise ValueError("expected all ranks to come before one leaves; got many that do not")
    rows, first = _joined(since, stops)
    leaving = ops[np.argsort(of.ravel(), kind="stable")]
    return _Meetings(coming[rows], first, leaving, _offsets(np.bincount(of.ravel())))


def _in_order(meetings: _Meetings, order: Int64) -> _Meetings:
    """Put the meetings into another order."""
    columns = []
    for values, first in (
        (meetings.coming, meetings.first_coming),
        (meetings.leaving, meetings.first_leaving),
    ):
        rows, offsets = _joined(first[order], first[order + 1])
        columns += [values[rows], offsets]
    return _Meetings(*columns)


def _levels(waits: Waits, meetings: _Meetings, bases: int) -> tuple[Int64, Int64, Int64]:
    """Level of every operation, of every call that waits, and of every meeting."""
    count, calls, met = len(waits.before), len(waits.wait_op), len(meetings.first_coming) - 1
    own = np.arange(count + calls + met, dtype=np.int32)  # operations, calls, meetings
    ends = own[:count].copy()
    ends[meetings.leaving] = np.repeat(own[count + calls :], np.diff(meetings.first_leaving))
    sets = np.full(bases, -1, np.int32)
    sets[waits.wait_base + 1] = own[count : count + calls]
    before = np.where(waits.overlaps | (waits.before < 0), waits.before, ends[waits.before])
    other = np.where(waits.other < 0, -1, ends[waits.other])
    coming = np.repeat(own[count + calls :], np.diff(meetings.first_coming))
    source = np.concatenate([
        sets[waits.launch_base], before, other, sets[waits.wait_base], ends[waits.wait_op],
        meetings.coming.astype(np.int32),
    ])  # fmt: skip
    node = np.concatenate([*[own[:count]] * 3, *[own[count : count + calls]] * 2, coming])
    node, source = node[source >= 0], source[source >= 0]
    left = np.bincount(node, minlength=len(own))
    node = node[np.argsort(source, kind="stable")]
    first = _offsets(np.bincount(source, minlength=len(own)))
    level = np.zeros(len(own), np.int64)
    ready, now = np.flatnonzero(left == 0), 0
    while len(ready):
        level[ready] = now
        behind = node[_joined(first[ready], first[ready + 1])[0]]
        np.subtract.at(left, behind, 1)
        ready, now = np.unique(behind[left[behind] == 0]), now + 1
    return level[:count], level[count : count + calls], level[count + calls :]


def _joined(since: Int64, until: Int64) -> tuple[Int64, Int64]:
    """Numbers of all the slices one after another, and where each slice begins among them."""
    first = _offsets(until - since)
    return np.arange(first[-1]) + np.repeat(since - first[:-1], until - since), first


def _compact(positions: Int32 | Int64) -> Int32 | Int64:
    """Positions in half the memory, where they fit."""
    return positions.astype(np.int32) if positions.max(initial=0) < 1 << 31 else positions


def _offsets(counts: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
