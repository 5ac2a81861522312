"""The two intervals of a median and a rate: how often they hold."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.common.folders import PROFILES
from benchmarks.reruns import evidence, learned, reruns
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.estimates import estimate
from perfmodel.analysis.rates import fit_rate
from perfmodel.base.arrays import Floats
from perfmodel.models.launches import Median, drawn_medians, interval, spreads, sum_of_medians
from perfmodel.models.spread import t_95, t_quantile
from perfmodel.programs.program import Options
from perfmodel.timing.samples import Estimate

TRIALS = 250
seconds = st.floats(1e-6, 10.0, allow_nan=False)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(1, 12)),
    elements=st.one_of(seconds, st.just(float("nan"))),
)


def estimated(table: Floats) -> Estimate:
    found = estimate(table, "GPU")
    assert found is not None
    return found


# --- this run's batches


def covered(logs: Floats, truth: float = 0.0) -> float:
    """Return the share of runs, a row each, whose interval holds the true median, in percent."""
    found = [estimated(1e-3 * np.exp(row)[None]) for row in logs]
    return round(float(np.mean([e.low <= 1e-3 * math.exp(truth) <= e.high for e in found])), 2)


@pytest.mark.parametrize(
    ("batches", "correlation"),
    [(12, 0.0), (38, 0.0), (38, 0.3), (38, 0.6), (38, 0.8), (80, 0.8), (200, 0.6), (200, 0.9)],
)
def test_the_interval_holds_the_median_of_correlated_batches(
    batches: int, correlation: float
) -> None:
    """AR(1) batches that vary by 5 %: at a correlation of 0.9, they drift over tens of batches."""
    rng = np.random.default_rng(5)
    share = covered(0.05 * ar(rng, batches, correlation))
    assert 0.92 <= share <= (0.99 if batches > 12 else 1.0)  # of 12, limits are among few


@pytest.mark.parametrize("batches", [80, 200])
def test_it_holds_where_a_drift_is_as_large_as_the_noise(batches: int) -> None:
    rng = np.random.default_rng(6)
    noise = rng.normal(size=(TRIALS, batches))
    assert 0.90 <= covered(0.05 * (ar(rng, batches, 0.9) + noise)) <= 0.98


def test_it_holds_the_median_of_skewed_batches() -> None:
    rng = np.random.default_rng(7)
    sample = rng.exponential(size=(TRIALS, 40))
    assert 0.92 <= covered(np.log(sample), math.log(math.log(2.0))) <= 0.99


@pytest.mark.parametrize("batches", [40, 80, 200])
def test_it_holds_the_median_of_two_modes(batches: int) -> None:
    """52 of 100 batches near 0, the others near 5: the median is at the edge of the first mode."""
    rng = np.random.default_rng(12)
    slow = rng.random((TRIALS, batches)) < 0.48
    sample = np.where(slow, 5.0, 0.0) + 0.3 * rng.normal(size=(TRIALS, batches))
    edge = 0.3 * 1.7688  # the 0.5 / 0.52 quantile of a normal variable
    assert 0.92 <= covered(0.05 * sample, 0.05 * edge) <= 0.99


@given(tables.filter(lambda t: bool(np.isfinite(t).any())))
def test_limits_are_values_that_were_seen(table: Floats) -> None:
    found = interval(table)
    seen = [*table[np.isfinite(table)], found.value]
    assert found.low in seen
    assert found.high in seen


def test_a_sum_of_medians_stays_within_the_sum_of_what_was_seen() -> None:
    rng = np.random.default_rng(13)
    one, other = np.exp(rng.normal(size=(2, 1, 40)))
    both = sum_of_medians([one, other])
    assert (
        one.min() + other.min() <= both.low <= both.seconds <= both.high <= one.max() + other.max()
    )
    apart = [sum_of_medians([t]) for t in (one, other)]
    together = sum_of_medians([one, one])
    assert together.high - together.seconds == pytest.approx(2 * (apart[0].high - apart[0].seconds))
    assert both.high - both.seconds < sum(m.high - m.seconds for m in apart)


def ar(rng: np.random.Generator, batches: int, correlation: float) -> Floats:
    """Return runs of unit variance, a row each, whose neighbours correlate."""
    x = rng.normal(size=(TRIALS, batches))
    for i in range(1, batches):
        x[:, i] = correlation * x[:, i - 1] + math.sqrt(1 - correlation**2) * x[:, i]
    return x


def test_batches_in_any_order_say_less_than_a_drift() -> None:
    rng = np.random.default_rng(8)
    mixed = 1e-3 * np.exp(0.05 * rng.normal(size=(1, 64)))
    drift, found = estimated(np.sort(mixed)), estimated(mixed)
    assert drift.value == found.value
    assert drift.high / drift.low > (found.high / found.low) ** 2


@given(tables)
def test_every_interval_holds_its_median(table: Floats) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(table, "GPU")
    known = table[~np.isnan(table)]
    if len(known) == 0:
        assert found is None
        return
    assert found is not None
    assert found.value == np.median(known)
    assert found.instances == len(known)
    assert found.launch_low is not None
    assert found.launch_high is not None
    assert known.min() <= found.low <= found.value <= found.high <= known.max()
    assert 0 < found.launch_low < found.value < found.launch_high < math.inf


@given(tables.filter(lambda t: bool(np.isfinite(t).any())), st.floats(1e-2, 1e2))
def test_an_estimate_scales_with_its_data(table: Floats, factor: float) -> None:
    """But for the clock's 32 ns, which are less of longer times."""
    one, other = estimated(table * 1e6), estimated(table * 1e6 * factor)
    for name in ("value", "low", "high", "launch_low", "launch_high"):
        assert getattr(other, name) == pytest.approx(factor * getattr(one, name), rel=1e-3)


def test_ranks_that_repeat_each_other_are_no_more_evidence() -> None:
    one = np.random.default_rng(3).normal(1.0, 0.1, size=(1, 30))
    alone, eightfold = estimated(one), estimated(np.repeat(one, 8, axis=0))
    assert eightfold.high - eightfold.low == pytest.approx(alone.high - alone.low)


def test_a_range_that_runs_in_few_batches_is_estimated_from_those() -> None:
    table = np.full((1, 50), np.nan)
    table[0, 17] = 3.0
    found = estimated(table)
    assert (found.value, found.instances) == (3.0, 1)
    assert (found.low, found.high) == (3.0, 3.0)


# --- draws of several medians together


def test_draws_have_the_interval_of_their_own_median() -> None:
    rng = np.random.default_rng(9)
    for correlation in (0.0, 0.8):
        table = 1e-3 * np.exp(0.05 * ar(rng, 38, correlation)[:2])
        drawn = drawn_medians([table], 2000)
        low, high = np.percentile(drawn, [2.5, 97.5])
        found = estimated(table)
        assert low / found.value == pytest.approx(found.low / found.value, rel=2e-3)
        assert high / found.value == pytest.approx(found.high / found.value, rel=2e-3)
        assert np.median(drawn) == pytest.approx(found.value, rel=1e-4)


def test_what_medians_share_stays_shared() -> None:
    rng = np.random.default_rng(10)
    table = 1e-3 * np.exp(0.05 * rng.normal(size=(1, 64)))
    both = drawn_medians([table, 3.0 * table, table[:, ::-1]], 500)
    np.testing.assert_allclose(both[:, 1], 3.0 * both[:, 0], rtol=1e-4)
    assert np.array_equal(both, drawn_medians([table, 3.0 * table, table[:, ::-1]], 500))
    assert abs(np.corrcoef(both[:, 0], both[:, 2])[0, 1]) < 0.9
    other = drawn_medians([table], 500, seed=1)
    np.testing.assert_allclose(np.sort(other[:, 0]), np.sort(both[:, 0]))
    assert not np.array_equal(other[:, 0], both[:, 0])


def test_draws_of_one_batch_and_of_nothing_but_equal_ones_are_finite() -> None:
    for table in (np.array([[2.0]]), np.full((2, 9), 2.0), np.array([[1.0, np.nan, -0.5, 2.0]])):
        assert np.isfinite(drawn_medians([table], 100)).all()


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.8])
def test_a_ratio_of_two_launches_holds_the_true_one(correlation: float) -> None:
    """A speed-up of two launches of 38 batches, whose neighbours correlate."""
    rng = np.random.default_rng(11)
    one, other = (1e-3 * np.exp(0.05 * ar(rng, 38, correlation)) for _ in range(2))
    held = 0
    for i in range(TRIALS):
        pair = (
            drawn_medians([one[i : i + 1]], 250, 1),
            drawn_medians([other[i : i + 1]], 250, 2),
        )
        low, high = np.percentile(pair[0] / pair[1], [2.5, 97.5])
        held += low <= 1 <= high
    assert 0.90 <= held / TRIALS < 1.0  # wide where they do not correlate


def test_a_rate_is_work_over_the_sum_of_medians() -> None:
    given_ = {"a": np.array([[1.0, 2.0, 3.0]]), "b": np.array([[4.0, 4.0, np.nan]])}
    rate = fit_rate(12.0, given_, "B/s", "host", "GPU")
    assert rate is not None
    assert rate.value == 12.0 / (2.0 + 4.0)
    assert rate.low <= rate.value <= rate.high
    assert rate.launch_low is not None
    assert rate.launch_low < rate.value
    assert (rate.instances, rate.unit, rate.clock, rate.ranges) == (2, "B/s", "host", ("a", "b"))


@pytest.mark.parametrize(
    "given_",
    [{}, {"a": np.array([[np.nan]])}, {"a": np.array([[0.0, 0.0]])}],
    ids=["no range", "no time", "no duration"],
)
def test_a_rate_without_times_is_missing(given_: dict[str, Floats]) -> None:
    assert fit_rate(1.0, given_, "B/s", "host", "GPU") is None
    assert fit_rate(0.0, {"a": np.array([[1.0]])}, "B/s", "host", "GPU") is None


@pytest.mark.parametrize("df", [1, 1.5, 2, 3.3, 7, 11, 14.5, 100, 1e6])
def test_tabled_quantiles_are_students_or_a_little_larger(df: float) -> None:
    exact = t_quantile(0.05, df)
    assert exact * (1 - 2e-4) <= t_95(df) <= exact * (1.0 + (0.25 if df < 2 else 0.03))


def test_durations_of_zero_are_no_reason_to_complain() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate = fit_rate(1.0, {"a": np.array([[0.0, 0.0, 1.0, 1.0, 1.0]])}, "B/s", "host", "GPU")
    assert rate is not None
    assert rate.value == 1.0


# --- a rerun


scored = cache(reruns)


@pytest.mark.parametrize("kind", spreads())
@pytest.mark.parametrize("given", ["one run", "three runs or more"])
def test_reruns_lie_where_they_are_expected(kind: str, given: str) -> None:
    """On the half of the configurations that the spreads were not learned from."""
    (row,) = [r for r in scored(1).rows if r[:2] == (kind, given)]
    intervals, none, coverage = row[3:6]
    if spreads()[kind].alone or given != "one run":
        assert (intervals > 60, none) == (True, 0)
        assert 0.92 <= coverage <= 0.985
    else:
        assert (intervals, none > 500) == (0, True)


def test_the_spreads_are_those_that_are_learned() -> None:
    for kind, groups in evidence().items():
        sd, df = learned(groups)
        said = spreads()[kind]
        assert (said.sd, said.df) == pytest.approx((sd, df), rel=0.05)
        assert said.runs == sum(map(len, groups.values()))


def test_three_runs_that_the_gpu_limits_give_a_narrow_interval() -> None:
    runs = [Median(s, math.log(s), 0.0, 1.0) for s in (1169e-6, 1173e-6, 1177e-6)]
    found = spreads()["GPU"].another(runs)
    assert found is not None
    assert (1.15e-3 < found[0] < 1169e-6, 1177e-6 < found[1] < 1.20e-3) == (True, True)
    assert spreads()["host"].another(runs[:2]) is None


def test_three_launches_of_one_configuration_give_the_interval_of_another() -> None:
    ladder = PROFILES / "ladder"
    paths = [ladder / f"{name}.sqlite.xz" for name in ("nccl_1", "nccl_2", "nccl_3", "graph_1")]
    *launches, other = analyze_reports(paths, Options()).runs
    medians = [run.batch.median for run in launches]
    expected = spreads()["host"].another(
        [Median(m.value, math.log(m.value), 0.0, 1.0) for m in medians]
    )
    for run, m in zip(launches, medians, strict=True):
        assert (m.launches, (m.launch_low, m.launch_high)) == (3, expected)
        rate = run.rates["P_flops"]
        assert rate is not None
        assert (rate.launches, rate.limited_by) == (3, "GEMMs")
    alone = other.batch.median
    assert (alone.launches, alone.limited_by) == (1, "GPU")
    assert alone.launch_low is not None
    assert alone.launch_high is not None
    assert alone.launch_high / alone.launch_low < 1.04
