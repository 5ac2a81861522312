"""Achieved FLOP/s over one symbol (B), a line for every value of another (H), beside the roof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from perfmodel.base.errors import ModelError
from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.keys import ordered_colors
from perfmodel.render.plot.labels import Label, LabelLayer, Obstacles
from perfmodel.render.plot.scales import apply, label_share, with_room
from perfmodel.render.plot.style import (
    INK,
    MARKER_PT,
    MARKERS,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    size_pt,
    text_width_pt,
)

_NAMES: Final = {"B": "Global batch size B", "H": "Hidden size H", "p": "Ranks p"}


def sweep(
    points: Sequence[Point],
    roofline: Roofline | None = None,
    *,
    over: str = "B",
    lines: str = "H",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw performance over the symbol `over`, one line for every value of the symbol `lines`.

    Parameters
    ----------
    points
        Their `symbols` hold `over` and `lines`. The first kind is filled, others are hollow.
    roofline
        Its smooth roof at the points' intensities is what the model predicts: thin dashed lines.
    ax
        Where to draw; by default a figure of its own, 5 inches wide.

    Raises
    ------
    ModelError
        If there are no points, or one lacks a symbol.
    """
    if not points or any(not {over, lines} <= set(p.symbols or {}) for p in points):
        raise ModelError(f"a sweep needs points with values of {over} and {lines}")
    foreign = ax is not None
    ax = axes_of(ax, 5.0, 3.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    kinds = list(dict.fromkeys(p.kind for p in points))
    curves: dict[int, dict[str, list[Point]]] = {}
    for point in sorted(points, key=lambda p: _value(p, over)):
        curves.setdefault(_value(point, lines), {}).setdefault(point.kind, []).append(point)
    obstacles, labels = Obstacles(), []
    colors = ordered_colors(len(curves))
    for i, (value, by_kind) in enumerate(sorted(curves.items())):
        text = plain(f"{lines} = {value:,}")
        last = _draw_curves(ax, by_kind, kinds, over, (i, colors[i]), roofline, obstacles)
        labels.append(Label(text, *last))
    values = sorted({_value(p, over) for p in points})
    finish(ax, _NAMES.get(over, over), "Performance (FLOP/s)")
    apply(ax, (values[0] / 1.15, values[-1] * 1.15, *ax.get_ylim()))
    width = size_pt(ax, foreign)[0]
    _legend(ax, kinds, roofline, title, width)
    _scale(ax, values, [label.text for label in labels], width)
    LabelLayer(ax, labels, obstacles, MARKER_PT)
    return ax


def _draw_curves(
    ax: Axes,
    by_kind: dict[str, list[Point]],
    kinds: Sequence[str],
    over: str,
    look: tuple[int, str],
    roofline: Roofline | None,
    obstacles: Obstacles,
) -> tuple[float, float]:
    """Draw the line of every kind, and the prediction for the first; give where that one ends."""
    marker, color = MARKERS[look[0] % len(MARKERS)], look[1]
    for kind, run in by_kind.items():
        x, y = [_value(p, over) for p in run], [p.flops_per_s for p in run]
        hollow = kinds.index(kind) > 0
        ax.plot(
            x, y, marker=marker, ms=MARKER_PT * 0.85, color=color, zorder=3,
            mfc="white" if hollow else color, ls=":" if hollow else "-", lw=1.4,
        )  # fmt: skip
        obstacles.lines.append((x, y))
        obstacles.markers += zip(x, y, strict=True)
    first = next(iter(by_kind.values()))
    if roofline is not None:
        x = [_value(p, over) for p in first]
        y = [float(roofline.smooth(p.intensity_flops_per_byte)) for p in first]
        ax.plot(x, y, color=INK, lw=0.8, ls=(0, (4, 2)), zorder=2)
        obstacles.lines.append((x, y))
    return _value(first[-1], over), first[-1].flops_per_s


def _value(point: Point, symbol: str) -> int:
    return (point.symbols or {})[symbol]


def _scale(ax: Axes, values: Sequence[int], texts: Sequence[str], width: float) -> None:
    low = values[0] / 1.15
    high = with_room(low, values[-1], values[-1] * 1.15, label_share(texts, width))
    ax.set_xlim(low, high)
    ticks: list[int] = []
    for value in reversed(values):  # leave out labels that would touch the next one
        space = width * math.log(ticks[-1] / value) / math.log(high / low) if ticks else width
        if space > text_width_pt(f"{value:,}") + 6:
            ticks.append(value)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(FixedLocator([v for v in values if v not in ticks]))


def _legend(
    ax: Axes, kinds: Sequence[str], roofline: Roofline | None, title: str | None, width: float
) -> None:
    entries = [
        Line2D([], [], color=INK, marker="o", ms=MARKER_PT * 0.85, lw=1.4,
               mfc="white" if i else INK, ls=":" if i else "-")
        for i in range(len(kinds))
    ]  # fmt: skip
    texts = [entry(plain(kind)) for kind in kinds]
    if roofline is not None:
        entries.append(Line2D([], [], color=INK, lw=0.8, ls=(0, (4, 2))))
        texts.append("smooth roof (predicted)")
    columns = len(texts) if sum(text_width_pt(t) + 40 for t in texts) < width else 1
    rows = len(texts) // columns
    put_title(ax, title, width, 6 + 14 * rows)
    ax.legend(
        entries, texts, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False,
        fontsize=TEXT_PT, borderaxespad=0.2, borderpad=0.2, labelcolor=INK,
    )  # fmt: skip
