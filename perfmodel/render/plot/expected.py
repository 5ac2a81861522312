"""What changes were expected to save against what they saved, and predictions against times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.keys import ordered_colors
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    MARKERS,
    PALETTE,
    TEXT_PT,
    axes_of,
    finish,
    plain,
    si_tick,
)

_OFFSET: Final = 0.17  # of the prediction below the measurement, in rows
_FACTOR: Final = 1.25  # a dotted line on either side of equality


@dataclass(frozen=True, slots=True)
class Change:
    """One change; savings are shares of the batch before it, missing ones None.

    `sure` says whether what was measured is beyond noise.
    """

    label: str
    saved: float
    saved_low: float
    saved_high: float
    sure: bool
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    at_most: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """One prediction beside its measurement, in seconds; looks follow `shape` and `hue`."""

    shape: str
    hue: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


def changes(rows: Sequence[Change], *, ax: Axes | None = None) -> Axes:
    """Draw a row per change: measured, predicted, and at most, with intervals.

    Raises
    ------
    ModelError
        If there is no change to draw.
    """
    if not rows:
        raise ModelError("wanted changes to draw; found none; compare two reports first")
    ax = axes_of(ax, 6.2, 1.2 + 0.36 * len(rows))
    for i, row in enumerate(rows):
        if row.at_most is not None:
            ax.plot([0, 100 * row.at_most], [i, i], color="#dcdcdc", lw=9, solid_capstyle="butt",
                    zorder=1)  # fmt: skip
        _whisker(ax, i - _OFFSET, row.saved, row.saved_low, row.saved_high, PALETTE[0], row.sure)
        if row.predicted is not None:
            low = row.predicted if row.predicted_low is None else row.predicted_low
            high = row.predicted if row.predicted_high is None else row.predicted_high
            _whisker(ax, i + _OFFSET, row.predicted, low, high, PALETTE[1], True, "s")
    ax.axvline(0, color=INK, lw=0.7)
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    ax.set_yticks(range(len(rows)), [plain(row.label) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    finish(ax, "Saved share of the batch before (%)", "")
    ax.tick_params(axis="y", length=0)
    look: dict[str, Any] = {"ls": "", "ms": 6}
    entries = {
        "measured, 95 %": Line2D([], [], marker="o", color=PALETTE[0], **look),
        "within noise": Line2D([], [], marker="o", color=PALETTE[0], mfc="white", **look),
        "predicted, 90 %": Line2D([], [], marker="s", color=PALETTE[1], **look),
        "at most, by the report before": Line2D([], [], color="#dcdcdc", lw=7),
    }
    ax.legend(
        entries.values(), entries.keys(), loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4,
        frameon=False, fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2, columnspacing=1.2,
    )  # fmt: skip
    return ax


def agreement(rows: Sequence[Told], *, ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements beside the line on which the two are equal.

    Dotted lines are 25 % off. Markers follow `shape`, colours `hue`, in the order they come.

    Raises
    ------
    ModelError
        If there is no prediction to draw.
    """
    if not rows:
        raise ModelError("wanted predictions to draw; found none; calibrate a model first")
    ax = axes_of(ax, 5.2, 3.9)
    shapes = list(dict.fromkeys(row.shape for row in rows))
    hues = list(dict.fromkeys(row.hue for row in rows))
    colors = dict(zip(hues, ordered_colors(len(hues)), strict=True))
    for row in rows:
        ax.plot([row.measured_s] * 2, [row.low_s, row.high_s], color=colors[row.hue], lw=0.7,
                alpha=0.6, zorder=2)  # fmt: skip
        ax.plot(row.measured_s, row.predicted_s, marker=_marker(shapes, row.shape), ms=5.5,
                color=colors[row.hue], mec="white", mew=0.5, ls="", zorder=3)  # fmt: skip
    ends = [s for row in rows for s in (row.measured_s, row.predicted_s)]
    low, high = min(ends) / 1.4, max(ends) * 1.4
    ax.set_xscale("log")
    ax.set_yscale("log")
    for factor, style in ((1.0, "-"), (_FACTOR, ":"), (1 / _FACTOR, ":")):
        ax.plot([low, high], [factor * low, factor * high], color=GREY, lw=0.9, ls=style, zorder=1)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    finish(ax, "Measured batch", "Predicted batch")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda s, _: si_tick(s, "s").replace("us", "µs")))
    entries = [Line2D([], [], marker=_marker(shapes, s), color=INK, ls="", ms=6) for s in shapes]
    entries += [Line2D([], [], color=colors[h], lw=4) for h in hues]
    entries += [Line2D([], [], color=GREY, lw=0.9), Line2D([], [], color=GREY, lw=0.9, ls=":")]
    ax.legend(
        entries, [plain(text) for text in (*shapes, *hues, "equal", "25 % off")],
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=TEXT_PT,
        labelcolor=INK,
    )  # fmt: skip
    return ax


def _whisker(
    ax: Axes, y: float, at: float, low: float, high: float, color: str, full: bool,
    marker: str = "o",
) -> None:  # fmt: skip
    """Draw one value with its interval, in per cent."""
    ax.plot([100 * low, 100 * high], [y, y], color=color, lw=1.3, zorder=3)
    for end in (low, high):
        ax.plot([100 * end] * 2, [y - 0.09, y + 0.09], color=color, lw=1.3, zorder=3)
    ax.plot(100 * at, y, marker=marker, ms=5.5, color=color, mfc=color if full else "white",
            mew=1.2, ls="", zorder=4)  # fmt: skip


def _marker(shapes: Sequence[str], shape: str) -> str:
    return MARKERS[shapes.index(shape) % len(MARKERS)]
