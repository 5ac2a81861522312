"""Lines with markers, told apart in grey: losses over epochs, precisions and rates over sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.keys import ordered_colors
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    MARKERS,
    PALETTE,
    TEXT_PT,
    VALUE_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    si_tick,
    size_pt,
    text_width_pt,
)

Scale = Literal["linear", "log"]
_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MANY: Final = 14
"""Points of a line above which only some carry the marker."""

_FEW: Final = 10
_APART_PT: Final = 8.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line: values over places, and where they end up to a chance (`low`, `high`)."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """What an axis shows: its words, its unit for SI ticks ('' for plain numbers), its scale."""

    label: str
    unit: str = ""
    scale: Scale = "linear"


def lines(
    series: Mapping[str, Series],
    x: Measure,
    y: Measure,
    *,
    ordered: bool = False,
    references: Mapping[str, float] | None = None,
    legend: str = "",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw every series as a line with a marker, a colour and a dash of its own.

    Parameters
    ----------
    series : mapping of str to Series
        By what the legend calls them.
    x, y : Measure
    ordered : bool
        The series follow a quantity: colours go from dark to light.
    references : mapping of str to float, optional
        Horizontal lines, such as a document's value, named at the end where the series are farther.
    legend : str
        What the legend's entries are values of.

    Raises
    ------
    ModelError
        If there is nothing to draw, or a value that a logarithmic axis cannot show.
    """
    _check(series, x, y)
    foreign = ax is not None
    ax = axes_of(ax, 3.5, 2.8)
    ax.set_xscale(x.scale)
    ax.set_yscale(y.scale)
    colors = ordered_colors(len(series)) if ordered else PALETTE
    for i, (label, one) in enumerate(series.items()):
        color = colors[i % len(colors)]
        ax.plot(
            one.x, one.y, color=color, ls=_DASHES[i % len(_DASHES)], lw=1.2,
            label=entry(plain(label)),
            marker=MARKERS[i % len(MARKERS)], ms=4.2, mec=color, zorder=3,
            mfc="white" if i % 2 else color, markevery=max(1, len(one.x) // _MANY),
        )  # fmt: skip
        if one.low is not None and one.high is not None:
            ax.fill_between(one.x, one.low, one.high, color=color, alpha=0.15, lw=0)
    for name, value in (references or {}).items():
        ax.axhline(value, color=GREY, lw=0.9, ls=(0, (6, 2, 1, 2)), zorder=1.8)
        right = _nearest(series, y, value, -1) >= _nearest(series, y, value, 0)
        ax.annotate(
            plain(name), (1.0 if right else 0.0, value), (-2 if right else 2, 2),
            xycoords=("axes fraction", "data"), textcoords="offset points", va="bottom",
            ha="right" if right else "left", fontsize=VALUE_PT, color=INK,
        )  # fmt: skip
    for axis, measure in ((ax.xaxis, x), (ax.yaxis, y)):
        _ticks(axis, measure)
    _places(ax, x, sorted({v for one in series.values() for v in one.x}), size_pt(ax, foreign)[0])
    ax.grid(True, which="major", color=GRID, lw=0.6)
    finish(ax, x.label, y.label)
    width = size_pt(ax, foreign)[0]
    rows = _legend(ax, list(series), legend, width)
    put_title(ax, title, width, 6 + 11 * rows)
    return ax


def _nearest(series: Mapping[str, Series], y: Measure, value: float, end: int) -> float:
    """How near the first (0) or last (-1) points of the lines come to a value, on the axis."""
    values = [one.y[end] for one in series.values()]
    if y.scale == "log":
        return min(abs(math.log(v / value)) for v in values)
    return min(abs(v - value) for v in values)


def _check(series: Mapping[str, Series], x: Measure, y: Measure) -> None:
    if not series or not all(len(one.x) for one in series.values()):
        raise ModelError("wanted lines to draw; found none, or one without points; leave it out")
    for label, one in series.items():
        for measure, values in ((x, one.x), (y, one.y)):
            if measure.scale == "log" and not all(v > 0 for v in values):
                raise ModelError(
                    f"wanted positive numbers on the logarithmic axis {measure.label!r}; found "
                    f"others in {label!r}; leave them out, or make the axis linear"
                )


def _ticks(axis: Axis, measure: Measure) -> None:
    if measure.unit:
        unit = measure.unit
        axis.set_major_formatter(FuncFormatter(lambda v, _: si_tick(v, unit) if v else "0"))
    if measure.scale == "linear":
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        return
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if math.log10(high / low) < 1.6 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axis.set_minor_formatter(NullFormatter())
    if not measure.unit and low > 1e-4 and high < 1e5:
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))


def _places(ax: Axes, x: Measure, places: Sequence[float], width_pt: float) -> None:
    """Put the ticks of a logarithmic axis where the lines have points, if these are few."""
    if x.scale == "linear" or not 1 < len(places) <= _FEW:
        return
    low, high = ax.get_xlim()
    per_log = width_pt / math.log(high / low)
    widths = {v: text_width_pt(_text(v, x.unit)) for v in places}
    shown: list[float] = []
    for value in reversed(places):  # leave out labels that would touch the next one
        space = per_log * math.log(shown[-1] / value) if shown else math.inf
        if not shown or space > (widths[value] + widths[shown[-1]]) / 2 + _APART_PT:
            shown.append(value)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(FixedLocator([v for v in places if v not in shown]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _text(v, x.unit)))


def _text(value: float, unit: str) -> str:
    return si_tick(value, unit) if unit else f"{value:,.10g}"


def _legend(ax: Axes, labels: Sequence[str], words: str, width_pt: float) -> int:
    """Put the legend above the axes in as many rows as it needs; return how many."""
    if len(labels) < 2 and not words:
        return 0
    widest = max(text_width_pt(plain(label)) for label in labels) + 32.0
    columns = max(1, min(len(labels), int(width_pt / widest)))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)
    ax.legend(
        title=plain(words) or None, title_fontsize=TEXT_PT, loc="lower left",
        bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False, fontsize=TEXT_PT, labelcolor=INK,
        borderaxespad=0.2, borderpad=0.2, columnspacing=0.9, handlelength=2.2, handletextpad=0.4,
        labelspacing=0.25, alignment="left",
    )  # fmt: skip
    return rows + bool(words)
