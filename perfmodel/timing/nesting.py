"""Nesting of NVTX ranges on their threads, and which of them enclose which launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.trace import NULL, Ranges

_PEELS: Final = 64
_SAFE: Final = 2**62


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges in preorder: by thread, then start, then longest first, then row.

    A range's parent is the tightest range of the same thread that contains it, in any domain; of
    those of one length the one that starts last. Of identical intervals the first one, in the order
    of `perfmodel.readers.order`, is the outer one (Nsight Systems makes each the other's parent and
    loses both).

    Attributes
    ----------
    row : int64, shape (m,)
        Row in the `Ranges` it was made from.
    start_ns, end_ns : int64, shape (m,)
        Open ends filled.
    thread : int32, shape (m,)
    parent : int64, shape (m,)
        Position in preorder, -1 for a range that none contains.
    level : int32, shape (m,)
        Number of ranges above it, from parent to parent.
    crossing : bool, shape (threads,)
        Threads on which one chain of parents does not name all that encloses a range: some
        overlap without nesting, or one of no length lies where two touch. There, a range's
        descendants are not contiguous and containment is decided pair by pair.
    """

    row: Int64
    start_ns: Int64
    end_ns: Int64
    thread: Int32
    parent: Int64
    level: Int32
    crossing: Bool

    def __len__(self) -> int:
        return len(self.row)

    def by_level(self) -> Iterator[Int64]:
        """Yield the positions of every level in preorder, the outermost level first."""
        deepest = int(self.level.max(initial=0))
        level = self.level.astype(np.uint16) if deepest < 2**16 else self.level
        order = np.argsort(level, kind="stable")
        yield from np.split(order, np.cumsum(np.bincount(self.level))[:-1])


def last_moment(ranges: Ranges) -> int:
    """Latest start or end of a table of ranges, which those that never ended are given."""
    return int(max(ranges.start_ns.max(initial=NULL), ranges.end_ns.max(initial=NULL)))


def closed_ends(ranges: Ranges, last_ns: int | None = None) -> Int64:
    """Ends of all ranges; one that never ended is given the table's last moment, or `last_ns`."""
    last = last_moment(ranges) if last_ns is None else last_ns
    return np.where(ranges.end_ns == NULL, last, ranges.end_ns)


def nest(
    ranges: Ranges, thread_count: int, rows: Int64 | None = None, last_ns: int | None = None
) -> Nesting:
    """Nest the ranges that start and end on one thread.

    Parameters
    ----------
    ranges : Ranges
    thread_count : int
        Number of threads of the trace.
    rows : int64 array, optional
        Rows to nest; all that belong to one thread by default.
    last_ns : int, optional
        Given to ranges that never ended; by default the table's last moment.

    Notes
    -----
    A range that never ended is given the last timestamp of the table, as Nsight Systems does.
    Time is linear in ranges times depth, down to a depth no sane program reaches, and then linear
    in ranges; crossing ranges take an exact path of their own.
    """
    row = np.flatnonzero(~ranges.other_thread) if rows is None else rows
    if len(row) == 0:
        none = np.empty(0, np.int64)
        small = np.empty(0, np.int32)
        return Nesting(none, none, none, small, none, small, np.zeros(thread_count, np.bool_))
    end = closed_ends(ranges, last_ns)[row]
    order = _preorder(ranges.thread[row], ranges.start_ns[row], end)
    row, end = row[order], end[order]
    start, thread = ranges.start_ns[row], ranges.thread[row]
    axis_start, axis_end = one_axis(start, end, thread)
    parent, level, crosses = _peel(axis_start, axis_end, thread)
    crossing = np.zeros(thread_count, np.bool_)
    crossing[thread[crosses]] = True
    crossing[thread[_between(axis_start, axis_end)]] = True
    for t in np.flatnonzero(crossing):
        lo, hi = np.searchsorted(thread, [t, t + 1])
        _nest_crossing(start[lo:hi], end[lo:hi], lo, parent[lo:hi], level[lo:hi])
    return Nesting(row, start, end, thread, parent, level, crossing)


def _preorder(thread: Int32, start: Int64, end: Int64) -> Int64:
    """Order by thread, start, longest first, row; reports are nearly in that order already."""
    small = thread.astype(np.uint16) if thread.max(initial=0) < 2**16 else thread
    order = np.argsort(small, kind="stable")
    t, s, e = thread[order], start[order], end[order]
    same = t[1:] == t[:-1]
    wrong = same & ((s[1:] < s[:-1]) | ((s[1:] == s[:-1]) & (e[1:] > e[:-1])))
    if wrong.any():
        order = order[np.lexsort((-e, s, t))]
    return order


def one_axis(start: Int64, end: Int64, thread: Int32 | Int64) -> tuple[Int64, Int64]:
    """Shift every thread's (or group's) times behind those of the one before it."""
    low, high = int(start.min()), int(max(start.max(), end.max()))
    if (high - low + 1) * (int(thread.max()) + 1) >= _SAFE:
        moments, ranks = np.unique(np.concatenate([start, end]), return_inverse=True)
        start, end = ranks[: len(start)], ranks[len(start) :]
        low, high = 0, len(moments)
    shift = thread.astype(np.int64) * (high - low + 1) - low
    return start + shift, end + shift


def _peel(start: Int64, end: Int64, group: Int32) -> tuple[Int64, Int32, Bool]:
    """Parents and levels, one level of all threads at a time; marks ranges that cross another.

    In preorder, a range is outermost of its group if it ends after all before it; the others
    belong to the last outermost one before them.
    """
    count = len(start)
    parent = np.full(count, -1, np.int64)
    level = np.zeros(count, np.int32)
    crosses = np.zeros(count, np.bool_)
    left = np.arange(count)
    owner = group.astype(np.int64)
    for depth in range(_PEELS):
        ends, mine = end[left], owner[left]
        first = np.concatenate([[True], mine[1:] != mine[:-1]])
        before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]])
        top = first | (ends > before)
        crosses[left[top & ~first & (start[left] < before)]] = True
        level[left[top]] = depth
        inner = left[~top]
        parent[inner] = left[top][np.cumsum(top)[~top] - 1]
        owner[inner] = parent[inner]
        left = inner
        if len(left) == 0:
            break
    else:
        _stack(left, start, end, parent, level, crosses)
    return parent, level, crosses


def _stack(
    left: Int64, start: Int64, end: Int64, parent: Int64, level: Int32, crosses: Bool
) -> None:
    """Nest the ranges below all peeled levels, whose parents so far are the last ones peeled."""
    opened: list[int] = []
    for i, s, e, owner in zip(
        left.tolist(), start[left].tolist(), end[left].tolist(), parent[left].tolist(), strict=True
    ):
        if opened and opened[0] != owner:
            opened.clear()
        while len(opened) > 1 and end[opened[-1]] < e:
            crosses[i] |= s < end[opened.pop()]
        opened = opened or [owner]
        parent[i], level[i] = opened[-1], level[opened[-1]] + 1
        opened.append(i)


def _between(start: Int64, end: Int64) -> Int64:
    """Positions of ranges of no length where one range ends and another one starts."""
    instant = np.flatnonzero(start == end)
    longer = start < end
    if len(instant):
        instant = instant[np.isin(start[instant], start[longer])]
    if len(instant):
        instant = instant[np.isin(start[instant], end[longer])]
    return instant


def _nest_crossing(start: Int64, end: Int64, base: int, parent: Int64, level: Int32) -> None:
    """Give every range of one thread its tightest container, whatever overlaps.

    In preorder, what comes before a range starts no later: its containers are those that end no
    earlier. A Fenwick tree over the ends, last first, knows the shortest; of equal ones the last.
    """
    nowhere = (2**64, 0)  # no int64 interval is as long
    tree = [nowhere] * (len(end) + 1)
    place = (np.searchsorted(np.unique(-end), -end) + 1).tolist()
    lengths = [e - s for s, e in zip(start.tolist(), end.tolist(), strict=True)]
    for i, (at, length) in enumerate(zip(place, lengths, strict=True)):
        best, k = nowhere, at
        while k:
            best = min(best, tree[k])
            k &= k - 1
        parent[i], level[i] = (base - best[1], level[-best[1]] + 1) if best < nowhere else (-1, 0)
        while at < len(tree):
            tree[at] = min(tree[at], (length, -i))
            at += at & -at


def start_keys(nesting: Nesting) -> Int64:
    """Return the ranges' starts on one axis of all threads, which is in preorder, too.

    Empty where that axis would not fit into 64 bits.
    """
    low, high = int(nesting.start_ns.min()), int(nesting.start_ns.max())
    width = high - low + 2
    if width * (int(nesting.thread.max()) + 2) >= _SAFE:
        return nesting.start_ns[:0]
    return nesting.start_ns - low + 1 + nesting.thread.astype(np.int64) * width


def innermost(
    nesting: Nesting, thread: Int32, start_ns: Int64, end_ns: Int64, keys: Int64 | None = None
) -> Int64:
    """Return the innermost range that encloses each call, -1 where none does.

    A call belongs to a range if it lies inside it on the same thread; one that straddles a
    border does not. For calls on threads that do not cross; one of no length, where two ranges
    touch, gets one of its two chains of ranges: see `enclosing`.

    Parameters
    ----------
    nesting : Nesting
    thread, start_ns, end_ns : arrays, shape (k,)
        The calls.
    keys : int64 array, optional
        `start_keys` of the nesting, for those who ask often.

    Returns
    -------
    int64 array, shape (k,)
        Positions in the nesting's preorder.
    """
    if len(nesting) == 0 or len(start_ns) == 0:
        return np.full(len(start_ns), -1, np.int64)
    keys = start_keys(nesting) if keys is None else keys
    if len(keys) == 0:
        return _innermost_by_thread(nesting, thread, start_ns, end_ns)
    low, high = int(nesting.start_ns.min()), int(nesting.start_ns.max())
    width = high - low + 2
    known = np.minimum(thread, nesting.thread[-1] + 1)  # threads behind the last with ranges
    asked = np.clip(start_ns, low - 1, high) - low + 1 + known.astype(np.int64) * width
    at = np.searchsorted(keys, asked, side="right") - 1
    at[nesting.thread[at] != thread] = -1
    return _climb(nesting, at, end_ns)


def _innermost_by_thread(nesting: Nesting, thread: Int32, start_ns: Int64, end_ns: Int64) -> Int64:
    at = np.full(len(start_ns), -1, np.int64)
    for t in np.unique(thread):
        lo, hi = np.searchsorted(nesting.thread, [t, t + 1])
        mine = np.flatnonzero(thread == t)
        found = np.searchsorted(nesting.start_ns[lo:hi], start_ns[mine], side="right")
        at[mine] = np.where(found > 0, found + lo - 1, -1)
    return _climb(nesting, at, end_ns)


def _climb(nesting: Nesting, at: Int64, end_ns: Int64) -> Int64:
    """Move up from every candidate until the range's end is not before the call's."""
    asking = np.flatnonzero(at >= 0)
    while len(asking):
        asking = asking[nesting.end_ns[at[asking]] < end_ns[asking]]
        at[asking] = nesting.parent[at[asking]]
        asking = asking[at[asking] >= 0]
    return at


def enclosing(
    nesting: Nesting, thread: Int32, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64, Int64]:
    """Find all ranges that enclose each call: as a chain where one says all, else as pairs.

    Returns
    -------
    inner : int64, shape (k,)
        The innermost range of each call, -1 where none encloses it and where pairs list them.
    range, call : int64
        All (range, call) pairs of calls on crossing threads and of calls of no length.
    """
    inner = innermost(nesting, thread, start_ns, end_ns)
    paired = np.flatnonzero(nesting.crossing[thread] | (start_ns == end_ns))
    inner[paired] = -1
    holder, at = enclosing_pairs(nesting, thread[paired], start_ns[paired], end_ns[paired])
    return inner, holder, paired[at]


def enclosing_pairs(
    nesting: Nesting, thread: Int32, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64]:
    """Return all (range, call) pairs, one by one: exact whatever overlaps, and slow.

    Meant for calls on crossing threads, and for calls of no length, which lie in both of two
    ranges that touch.
    """
    ranges: list[int] = []
    calls: list[int] = []
    for t in np.unique(thread):
        lo, hi = (int(v) for v in np.searchsorted(nesting.thread, [t, t + 1]))
        mine = np.flatnonzero(thread == t)
        mine = mine[np.argsort(start_ns[mine], kind="stable")]
        starts, ends = nesting.start_ns[lo:hi].tolist(), nesting.end_ns[lo:hi].tolist()
        opened: list[int] = []
        next_range = 0
        for call, s, e in zip(
            mine.tolist(), start_ns[mine].tolist(), end_ns[mine].tolist(), strict=True
        ):
            while next_range < hi - lo and starts[next_range] <= s:
                opened.append(next_range)
                next_range += 1
            opened = [j for j in opened if ends[j] >= s]
            holders = [lo + j for j in opened if ends[j] >= e]
            ranges.extend(holders)
            calls.extend([call] * len(holders))
    return np.array(ranges, np.int64), np.array(calls, np.int64)
