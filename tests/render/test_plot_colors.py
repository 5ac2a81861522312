"""Colours of pictures that can touch are told apart, also under deuteranopia."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.render.plot.bars import CLOCKS
from perfmodel.render.plot.style import CAUSE_COLORS, FILLS, INK, PALETTE
from perfmodel.render.plot.timeline import COLORS
from perfmodel.timing.timeline import HOST
from support.colors import apart, ciede2000, too_close

PAPER = "#ffffff"


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1, 2), (50, 0, 0), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((90.8027, -2.0831, 1.4410), (91.1528, -1.6435, 0.0447), 1.4441),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_pairs(
    one: tuple[float, ...], two: tuple[float, ...], expected: float
) -> None:
    """Pairs 1, 7, 17, 26, 33 and 34 of Sharma, Wu and Dalal (2005), Table 1."""
    assert ciede2000(np.array(one), np.array(two)) == pytest.approx(expected, abs=1e-4)


def test_red_and_green_of_one_lightness_are_close_only_under_deuteranopia() -> None:
    assert apart("#d02020", "#607000") < 15


def test_what_stands_in_a_lane_of_a_gpu() -> None:
    on_gpu = [color for kind, color in COLORS.items() if kind not in HOST]
    assert too_close(PAPER, *on_gpu) == []


def test_what_stands_in_lanes_of_the_host() -> None:
    assert too_close(*(COLORS[kind] for kind in HOST)) == []


def test_lines_points_and_parts_of_bars() -> None:
    assert too_close(PAPER, INK, *PALETTE) == []
    assert too_close(PAPER, *(color for color, _ in FILLS)) == []
    assert too_close(PAPER, *CAUSE_COLORS.values()) == []
    assert too_close(*(color for *_, color in CLOCKS)) == []
