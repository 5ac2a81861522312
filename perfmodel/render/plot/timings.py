"""Times over a size on log axes, a line for every way to do the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GRID,
    INK,
    MARKER_PT,
    MARKERS,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    si_tick,
    size_pt,
)

_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds over sizes of one way; `predicted` ones are dashed."""

    label: str
    sizes: Sequence[float]
    seconds: Sequence[float]
    predicted: bool = False


def timings(
    lines: Sequence[Timing], *, label: str, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw times over sizes, both logarithmic.

    Parameters
    ----------
    lines : sequence of Timing
        A colour and a marker for each that was measured; predicted ones have that of the measured
        one of the same label, or the ink.
    label : str
        Of the axis of sizes.

    Raises
    ------
    ModelError
        If there is nothing to draw, or a size or time that has no logarithm.
    """
    values = [v for line in lines for v in (*line.sizes, *line.seconds)]
    if not values or min(values) <= 0:
        raise ModelError(
            f"wanted sizes and times above 0 to draw; found {min(values, default='none')}; "
            f"leave out what was not measured"
        )
    ax = axes_of(ax, 5.2, 3.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    measured = list(dict.fromkeys(line.label for line in lines if not line.predicted))
    for line in lines:
        i = measured.index(line.label) if line.label in measured else None
        color = INK if i is None else PALETTE[i % len(PALETTE)]
        marker = "" if line.predicted or i is None else MARKERS[i % len(MARKERS)]
        named = "" if line.predicted and i is not None else line.label
        ax.plot(
            line.sizes, line.seconds, color=color, marker=marker, ms=MARKER_PT * 0.85, mec="white",
            mew=0.5, ls=(0, (4, 2)) if line.predicted else "-", lw=1.0 if line.predicted else 1.4,
            label=entry(plain(named)) if named else "_",
        )  # fmt: skip
    if any(line.predicted and line.label in measured for line in lines):
        ax.plot([], [], color=INK, lw=1.0, ls=(0, (4, 2)), label="predicted")
    finish(ax, label, "Time")
    _ticks(ax, sorted({size for line in lines for size in line.sizes}))
    _legend(ax, title)
    return ax


def _ticks(ax: Axes, sizes: Sequence[float]) -> None:
    ax.xaxis.set_major_locator(FixedLocator(list(sizes)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
    ax.yaxis.set_major_locator(LogLocator())
    ax.yaxis.set_minor_locator(LogLocator(subs=range(2, 10)))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: si_tick(v, "s")))
    ax.grid(True, color=GRID, lw=0.6)


def _legend(ax: Axes, title: str | None) -> None:
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=_COLUMNS, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2, handlelength=1.8, columnspacing=1.2,
    )  # fmt: skip
    rows = -(-len(ax.get_legend_handles_labels()[0]) // _COLUMNS)
    put_title(ax, title, size_pt(ax)[0], 8 + 13 * rows)
