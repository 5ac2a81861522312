"""Precision over time, a line for every run, above a strip of the moments of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GRID,
    INK,
    MARKER_PT,
    MARKERS,
    PALETTE,
    TEXT_PT,
    entry,
    finish,
    plain,
    wrap,
)

_BELOW: Final = 0.25
"""How far below the target precisions are shown."""


@dataclass(frozen=True, slots=True)
class PrecisionCurve:
    """One run of a side: when each precision was reached, and when the target.

    `at` and `moment` are in the unit of the axis; a run that never had the target has its end as
    `moment` and is not `reached`.
    """

    side: str
    at: Sequence[float]
    precision: Sequence[float]
    moment: float
    reached: bool


def time_to_accuracy(
    curves: Sequence[PrecisionCurve], target: float, *, label: str = "Training time (s)",
    width_in: float = 6.0,
) -> Figure:  # fmt: skip
    """Draw curves and strip with one axis of time.

    Parameters
    ----------
    curves : sequence of PrecisionCurve
        A colour and marker for each side.
    target : float
        A dashed line.
    label : str
        Of the axis of time.
    width_in : float

    Raises
    ------
    ModelError
        If there is no run to draw.
    """
    if not curves:
        raise ModelError("wanted runs to draw; found none; train first")
    sides = list(dict.fromkeys(curve.side for curve in curves))
    strip_in = 0.35 + 0.27 * len(sides)
    figure = Figure(figsize=(width_in, 3.0 + strip_in), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    above, strip = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, strip_in))
    for curve in curves:
        above.plot(
            curve.at, curve.precision, color=_color(sides, curve.side), lw=0.9, marker=".", ms=2.5,
            alpha=0.85,
        )  # fmt: skip
    above.axhline(target, color=INK, lw=0.9, ls=(0, (4, 2)))
    finish(above, "", "Test precision")
    most = max(max(curve.precision) for curve in curves)
    least = max(min(min(curve.precision) for curve in curves), target - _BELOW)
    above.set_ylim(least - 0.01, max(most, target) + 0.02)
    above.grid(True, color=GRID, lw=0.6)
    _strip(strip, curves, sides)
    finish(strip, label, "")
    strip.set_xlim(left=0)
    strip.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    strip.grid(True, axis="x", color=GRID, lw=0.6)
    strip.tick_params(axis="y", length=0)
    _legend(above, sides, target, censored=not all(curve.reached for curve in curves))
    return figure


def _strip(ax: Axes, curves: Sequence[PrecisionCurve], sides: list[str]) -> None:
    """Set a marker where each run had the target, hollow where it ended without."""
    for row, side in enumerate(sides):
        for curve in (c for c in curves if c.side == side):
            ax.plot(
                curve.moment, row, marker=MARKERS[row % len(MARKERS)], ms=MARKER_PT, clip_on=False,
                mfc=_color(sides, side) if curve.reached else "white", mec=_color(sides, side),
                alpha=0.8, zorder=3,
            )  # fmt: skip
    ax.set_yticks(range(len(sides)), [wrap(side, 24) for side in sides])
    ax.set_ylim(len(sides) - 0.5, -0.5)


def _legend(ax: Axes, sides: list[str], target: float, *, censored: bool) -> None:
    lines = [
        Line2D([], [], color=_color(sides, side), lw=1.4, marker=MARKERS[i % len(MARKERS)],
               ms=MARKER_PT - 1, label=entry(plain(side)))
        for i, side in enumerate(sides)
    ]  # fmt: skip
    lines.append(Line2D([], [], color=INK, lw=0.9, ls=(0, (4, 2)), label=f"target {target:g}"))
    if censored:
        lines.append(
            Line2D([], [], ls="none", marker="o", mfc="white", mec=INK, ms=MARKER_PT - 1,
                   label="ended without")
        )  # fmt: skip
    ax.legend(
        handles=lines, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2, handlelength=1.8, columnspacing=1.2,
    )  # fmt: skip


def _color(sides: list[str], side: str) -> str:
    return PALETTE[sides.index(side) % len(PALETTE)]
