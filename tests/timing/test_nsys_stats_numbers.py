"""Summaries equal Python's exact statistics, and rounding equals SQLite's."""

from __future__ import annotations

import sqlite3
import statistics
from contextlib import closing
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ReportError
from perfmodel.timing.nsys_stats.tables import Tally, round_half_up

GROUPS = 4
OLD_SQLITE = sqlite3.sqlite_version_info < (3, 43)


def summarize(codes: Any, values: Any, groups: int, valid: Any = None) -> SimpleNamespace:
    """Summarize values by group; those that are not `valid` count as instances only."""
    tally = Tally()
    tally.add(*((codes, values) if valid is None else (codes[valid], values[valid])))
    found = tally.groups(groups, np.bincount(codes, minlength=groups))
    figures = found.figures(np.arange(groups))._asdict()
    return SimpleNamespace(count=found.count, timed=found.timed, total=found.total, **figures)


bounded = settings(max_examples=200, deadline=None, derandomize=True)
value = st.integers(0, 20) | st.integers(-(2**40), 2**40)
rows = st.lists(st.tuples(st.integers(0, GROUPS - 1), value, st.booleans()), max_size=40)


@pytest.mark.slow
@bounded
@given(rows=rows)
def test_summaries(rows: list[tuple[int, int, bool]]) -> None:
    rows = [*rows, *((g, 7, True) for g in range(GROUPS))]
    codes = np.array([g for g, _, _ in rows], np.int32)
    values = np.array([v for _, v, _ in rows])
    timed = np.array([t for _, _, t in rows])
    found = summarize(codes, values, GROUPS, timed)
    for g in range(GROUPS):
        mine = [v for code, v, valid in rows if code == g and valid]
        assert found.count[g] == sum(code == g for code, _, _ in rows)
        assert found.timed[g] == len(mine)
        assert found.total[g] == sum(mine)
        assert found.minimum[g] == min(mine)
        assert found.maximum[g] == max(mine)
        assert found.mean[g] == float(Fraction(sum(mine), len(mine)))
        assert found.median[g] == statistics.median(mine)
        spread = statistics.stdev(mine) if len(mine) > 1 else 0.0
        assert found.stddev[g] == pytest.approx(spread, rel=1e-12, abs=1e-9)
    everything = summarize(codes, values, GROUPS)
    assert everything.timed.tolist() == everything.count.tolist() == found.count.tolist()


def test_a_hand_worked_summary() -> None:
    # 1, 2, 3, 10: total 16, mean 4, median (2 + 3) / 2, squares 9 + 4 + 1 + 36 = 50, 50 / 3.
    found = summarize(np.array([0, 1, 0, 0, 0]), np.array([10, 5, 1, 3, 2]), 2)
    assert (found.total[0], found.mean[0], found.median[0]) == (16, 4.0, 2.5)
    assert found.stddev[0] == pytest.approx((50 / 3) ** 0.5, rel=1e-15)
    assert (found.count[1], found.mean[1], found.stddev[1]) == (1, 5.0, 0.0)


def test_a_summary_does_not_depend_on_the_order_of_values() -> None:
    """To the last digit: of few groups with many values, and of many with few."""
    draw = np.random.default_rng(3)
    values = draw.lognormal(9, 2, 6000).astype(np.int64)
    for codes in (np.arange(6000) % 3, np.arange(6000) % 300):
        order = draw.permutation(6000)
        found = summarize(codes, values, 300), summarize(codes[order], values[order], 300)
        for name in ("total", "mean", "median", "stddev"):
            np.testing.assert_array_equal(*(getattr(groups, name) for groups in found))


def test_a_group_without_any_time() -> None:
    codes, values = np.array([0, 1, 1]), np.array([5, 0, 0])
    found = summarize(codes, values, 2, np.array([True, False, False]))
    assert (found.count.tolist(), found.timed.tolist()) == ([1, 2], [1, 0])
    assert np.isnan([found.mean[1], found.median[1], found.stddev[1]]).all()


def test_many_groups() -> None:
    """More than sixteen bits of codes."""
    count = 70_000
    codes = np.repeat(np.arange(count, dtype=np.int32), 2)[::-1]
    found = summarize(codes, np.arange(2 * count), count)
    assert found.count.tolist() == [2] * count
    assert found.total.tolist() == [4 * (count - 1 - g) + 1 for g in range(count)]


def test_sums_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ReportError, match="the report is damaged"):
        summarize(np.array([0, 0, 0]), np.array([2**62, 2**62, 2**62]), 1)


@pytest.mark.parametrize(
    ("exact", "digits", "rounded"),
    [
        (1.25, 1, 1.3),
        (0.05, 1, 0.1),
        (0.15, 1, 0.2),
        (0.25, 1, 0.3),
        (0.35, 1, 0.4),
        (1.05, 1, 1.1),
        (-1.25, 1, -1.3),
        (-0.05, 1, -0.1),
        (2.675, 2, 2.68),  # the double lies below: 2.67499999999999982
        (1.005, 2, 1.01),
        (0.045, 2, 0.05),
        (1.2499999999999998, 1, 1.3),  # the double next to 1.25
        (1.249999999999999, 1, 1.2),
        (0.04999999999999999, 1, 0.1),
        (0.0, 1, 0.0),
        (1e-20, 1, 0.0),
        (99.95, 1, 100.0),
        (33.333333333333336, 1, 33.3),
        (66.66666666666667, 1, 66.7),
        (14.285714285714286, 1, 14.3),
        (123456.65, 1, 123456.7),
        (4503599627.05, 1, 4503599627.1),
        (4000000000000.25, 1, 4000000000000.3),
        (4804205671444.25, 1, 4804205671444.2),  # no more help of 3e-16 from here on
        (236967085233407.75, 1, 236967085233407.7),
        (554461258572770.75, 1, 554461258572770.7),
        (946316903090144.9, 1, 946316903090144.9),
        (1900006074260729.5, 1, 1900006074260729.0),  # sixteen digits are all there are
        (4503599627370496.5, 1, 4503599627370496.5),
        (1e300, 1, 1e300),
    ],
)
def test_rounding_as_sqlite_did(exact: float, digits: int, rounded: float) -> None:
    assert round_half_up(exact, digits) == rounded


quotient = st.builds(
    lambda n, d: n / d, st.integers(0, 10**16), st.sampled_from([2, 3, 4, 7, 8, 10, 20, 40, 1000])
)


@pytest.mark.slow
@pytest.mark.skipif(not OLD_SQLITE, reason="SQLite 3.43 and later round otherwise")
@settings(bounded, max_examples=300)
@given(
    exact=quotient | st.floats(0, 100) | st.floats(-(2.0**53), 2.0**53),
    digits=st.integers(1, 3),
)
@example(exact=5e-324, digits=1)
def test_rounding_as_sqlite_does(exact: float, digits: int) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        ((wanted,),) = db.execute("SELECT round(?, ?)", (exact, digits))
    assert round_half_up(exact, digits) == wanted


@bounded
@given(exact=st.floats(0, 1e15))
def test_rounding_stays_near_and_keeps_the_sign(exact: float) -> None:
    rounded = round_half_up(exact)
    assert abs(rounded - exact) <= 0.05 * (1 + 1e-9) + 2e-15 * exact
    assert round_half_up(-exact) == -rounded
    assert round_half_up(rounded) == rounded
