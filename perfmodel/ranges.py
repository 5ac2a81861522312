"""Nesting of NVTX ranges on their threads, and which of them enclose which launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.trace import NULL, ApiCalls, Bool, GpuOps, Int32, Int64, Ranges, Trace

_PEELS: Final = 64
_SAFE: Final = 2**62


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges in preorder: by thread, then start, then longest first, then row.

    A range's parent is the tightest range of the same thread that contains it, in any domain. Of
    identical intervals the earlier row is the outer one (Nsight Systems makes each the other's
    parent and loses both).

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
        Number of enclosing ranges.
    crossing : bool, shape (threads,)
        Threads on which some ranges overlap without nesting; there, a range's descendants are
        not contiguous and containment is decided pair by pair.
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

    def subtree_sizes(self) -> Int64:
        """Return the number of ranges in every range's subtree, itself included."""
        size = np.ones(len(self), np.int64)
        for level in range(int(self.level.max(initial=0)), 0, -1):
            at = np.flatnonzero(self.level == level)
            np.add.at(size, self.parent[at], size[at])
        return size


def nest(ranges: Ranges, thread_count: int, rows: Int64 | None = None) -> Nesting:
    """Nest the ranges that start and end on one thread.

    Parameters
    ----------
    ranges : Ranges
    thread_count : int
        Number of threads of the trace.
    rows : int64 array, optional
        Rows to nest; all that belong to one thread by default.

    Notes
    -----
    A range that never ended is given the last timestamp of the table, as Nsight Systems does.
    Time is linear in ranges times depth; crossing ranges take an exact path of their own.
    """
    row = np.flatnonzero(~ranges.other_thread) if rows is None else rows
    if len(row) == 0:
        none = np.empty(0, np.int64)
        small = np.empty(0, np.int32)
        return Nesting(none, none, none, small, none, small, np.zeros(thread_count, np.bool_))
    last = max(int(ranges.start_ns.max()), int(ranges.end_ns.max()))
    end = ranges.end_ns[row]
    end = np.where(end == NULL, last, end)
    order = _preorder(ranges.thread[row], ranges.start_ns[row], end)
    row, end = row[order], end[order]
    start, thread = ranges.start_ns[row], ranges.thread[row]
    axis_start, axis_end = one_axis(start, end, thread)
    parent, level, crosses = _peel(axis_start, axis_end, thread)
    crossing = np.zeros(thread_count, np.bool_)
    crossing[thread[crosses]] = True
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
            return parent, level, crosses
    crosses[left] = True  # deeper than any sane program nests: leave it to the exact path
    return parent, level, crosses


def _nest_crossing(start: Int64, end: Int64, base: int, parent: Int64, level: Int32) -> None:
    """Give every range of one thread its tightest container, whatever overlaps."""
    open_ranges: list[int] = []
    starts, ends = start.tolist(), end.tolist()
    for i, (s, e) in enumerate(zip(starts, ends, strict=True)):
        open_ranges = [j for j in open_ranges if ends[j] >= s]
        holders = [j for j in open_ranges if ends[j] >= e]
        if holders:
            best = min(reversed(holders), key=lambda j: ends[j] - starts[j])
            parent[i], level[i] = base + best, level[best] + 1
        else:
            parent[i], level[i] = -1, 0
        open_ranges.append(i)


def innermost(nesting: Nesting, thread: Int32, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the innermost range that encloses each call, -1 where none does.

    A call belongs to a range if it lies inside it on the same thread; one that straddles a
    border does not. On crossing threads the answer is one container, not all: see `enclosing`.

    Parameters
    ----------
    nesting : Nesting
    thread, start_ns, end_ns : arrays, shape (k,)
        The calls.

    Returns
    -------
    int64 array, shape (k,)
        Positions in the nesting's preorder.
    """
    if len(nesting) == 0 or len(start_ns) == 0:
        return np.full(len(start_ns), -1, np.int64)
    low, high = int(nesting.start_ns.min()), int(nesting.start_ns.max())
    width = high - low + 2
    if width * (int(max(nesting.thread.max(), thread.max())) + 1) >= _SAFE:
        return _innermost_by_thread(nesting, thread, start_ns, end_ns)
    keys = nesting.start_ns - low + 1 + nesting.thread.astype(np.int64) * width
    asked = np.clip(start_ns, low - 1, high) - low + 1 + thread.astype(np.int64) * width
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


def join_launches(trace: Trace, ops: GpuOps, api: ApiCalls) -> tuple[Int64, Int64, bool]:
    """Join GPU operations to the API calls that launched them.

    Returns
    -------
    op, call : int64 arrays, shape (pairs,)
        Row pairs that agree on process and correlation id. Operations without a call are in no
        pair; an id that several calls share makes several pairs.
    repeated : bool
        Whether several calls of one process may share an id.
    """
    op_rows = np.flatnonzero((ops.correlation != NULL) & (ops.process >= 0))
    api_process = trace.thread_process[api.thread]
    api_rows = np.flatnonzero(api.correlation != NULL)
    if len(op_rows) == 0 or len(api_rows) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), False
    processes = len(trace.processes)
    whose, ids = api_process[api_rows], api.correlation[api_rows]
    low = np.full(processes, np.iinfo(np.int64).max)
    high = np.full(processes, np.iinfo(np.int64).min)
    np.minimum.at(low, whose, ids)
    np.maximum.at(high, whose, ids)
    seen = high >= low
    width = np.where(seen, high - low + 1, 0)
    if (width < 0).any() or float(width.astype(np.float64).sum()) > 8.0 * len(api_rows) + 1e6:
        return _join_sorted(ops, op_rows, whose, ids, api_rows)
    base = np.concatenate([[0], np.cumsum(width)])
    table = np.full(int(base[-1]) + 1, -1, np.int64)
    slot = base[whose] + ids - low[whose]
    table[slot] = api_rows
    if not np.array_equal(table[slot], api_rows):
        return _join_sorted(ops, op_rows, whose, ids, api_rows)
    process, wanted = ops.process[op_rows], ops.correlation[op_rows]
    inside = (wanted >= low[process]) & (wanted <= high[process])
    op_rows, process, wanted = op_rows[inside], process[inside], wanted[inside]
    call = table[base[process] + wanted - low[process]]
    return op_rows[call >= 0], call[call >= 0], False


def _join_sorted(
    ops: GpuOps, op_rows: Int64, whose: Int32, ids: Int64, api_rows: Int64
) -> tuple[Int64, Int64, bool]:
    """Join sparse or repeated correlation ids by sorting; repeated ids multiply pairs."""
    distinct, codes = np.unique(
        np.concatenate([ids, ops.correlation[op_rows]]), return_inverse=True
    )
    key = np.concatenate([whose, ops.process[op_rows]]).astype(np.int64) * len(distinct) + codes
    api_key, op_key = key[: len(ids)], key[len(ids) :]
    order = np.argsort(api_key, kind="stable")
    lo = np.searchsorted(api_key[order], op_key, side="left")
    count = np.searchsorted(api_key[order], op_key, side="right") - lo
    op = np.repeat(op_rows, count)
    offset = np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    return op, api_rows[order[np.repeat(lo, count) + offset]], True
