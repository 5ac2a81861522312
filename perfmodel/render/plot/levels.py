"""The hierarchical roofline: kernels or ranges at every level of memory, under their roofs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from perfmodel.analysis.counters import UNITS, Placed
from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.render.plot.keys import ordered_colors
from perfmodel.render.plot.scales import apply
from perfmodel.render.plot.style import (
    GREY,
    INK,
    MARKERS,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    size_pt,
    wrap,
)

MOST: Final = 12
"""So many kernels or ranges are drawn, those that take the most time."""

_FILLS: Final[dict[str, Any]] = {"dram": "full", "l2": "left", "l1": "none"}
_LINES: Final[dict[str, Any]] = {"dram": "-", "l2": (0, (5, 2)), "l1": (0, (1, 1.5))}
_NAMES: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
_LETTERS, _LONGEST = 34, 56  # in a line of the legend, and of a name
_LINE_IN: Final = 0.152  # height of a line of the legend
_LABEL: Final = (0.36, 0.085)  # width and height of a peak's name, of the axes
_LEAST_PT, _MORE_PT = 4.0, 9.0  # size of a point: without any time, and what all the time adds


def drawable(placed: Placed) -> bool:
    """Whether there is a point: operations, time, and bytes of one level at least."""
    rate = placed.counted.flops_per_s
    return bool(rate) and bool(intensities(placed))


def intensities(placed: Placed) -> dict[str, float]:
    """By level, where its point stands; none at L1 if the kernel's copies pass its counter by."""
    one = placed.counted
    found = {level: one.intensity(level) for level in _FILLS if level != "l1" or not one.past_l1}
    return {level: x for level, x in found.items() if x}


def levels(placed: Sequence[Placed], *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw a point per level of memory for every kernel or range, and the ceilings above them.

    The points of one kernel stand at one height, FLOP/s, at the intensity of every level: full for
    DRAM, half for L2, hollow for L1. Their marker is that of the unit that does most of the
    operations, whose peak is the ceiling with the same name; their size tells the share of the
    time. What is above a ceiling has a ring, and a sentence below the legend.

    Parameters
    ----------
    placed : sequence of Placed
        At most `MOST` are drawn, those that take the most time.
    ax : Axes, optional
        By default a figure of its own, 8 by 4.6 inches.

    Raises
    ------
    ModelError
        If there is no point to draw.
    """
    shown = sorted(filter(drawable, placed), key=lambda p: -(p.counted.time_s or 0.0))[:MOST]
    if not shown:
        raise ModelError(
            "a roofline needs kernels with operations, bytes and time; found none that has all "
            "three; collect what perfmodel counters --command prints"
        )
    peaks = {p.unit: p.peak_flops_per_s for p in shown if p.unit and p.peak_flops_per_s}
    links = dict(shown[0].bandwidths_bytes_per_s)
    total = sum(p.counted.time_s or 0.0 for p in placed)
    hues = list(PALETTE) if len(shown) <= len(PALETTE) else ordered_colors(len(shown))
    entries = _entries(shown, hues, links, total)
    lines = sum(text.count("\n") + 1 for text, _ in entries)
    axes = axes_of(ax, 8.0, max(4.6, 0.3 + _LINE_IN * lines))
    frame = _frame(shown, peaks, links)
    apply(axes, frame)
    finish(axes, "Arithmetic intensity of a level of memory (FLOP/byte)", "Performance (FLOP/s)")
    _draw_ceilings(axes, peaks, links, frame)
    _name_peaks(axes, peaks, shown, frame)
    for p, hue in zip(shown, hues, strict=False):
        _draw_point(axes, p, hue, (p.counted.time_s or 0.0) / total)
    axes.legend(
        [Line2D([], [], **{"linestyle": "", "markersize": 6.0, **look}) for _, look in entries],
        [entry(text) for text, _ in entries], loc="upper left", bbox_to_anchor=(1.01, 1.0),
        fontsize=TEXT_PT, frameon=False, borderaxespad=0.0, handletextpad=0.5, labelspacing=0.35,
        handlelength=2.4, labelcolor=INK,
    )  # fmt: skip
    put_title(axes, title, size_pt(axes, foreign=ax is not None)[0])
    return axes


def _frame(
    shown: Sequence[Placed], peaks: dict[str, float], links: dict[str, float]
) -> tuple[float, float, float, float]:
    """Limits around all points, ridges and peaks."""
    at = [x for p in shown for x in intensities(p).values()]
    ridges = [peak / bandwidth for peak in peaks.values() for bandwidth in links.values()]
    rates = [p.counted.flops_per_s or 1.0 for p in shown]
    top = max([*rates, *peaks.values()])
    return min(at) / 4, max([*at, *ridges]) * 4, min(rates) / 4, top * 3


def _draw_ceilings(
    ax: Axes, peaks: dict[str, float], links: dict[str, float], frame: tuple[float, ...]
) -> None:
    """Bandwidths as diagonals up to the highest peak, peaks from the steepest diagonal on."""
    x_low, x_high, _, y_high = frame
    top = max(peaks.values(), default=y_high)
    for level, bandwidth in links.items():
        end = min(x_high, top / bandwidth)
        ax.plot(
            [x_low, end], [bandwidth * x_low, bandwidth * end],
            color=GREY, lw=1.2, ls=_LINES[level], zorder=2,
        )  # fmt: skip
    steepest = max(links.values(), default=math.inf)
    for peak in peaks.values():
        ax.plot([max(x_low, peak / steepest), x_high], [peak, peak], color=INK, lw=1.2, zorder=2)


def _name_peaks(
    ax: Axes, peaks: dict[str, float], shown: Sequence[Placed], frame: tuple[float, ...]
) -> None:
    """Name every peak at its right end: above the line, or below it where only there is room."""
    for unit, peak in peaks.items():
        others = [rate for rate in peaks.values() if rate != peak]
        rates = [p.counted.flops_per_s or 1.0 for p in shown if _at_label(p, frame)] + others
        heights = [math.log(rate / peak) / math.log(frame[3] / frame[2]) for rate in rates]
        above = any(0 < h < _LABEL[1] for h in heights)
        below = any(0 < -h < _LABEL[1] for h in heights)
        up = below or not above
        ax.annotate(
            f"{unit}, {si(peak, 'FLOP/s')}", (1, peak), (-2, 2 if up else -2),
            va="bottom" if up else "top", ha="right", xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=TEXT_PT, color=INK,
        )  # fmt: skip


def _at_label(p: Placed, frame: tuple[float, ...]) -> bool:
    """Whether a kernel's line comes as far to the right as the names of peaks begin."""
    x_low, x_high, *_ = frame
    most = max(intensities(p).values())
    return math.log(most / x_low) / math.log(x_high / x_low) > 1 - _LABEL[0]


def _draw_point(ax: Axes, p: Placed, hue: str, share: float) -> None:
    rate = p.counted.flops_per_s or math.nan
    found = intensities(p)
    ax.plot(list(found.values()), [rate] * len(found), color=hue, lw=0.8, zorder=3)
    size = _LEAST_PT + _MORE_PT * math.sqrt(share)
    for level, x in found.items():
        ax.plot([x], [rate], linestyle="", zorder=4, markersize=size, **_look(p, hue, level))
        if p.above:
            ax.plot([x], [rate], linestyle="", marker="o", fillstyle="none", color=INK,
                    markersize=size + 6, markeredgewidth=1.6, zorder=5)  # fmt: skip


def _look(p: Placed, hue: str, level: str) -> dict[str, Any]:
    return {"marker": _marker(p.unit), "color": hue, "fillstyle": _FILLS[level],
            "markerfacecoloralt": "white", "markeredgewidth": 1.2}  # fmt: skip


def _marker(unit: str | None) -> str:
    return MARKERS[list(UNITS).index(unit)] if unit in UNITS else "x"


def _entries(
    shown: Sequence[Placed], hues: Sequence[str], links: dict[str, float], total: float
) -> list[tuple[str, dict[str, Any]]]:
    """The legend's texts and looks: hues, fillings and markers, each below a heading."""
    found: list[tuple[str, dict[str, Any]]] = [("$\\bf{Share\\ of\\ time}$", {})]
    for p, hue in zip(shown, hues, strict=False):
        share = f", {(p.counted.time_s or 0.0) / total:.0%}{', mixed' * p.mixed}"
        found.append((wrap(short(p.counted.label) + share, _LETTERS), _look(p, hue, "dram")))
    found += [("", {}), ("$\\bf{Level}$", {})]
    for level, name in _NAMES.items():
        known = level in links
        look = {"marker": "o", "color": GREY, "fillstyle": _FILLS[level]}
        look |= {"markerfacecoloralt": "white", "linestyle": _LINES[level] if known else ""}
        rate = si(links[level], "B/s") if known else "bandwidth unknown"
        found.append((f"{name}, {rate}", look))
    found += [("", {}), ("$\\bf{Unit}$", {})]
    for unit in dict.fromkeys(p.unit for p in shown):
        found.append((unit or "none", {"marker": _marker(unit), "color": INK}))
    if any(p.above for p in shown):
        ring = {"marker": "o", "fillstyle": "none", "color": INK, "markersize": 9}
        found.append(("above a ceiling: cannot be", ring))
    return found


def short(kernel: str) -> str:
    """A kernel's name without its return type and parameters, not longer than two lines."""
    name = plain(kernel).replace("void ", "").partition("(")[0] or kernel
    if name.count("<") > name.count(">"):  # cut inside its template arguments
        name = name.partition("<")[0]
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
