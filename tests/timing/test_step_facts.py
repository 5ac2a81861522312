"""What is concluded from a run's steps."""

from __future__ import annotations

import pytest

from perfmodel.timing.step_facts import _beyond_chance


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
