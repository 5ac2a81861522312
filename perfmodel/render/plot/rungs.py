"""Times of many implementations as bars, a panel per number of GPUs, with floors and a rival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.render.plot.style import (
    GRID,
    INK,
    PALETTE,
    TEXT_PT,
    TITLE_PT,
    VALUE_PT,
    finish,
    plain,
    si_tick,
)

_BAR: Final = "#3a87c0"


@dataclass(frozen=True, slots=True)
class Bar:
    """One implementation: seconds of a batch, and the floor that the machine leaves."""

    label: str
    seconds: float
    floor_s: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    """One number of GPUs; `rival_s` is drawn through all bars."""

    title: str
    bars: tuple[Bar, ...]
    rival_s: float | None


def rungs(
    found: Sequence[Panel], axes: Sequence[Axes], *, rival: str = "best of PyTorch"
) -> tuple[Axes, ...]:
    """Draw a panel beside another on logarithmic axes; the rows are the same in all.

    Parameters
    ----------
    found : sequence of Panel
        Names that one panel lacks have an empty row there.
    axes : sequence of Axes
        As many, of one figure, such as those of `perfmodel.render.plot.panels`.
    rival : str
        What `rival_s` is of.

    Raises
    ------
    ModelError
        If there is no bar to draw, or not an axes for every panel.
    """
    names = list(dict.fromkeys(bar.label for panel in found for bar in panel.bars))
    if not names or len(axes) != len(found):
        raise ModelError(
            f"wanted timed implementations and an axes for each of {len(found)} panels; found "
            f"{len(names)} implementations and {len(axes)} axes; time some, or give so many"
        )
    shown = [s for p in found for b in p.bars for s in (b.seconds, b.floor_s, p.rival_s) if s]
    legend: dict[str, Any] = {}
    for i, (ax, panel) in enumerate(zip(axes, found, strict=True)):
        ax.set_xscale("log")
        ax.set_xlim(min(shown) / 1.5, max(shown) * 4.0)  # room for the last value
        legend |= _draw(ax, panel, names, rival)
        ax.set_yticks(range(len(names)), [plain(name) for name in names] if i == 0 else [])
        ax.set_ylim(len(names) - 0.4, -0.6)
    axes[0].figure.canvas.figure.legend(
        list(legend.values()), list(legend), loc="outside upper left", ncols=4, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK,
    )  # fmt: skip
    return tuple(axes)


def _draw(ax: Axes, panel: Panel, names: Sequence[str], rival: str) -> dict[str, Any]:
    """Draw one panel; give the legend's entries."""
    legend: dict[str, Any] = {}
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    if panel.rival_s:
        line = ax.axvline(panel.rival_s, color=PALETTE[1], lw=1.2, ls=(0, (4, 2)), zorder=3)
        legend[rival] = line
    for bar in panel.bars:
        row = names.index(bar.label)
        drawn = ax.barh(row, bar.seconds, 0.66, color=_BAR, edgecolor=INK, lw=0.4, zorder=2)
        legend["time of a batch"] = drawn
        if bar.floor_s:
            legend["floor by measured ceilings"] = ax.vlines(
                bar.floor_s, row - 0.42, row + 0.42, color=INK, lw=1.8, zorder=4
            )
        ax.annotate(
            si(bar.seconds, "s").replace(" us", " µs"), (bar.seconds, row), (3, 0), zorder=5,
            textcoords="offset points", va="center_baseline", fontsize=VALUE_PT, color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
        )  # fmt: skip
    finish(ax, "Time of a batch", "")
    ax.set_title(plain(panel.title), fontsize=TITLE_PT, color=INK, loc="left")
    ax.xaxis.set_major_locator(LogLocator(numticks=6))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda s, _: si_tick(s, "s").replace("us", "µs")))
    ax.tick_params(axis="y", length=0)
    return legend
