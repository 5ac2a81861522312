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


@dataclass(frozen=True, slots=True)
class Waits:
    """Dependences of the nodes of a replay; see `critical_path`.

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
    waits_for_all : bool, shape (k,)
        Whether it ends after the last rank has come to its collective: others left before.
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
    waits_for_all: Bool
    wait_base: Int64
    wait_op: Int64
    tail_ns: Int64


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
        members, first = _members(waits)
        op_level, wait_level, met_level = _levels(waits, members, first, bases)
        by_level = np.argsort(met_level, kind="stable")
        rows, self._first = _joined(first[by_level], first[by_level + 1])
        self._members = members[rows]
        self._all = waits.waits_for_all[self._members]
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
        self._come = place[self._members]
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
        count, ops = self._count, self._ops
        times = np.empty(self._never + 1, np.int64)
        times[2 * count : self._never] = base
        times[self._never] = _NEVER
        launch, gap, length = launch[ops], gap[ops], length[ops]
        still, tail = waits[self._waits], self._tail - passed[self._waits]
        bound = np.zeros(len(waits), np.bool_)
        for (a, b), (c, d), (m, n) in self._cuts:
            if b > a:
                now = times[self._launched[a:b]] + launch[a:b]
                np.maximum(now, times[self._before[a:b]] + gap[a:b], out=now)
                np.maximum(now, times[self._other[a:b]] + self._lag[a:b], out=now)
                times[a:b] = now
                times[count + a : count + b] = now + length[a:b]
            if n > m:
                first = self._first[m : n + 1]
                come = self._come[first[0] : first[-1]]
                arrived = np.maximum.reduceat(times[come], first[:-1] - first[0])
                arrived = np.repeat(arrived, np.diff(first))
                arrived = np.where(self._all[first[0] : first[-1]], arrived, times[come])
                times[count + come] = arrived + length[come]
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
        """By operation of a collective, the one that came last."""
        members, size = self._members, np.diff(self._first)
        order = np.lexsort((members, start[members], np.repeat(np.arange(len(size)), size)))
        final = np.repeat(members[order[self._first[1:] - 1]], size)
        return dict(zip(members[self._all].tolist(), final[self._all].tolist(), strict=True))


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


def _members(waits: Waits) -> tuple[Int64, Int64]:
    """Operations of the collectives, one collective behind the other, and where each begins."""
    ops = np.flatnonzero(waits.collective >= 0)
    ops = ops[np.argsort(waits.collective[ops], kind="stable")]
    first = np.flatnonzero(np.diff(waits.collective[ops], prepend=-1))
    return ops, np.append(first, len(ops))


def _levels(waits: Waits, members: Int64, first: Int64, bases: int) -> tuple[Int64, Int64, Int64]:
    """Level of every operation, of every call that waits, and of every collective."""
    count, calls = len(waits.before), len(waits.wait_op)
    own = np.arange(count + calls + len(first) - 1, dtype=np.int32)  # and the collectives
    met = np.repeat(own[count + calls :], np.diff(first))
    ends = own[:count].copy()
    ends[members] = np.where(waits.waits_for_all[members], met, members)
    sets = np.full(bases, -1, np.int32)
    sets[waits.wait_base + 1] = own[count : count + calls]
    before = np.where(waits.overlaps | (waits.before < 0), waits.before, ends[waits.before])
    other = np.where(waits.other < 0, -1, ends[waits.other])
    source = np.concatenate([
        sets[waits.launch_base], before, other, sets[waits.wait_base], ends[waits.wait_op],
        members.astype(np.int32),
    ])  # fmt: skip
    node = np.concatenate([*[own[:count]] * 3, *[own[count : count + calls]] * 2, met])
    node, source = node[source >= 0], source[source >= 0]
    left = np.bincount(node, minlength=len(own))
    node = node[np.argsort(source, kind="stable")]
    begin = _offsets(np.bincount(source, minlength=len(own)))
    level = np.zeros(len(own), np.int64)
    ready, now = np.flatnonzero(left == 0), 0
    while len(ready):
        level[ready] = now
        behind = node[_joined(begin[ready], begin[ready + 1])[0]]
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
