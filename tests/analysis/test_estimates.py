"""The two intervals of a median and a rate: how often they hold."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.estimates import estimate
from perfmodel.analysis.rates import fit_rate
from perfmodel.base.arrays import Floats
from perfmodel.models.launches import LAUNCH_SD, Median, across, drawn_medians
from perfmodel.models.spread import t_95, t_quantile
from perfmodel.programs.program import Options
from perfmodel.timing.samples import Estimate

TRIALS = 1000
seconds = st.floats(1e-6, 10.0, allow_nan=False)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(1, 12)),
    elements=st.one_of(seconds, st.just(float("nan"))),
)


def estimated(table: Floats) -> Estimate:
    found = estimate(table, 0.1)
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
    assert 0.90 <= share <= 0.97


@pytest.mark.parametrize("batches", [80, 200])
def test_it_holds_where_a_drift_is_as_large_as_the_noise(batches: int) -> None:
    rng = np.random.default_rng(6)
    noise = rng.normal(size=(TRIALS, batches))
    assert 0.90 <= covered(0.05 * (ar(rng, batches, 0.9) + noise)) <= 0.97


def test_it_holds_the_median_of_skewed_batches() -> None:
    rng = np.random.default_rng(7)
    sample = rng.exponential(size=(TRIALS, 40))
    assert 0.90 <= covered(np.log(sample), math.log(math.log(2.0))) <= 0.97


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


@settings(derandomize=True, max_examples=60, deadline=None)
@given(tables)
def test_every_interval_holds_its_median(table: Floats) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(table, 0.1)
    known = table[~np.isnan(table)]
    if len(known) == 0:
        assert found is None
        return
    assert found is not None
    assert found.value == np.median(known)
    assert found.instances == len(known)
    assert 0 < found.launch_low < found.low <= found.value <= found.high < found.launch_high
    assert math.isfinite(found.launch_high)


@given(tables.filter(lambda t: bool(np.isfinite(t).any())), st.floats(1e-2, 1e2))
@settings(derandomize=True, max_examples=30, deadline=None)
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
    assert found.launch_high / found.launch_low > 1.2


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
    one, other = (1e-3 * np.exp(0.05 * ar(rng, 38, correlation)[:300]) for _ in range(2))
    held = 0
    for i in range(300):
        pair = (
            drawn_medians([one[i : i + 1]], 1000, 1),
            drawn_medians([other[i : i + 1]], 1000, 2),
        )
        low, high = np.percentile(pair[0] / pair[1], [2.5, 97.5])
        held += low <= 1 <= high
    assert 0.90 <= held / 300 <= 0.995  # wide where they do not correlate


def test_a_rate_is_work_over_the_sum_of_medians() -> None:
    given_ = {"a": np.array([[1.0, 2.0, 3.0]]), "b": np.array([[4.0, 4.0, np.nan]])}
    rate = fit_rate(12.0, given_, "B/s", "host", 0.1)
    assert rate is not None
    assert rate.value == 12.0 / (2.0 + 4.0)
    assert rate.launch_low < rate.low <= rate.value <= rate.high < rate.launch_high
    assert (rate.instances, rate.unit, rate.clock, rate.ranges) == (2, "B/s", "host", ("a", "b"))


@pytest.mark.parametrize(
    "given_",
    [{}, {"a": np.array([[np.nan]])}, {"a": np.array([[0.0, 0.0]])}],
    ids=["no range", "no time", "no duration"],
)
def test_a_rate_without_times_is_missing(given_: dict[str, Floats]) -> None:
    assert fit_rate(1.0, given_, "B/s", "host", 0.1) is None
    assert fit_rate(0.0, {"a": np.array([[1.0]])}, "B/s", "host", 0.1) is None


@pytest.mark.parametrize("df", [1, 1.5, 2, 3.3, 7, 11, 14.5, 100, 1e6])
def test_tabled_quantiles_are_students_or_a_little_larger(df: float) -> None:
    exact = t_quantile(0.05, df)
    assert exact * (1 - 2e-4) <= t_95(df) <= exact * (1.0 + (0.25 if df < 2 else 0.03))


def test_durations_of_zero_are_no_reason_to_complain() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate = fit_rate(1.0, {"a": np.array([[0.0, 0.0, 1.0, 1.0, 1.0]])}, "B/s", "host", 0.1)
    assert rate is not None
    assert rate.value == 1.0


# --- another launch


@cache
def logs() -> dict[str, list[list[float]]]:
    """Logarithms of recorded times by what they are of and configuration, a number a launch."""
    document = results.read(PROFILES / "launches" / "launches.json")
    found: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in document["launches"]:
        if not launch["recorded"]:
            continue
        name, where = launch["name"], (launch["name"], launch["machine"])
        if isinstance(launch.get("batch_s"), float):
            kind = (
                "replayed" if "graph" in name
                else "queued" if "nccl" in name or "peer" in name else "waiting"
            )  # fmt: skip
            found[kind][where].append(math.log(launch["batch_s"]))
        parts = launch.get("parts") or {}
        if "large GEMMs [cublas ieee 32 bit]" in parts:
            found["GEMMs"][where].append(math.log(parts["large GEMMs [cublas ieee 32 bit]"]))
        if "all-reduce [NCCL]" in parts:
            found["NCCL"][where].append(math.log(parts["all-reduce [NCCL]"]))
        if copied := [s for n, s in parts.items() if n.startswith("copy ") and "one" not in n]:
            found["copies"][where].append(math.log(sum(copied)))
    return {kind: [v for v in by.values() if len(v) > 1] for kind, by in found.items()}


def test_114_configurations_have_several_launches() -> None:
    batches = [v for kind in ("replayed", "waiting", "queued") for v in logs()[kind]]
    assert (len(batches), sum(map(len, batches))) == (114, 412)


@pytest.mark.parametrize("kind", LAUNCH_SD)
def test_the_interval_from_one_launch_holds_the_others(kind: str) -> None:
    width = Median(1.0, 0.0, 0.0, 7.0).another(LAUNCH_SD[kind])
    inside = [
        abs(other - one) <= width
        for values in logs()[kind] for i, one in enumerate(values) for other in values[i + 1 :]
    ]  # fmt: skip
    assert len(inside) > 60
    assert 0.90 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize("kind", ["replayed", "waiting", "queued"])
def test_the_interval_from_three_or_more_launches_holds_the_next(kind: str) -> None:
    inside = []
    for values in logs()[kind]:
        for i, one in enumerate(values):
            others = values[:i] + values[i + 1 :]
            if len(others) >= 3:
                mean, width = across(others)
                inside.append(abs(one - mean) <= width)
    assert len(inside) > 30
    assert 0.90 <= np.mean(inside) <= 0.975


def test_three_launches_of_one_configuration_give_the_interval_of_another() -> None:
    ladder = PROFILES / "ladder"
    paths = [ladder / f"{name}.sqlite.xz" for name in ("nccl_1", "nccl_2", "nccl_3", "graph_1")]
    *launches, other = analyze_reports(paths, Options()).runs
    medians = [run.batch.median for run in launches]
    mean, width = across([math.log(m.value) for m in medians])
    for run, m in zip(launches, medians, strict=True):
        assert (m.launches, run.batch.median.launch_low) == (3, math.exp(mean - width))
        rate = run.rates["P_flops"]
        assert rate is not None
        assert rate.launches == 3
        assert rate.launch_low < rate.value < rate.launch_high
    assert other.batch.median.launches == 1
    assert other.batch.median.launch_high / other.batch.median.launch_low < 1.05
