"""Operators of a step: products below the roofs of their units, the rest by bandwidth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes

from perfmodel.programs.facts import OperatorRow
from perfmodel.render.plot import panels
from perfmodel.render.plot.labels import Label, LabelLayer, Obstacles
from perfmodel.render.plot.roofline import draw_ceilings
from perfmodel.render.plot.style import (
    BLUE,
    GREY,
    INK,
    MARKER_PT,
    PALETTE,
    TEXT_PT,
    VALUE_PT,
    amount,
    apply,
    finish,
    legend_above,
    plain,
    put_title,
    ring,
    rows,
    shortened,
    size_pt,
)
from perfmodel.timing.operator_times import PHASES

MOST: Final = 14
"""So many products are drawn, and so many other operators, those that take the most time."""
_NAMED: Final = 5
_BARS: Final = 10
_HUES: Final = dict(zip(PHASES, PALETTE, strict=False))
_AREA: Final = 900.0  # points² of a point that takes all the time
_LEAST: Final = 10.0


def operators(
    by_sizes: Sequence[OperatorRow],
    by_name: Sequence[OperatorRow],
    peaks: Mapping[str, float],
    bandwidth_bytes_per_s: float,
    l2_bytes_per_s: float | None = None,
    titles: tuple[str, str] = ("Matrix operators", "Other operators"),
) -> tuple[Axes, Axes]:
    """Draw products as points below their units' roofs, other operators as shares of bandwidth.

    Parameters
    ----------
    by_sizes, by_name : sequence of OperatorRow
        Products are drawn by sizes, a point each, whose area is its share of the time.
    peaks : mapping of str to float
        FLOP/s by unit; those that a product uses are drawn.
    bandwidth_bytes_per_s : float
        Of the GPU's memory.
    l2_bytes_per_s : float, optional
        Bandwidth of L2: with it, products whose bytes of L2 were counted have a second, hollow
        point at their FLOPs a byte of L2.
    titles : tuple of str
        Of the two axes.
    """
    left, right = panels("double", 3.6, columns=2)
    products = [r for r in by_sizes if r.flops and r.intensity and r.flops_per_s][:MOST]
    links = {"dram": bandwidth_bytes_per_s}
    if l2_bytes_per_s and any(r.l2_intensity for r in products):
        links["l2"] = l2_bytes_per_s
    _draw_products(left, products, peaks, links, titles[0])
    others = [r for r in by_name if not r.flops and r.bytes and not r.communicates][:_BARS]
    _draw_others(right, others, bandwidth_bytes_per_s, titles[1])
    return left, right


def _draw_products(
    ax: Axes,
    shown: Sequence[OperatorRow],
    peaks: Mapping[str, float],
    links: Mapping[str, float],
    title: str,
) -> None:
    used = {r.unit: peaks[r.unit] for r in shown if r.unit in peaks}
    at = [r.intensity or 1.0 for r in shown] + [p / links["dram"] for p in used.values()]
    if "l2" in links:
        at += [r.l2_intensity for r in shown if r.l2_intensity]
    heights = [r.flops_per_s or 1.0 for r in shown] + [*used.values()]
    low, high = min(at, default=1.0) / 12, max(at, default=1.0) * 4
    frame = low, high, min(heights, default=1.0) / 6, max(heights, default=1.0) * 4
    apply(ax, frame)
    finish(ax, "Arithmetic intensity (FLOP/byte)", "Performance per GPU (FLOP/s)")
    obstacles, labels, above = Obstacles(), [], False
    draw_ceilings(ax, used, links, frame)
    obstacles.lines += [line.get_data() for line in ax.lines]
    for unit, peak in used.items():
        name = f"{unit.replace('_', ' ')}, {amount(peak, 'FLOP/s')}"
        note = ax.annotate(
            name, (1, peak), (-2, 2), va="bottom", ha="right", xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=TEXT_PT, color=INK,
        )  # fmt: skip
        obstacles.boxes.append(note.get_window_extent)
    if "l2" in links and used:
        _draw_l2(ax, shown, links["l2"])
    for phase, hue in _HUES.items():
        mine = [r for r in shown if r.phase == phase]
        if mine:
            ax.scatter(
                [r.intensity or math.nan for r in mine], [r.flops_per_s or math.nan for r in mine],
                [max(_LEAST, _AREA * r.share) for r in mine], color=hue, alpha=0.7, lw=0.6,
                edgecolors="white", label=phase, zorder=3,
            )  # fmt: skip
    for r in shown:
        x, y = r.intensity or math.nan, r.flops_per_s or math.nan
        if y > min(used.get(r.unit, math.inf), x * links["dram"]):
            ring(ax, x, y, math.sqrt(max(_LEAST, _AREA * r.share)) + 5)
            above = True
    if above:
        ax.annotate(
            "ring: above its roof", (1, 0), (-3, 14), ha="right", xycoords="axes fraction",
            textcoords="offset points", fontsize=TEXT_PT, color=INK,
        )  # fmt: skip
    obstacles.markers += [(r.intensity or 1.0, r.flops_per_s or 1.0) for r in shown]
    first = {r.name: r for r in reversed(shown)}
    for row in list(reversed(first.values()))[:_NAMED]:
        name = plain(shortened(_short(row.name), 22))
        labels.append(Label(name, row.intensity or 1.0, row.flops_per_s or 1.0, -60.0))
    LabelLayer(ax, labels, obstacles, MARKER_PT)
    legend_above(ax, title=title)


def _draw_l2(ax: Axes, shown: Sequence[OperatorRow], bandwidth: float) -> None:
    """Draw products at their FLOPs a byte of L2, and say so."""
    ax.annotate(
        f"dashed, hollow: L2, {amount(bandwidth, 'B/s')}", (1, 0), (-3, 4), ha="right",
        xycoords="axes fraction", textcoords="offset points", fontsize=TEXT_PT, color=INK,
    )  # fmt: skip
    for phase, hue in _HUES.items():
        mine = [r for r in shown if r.phase == phase and r.l2_intensity]
        ax.scatter(
            [r.l2_intensity or math.nan for r in mine], [r.flops_per_s or math.nan for r in mine],
            [max(_LEAST, _AREA * r.share) for r in mine], facecolors="none", edgecolors=hue,
            lw=1.0, zorder=3,
        )  # fmt: skip


def _short(name: str) -> str:
    found = name.removeprefix("aten::").removeprefix("_scaled_dot_product_")
    return found.replace("cudnn_", "")


def _draw_others(ax: Axes, shown: Sequence[OperatorRow], bandwidth: float, title: str) -> None:
    often = Counter((r.name, r.phase) for r in shown)  # more than once of several data types
    names = [
        f"{shortened(_short(r.name), 20)}{f' {r.dtype}' * (often[r.name, r.phase] > 1)}, {r.phase}"
        for r in shown
    ]
    rates = [100 * (r.bytes_per_s or 0.0) / bandwidth for r in shown]
    ax.barh(range(len(shown)), rates, color=BLUE, height=0.7)
    ax.axvline(100.0, color=INK, lw=1.2)
    last = max([104.0, *(1.05 * rate for rate in rates)])
    for i, row in enumerate(shown):
        ax.annotate(
            f"{100 * row.share:.1f} %", (1.02, i), va="center", fontsize=VALUE_PT, color=GREY,
            xycoords=("axes fraction", "data"), annotation_clip=False,
        )  # fmt: skip
    rows(ax, names)
    finish(ax, f"% of {amount(bandwidth, 'B/s')}; right: share of time", "", grid="x")
    ax.set_xlim(0, last)
    put_title(ax, title, size_pt(ax)[0])
