"""Lines with markers, distinct in grey: anything over sizes, epochs, ranks or time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.labels import ordered_colors
from perfmodel.render.plot.style import (
    DASHED,
    DOUBLE_IN,
    GREY,
    GRID,
    INK,
    MARKERS,
    PALETTE,
    SINGLE_IN,
    VALUE_PT,
    Measure,
    apply,
    axes_of,
    entry,
    finish,
    legend_above,
    plain,
    size_pt,
    ticks,
    ticks_at,
)

Values = Sequence[float] | npt.NDArray[Any]

_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MANY: Final = 14
"""Points of a line above which only some carry the marker."""

_FEW: Final = 10
"""Up to so many places of points are the ticks of a logarithmic axis."""

_NAMES: Final = {"B": "Global batch size B", "H": "Hidden size H", "p": "Ranks p"}


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Attributes
    ----------
    x, y : sequences of float
    low, high : sequences of float, optional
        A band around the line, such as an interval.
    like : str
        The series whose colour and marker this one has; others have the next ones.
    dash : str or (int, tuple), optional
        matplotlib's line style; by default the next one that tells lines apart in grey.
    marked, hollow, steps, listed : bool
        With markers; with hollow ones; constant from each point to the next; in the legend.
    color : str
        Other than the next one.
    """

    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    like: str = ""
    dash: Any = None
    marked: bool = True
    hollow: bool = False
    steps: bool = False
    listed: bool = True
    color: str = ""


def reference(x: Sequence[float], y: Sequence[float], color: str = GREY) -> Series:
    """Return a dashed line without markers, such as the ideal."""
    return Series(x, y, dash=DASHED, marked=False, color=color)


def lines(
    series: Mapping[str, Series],
    x: Measure,
    y: Measure,
    *,
    ordered: bool = False,
    references: Mapping[str, float] | None = None,
    legend: str | None = "",
    ticked: bool = False,
    ax: Axes | None = None,
    title: str | None = None,
    size_in: tuple[float, float] = (SINGLE_IN, 2.8),
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
        Horizontal lines, such as a peak, which the legend names.
    legend : str, optional
        What the legend's entries are values of; None for no legend, as in a panel beside another.
    ticked : bool
        Ticks are where the series have points; also done on logarithmic axes with few points.
    size_in : (float, float)
        Width and height of a figure of its own.

    Raises
    ------
    ModelError
        If there is nothing to draw, or a value that a logarithmic axis cannot show.
    """
    _check(series, x, y)
    foreign = ax is not None
    ax = axes_of(ax, *size_in)
    ax.set_xscale(x.scale)
    ax.set_yscale(y.scale)
    for label, (one, look) in _looks(series, ordered=ordered).items():
        draw: Any = ax.step if one.steps else ax.plot
        where = {"where": "post"} if one.steps else {}
        draw(one.x, one.y, label=entry(plain(label)) if one.listed else None, **look, **where)
        if one.low is not None and one.high is not None:
            ax.fill_between(one.x, one.low, one.high, color=look["color"], alpha=0.15, lw=0)
    for name, value in (references or {}).items():
        ax.axhline(value, label=entry(plain(name)), color=GREY, lw=0.9, ls=DASHED, zorder=1.8)
    finish(ax, x.label, y.label)
    ticks(ax.xaxis, x.unit)
    ticks(ax.yaxis, y.unit)
    places = sorted({v for one in series.values() for v in one.x})
    if ticked or (x.scale == "log" and 1 < len(places) <= _FEW):
        ticks_at(ax, places, size_pt(ax, foreign)[0], x.unit)
    shown = legend is not None and (len(series) > 1 or bool(legend) or bool(references))
    handles, texts = ax.get_legend_handles_labels() if shown else ([], [])
    legend_above(ax, handles, texts, title=title, heading=legend or "", foreign=foreign)
    return ax


def _looks(
    series: Mapping[str, Series], *, ordered: bool
) -> dict[str, tuple[Series, dict[str, Any]]]:
    """Colour, marker and dash of every line."""
    own = [label for label, one in series.items() if not (one.like or one.color)]
    colors = ordered_colors(len(own)) if ordered and own else PALETTE
    found = {}
    for label, one in series.items():
        key = one.like or label
        i = own.index(key) if key in own else 0
        color = one.color or colors[i % len(colors)]
        found[label] = one, {
            "color": color, "ls": _DASHES[i % len(_DASHES)] if one.dash is None else one.dash,
            "lw": 1.3 if one.marked else 1.1, "zorder": 3 if one.marked else 2,
            "marker": MARKERS[i % len(MARKERS)] if one.marked else "", "ms": 4.5,
            "mfc": "white" if one.hollow else color, "markevery": max(1, len(one.x) // _MANY),
        }  # fmt: skip
    return found


def _check(series: Mapping[str, Series], x: Measure, y: Measure) -> None:
    if not series or not all(len(one.x) for one in series.values()):
        raise ModelError("expected lines to draw; got none, or one without points; leave it out")
    for label, one in series.items():
        for measure, values in ((x, one.x), (y, one.y)):
            if measure.scale == "log" and not all(v > 0 for v in values):
                raise ModelError(
                    f"expected positive numbers on the logarithmic axis {measure.label!r}; got "
                    f"others in {label!r}; leave them out, or make the axis linear"
                )


def sweep(
    points: Sequence[Point],
    roofline: Roofline | None = None,
    *,
    over: str = "B",
    by: str = "H",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw FLOP/s over the symbol `over`, one line for every value of the symbol `by`.

    Parameters
    ----------
    points
        Their `symbols` hold `over` and `by`. The first kind is filled, others are hollow.
    roofline
        Its no-overlap model at the points' intensities is predicted: dashed lines.
    ax
        Where to draw; by default a figure of its own, 7.2 inches wide.

    Raises
    ------
    ModelError
        If there are no points, or one lacks a symbol.
    """
    if not points or any(not {over, by} <= set(p.symbols or {}) for p in points):
        raise ModelError(f"a sweep needs points with values of {over} and {by}")
    kinds = list(dict.fromkeys(p.kind for p in points))
    series: dict[str, Series] = {}
    for value in sorted({_value(p, by) for p in points}):
        mine = sorted((p for p in points if _value(p, by) == value), key=lambda p: _value(p, over))
        name = f"{by} = {value:,}"
        for i, kind in enumerate(kinds):
            at = [(_value(p, over), p.flops_per_s) for p in mine if p.kind == kind]
            if at:
                like = name if name in series else ""
                x, y = zip(*at, strict=True)
                key = f"{name}, {kind}" if like else name
                dash = ":" if i else "-"
                series[key] = Series(x, y, like=like, dash=dash, hollow=i > 0, listed=not like)
        first = [p for p in mine if p.kind == mine[0].kind]
        if roofline is not None:
            smooth = [float(roofline.smooth(p.intensity_flops_per_byte)) for p in first]
            line = reference([_value(p, over) for p in first], smooth, INK)
            series[f"{name}, predicted"] = replace(line, listed=False)
    x_axis = Measure(_NAMES.get(over, over), scale="log")
    y_axis = Measure("Performance per GPU (FLOP/s)", "FLOP/s", "log")
    foreign = ax is not None
    ax = lines(series, x_axis, y_axis, ordered=True, legend=None, ax=ax, size_in=(DOUBLE_IN, 3.6))
    entries, texts = ax.get_legend_handles_labels()
    entries += [Line2D([], [], color=INK, marker="o", ms=4.5, lw=1.3, ls=":" if i else "-",
                       mfc="white" if i else INK) for i in range(len(kinds))]  # fmt: skip
    texts += kinds
    if roofline is not None:
        entries.append(Line2D([], [], color=INK, lw=1.1, ls=DASHED))
        texts.append("model: no overlap")
    legend_above(ax, entries, texts, title=title, foreign=foreign)
    values = sorted({_value(p, over) for p in points})
    apply(ax, (values[0] / 1.15, values[-1] * 1.15, *ax.get_ylim()))
    ticks_at(ax, values, size_pt(ax, foreign)[0])
    return ax


def _value(point: Point, symbol: str) -> int:
    return (point.symbols or {})[symbol]


def predictions(
    label: str,
    at: Sequence[int],
    seconds: Sequence[tuple[float, float, float]],
    extrapolated: Sequence[bool],
    measured: Sequence[tuple[int, float]],
    symbol: str,
    *,
    title: str | None = None,
) -> Axes:
    """Draw predicted times per batch over `symbol` with their 90 % band, and measured ones.

    Predictions are dashed, those beyond the calibration dotted.

    Parameters
    ----------
    label : str
        What is predicted.
    at : sequence of int
        Rising values of the symbol.
    seconds : sequence of (float, float, float)
        There: of a batch, and from where to where in 90 %.
    extrapolated : sequence of bool
        Whether that is beyond the calibration.
    measured : sequence of (int, float)
        Value of the symbol and seconds of every measured run.
    """
    batch_s, low_s, high_s = (list(column) for column in zip(*seconds, strict=True))
    band = Series(at, batch_s, low_s, high_s, dash="none", marked=False, color=PALETTE[0],
                  listed=False)  # fmt: skip
    drawn = {"90 % band": band}
    ends = range(len(at) - 1) or [0]
    for beyond, group in groupby(ends, lambda i: any(extrapolated[i : i + 2])):
        part = list(group)
        piece = slice(part[0], part[-1] + 2)
        name = f"{label}, extrapolated" if beyond else label
        key = name + " " * (name in drawn)
        drawn[key] = replace(
            band, x=at[piece], y=band.y[piece], low=None, high=None,
            dash=":" if beyond else DASHED, listed=key == name,
        )  # fmt: skip
    if measured:
        places, times = zip(*measured, strict=True)
        drawn["measured"] = Series(places, times, dash="none", color=INK)
    axis = Measure(_NAMES.get(symbol, symbol), scale="log")
    time = Measure("Time per batch; 90 % band", "s", "log")
    return lines(drawn, axis, time, ticked=True, title=title, size_in=(DOUBLE_IN, 3.6))


@dataclass(frozen=True, slots=True)
class Percentages:
    """One counter of one GPU in percent over time; NaN where it is unknown."""

    gpu: int
    label: str
    time_s: Floats
    percent: Floats
    minor: bool = False


def broken(
    time_s: Floats, percent: Floats, gaps: Sequence[tuple[float, float]]
) -> tuple[Floats, Floats]:
    """Return a curve with NaN in its gaps, so that no line crosses them."""
    at = np.searchsorted(time_s, [start for start, _ in gaps], side="right")
    return np.insert(time_s, at, [start for start, _ in gaps]), np.insert(percent, at, math.nan)


def utilization(
    curves: Sequence[Percentages],
    *,
    window_s: tuple[float, float] | None = None,
    busy: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    legend: str | None = "",
) -> Axes:
    """Draw percentages over time, a colour for every GPU, minor ones dotted.

    Parameters
    ----------
    curves : sequence of Percentages
    window_s : (float, float), optional
        Shaded.
    busy : mapping of str to float, optional
        Shares of time in which a report saw the GPU busy, by what the picture calls them.
    """
    gpus = list(dict.fromkeys(curve.gpu for curve in curves))
    series = {
        c.label: Series(
            c.time_s, c.percent, dash=":" if c.minor else "-", marked=len(c.time_s) == 1,
            color=PALETTE[gpus.index(c.gpu) % len(PALETTE)],
        )
        for c in curves
    }  # fmt: skip
    shares = {f"{name}, {100 * share:.0f} %": 100 * share for name, share in (busy or {}).items()}
    time = Measure("Time since the command was started (s)")
    ax = lines(series, time, Measure("Share of time (%)"), references=shares, legend=legend, ax=ax,
               title=title, size_in=(DOUBLE_IN, 3.0))  # fmt: skip
    if window_s is not None:
        ax.axvspan(*window_s, color=GRID, alpha=0.6, lw=0, zorder=0)
    ax.set_ylim(-2, 108)
    return ax


@dataclass(frozen=True, slots=True)
class Level:
    """A time that stays equal from one commit to another, both counted from 0 and included."""

    first: int
    last: int
    seconds: float


def over_commits(
    curves: Mapping[str, tuple[Floats, Sequence[Level]]],
    changes: Mapping[int, str],
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw times over commits with the levels between their changes.

    Parameters
    ----------
    curves : mapping of str to (array, sequence of Level)
        Seconds of every commit, NaN where unknown, and their levels.
    changes : mapping of int to str
        Names of the commits at which something changed.
    """
    series = {}
    for label, (seconds, levels) in curves.items():
        known = np.flatnonzero(np.isfinite(seconds))
        series[label] = Series(known, 1e3 * seconds[known], dash="", marked=True)
        for i, one in enumerate(levels):
            series[f"{label}, level {i}"] = Series(
                [one.first - 0.5, one.last + 0.5], 2 * [1e3 * one.seconds], like=label, dash="-",
                marked=False, listed=False,
            )  # fmt: skip
    ax = lines(series, Measure("Commit (number)"), Measure("Time per step (ms)"), ax=ax,
               title=title, size_in=(DOUBLE_IN, 2.8))  # fmt: skip
    for line in ax.lines:
        line.set_markevery(1)  # every commit is a measurement
        line.set_markersize(3)
    for at, name in changes.items():
        ax.axvline(at - 0.5, color=GREY, lw=0.9, ls=DASHED, zorder=1.8)
        ax.annotate(
            plain(name), (at - 0.5, 1.0), (2, -2), xycoords=("data", "axes fraction"),
            textcoords="offset points", va="top", fontsize=VALUE_PT, color=INK, rotation=90,
        )  # fmt: skip
    return ax
