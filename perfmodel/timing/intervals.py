"""Unions, intersections and differences of time intervals, many groups of them at once."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.codes import sums


def union(group: Int64, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Merge the overlapping and touching intervals of every group.

    Parameters
    ----------
    group, start_ns, end_ns : int64, shape (n,)
        Intervals of no length are dropped.

    Returns
    -------
    group, start_ns, end_ns : int64, shape (m,)
        Disjoint intervals, by group and start.
    """
    if not (end_ns > start_ns).all():
        kept = np.flatnonzero(end_ns > start_ns)
        group, start_ns, end_ns = group[kept], start_ns[kept], end_ns[kept]
    if len(group) == 0:
        return group, start_ns, end_ns
    same = group[1:] == group[:-1]
    if ((group[1:] < group[:-1]) | same & (start_ns[1:] < start_ns[:-1])).any():
        order = np.lexsort((start_ns, group))
        group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
    reached = running_maximum(group, end_ns)
    new = np.ones(len(group), np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (start_ns[1:] > reached[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(group)) - 1
    return group[first], start_ns[first], reached[last]


def running_maximum(group: Int64, values: Int64) -> Int64:
    """Largest value so far in every group, of values sorted by group."""
    if len(values) == 0:
        return values
    first = np.concatenate([[True], group[1:] != group[:-1]])
    highest: Int64 = np.maximum.accumulate(values)
    if (highest[first] == values[first]).all():  # groups are one above the other as they are
        return highest
    number = np.cumsum(first) - 1
    low, high = int(values.min()), int(values.max())
    width = high - low + 1
    shifted = values - low + number * width  # one axis for all groups, each above the one before
    highest = np.maximum.accumulate(shifted) - number * width + low
    return highest


def extents(
    group: Int32 | Int64, start_ns: Int64, end_ns: Int64, groups: int
) -> tuple[Int64, Int64]:
    """First start and last end of every group: the largest and the least int64 without any."""
    first = np.full(groups, np.iinfo(np.int64).max)
    last = np.full(groups, np.iinfo(np.int64).min)
    if len(group):
        heads = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        np.minimum.at(first, group[heads], np.minimum.reduceat(start_ns, heads))
        np.maximum.at(last, group[heads], np.maximum.reduceat(end_ns, heads))
    return first, last


def lengths(group: Int64, start_ns: Int64, end_ns: Int64, groups: int) -> Int64:
    """Length of the union of every group's intervals, shape (groups,)."""
    which, start, end = union(group, start_ns, end_ns)
    return sums(which, end - start, groups)


def covered(group: Int64, start_ns: Int64, end_ns: Int64, by: tuple[Int64, Int64, Int64]) -> Int64:
    """How much of each interval the disjoint intervals `by` of its group cover, shape (n,).

    Parameters
    ----------
    group, start_ns, end_ns : int64, shape (n,)
    by : tuple of int64 arrays
        As `union` returns them.
    """
    which, first, last = by
    if len(which) == 0 or len(group) == 0:
        return np.zeros(len(group), np.int64)
    low = min(int(first.min()), int(start_ns.min()))
    width = max(int(last.max()), int(end_ns.max())) - low + 1
    begin, end = first - low + which * width, last - low + which * width
    done = np.concatenate([[0], np.cumsum(end - begin)])

    def until(moment: Int64) -> Int64:
        at = np.searchsorted(begin, moment, side="right")
        inside = np.where(at > 0, np.minimum(end[at - 1], moment) - begin[at - 1], 0)
        return np.where(at > 0, done[at - 1], 0) + inside

    return until(end_ns - low + group * width) - until(start_ns - low + group * width)
