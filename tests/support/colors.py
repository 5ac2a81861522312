"""How far two colours are apart: CIEDE2000, in normal sight and under deuteranopia."""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb

Floats = npt.NDArray[np.float64]

LEAST: Final = 20.0
"""What any two colours that can touch differ by."""

_XYZ: Final = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
"""From linear sRGB, IEC 61966-2-1."""
_WHITE: Final = np.array([0.95047, 1.0, 1.08883])
_DEUTERANOPIA: Final = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
     [-0.011820, 0.042940, 0.968881]]
)  # fmt: skip
"""Severity 1.0 of Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, on linear sRGB."""


def lab(color: str, *, deuteranopia: bool = False) -> Floats:
    """Return L*, a*, b* of a colour, as who has deuteranopia sees it if asked."""
    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    if deuteranopia:
        linear = np.clip(_DEUTERANOPIA @ linear, 0, 1)
    t = _XYZ @ linear / _WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: Floats, two: Floats) -> float:
    """Return the colour difference of two L*a*b* triples (Sharma, Wu and Dalal 2005)."""
    mean = (np.hypot(*one[1:]) + np.hypot(*two[1:])) / 2
    g = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    (l1, a1, b1), (l2, a2, b2) = one * (1, 1 + g, 1), two * (1, 1 + g, 1)
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = (float(np.degrees(np.arctan2(b, a))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + turn / 2 if c1 * c2 else h1 + h2
    d_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = (
        1 - 0.17 * np.cos(np.radians(hue - 30)) + 0.24 * np.cos(np.radians(2 * hue))
        + 0.32 * np.cos(np.radians(3 * hue + 6)) - 0.2 * np.cos(np.radians(4 * hue - 63))
    )  # fmt: skip
    s_l = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    s_c, s_h = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    bend = np.radians(60 * np.exp(-(((hue % 360 - 275) / 25) ** 2)))
    r_t = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(bend)
    x, y, z = (l2 - l1) / s_l, (c2 - c1) / s_c, d_hue / s_h
    return float(np.sqrt(x * x + y * y + z * z + r_t * y * z))


def apart(one: str, two: str) -> float:
    """Return the smaller difference of two colours: in normal sight, under deuteranopia."""
    return min(ciede2000(lab(one, deuteranopia=d), lab(two, deuteranopia=d)) for d in (False, True))


def too_close(*colors: str) -> list[tuple[str, str, float]]:
    """Return pairs of different colours that differ by less than `LEAST`."""
    pairs = combinations(dict.fromkeys(c.lower() for c in colors), 2)
    return [(a, b, round(d, 1)) for a, b in pairs if (d := apart(a, b)) < LEAST]
