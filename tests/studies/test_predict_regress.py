"""Regression of log times: exact where times are exact, robust, never negative, honest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.studies.models.terms import fit, measured_space, nonnegative, spread

SIZES = np.array([1e5, 4e5, 1.6e6, 6.4e6, 2.5e7])
TRUE = np.array([2e-5, 1e-10])


def design() -> np.ndarray:
    return np.column_stack([np.full(len(SIZES), 4.0), SIZES])


def test_exact_times_give_the_coefficients() -> None:
    found = fit(design(), design() @ TRUE)
    np.testing.assert_allclose(found.coefficients, TRUE, rtol=1e-6)
    assert np.abs(found.residuals).max() < 1e-6


def test_one_wild_launch_hardly_matters() -> None:
    """Worked by hand: least squares in log time would move every fitted time by 11 %."""
    x = np.repeat(design(), 3, axis=0)
    seconds = x @ TRUE
    seconds[4] *= 5
    fitted = x @ fit(x, seconds).coefficients
    assert np.abs(fitted / (x @ TRUE) - 1).max() < 0.02


@given(
    st.lists(st.floats(1e-7, 1e-3), min_size=5, max_size=5),
)
def test_coefficients_are_never_negative(times: list[float]) -> None:
    found = fit(design(), np.array(times))
    assert (found.coefficients >= 0).all()
    assert np.isfinite(found.coefficients).all()


@given(st.integers(0, 2**32 - 1))
def test_nonnegative_least_squares_is_the_least(seed: int) -> None:
    """Karush, Kuhn, Tucker: the gradient is 0 where c is free and not negative where c is 0."""
    generator = np.random.default_rng(seed)
    a, y = generator.random((8, 3)), generator.normal(size=8)
    c = nonnegative(a, y, np.ones(8))
    gradient = a.T @ (a @ c - y)
    assert (c >= 0).all()
    assert np.abs(gradient[c > 0]).max(initial=0.0) < 1e-8
    assert (gradient[c == 0] > -1e-8).all()


def test_one_size_tells_one_direction_only() -> None:
    one = design()[:1]
    space = measured_space(one)
    assert space.shape == (1, 2)
    assert measured_space(design()).shape == (2, 2)


def test_times_scale_with_their_unit() -> None:
    noisy = design() @ TRUE * np.array([1.1, 0.95, 1.02, 0.9, 1.05])
    seconds, milliseconds = (fit(design(), noisy * s).coefficients for s in (1.0, 1e3))
    np.testing.assert_allclose(milliseconds, 1e3 * seconds, rtol=1e-4)


def test_a_fit_may_begin_anywhere() -> None:
    seconds = design() @ TRUE * np.array([1.1, 0.95, 1.02, 0.9, 1.05])
    usual = fit(design(), seconds)
    near = fit(design(), seconds, start=design() @ usual.coefficients, rounds=5)
    np.testing.assert_allclose(near.coefficients, usual.coefficients, rtol=1e-3)


def test_spread_of_gaussian_residuals() -> None:
    residuals = np.random.default_rng(3).normal(0, 0.1, 4001)
    assert spread(residuals, np.ones(4001), 1) == pytest.approx(0.1, rel=0.05)


def test_more_work_never_takes_less_time() -> None:
    noisy = design() @ TRUE * np.array([1.3, 0.8, 1.2, 0.9, 1.1])
    fitted = design() @ fit(design(), noisy).coefficients
    assert all(a <= b for a, b in pairwise(fitted))
