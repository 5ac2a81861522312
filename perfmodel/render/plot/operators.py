"""Operators of a step below the roofs of their units and of the GPU's memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from perfmodel.programs.facts import OperatorRow
from perfmodel.render.plot import panels
from perfmodel.render.plot.roofline import LEVELS, LINES, draw_ceilings
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    PALETTE,
    RING,
    TEXT_PT,
    VALUE_PT,
    amount,
    apply,
    finish,
    legend_above,
    plain,
    ring,
    shortened,
)
from perfmodel.timing.operator_times import PHASES

_NAMED: Final = 8
"""So many operators have a number that the legend names, those that take the most time."""
_SHARES: Final = (0.1, 0.01)
"""Shares of the time whose areas the legend shows."""
_HUES: Final[Mapping[str, str]] = dict(zip(PHASES, PALETTE, strict=False))
_AREA: Final = 900.0  # points² of a point that takes all the time
_LEAST: Final = 10.0
_STRIP: Final = 12.0
"""Width of the strip of operators without FLOPs beyond its ends."""
_WORTH: Final = 1e-3
"""Share of the time from which on an operator is inside the axes; lower ones are at their edge."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_LONGEST: Final = 26
_DULL: Final = re.compile(
    r"^(aten|prim|prims|c10d|triton)::|_?scaled_dot_product_?|cudnn_|native_|convolution_overrideable"
    r"|_fused_|_data$|^_|_efficient_|autograd::engine::evaluate_function: "
)


def operators(
    by_sizes: Sequence[OperatorRow],
    by_name: Sequence[OperatorRow],
    peaks: Mapping[str, float],
    bandwidth_bytes_per_s: float,
    l2_bytes_per_s: float | None = None,
    title: str | None = None,
) -> Axes:
    """Draw every operator whose bytes are known as a point below the roofs of its unit and memory.

    Operators that have no FLOPs by formula stand in a strip on the left, in which the intensity
    means nothing: their distance from the slope is their share of the bandwidth, as everywhere.

    Parameters
    ----------
    by_sizes, by_name : sequence of OperatorRow
        Operators with FLOPs are drawn by sizes, a point each; others by name. A point's area is
        its share of the time.
    peaks : mapping of str to float
        FLOP/s by unit; those that an operator uses are drawn.
    bandwidth_bytes_per_s : float
        Of the GPU's memory.
    l2_bytes_per_s : float, optional
        Bandwidth of L2: with it, operators whose bytes of L2 were counted have a second, hollow
        point at their FLOPs a byte of L2.
    title : str, optional
    """
    (ax,) = panels("double", 4.4)
    counted = [r for r in by_sizes if r.flops and r.intensity and r.flops_per_s]
    others = [
        r for r in by_name
        if not r.flops and r.bytes and r.bytes_per_s and not r.communicates
    ]  # fmt: skip
    links = {"dram": bandwidth_bytes_per_s}
    if l2_bytes_per_s and any(r.l2_intensity for r in counted):
        links["l2"] = l2_bytes_per_s
    used = {r.unit: peaks[r.unit] for r in counted if r.unit in peaks}
    strip = _frame(ax, counted, others, used, links)
    places = [(r, r.intensity or math.nan, r.flops_per_s or math.nan) for r in counted]
    places += [
        (r, x, (r.bytes_per_s or math.nan) * x)
        for r, x in zip(others, _spread(strip, len(others)), strict=True)
    ]
    places.sort(key=lambda one: -one[0].share)
    sizes = [math.sqrt(max(_LEAST, _AREA * r.share)) for r, *_ in places]
    ringed = _draw(ax, places, sizes, used, links)
    _draw_strip(ax, strip, bool(others))
    named: list[str] = []
    for (row, x, y), size in zip(places, sizes, strict=True):
        name = plain(shortened(short(row.name), _LONGEST))
        if name not in named and len(named) < _NAMED and y >= ax.get_ylim()[0]:
            named.append(name)
            ax.annotate(
                f"{len(named)}", (x, y), (size / 2 + 1, size / 4), textcoords="offset points",
                fontsize=VALUE_PT, color=INK, zorder=6,
            )  # fmt: skip
    _legend(ax, places, used, links, named, ringed=ringed, title=title)
    return ax


def _frame(
    ax: Axes, counted: Sequence[OperatorRow], others: Sequence[OperatorRow],
    used: Mapping[str, float], links: Mapping[str, float],
) -> tuple[float, float]:  # fmt: skip
    """Set limits, draw the roofs, and return where the strip without FLOPs begins and ends."""
    at = [r.intensity or 1.0 for r in counted] + [p / links["dram"] for p in used.values()]
    if "l2" in links:
        at += [r.l2_intensity for r in counted if r.l2_intensity]
    left = min(at, default=1.0) / 2
    strip = (left / _STRIP / 2, left / 2) if others else (left / 2, left / 2)
    heights = [r.flops_per_s or 1.0 for r in counted if r.share >= _WORTH] + [*used.values()]
    heights += [x * (r.bytes_per_s or 1.0) for r, x in
                zip(others, _spread(strip, len(others)), strict=True)
                if r.share >= _WORTH]  # fmt: skip
    frame = (
        strip[0] / 1.5, max(at, default=1.0) * 4, min(heights, default=1.0) / 3,
        max(heights, default=1.0) * 4,
    )  # fmt: skip
    apply(ax, frame)
    finish(ax, "Arithmetic intensity (FLOP per byte of DRAM)", "Performance per GPU (FLOP/s)")
    draw_ceilings(ax, used, links, frame)
    return strip


def _spread(strip: tuple[float, float], count: int) -> list[float]:
    """Places for so many operators in the strip, most time in the middle of it first."""
    if not count:
        return []
    ratio = strip[1] / strip[0]
    return [strip[0] * ratio ** ((i * _GOLDEN + 0.5) % 1.0) for i in range(count)]


def _draw(
    ax: Axes, places: Sequence[tuple[OperatorRow, float, float]], sizes: Sequence[float],
    used: Mapping[str, float], links: Mapping[str, float],
) -> bool:  # fmt: skip
    """Draw the points; whether one of them is above its roof."""
    ringed, least = False, ax.get_ylim()[0]
    for (row, x, y), size in zip(places, sizes, strict=True):
        hue = _HUES.get(row.phase, INK)
        if y < least:
            ax.plot([x], [0.01], "v", color=hue, ms=4, transform=ax.get_xaxis_transform(), zorder=3)
            continue
        ax.scatter([x], [y], [size**2], color=hue, alpha=0.7, lw=0.6, edgecolors="white", zorder=3)
        if "l2" in links and row.l2_intensity:
            ax.scatter([row.l2_intensity], [y], [size**2], facecolors="none", edgecolors=hue,
                       lw=1.0, zorder=3)  # fmt: skip
        above = y > min(used.get(row.unit, math.inf) if row.flops else math.inf, x * links["dram"])
        if above:
            ring(ax, x, y, size + 5)
            ringed = True
    return ringed


def _draw_strip(ax: Axes, strip: tuple[float, float], any_there: bool) -> None:
    if not any_there:
        return
    low = ax.get_xlim()[0]
    ax.axvspan(low, strip[1] * 1.2, color=GRID, alpha=0.5, lw=0, zorder=0)
    ax.annotate(
        "no FLOPs by formula", (math.sqrt(low * strip[1] * 1.2), 1), (0, -3), ha="center", va="top",
        xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=TEXT_PT, color=INK,
    )  # fmt: skip
    ax.xaxis.set_major_locator(
        FixedLocator([t for t in ax.xaxis.get_majorticklocs() if t > strip[1] * 1.2])
    )
    ax.xaxis.set_minor_locator(
        FixedLocator([t for t in ax.xaxis.get_minorticklocs() if t > strip[1] * 1.2])
    )


def _legend(
    ax: Axes, places: Sequence[tuple[OperatorRow, float, float]], used: Mapping[str, float],
    links: Mapping[str, float], named: Sequence[str], *, ringed: bool, title: str | None,
) -> None:  # fmt: skip
    """Explain numbers, hues, areas, rings and what is hollow."""
    dot: dict[str, Any] = {"ls": "", "marker": "o", "mec": "white", "mew": 0.6, "alpha": 0.7}
    found: list[tuple[str, Line2D]] = [
        (phase, Line2D([], [], color=hue, ms=7, **dot)) for phase, hue in _HUES.items()
        if any(r.phase == phase for r, *_ in places)
    ]  # fmt: skip
    found += [
        (f"area: {100 * share:g} % of the time",
         Line2D([], [], color=GREY, ms=math.sqrt(max(_LEAST, _AREA * share)), **dot))
        for share in _SHARES
    ]  # fmt: skip
    if any(ax.get_ylim()[0] > y for *_, y in places):
        lower = Line2D([], [], color=GREY, ls="", marker="v", ms=4)
        found.append(("lower than the axis", lower))
    if ringed:
        found.append(("above its roof", Line2D([], [], **RING)))
    found += [
        (f"{unit.replace('_', ' ')}, {amount(peak, 'FLOP/s')}", Line2D([], [], color=INK, lw=1.2))
        for unit, peak in used.items()
    ]
    found += [
        (
            f"{LEVELS[link]}, {amount(rate, 'B/s')}",
            Line2D([], [], color=GREY, lw=1.2, ls=LINES[link]),
        )
        for link, rate in links.items()
    ]
    if "l2" in links:
        hollow = Line2D([], [], color=GREY, ls="", marker="o", mfc="none")
        found.append(("hollow, dashed: L2", hollow))
    found += [
        (name, Line2D([], [], color=INK, ls="", marker=f"${number}$", ms=6))
        for number, name in enumerate(named, 1)
    ]
    legend_above(ax, [line for _, line in found], [text for text, _ in found], title=title)


def short(name: str) -> str:
    """An operator's name without its library's prefixes.

    >>> short("aten::_scaled_dot_product_flash_attention_backward")
    'flash_attention_backward'
    >>> short("aten::native_layer_norm")
    'layer_norm'
    """
    found = name
    while (less := _DULL.sub("", found, count=1)) != found and less:
        found = less
    return found
