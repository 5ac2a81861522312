"""Coefficients of variation against each other: by hand, and how often equal ones are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.models.spread import equal_cv


def test_millers_statistic_is_that_of_a_hand_worked_example() -> None:
    """Coefficients 0.1 and 0.2 of three values each: c = 0.15."""
    found = equal_cv([9.0, 10.0, 11.0], [8.0, 10.0, 12.0])
    assert found is not None
    assert found.z == pytest.approx(-0.1 / math.sqrt(0.15**2 * (0.5 + 0.15**2)))
    assert found.p_miller == pytest.approx(math.erfc(abs(found.z) / math.sqrt(2)))
    assert found.ratio == pytest.approx(0.5)


def test_it_does_not_depend_on_units_nor_on_means() -> None:
    a, b = [9.0, 10.5, 11.0, 10.0], [18.0, 22.5, 19.0, 20.0]
    first, second = equal_cv(a, b), equal_cv([1e6 * v for v in a], [v / 7 for v in b])
    assert first is not None
    assert second is not None
    assert (second.ratio, second.z) == (pytest.approx(first.ratio), pytest.approx(first.z))
    assert second.p_permutation == pytest.approx(first.p_permutation)


@pytest.mark.slow
def test_equal_coefficients_are_seldom_refused_and_unlike_ones_mostly() -> None:
    made = np.random.default_rng(0)
    equal = [equal_cv(made.normal(10, 0.5, 6), made.normal(20, 1, 6)) for _ in range(100)]
    apart = [equal_cv(made.normal(10, 0.2, 6), made.normal(20, 4, 6)) for _ in range(100)]
    for p in ("p_miller", "p_permutation"):
        assert np.mean([getattr(one, p) < 0.05 for one in equal]) <= 0.13
        assert np.mean([getattr(one, p) < 0.05 for one in apart]) >= 0.9


@pytest.mark.parametrize(
    ("a", "b"), [([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
                 ([-1.0, 2.0, 3.0], [1.0, 2.0, 3.0])],
)  # fmt: skip
def test_what_has_no_coefficient_has_no_test(a: list[float], b: list[float]) -> None:
    assert equal_cv(a, b) is None
