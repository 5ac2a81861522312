"""Launches and projections equal their definitions, tried pair by pair, on random timelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.readers.trace import NULL
from perfmodel.timing.nesting import nest
from perfmodel.timing.projection import attribute, join_launches, project
from support.timelines import (
    Call,
    Interval,
    Op,
    joined,
    make_api,
    make_ops,
    make_trace,
    projections,
)

THREAD_PROCESS = (0, 0, 1)
"""Two threads of one process, and another process."""

moment = st.integers(0, 15)
thread = st.integers(0, len(THREAD_PROCESS) - 1)
span = st.tuples(thread, moment, moment).map(lambda t: Interval(t[0], *sorted(t[1:])))

IDS = {
    "few": [1, 2, 3, 4],
    "with null": [NULL, 0, -1, 2],
    "sparse": [1, 10**12, 2**62, 2**63 - 1],
    "widest": [NULL + 1, -1, 0, 2**63 - 1],
}


@st.composite
def timelines(draw: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Ranges, calls and operations; ids repeat among operations, and among calls too or not."""
    ranges = draw(st.lists(span, max_size=8))
    ids = st.sampled_from(IDS[draw(st.sampled_from([*IDS]))]) | st.integers(1, 30)
    calls = draw(st.lists(st.builds(Call, span, ids), max_size=10))
    if draw(st.booleans()):
        unique = {(THREAD_PROCESS[c.interval.thread], c.correlation): c for c in calls}
        calls = list(unique.values())
    process = st.sampled_from([-1, 0, 0, 0, 1])
    ops = [
        Op(p, i, *sorted(times))
        for p, i, times in draw(
            st.lists(st.tuples(process, ids, st.tuples(moment, moment)), max_size=14)
        )
    ]
    return ranges, calls, ops


def trace_of(timeline: tuple[Any, Any, Any]) -> Any:
    return make_trace(*timeline, thread_process=THREAD_PROCESS)


def projected(trace: Any) -> dict[int, tuple[int, int, int]]:
    """First start, last end and operations by range row."""
    nesting = nest(trace.ranges, len(trace.threads))
    found = project(trace, nesting, trace.ops)
    rows = nesting.row[found.range].tolist()
    values = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.ops.tolist(), strict=True)
    return dict(zip(rows, values, strict=True))


@pytest.mark.slow
@given(timeline=timelines())
def test_join(timeline: tuple[Any, Any, Any]) -> None:
    _, calls, ops = timeline
    trace = trace_of(timeline)
    op, call, repeated = join_launches(trace, trace.ops, trace.api)
    assert sorted(zip(op.tolist(), call.tolist(), strict=True)) == joined(trace, ops, calls)
    ids = [
        (THREAD_PROCESS[c.interval.thread], c.correlation) for c in calls if c.correlation != NULL
    ]
    assert repeated or len(set(ids)) == len(ids) or len(op) == 0


def test_join_of_dense_ids_finds_that_none_repeats() -> None:
    calls = [Call(Interval(t, 10 * i, 10 * i + 1), i + 1) for t in (0, 2) for i in range(100)]
    ops = [Op(p, i + 1, i, i + 1) for p in (1, 0) for i in range(100)]
    trace = make_trace((), calls, ops, thread_process=THREAD_PROCESS)
    op, call, repeated = join_launches(trace, trace.ops, trace.api)
    assert not repeated
    assert op.tolist() == list(range(200))
    assert call.tolist() == [*range(100, 200), *range(100)]


@pytest.mark.parametrize("first", [NULL + 1, -(2**40), 0, 2**63 - 10**6])
def test_join_of_ids_anywhere(first: int) -> None:
    """Dense ids far from zero need no sorting; sparse ones do; both find the same."""
    for step in (1, 10**9, 2**55):
        ids = list(range(first, min(first + 90 * step, 2**63 - 1), step))
        calls = [Call(Interval(0, i, i), c) for i, c in enumerate(ids)]
        ops = [Op(0, c, i, i) for i, c in enumerate(reversed([*ids, 7]))]
        api, gpu = make_api(calls), make_ops(ops)
        op, call, _ = join_launches(make_trace(calls=calls, ops=ops), gpu, api)
        assert gpu.correlation[op].tolist() == api.correlation[call].tolist()
        assert len(op) == len(ids) + (7 in ids)


@given(timeline=timelines())
def test_projection(timeline: tuple[Any, Any, Any]) -> None:
    trace = trace_of(timeline)
    assert projected(trace) == projections(trace, *timeline)


@given(timeline=timelines())
def test_a_range_projects_what_those_inside_it_do(timeline: tuple[Any, Any, Any]) -> None:
    ranges = timeline[0]
    found = projected(trace_of(timeline))
    for inner, (start, end, ops) in found.items():
        for outer, r in enumerate(ranges):
            if r.holds(ranges[inner]):
                assert found[outer][0] <= start
                assert found[outer][1] >= end
                assert found[outer][2] >= ops


@pytest.mark.slow
@given(timeline=timelines(), more=timelines())
def test_more_operations_never_project_less(
    timeline: tuple[Any, Any, Any], more: tuple[Any, Any, Any]
) -> None:
    ranges, calls, ops = timeline
    fewer = projected(trace_of(timeline))
    grown = projected(trace_of((ranges, [*calls, *more[1]], [*ops, *more[2]])))
    for row, (start, end, count) in fewer.items():
        assert grown[row][0] <= start
        assert grown[row][1] >= end
        assert grown[row][2] >= count


@given(timeline=timelines())
def test_pairs_are_all_and_each_once(timeline: tuple[Any, Any, Any]) -> None:
    ranges, calls, ops = timeline
    trace = trace_of(timeline)
    nesting = nest(trace.ranges, len(trace.threads))
    launches = attribute(trace, nesting, trace.ops)
    holder, pair = launches.pairs(nesting)
    found = zip(
        nesting.row[holder].tolist(),
        launches.op[pair].tolist(),
        launches.call[pair].tolist(),
        strict=True,
    )
    assert sorted(found) == sorted(
        (row, o, c)
        for row, r in enumerate(ranges)
        for o, c in joined(trace, ops, calls)
        if r.holds(calls[c].interval)
    )


@given(timeline=timelines(), order=st.randoms(use_true_random=False))
def test_rows_may_come_in_any_order(timeline: tuple[Any, Any, Any], order: Any) -> None:
    """Of ranges, calls and operations; only identical ranges may change places."""
    ranges = list(dict.fromkeys(timeline[0]))
    shuffled = [order.sample(rows, len(rows)) for rows in (ranges, *timeline[1:])]
    found = projected(trace_of((ranges, *timeline[1:])))
    again = projected(trace_of(tuple(shuffled)))
    assert {ranges[r]: v for r, v in found.items()} == {shuffled[0][r]: v for r, v in again.items()}


def test_one_launch_of_several_operations() -> None:
    # A graph: the call [12, 18] in [10, 20] launches kernels in [30, 40], [35, 60] and [70, 80].
    ops = [Op(0, 1, 30, 40), Op(0, 1, 35, 60), Op(0, 1, 70, 80)]
    trace = make_trace([Interval(0, 10, 20)], [Call(Interval(0, 12, 18), 1)], ops)
    assert projected(trace) == {0: (30, 80, 1)}


def test_the_example_of_the_documentation() -> None:
    # docs/statistics.md: [90, 110] straddles the end of [0, 100]; 200 - 50 = 150.
    calls = [Call(Interval(0, s, e), i) for i, (s, e) in enumerate([(10, 20), (30, 40), (90, 110)])]
    ops = [Op(0, 0, 50, 80), Op(0, 1, 60, 200), Op(0, 2, 300, 400)]
    assert projected(make_trace([Interval(0, 0, 100)], calls, ops)) == {0: (50, 200, 2)}


def test_a_call_that_straddles_belongs_to_the_outer_range_only() -> None:
    ranges = [Interval(0, 0, 100), Interval(0, 10, 20)]
    calls = [Call(Interval(0, 15, 21), 1), Call(Interval(0, 10, 20), 2)]
    ops = [Op(0, 1, 200, 210), Op(0, 2, 220, 240)]
    assert projected(make_trace(ranges, calls, ops)) == {0: (200, 240, 2), 1: (220, 240, 1)}


def test_a_call_of_no_length_belongs_to_both_of_two_ranges_that_touch() -> None:
    ranges = [Interval(0, 0, 10), Interval(0, 10, 20)]
    trace = make_trace(ranges, [Call(Interval(0, 10, 10), 1)], [Op(0, 1, 30, 40)])
    assert projected(trace) == {0: (30, 40, 1), 1: (30, 40, 1)}


def test_operations_may_start_before_their_call_ends_or_at_negative_times() -> None:
    trace = make_trace(
        [Interval(0, -50, -10)], [Call(Interval(0, -40, -20), 1)], [Op(0, 1, -35, -15)]
    )
    assert projected(trace) == {0: (-35, -15, 1)}


def test_a_few_calls_of_no_length_cost_little() -> None:
    """They are counted one by one, and the many others still all at once."""
    count = 20_000
    whole = Interval(0, 0, 10 * count)
    ranges = [whole, *(Interval(0, 10 * i, 10 * i + 8) for i in range(count))]
    calls = [Call(Interval(0, 10 * i + 1, 10 * i + 2), i) for i in range(1, count)]
    ops = [Op(0, i, 20 * i, 20 * i + 5) for i in range(count)]
    trace = make_trace(ranges, [Call(Interval(0, 5, 5), 0), *calls], ops)
    found = projected(trace)
    assert found[0] == (0, 20 * count - 15, count)
    assert all(found[i + 1] == (20 * i, 20 * i + 5, 1) for i in range(count))
    assert np.all(trace.ops.end_ns - trace.ops.start_ns == 5)
