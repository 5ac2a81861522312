"""Nesting equals its definition, tried pair by pair, on whatever ranges and times there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.readers.trace import NULL
from perfmodel.timing.nesting import Nesting, enclosing, enclosing_pairs, innermost, nest, one_axis
from support.timelines import Interval, ints, is_tangled, levels, make_ranges, parents

THREADS = 3
LAST = 2**63 - 1
AXES = {
    "dense": list(range(13)),
    "negative": [10**9 * (t - 6) for t in range(13)],
    "far": [10**18 + t for t in range(13)],
    "huge": [NULL + 1, -(2**62), -3, -2, -1, 0, 1, 2, 3, 2**61, 2**62, LAST - 1, LAST],
}
"""Thirteen moments: small, negative, large, and such that lengths do not fit in 64 bits."""

bounded = settings(max_examples=50, deadline=None, derandomize=True)
moment = st.integers(0, 12)
thread = st.integers(0, THREADS - 1)
span = st.tuples(thread, moment, moment).map(lambda t: Interval(t[0], *sorted(t[1:])))
axis = st.sampled_from(list(AXES))


@st.composite
def laminar(draw: Callable[..., Any]) -> list[Interval]:
    """Ranges that nest as pushes and pops do, in any order."""
    kept: list[Interval] = []
    for candidate in draw(st.lists(span, max_size=14)):
        if not any(candidate.crosses(other) for other in kept):
            kept.append(candidate)
    return kept


def on(name: str, intervals: list[Interval]) -> list[Interval]:
    """Move intervals onto an axis."""
    at = AXES[name]
    return [Interval(i.thread, at[i.start], at[i.end]) for i in intervals]


def columns(calls: list[Interval]) -> tuple[Any, Any, Any]:
    thread = ints((c.thread for c in calls), np.int32)
    return thread, ints(c.start for c in calls), ints(c.end for c in calls)


def check(intervals: list[Interval]) -> Nesting:
    """Compare a nesting with its definition."""
    ranges = make_ranges(intervals)
    nesting = nest(ranges, THREADS)
    parent = parents(intervals)
    level = levels(parent)
    rows = nesting.row.tolist()
    assert sorted(rows) == list(range(len(intervals)))
    assert [rows[p] if p >= 0 else -1 for p in nesting.parent] == [parent[r] for r in rows]
    assert nesting.level.tolist() == [level[r] for r in rows]
    assert nesting.start_ns.tolist() == [intervals[r].start for r in rows]
    assert nesting.end_ns.tolist() == [intervals[r].end for r in rows]
    assert nesting.crossing.tolist() == [is_tangled(intervals, t) for t in range(THREADS)]
    keys = [(*intervals[r][:2], -intervals[r].end, r) for r in rows]
    assert keys == sorted(keys)
    return nesting


@bounded
@given(intervals=laminar(), name=axis)
def test_nested_ranges(intervals: list[Interval], name: str) -> None:
    check(on(name, intervals))


@bounded
@given(intervals=st.lists(span, max_size=14), name=axis)
@example(intervals=[Interval(0, 2, 4), Interval(0, 4, 9), Interval(0, 4, 4)], name="dense")
@example(intervals=[Interval(0, 0, 12)] * 3, name="huge")
def test_any_ranges(intervals: list[Interval], name: str) -> None:
    check(on(name, intervals))


def test_a_range_of_no_length_belongs_to_the_shorter_of_two_that_touch() -> None:
    # [0, 10] and [10, 30] touch at 10; both hold [10, 10], and the first is tighter.
    nesting = check([Interval(0, 0, 10), Interval(0, 10, 30), Interval(0, 10, 10)])
    assert nesting.parent.tolist() == [-1, -1, 0]
    assert nesting.crossing.tolist() == [True, False, False]


@bounded
@given(intervals=st.lists(span, max_size=14), name=axis)
def test_levels(intervals: list[Interval], name: str) -> None:
    nesting = nest(make_ranges(on(name, intervals)), THREADS)
    for level, at in enumerate(nesting.by_level()):
        assert at.tolist() == [i for i in range(len(nesting)) if nesting.level[i] == level]


@bounded
@given(intervals=laminar(), calls=st.lists(span, max_size=10), name=axis)
def test_innermost(intervals: list[Interval], calls: list[Interval], name: str) -> None:
    """Calls of some length, on threads whose ranges nest."""
    intervals, calls = on(name, intervals), on(name, calls)
    calls = [c for c in calls if c.start < c.end and not is_tangled(intervals, c.thread)]
    nesting = nest(make_ranges(intervals), THREADS)
    found = innermost(nesting, *columns(calls))
    wanted = [parents([*intervals, call])[-1] for call in calls]
    assert [nesting.row[at] if at >= 0 else -1 for at in found] == wanted


@bounded
@given(intervals=st.lists(span, max_size=14), calls=st.lists(span, max_size=10), name=axis)
def test_all_that_encloses(intervals: list[Interval], calls: list[Interval], name: str) -> None:
    """As pairs, and as chains with pairs where a chain does not say all."""
    intervals, calls = on(name, intervals), on(name, calls)
    nesting = nest(make_ranges(intervals), THREADS)
    wanted = sorted(
        (r, c) for r, i in enumerate(intervals) for c, call in enumerate(calls) if i.holds(call)
    )
    holder, call = enclosing_pairs(nesting, *columns(calls))
    assert sorted(zip(nesting.row[holder].tolist(), call.tolist(), strict=True)) == wanted

    inner, holder, call = enclosing(nesting, *columns(calls))
    pairs = list(zip(nesting.row[holder].tolist(), call.tolist(), strict=True))
    for at, position in enumerate(inner.tolist()):
        while position >= 0:
            pairs.append((int(nesting.row[position]), at))
            position = nesting.parent[position]
    assert sorted(pairs) == wanted


@bounded
@given(intervals=st.lists(span, min_size=1, max_size=20), name=axis)
def test_one_axis_keeps_order_and_threads_apart(intervals: list[Interval], name: str) -> None:
    intervals = sorted(on(name, intervals))
    thread, start, end = columns(intervals)
    first, last = one_axis(start, end, thread)
    for (a, s, e), (b, t, f) in pairwise(
        zip(intervals, first.tolist(), last.tolist(), strict=True)
    ):
        same = a.thread == b.thread
        assert (s < t) == (a.start < b.start if same else True)
        assert (e < t) == (a.end < b.start if same else True)
        assert (e < f) == (a.end < b.end if same else True)


def test_nothing() -> None:
    nesting = nest(make_ranges([]), THREADS)
    assert len(nesting) == 0
    assert nesting.crossing.tolist() == [False] * THREADS
    assert innermost(nesting, *columns([Interval(0, 1, 2)])).tolist() == [-1]
    inner, holder, call = enclosing(nesting, *columns([Interval(0, 1, 2), Interval(1, 3, 3)]))
    assert (inner.tolist(), holder.tolist(), call.tolist()) == ([-1, -1], [], [])


def test_an_open_range_ends_with_the_table() -> None:
    # Thread 0: [0, open) and [10, 20]; thread 1: [5, 90], whose end is the table's last time.
    ranges = make_ranges([Interval(0, 0, NULL), Interval(0, 10, 20), Interval(1, 5, 90)])
    nesting = nest(ranges, 2)
    assert nesting.end_ns.tolist() == [90, 20, 90]
    assert nesting.parent.tolist() == [-1, 0, -1]


def test_a_range_of_two_threads_belongs_to_no_nesting() -> None:
    whole, inside = Interval(0, 0, 100), Interval(0, 10, 20)
    ranges = make_ranges([whole, inside])
    other = replace(ranges, other_thread=np.array([True, False]))
    nesting = nest(other, 1)
    assert nesting.row.tolist() == [1]
    assert nesting.parent.tolist() == [-1]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


@pytest.mark.parametrize("depth", [63, 64, 65, 66, 1000, 8_000])
def test_deep_nesting(depth: int) -> None:
    """A recursion that calls itself twice: [i, end - i], and a leaf after each on the way out."""
    whole = [Interval(0, i, 4 * depth - 3 * i) for i in range(depth)]
    leaves = [Interval(0, 4 * depth - 3 * i + 1, 4 * depth - 3 * i + 2) for i in range(1, depth)]
    took, nesting = seconds(lambda: nest(make_ranges([*whole, *leaves]), 1))
    assert took < 5
    assert not nesting.crossing.any()
    parent = [-1, *range(depth - 1), *range(depth - 1)]
    level = [*range(depth), *range(1, depth)]
    rows = nesting.row
    assert np.where(nesting.parent >= 0, rows[nesting.parent], -1).tolist() == [
        parent[r] for r in rows
    ]
    assert nesting.level.tolist() == [level[r] for r in rows]
    took, levels = seconds(lambda: [*nesting.by_level()])
    assert took < 5
    assert len(levels) == depth
    took, found = seconds(lambda: innermost(nesting, *columns([Interval(0, depth, depth + 1)] * 9)))
    assert took < 5
    assert nesting.level[found].tolist() == [depth - 1] * 9


@pytest.mark.parametrize("depth", [70, 300])
def test_deep_ranges_that_cross(depth: int) -> None:
    """A crossing below all levels that are nested at once is found too."""
    deep = [Interval(0, i, 3 * depth - i) for i in range(depth)]
    check([*deep, Interval(0, depth + 5, depth + 9), Interval(0, depth + 7, depth + 12)])
    check([*deep, Interval(1, 0, 5), Interval(2, 3, 4)])


def test_many_ranges_that_all_cross() -> None:
    count = 20_000
    stairs = [Interval(0, i, count + i) for i in range(count)]
    inside = [Interval(0, count // 2, count // 2 + 1)]
    took, nesting = seconds(lambda: nest(make_ranges([*stairs, *inside]), 1))
    assert took < 5
    assert nesting.crossing.all()
    assert nesting.level.max() == 1
    # All that start up to the middle are equally long around the last one: the latest counts.
    child = np.flatnonzero(nesting.level == 1)
    assert nesting.row[child].tolist() == [count]
    assert nesting.row[nesting.parent[child]].tolist() == [count // 2]
