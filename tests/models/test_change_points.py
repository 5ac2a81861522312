"""Change points: planted changes, noise without any, outliers, what is said of places."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.models.history import FEWEST, change_points, newly_found, noise_of


def series(seed: int, sd: float, *changes: tuple[int, float], n: int = 100) -> list[float]:
    times = np.exp(sd * np.random.default_rng(seed).standard_normal(n))
    for at, ratio in changes:
        times[at:] *= ratio
    return times.tolist()


def test_planted_change_is_found_where_it_is() -> None:
    (found,) = change_points(series(0, 0.007, (60, 1.05)))
    assert abs(found.at - 60) <= 1
    assert found.first <= 60 <= found.last
    assert found.ratio == pytest.approx(1.05, abs=0.005)


def test_slowdown_and_repair_are_two() -> None:
    found = change_points(series(1, 0.01, (30, 1.06), (70, 1 / 1.06)))
    assert [abs(one.at - at) <= 3 for one, at in zip(found, (30, 70), strict=True)] == [True] * 2
    assert found[0].ratio > 1 > found[1].ratio


def test_equal_programs_raise_no_alarm() -> None:
    assert not [seed for seed in range(100) if change_points(series(seed, 0.02))]


def test_outliers_are_no_change() -> None:
    times = series(2, 0.005)
    for at in (20, 21, 60):
        times[at] *= 1.5
    assert change_points(times) == ()


def test_least_leaves_small_changes_out() -> None:
    times = series(3, 0.0005, (50, 1.005))
    assert len(change_points(times)) == 1
    assert change_points(times, 0.01) == ()


def test_few_commits_say_nothing() -> None:
    assert change_points([1.0] * 4 + [2.0] * (FEWEST - 5)) == ()
    assert change_points([1.0] * FEWEST) == ()


def test_units_do_not_matter() -> None:
    times = np.array(series(4, 0.01, (40, 0.9)))
    places = [[one.at for one in change_points((times * unit).tolist())] for unit in (1e-6, 1, 1e3)]
    assert places[0] == places[1] == places[2] != []


def test_noise_of_correlated_commits_is_larger() -> None:
    noise = 0.01 * np.random.default_rng(5).standard_normal(400)
    alike = noise.copy()
    for i in range(1, len(alike)):
        alike[i] += 0.7 * alike[i - 1]
    assert noise_of(noise) == pytest.approx(0.01, rel=0.15)
    assert noise_of(alike) > 2 * noise_of(noise)


def test_a_change_is_new_once() -> None:
    times = series(6, 0.003, (50, 1.05))
    news = [n for n in range(40, 70) if newly_found(times[:n], 0.01)]
    assert len(news) == 1
    assert 51 <= news[0] <= 53
