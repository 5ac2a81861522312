"""Log axes with SI ticks: limits around roofs and points, and room for labels beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.style import GRID, si_tick, text_width_pt

Limits = tuple[float, float, float, float]

ROOM: Final = 0.6
"""Largest share of an axis kept free for labels."""

_BESIDE_PT: Final = 11.0  # from a marker to its label, and from there to the axes' edge
_LINE_PT: Final = 11.5  # from line to line of a legend


def label_share(texts: Sequence[str], width_pt: float) -> float:
    """Share of the axes' width that the widest of `texts` takes beside its marker."""
    return (max((text_width_pt(t) for t in texts), default=0.0) + _BESIDE_PT) / width_pt


def legend_share(lines: float, height_pt: float) -> float:
    """Share of the axes' height that a legend of `lines` takes at the top."""
    return (lines * _LINE_PT + 4.0) / height_pt


def with_room(low: float, last: float, high: float, share: float) -> float:
    """Upper limit, at least `high`, that leaves `share` of a log axis beyond `last`."""
    share = min(share, ROOM)
    return max(high, math.exp((math.log(last) - share * math.log(low)) / (1 - share)))


def limits(
    roofs: Sequence[Roofline],
    points: Sequence[Point],
    ceiling: float | None,
    right: float = 0.0,
    above: float = 0.0,
) -> Limits:
    """Intensities and performances from below every ridge to its plateau, around all points.

    Of the width, the share `right` stays free beside the last point for its label; of the
    height, `above` for a legend over roofs and points.
    """
    ridges = [r.ridge_flops_per_byte for r in roofs]
    intensities = [p.intensity_flops_per_byte for p in points]
    x_low = min([min(ridges) / 16, *(v / 3 for v in intensities)])
    x_high = max([max(ridges) * 16, *(v * 4 for v in intensities)])
    x_high = with_room(x_low, max(intensities, default=x_low), x_high, right)
    top = [r.flops_per_s for r in roofs] + ([ceiling] if ceiling else [])
    top += [p.high_flops_per_s or p.flops_per_s for p in points]
    bottom = [float(r.smooth(x_low)) for r in roofs]
    bottom += [(p.low_flops_per_s or p.flops_per_s) / 2.5 for p in points]
    y_high = with_room(min(bottom), max(top), max(top) * 2.5, above)
    return x_low, x_high, min(bottom), y_high


def lie_apart(points: Sequence[Point], frame: Limits, width: float, height: float) -> bool:
    """Whether no two points are closer than a label of `width` by `height` shares of the axes."""
    spans = np.log([frame[1] / frame[0], frame[3] / frame[2]])
    pairs = [(p.intensity_flops_per_byte, p.flops_per_s) for p in points]
    at = np.log(np.array(pairs).reshape(-1, 2)) / spans
    apart = np.any(np.abs(at[:, None] - at[None]) >= (width, height), axis=-1)
    return bool(np.all(apart | np.eye(len(points), dtype=np.bool_)))


def apply(ax: Axes, frame: Limits) -> None:
    """Make the axes logarithmic with these limits, a light grid and SI tick labels."""
    x_low, x_high, y_low, y_high = frame
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(x_low, x_high)
    ax.set_ylim(y_low, y_high)
    axes = (
        (ax.xaxis, x_high / x_low < 30.0, lambda v, _: f"{v:,.10g}"),
        (ax.yaxis, y_high / y_low < 300.0, lambda v, _: si_tick(v, "FLOP/s")),
    )
    for axis, narrow, text in axes:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
        axis.set_minor_locator(LogLocator(subs=range(2, 10)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(text))
    ax.grid(True, color=GRID, lw=0.6)
