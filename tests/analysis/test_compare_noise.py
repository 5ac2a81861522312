"""Verdicts and noise: golden numbers of the statistics, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.models.launches import Effect, Median, effect, holm, median
from perfmodel.models.spread import t_quantile, t_two_sided
from support.launches_made import autocorrelated, certain, compared, launch

# --- Student's t


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(0.05, 1, 12.7062), (0.05, 4, 2.77645), (0.05, 10, 2.22814), (0.01, 30, 2.74999),
     (0.001, 3, 12.92398), (0.05, 1e6, 1.95997)],
)  # fmt: skip
def test_quantiles_of_published_tables(p: float, df: float, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-5)
    assert t_two_sided(t, df) == pytest.approx(p, rel=1e-4)


def test_tails_in_closed_form() -> None:
    """One degree of freedom is Cauchy's distribution; two have a closed form, too."""
    for t in (1e-6, 0.3, 1.0, 7.0, 1e4):
        assert t_two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-6)
        assert t_two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6, abs=1e-15)
    assert t_two_sided(0.0, 3) == 1.0
    assert t_two_sided(math.inf, 3) == 0.0


@given(st.floats(1e-7, 0.99), st.floats(1, 200))
def test_quantile_and_tail_are_inverse(p: float, df: float) -> None:
    assert t_two_sided(t_quantile(p, df), df) == pytest.approx(p, rel=1e-6)


# --- Holm


def test_holm_by_hand() -> None:
    """0.01 at 0.05/4, 0.015 at 0.05/3; 0.03 fails at 0.05/2, and what follows with it."""
    passed, level = holm([0.03, 0.01, 0.04, 0.015], [1, 1, 1, 1], 0.05)
    assert passed == [False, True, False, True]
    assert level == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])


def test_holm_gives_the_batch_half() -> None:
    passed, level = holm([0.02, 0.02, 0.9, 0.9], [3, 1, 1, 1], 0.05)
    assert passed == [True, False, False, False]
    assert level == pytest.approx([0.025, 0.05 / 3, 0.05 / 3, 0.05 / 3])


@given(st.lists(st.tuples(st.floats(1e-9, 1), st.floats(0.1, 9)), min_size=1, max_size=20))
def test_holm_passes_what_its_level_says(pairs: list[tuple[float, float]]) -> None:
    """Never less than Bonferroni, never more than no correction; level and verdict agree."""
    p, weights = zip(*pairs, strict=True)
    passed, level = holm(p, weights, 0.05)
    for i in range(len(p)):
        assert 0.05 * weights[i] / sum(weights) <= level[i] * (1 + 1e-9)
        assert level[i] <= 0.05 * (1 + 1e-9)
        assert passed[i] == (p[i] <= level[i])


# --- one launch


def test_median_and_its_error_by_hand() -> None:
    """Eight batches in turns, limits at both values: the normal interval that would be as wide."""
    seconds = np.exp([0.1, -0.1] * 4)
    found = median(seconds)
    assert found.seconds == pytest.approx(np.median(seconds))
    assert (found.low, found.high) == (seconds.min(), seconds.max())
    assert found.error == pytest.approx(0.1 / 1.959964, rel=1e-4)
    assert found.df == 7


def test_a_drift_widens_the_error() -> None:
    """The same values in ascending order: neighbours tell nothing new."""
    seconds = np.exp(np.random.default_rng(1).standard_normal(64) * 0.1)
    assert median(np.sort(seconds)).error > 2 * median(seconds).error


def test_batches_without_it_are_left_out_and_ticks_remain() -> None:
    found = median(np.array([np.nan, 4e-6, 4e-6, np.nan, 4e-6]))
    assert found.seconds == 4e-6
    assert found.error == pytest.approx(16e-9 / 4e-6)  # half a tick of the GPU's clock
    assert median(np.zeros(4), "waiting").log == math.log(1e-7)


# --- several launches


def test_welch_by_hand() -> None:
    """Launches of variances 1e-4 and 4e-4, n = 3 and 4: se^2 = 1e-4/3 + 4e-4/4."""
    before = [Median(math.exp(x), x, 0.5, 7) for x in (-0.01, 0.0, 0.01)]
    step = math.sqrt(4e-4 * 3 / 4)
    after = [Median(math.exp(x), x, 0.5, 7) for x in (0.2 - step, 0.2 + step) * 2]
    found = effect(before, after, 0.1)
    a, b = 1e-4 / 3, 4e-4 / 4
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(math.sqrt(a + b), rel=1e-6)
    assert found.df == pytest.approx((a + b) ** 2 / (a**2 / 2 + b**2 / 3), rel=1e-6)


def test_one_launch_a_side_by_hand() -> None:
    """Stated noise of both launches and the error within each."""
    one = Median(1.0, 0.0, 0.03, 7)
    found = effect([one], [one], 0.1)
    assert found.error == pytest.approx(math.sqrt(2 * 0.1**2 + 2 * 0.03**2))
    assert found.df == pytest.approx(
        (0.02 + 0.0018) ** 2 / (0.02**2 / 10 + 2 * 0.0009**2 / 7), rel=1e-9
    )
    apart = effect([one], [one], 0.1, machines=True)
    assert apart.error == pytest.approx(math.sqrt(8 * 0.1**2 + 2 * 0.03**2))


def test_two_launches_may_only_add_to_the_stated_noise() -> None:
    near = [Median(1.0, x, 0.0, 7) for x in (0.0, 0.0)]
    far = [Median(1.0, x, 0.0, 7) for x in (-0.5, 0.5)]
    assert effect(near, near, 0.1).error == pytest.approx(0.1)
    # pooled: (10 x 0.01 + 0.5 + 0) / 12 = 0.05, over two launches a side
    assert effect(near, far, 0.1).error == pytest.approx(math.sqrt(0.05))


@given(st.floats(-2, 2), st.floats(1e-3, 0.5), st.floats(1, 30), st.floats(0, 0.5))
def test_the_interval_is_the_verdict(value: float, error: float, df: float, least: float) -> None:
    """A difference passes at a level if, and only if, its interval leaves out the least one."""
    found = Effect(value, error, df)
    ratio, low, high = found.ratio(0.03)
    assert low <= ratio <= high
    outside = low > (1 + least) * (1 + 1e-9) or high < (1 - 1e-9) / (1 + least)
    inside = low < (1 + least) * (1 - 1e-9) and high > (1 + 1e-9) / (1 + least)
    if outside or inside:
        assert (found.p(least) <= 0.03) == outside


def test_detectable_is_where_verdicts_begin() -> None:
    found = Effect(0.0, 0.1, 10)
    change = found.detectable(0.025, 0.01)
    assert Effect(math.log1p(change) * 1.001, 0.1, 10).p(0.01) < 0.025
    assert Effect(math.log1p(change) * 0.999, 0.1, 10).p(0.01) > 0.025


# --- how often it is wrong: simulated launches of one configuration, 12 ranges each


def wrong(seeds: int, launches: int, noise: float = 0.1, **made: float) -> float:
    """Share of comparisons of equal sides with any verdict at all."""
    found = 0
    for seed in range(seeds):
        generator = np.random.default_rng([seed, launches])
        sides = [[launch(generator, **made) for _ in range(launches)] for _ in range(2)]
        found += bool(certain(compared(*sides, noise=noise)))
    return found / seeds


@pytest.mark.slow
@pytest.mark.parametrize("launches", [1, 2, 3, 5])
def test_equal_sides_are_rarely_called_different(launches: int) -> None:
    """5 % are allowed; 1000 seeds give 0.8, 0.8, 2.5 and 2.8 %."""
    assert wrong(150, launches) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_noise_within_a_launch_alone(phi: float) -> None:
    """No launch noise, none assumed: 0.1, 0.7 and 4.0 % of 1000 seeds."""
    assert wrong(150, 1, noise=0.0, between=0.0, phi=phi) <= 0.05


@pytest.mark.slow
def test_ranks_and_batches_are_not_taken_for_launches() -> None:
    """Many batches do not make one launch a side more certain: its own speed stays unknown."""
    assert wrong(100, 1, batches=2000) <= 0.05


@pytest.mark.slow
def test_noisier_launches_than_stated_are_noticed_from_three() -> None:
    """With 1000 seeds, three launches: 2.9 %; one, at 20 instead of the assumed 10 %: 32 %."""
    assert wrong(150, 3, between=0.4) <= 0.05
    found = wrong(150, 1, between=0.2)  # why one launch a side comes with a warning
    assert found == pytest.approx(0.32, abs=0.08)


@pytest.mark.slow
def test_real_changes_are_found() -> None:
    """Of 12 ranges, one twice as fast; with 5 launches a side, one 40 % faster."""
    found = {1: 0, 5: 0}
    for launches, gain in ((1, 3.0), (5, 1.4)):
        for seed in range(50):
            generator = np.random.default_rng([7, seed])
            before = [launch(generator, between=0.05) for _ in range(launches)]
            after = [launch(generator, between=0.05, speedup={3: gain}) for _ in range(launches)]
            names = certain(compared(before, after))
            found[launches] += "range 3" in names
    assert found[1] >= 48
    assert found[5] >= 48


def test_autocorrelation_of_the_helper() -> None:
    noise = autocorrelated(np.random.default_rng(0), (1, 20_000), 0.7, 0.1)[0]
    assert np.std(noise) == pytest.approx(0.1, rel=0.05)
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(0.7, abs=0.03)
