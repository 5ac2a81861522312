"""What is concluded from a run's steps."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.timing.small_kernels import MANY, SmallKernels
from perfmodel.timing.step_facts import _beyond_chance, _small


@pytest.mark.parametrize(
    ("hits", "trials", "ranks", "beyond"),
    [
        (5, 5, 2, True),  # 1/32
        (4, 4, 2, False),  # 1/16
        (5, 6, 2, False),  # 7/64
        (2, 2, 8, True),  # 1/64
        (1, 1, 8, False),
        (0, 6, 2, False),
        (1548, 3000, 2, True),  # 1500 and 1.75 standard deviations
        (1540, 3000, 2, False),
    ],
)
def test_a_rank_is_last_more_often_than_chance(
    hits: int, trials: int, ranks: int, *, beyond: bool
) -> None:
    assert _beyond_chance(hits, trials, 1 / ranks) is beyond


def test_ranges_with_many_small_kernels_are_found_among_a_million() -> None:
    """In time linear in the ranges; those of other lanes and steps outside do not count."""
    number = 1_000_000
    ones, place = np.ones(number, np.int64), np.arange(number)
    count = np.where(place == 7, 2 * MANY, 1)
    count[8:10] = 2 * MANY
    lane, step = (place == 8).astype(np.int64), np.where(place == 9, 5, 1)
    names = tuple(f"range {i}" for i in range(number))
    small = SmallKernels(names, lane, step, place, count, ones, 100 * ones, 200 * ones)
    reports: Any = [SimpleNamespace(small=small)]
    replay: Any = None  # of a step that takes no time nothing is replayed
    began = time.process_time()
    [found] = _small(reports, slice(1, 3), replay, 0.0)
    assert time.process_time() - began < 10
    assert (found.range, found.saving_s) == ("range 7", 0.0)
