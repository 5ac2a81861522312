"""Clocks of several reports: shifts with which nothing happens before its cause."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.timing.clock_sync import FAR, align, collective_limits


def test_clocks_that_agree_with_the_collectives_are_left_alone() -> None:
    start, end = np.array([[0, 100], [5, 110]]), np.array([[20, 130], [21, 131]])
    found = align(collective_limits(start, end, np.array([0, 1])))
    assert found.shift_ns.tolist() == [0, 0]
    # rank 1 may go back by 16 (its second end stays behind 115...) and on by 15
    assert found.bound_ns[1] == max(min(20 - 5, 130 - 110), min(21 - 0, 131 - 100))


def test_a_clock_far_off_is_moved_between_its_bounds() -> None:
    start, end = np.array([[0, 100], [1005, 1110]]), np.array([[20, 130], [1021, 1131]])
    found = align(collective_limits(start, end, np.array([0, 1])))
    high = min(20 - 1005, 130 - 1110)
    low = max(0 - 1021, 100 - 1131)
    assert found.shift_ns.tolist() == [0, low + (high - low) // 2]
    assert found.moved.tolist() == [1]


def test_a_clock_that_drifts_about_zero_is_left_alone_and_named() -> None:
    start, end = np.array([[0, 1000], [50, 960]]), np.array([[10, 1010], [60, 970]])
    found = align(collective_limits(start, end, np.array([0, 1])))
    assert found.drifting.tolist() == [1]
    assert found.shift_ns.tolist() == [0, 0]
    assert found.bound_ns[1] == 30 + 40


def test_a_clock_that_drifts_and_is_far_off_is_moved_where_it_is_wrong_by_the_least() -> None:
    start, end = np.array([[0, 1000], [5050, 5960]]), np.array([[10, 1010], [5060, 5970]])
    found = align(collective_limits(start, end, np.array([0, 1])))
    assert found.drifting.tolist() == [1]
    assert found.shift_ns.tolist() == [0, (10 - 5050 + 1000 - 5970) // 2]
    assert found.bound_ns[1] == 1000 - 5970 - (10 - 5050)


def test_reports_that_contradict_each_other_by_little_are_aligned_with_all_others() -> None:
    """Reports 1 and 2 contradict each other by 10 ns; their clocks are off by milliseconds."""
    off = np.array([0, 10**6, -(10**6), 5 * 10**6])
    limits = np.full((4, 4), 20) - 20 * np.eye(4, dtype=np.int64)
    limits[1, 2] = -30
    found = align(limits + off[:, None] - off)
    assert found.drifting.tolist() == [2]
    assert (np.abs(off + found.shift_ns) <= 30).all()
    assert 0 <= found.bound_ns[2] <= 20


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.data())
def test_aligned_collectives_are_in_order(ranks: int, count: int, data: st.DataObject) -> None:
    """Whatever the clocks were off by, nobody leaves before all have come."""
    gaps = st.lists(st.integers(0, 50), min_size=ranks, max_size=ranks)
    arrive = np.array([data.draw(gaps) for _ in range(count)]).T + 1000 * np.arange(count)
    leave = arrive.max(axis=0) + np.array([data.draw(gaps) for _ in range(count)]).T
    off = np.array([0, *data.draw(st.lists(st.integers(-(10**6), 10**6), min_size=ranks - 1,
                                           max_size=ranks - 1))])  # fmt: skip
    limits = collective_limits(arrive + off[:, None], leave + off[:, None], np.arange(ranks))
    found = align(limits)
    assert len(found.drifting) == 0
    start, end = (t + off[:, None] + found.shift_ns[:, None] for t in (arrive, leave))
    assert (end.min(axis=0) >= start.max(axis=0)).all()
    assert (np.abs(off + found.shift_ns) <= found.bound_ns).all()


def test_bounds_add_up_over_reports_that_meet_in_pairs() -> None:
    limits = np.array([[0, -90, FAR], [110, 0, -190], [FAR, 210, 0]])
    found = align(limits)  # 1 is 90 to 110 behind 0, and 2 is 190 to 210 behind 1
    assert found.shift_ns.tolist() == [0, -100, -300]
    assert found.bound_ns.tolist() == [0, 10, 20]


def test_a_bound_from_one_side_moves_a_clock_no_farther_than_it_must() -> None:
    found = align(np.array([[0, -50], [FAR, 0]]))
    assert found.shift_ns.tolist() == [0, -50]
    assert found.bound_ns[1] == FAR


def test_a_guess_is_taken_within_the_bounds() -> None:
    limits = np.array([[0, -90], [110, 0]])
    assert align(limits, np.array([0, -93])).shift_ns.tolist() == [0, -93]
    assert align(limits, np.array([0, -500])).shift_ns.tolist() == [0, -110]
