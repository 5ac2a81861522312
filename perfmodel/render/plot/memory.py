"""Memory: what theory counts as one stacked bar, and what was live over time below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    PALETTE,
    TEXT_PT,
    entry,
    finish,
    plain,
    put_title,
    si_tick,
)


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Live bytes from each time on, of one process."""

    label: str
    time_s: Any
    live_bytes: Any


def memory(
    parts: Mapping[str, int],
    curves: Sequence[LiveBytes],
    *,
    total_bytes: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draw theory's parts as a bar, and measured memory as steps with theory's total beside them.

    Parameters
    ----------
    parts : mapping of str to int
        Bytes by what they are for.
    curves : sequence of LiveBytes
    total_bytes : int, optional
        What theory expects of a process: a dashed line.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    """
    shown = {name: size for name, size in parts.items() if size > 0}
    if not shown and not curves:
        raise ModelError("wanted memory to draw; found none; give sizes, or a report that has it")
    rows = [bool(shown), bool(curves)]
    heights = [h for h, row in zip((1.5, 2.8), rows, strict=True) if row]
    figure = Figure(figsize=(6.0, sum(heights)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    axes = [figure.add_subplot(grid[i, 0]) for i in range(len(heights))]
    if shown:
        _bar(axes[0], shown)
    if curves:
        _steps(axes[-1], curves, total_bytes)
    put_title(axes[0], title, 400.0, 36.0 if shown else 6.0)
    return figure


def _bar(ax: Axes, parts: Mapping[str, int]) -> None:
    left = 0
    for i, (name, size) in enumerate(sorted(parts.items(), key=lambda item: -item[1])):
        color = PALETTE[i % len(PALETTE)] if i < len(PALETTE) else GREY
        label = entry(plain(f"{name} {si_tick(size, 'B')}"))
        ax.barh([0], [size], left=left, color=color, height=0.7, label=label)
        left += size
    finish(ax, "Theory: device memory by what it is for", "")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    _in_bytes(ax.xaxis)
    ax.set_xlim(0, left * 1.02)
    _legend_above(ax)


def _legend_above(ax: Axes) -> None:
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize=TEXT_PT,
        labelcolor=INK, borderaxespad=0.2, columnspacing=1.2, handlelength=1.2,
    )  # fmt: skip


def _steps(ax: Axes, curves: Sequence[LiveBytes], total_bytes: int | None) -> None:
    for i, curve in enumerate(curves):
        color = PALETTE[i % len(PALETTE)]
        ax.step(
            curve.time_s, curve.live_bytes, where="post", color=color, lw=1.4,
            label=entry(plain(curve.label)),
        )  # fmt: skip
    if total_bytes:
        ax.axhline(total_bytes, color=INK, lw=0.8, ls=(0, (4, 2)), label="theory, device")
    finish(ax, "Time in the report (s)", "Measured live bytes")
    ax.set_ylim(0, ax.get_ylim()[1] * 1.05)
    ax.grid(True, color=GRID, lw=0.6)
    _in_bytes(ax.yaxis)
    _legend_above(ax)


def _in_bytes(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: si_tick(value, "B")))
