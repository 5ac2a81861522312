"""Axes: ticks with SI prefixes, limits around roofs and points, room for labels beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, YAxis
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    ScalarFormatter,
)

from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.style import VALUE_PT, plain, si_tick, text_width_pt

Limits = tuple[float, float, float, float]

ROOM: Final = 0.6
"""Largest share of an axis kept free for labels."""

_BESIDE_PT: Final = 11.0  # from a marker to its label, and from there to the axes' edge
_APART_PT: Final = 7.0  # from the label of a tick to the next
_LINE_PT: Final = 11.5  # from line to line of a legend


@dataclass(frozen=True, slots=True)
class Measure:
    """What an axis shows: its words, its unit for SI ticks ('' for plain numbers), its scale."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"


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
    """Make the axes of a roofline logarithmic, with these limits."""
    x_low, x_high, y_low, y_high = frame
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(x_low, x_high)
    ax.set_ylim(y_low, y_high)
    ticks(ax.xaxis)
    ticks(ax.yaxis, "FLOP/s")


def ticks(axis: Axis, unit: str = "", most: int = 7, ratio: float | None = None) -> None:
    """Set ticks, at most about so many on a linear axis, with SI prefixes where there is a unit.

    On a logarithmic axis the ends of which have at most this `ratio`, 2 and 5 are named, too.
    """
    low, high = axis.get_view_interval()
    if axis.get_scale() == "linear":
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
        if not unit:
            axis.set_major_formatter(ScalarFormatter(useOffset=False))
    else:
        few = high / low <= (ratio or (300.0 if isinstance(axis, YAxis) else 30.0))
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_minor_locator(LogLocator(subs=range(2, 10)))
        axis.set_minor_formatter(NullFormatter())
    if unit or (axis.get_scale() == "log" and low > 1e-5 and high < 1e6):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, unit)))


def ticks_at(ax: Axes, places: Sequence[float], width_pt: float, unit: str = "") -> None:
    """Put the ticks of the horizontal axis at these values, but where labels would touch."""
    scale = math.log if ax.get_xscale() == "log" else float
    low, high = (scale(v) for v in ax.get_xlim())
    per_unit = width_pt / (high - low)
    half = {v: text_width_pt(tick_text(v, unit)) / 2 for v in places}
    shown: list[float] = []
    for value in sorted(places, reverse=True):
        if shown:
            space = per_unit * (scale(shown[-1]) - scale(value))
            if space < half[value] + half[shown[-1]] + _APART_PT:
                continue
        shown.append(value)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(FixedLocator([v for v in places if v not in shown]))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, unit)))


def tick_text(value: float, unit: str) -> str:
    """Return '200 GFLOP/s' with a unit, else '3,000' or '1e-07'."""
    if unit:
        return si_tick(value, unit) if value else "0"
    return f"{value:,.10g}" if value == 0 or 1e-4 < abs(value) < 1e6 else f"{value:g}"


def rows(ax: Axes, names: Sequence[str], named: bool = True) -> None:
    """Make the vertical axis rows with these names, the first at the top."""
    ax.set_yticks(range(len(names)), [plain(name) for name in names] if named else [])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)


def room_at_end(ax: Axes, longest: float, texts: Sequence[str], width_pt: float) -> None:
    """Set the end of the horizontal axis so that `texts` fit behind the longest bar."""
    low = ax.get_xlim()[0]
    share = min(0.7, (max(text_width_pt(t, VALUE_PT) for t in texts) + 9.0) / width_pt)
    if ax.get_xscale() == "log":
        ax.set_xlim(low, with_room(low, longest, longest, share))
    else:
        ax.set_xlim(low, low + (longest - low) / (1 - share))
