"""Rooflines: of links (no-overlap model, roof, ridge point), and of every level of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from perfmodel.analysis.counters import UNITS, Placed
from perfmodel.base.errors import ModelError
from perfmodel.base.units import percent
from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.labels import Keys, choose, ordered_colors
from perfmodel.render.plot.style import (
    DASHED,
    DOUBLE_IN,
    GREY,
    INK,
    LABEL_PT,
    MARKER_PT,
    MARKERS,
    NARROW_COLUMNS,
    NARROW_PT,
    PALETTE,
    RING,
    WIDE_COLUMNS,
    Limits,
    amount,
    apply,
    axes_of,
    entry,
    finish,
    legend_look,
    legend_share,
    limits,
    plain,
    put_title,
    ring,
    shortened,
    size_pt,
    text_width_pt,
    wrap,
)

FEW: Final = 4
"""So many points are listed one by one, with their share of the no-overlap model; more are
distinguished by their symbols or reports."""

_TICKS_PT: Final = 75.0  # what the vertical axis' label and ticks take
_BESIDE_PT: Final = 190.0  # width of axes that may have a legend beside them
_RIM_PT, _MOST_RIM_PT = 2.8, 9.0  # what a point is larger than the one on top of it

MOST: Final = 12
"""So many kernels or ranges are drawn, those that take the most time."""

_CEILING: Final = (0, (6, 2, 1, 2))
_LONGEST_CEILING: Final = 40
_FILLS: Final[dict[str, Any]] = {"dram": "full", "l2": "left", "l1": "none"}
LINES: Final[dict[str, Any]] = {"dram": "-", "l2": (0, (5, 2)), "l1": (0, (1, 1.5))}
LEVELS: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
_LETTERS, _LONGEST = 34, 56  # in a line of the legend, and of a name
_LINE_IN: Final = 0.152  # height of a line of the legend
_LEAST_PT, _MORE_PT = 4.0, 9.0  # size of a point: without any time, and what all the time adds


def roofline(
    rooflines: Sequence[Roofline] | Roofline,
    points: Sequence[Point] = (),
    *,
    ax: Axes | None = None,
    title: str | None = None,
    ceiling_flops_per_s: float | None = None,
    ceiling_label: str | None = None,
) -> Axes:
    """Draw rooflines and measured points (Figures 12 to 14 of the CME 213 assignment).

    Solid is the no-overlap model (compute, then move), dashed the roof (perfect overlap). Points
    may lie above the model, and have a ring there. The legend lists up to four points, and says how
    much of the model they reach. More are distinguished by marker and colour: by the symbols that
    vary (H, B) or by report. The first kind is filled, others hollow.

    Parameters
    ----------
    rooflines, points
        A point is compared with the roof whose label is its group, else with the first.
    ax
        Where to draw; by default a figure of its own, 7.2 inches wide.
    ceiling_flops_per_s, ceiling_label
        A horizontal ceiling, such as the datasheet's peak, and what it is.

    Raises
    ------
    ModelError
        If there is no roofline, or a point or ceiling that log axes cannot show.
    """
    roofs = (rooflines,) if isinstance(rooflines, Roofline) else tuple(rooflines)
    _check(roofs, points, ceiling_flops_per_s)
    axes, width = _frame(ax, roofs, points, ceiling_flops_per_s, title)
    colors = _roof_colors(roofs)
    for roof in roofs:
        _draw_roof(axes, roof, colors[roof.label])
    above = [p for p in points if _share(roofs, p) > 1]
    extra = [(Line2D([], [], **RING), "above the model")] if above else []
    if ceiling_flops_per_s is not None:
        line = axes.axhline(ceiling_flops_per_s, color=GREY, lw=1.1, ls=_CEILING, zorder=2)
        name = [plain(shortened(ceiling_label, _LONGEST_CEILING))] if ceiling_label else []
        extra.append((line, ", ".join([*name, amount(ceiling_flops_per_s, "FLOP/s")])))
    legend = _roof_legend(axes, roofs, colors, extra)
    texts = _texts(roofs, points, NARROW_COLUMNS if width < NARROW_PT else WIDE_COLUMNS)
    keys = choose(points, texts, colors if len(roofs) > 1 else {}, FEW)
    if len(points) <= FEW:
        _draw_gaps(axes, roofs, points)
    if points and keys.legends:
        _point_legends(legend, keys, axes, width)  # below the axes it makes them lower
        apply(axes, _limits(roofs, points, ceiling_flops_per_s, size_pt(axes)[1]))
    _draw_points(axes, points, keys, above)
    return axes


def _frame(
    ax: Axes | None,
    roofs: Sequence[Roofline],
    points: Sequence[Point],
    ceiling: float | None,
    title: str | None,
) -> tuple[Axes, float]:
    """Make axes with room for the legend above the roofs; give them and their width in points."""
    axes = axes_of(ax, DOUBLE_IN, 3.7)
    apply(axes, limits(roofs, points, ceiling))
    intensity = f"Arithmetic intensity (FLOP per byte{_links(roofs)})"
    finish(axes, intensity, "Performance per GPU (FLOP/s)")
    width, height = size_pt(axes, foreign=ax is not None)
    if text_width_pt(intensity, LABEL_PT) > width:
        axes.set_xlabel(intensity.replace(" (", "\n("))
        width, height = size_pt(axes, foreign=ax is not None)
    put_title(axes, title, width)
    apply(axes, _limits(roofs, points, ceiling, height))
    return axes, width


def _limits(
    roofs: Sequence[Roofline], points: Sequence[Point], ceiling: float | None, height_pt: float
) -> Limits:
    """Limits that leave the legend of the roofs its lines at the top."""
    ringed = any(_share(roofs, p) > 1 for p in points)
    lines = 2 + sum(2 + wrap(r.label, 30).count("\n") for r in roofs) + ringed + bool(ceiling)
    return limits(roofs, points, ceiling, legend_share(lines, height_pt))


_LINKS: Final = {"pci": "PCIe", "mpi": "MPI", "peer": "NVLink", "dram": "DRAM", "hbm": "DRAM"}
"""Links of the bytes of an intensity, by the key of a roofline."""


def _links(roofs: Sequence[Roofline]) -> str:
    """Name the links whose bytes are counted: ' over PCIe and MPI'."""
    keys = dict.fromkeys(key for roof in roofs for key in roof.links_bytes_per_s)
    names = list(dict.fromkeys(_LINKS.get(key, key) for key in keys))
    return f" over {' and '.join(names)}" if names else ""


def _check(roofs: Sequence[Roofline], points: Sequence[Point], ceiling: float | None) -> None:
    if not roofs:
        raise ModelError("a roofline figure needs at least one roofline; got none")
    for point in points:
        pair = (point.intensity_flops_per_byte, point.flops_per_s)
        if not all(np.isfinite(v) and v > 0 for v in pair):
            raise ModelError(
                f"a roofline figure needs positive, finite points; got {point.label!r} at "
                f"{pair[0]!r} FLOP/byte and {pair[1]!r} FLOP/s; leave it out"
            )
    if ceiling is not None and not (np.isfinite(ceiling) and ceiling > 0):
        raise ModelError(f"a ceiling must be positive and finite; got {ceiling!r} FLOP/s")


def _roof_colors(roofs: Sequence[Roofline]) -> dict[str, str]:
    if len(roofs) == 1:
        return {roofs[0].label: INK}
    return {r.label: PALETTE[i % len(PALETTE)] for i, r in enumerate(roofs)}


def _roof_of(roofs: Sequence[Roofline], point: Point) -> Roofline:
    return next((r for r in roofs if r.label == point.group), roofs[0])


def _share(roofs: Sequence[Roofline], point: Point) -> float:
    """Return the point's FLOP/s over those of the no-overlap model at its intensity."""
    smooth = float(_roof_of(roofs, point).smooth(point.intensity_flops_per_byte))
    return point.flops_per_s / smooth


def _draw_roof(ax: Axes, roof: Roofline, color: str) -> None:
    """Draw both roofs and the ridge point."""
    low, high = ax.get_xlim()
    ridge = roof.ridge_flops_per_byte
    smooth_x: npt.NDArray[np.float64] = np.geomspace(low, high, 256)
    hard_x = np.array([low, ridge, high])
    ax.plot(smooth_x, roof.smooth(smooth_x), color=color, lw=1.6, zorder=3)
    ax.plot(hard_x, roof.hard(hard_x), color=color, lw=1.1, ls=DASHED, zorder=3)
    ax.plot([ridge], [roof.flops_per_s], "o", color=color, ms=4.5, zorder=5)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw_points(ax: Axes, points: Sequence[Point], keys: Keys, above: Sequence[Point]) -> None:
    """Draw points at their places; of those that would hide each other the first are larger."""
    for point, look, more_pt in zip(points, keys.looks, _around(ax, points), strict=True):
        x, y = point.intensity_flops_per_byte, point.flops_per_s
        low, high = point.low_flops_per_s or y, point.high_flops_per_s or y
        if low < y or high > y:
            bar = Line2D([x, x], [min(low, y), max(high, y)], color=look.color, lw=1.0, marker="_",
                         ms=5.0, zorder=4)  # fmt: skip
            ax.add_line(bar)
        marker = look.line(zorder=5)
        marker.set_data([x], [y])
        marker.set_markersize(marker.get_markersize() + more_pt)
        ax.add_line(marker)
        if point in above:
            ring(ax, x, y, MARKER_PT + more_pt + 5.5)


def _around(ax: Axes, points: Sequence[Point]) -> list[float]:
    """Return factors of the points' sizes, so that points on top leave the rims of others free."""
    figure = ax.figure.canvas.figure
    at = np.array([(p.intensity_flops_per_byte, p.flops_per_s) for p in points]).reshape(-1, 2)
    places = 72 / figure.dpi * np.asarray(ax.transData.transform(at))
    near = np.abs(places[:, None] - places[None]).max(axis=2) < MARKER_PT / 2
    later = np.triu(near, 1)
    found = np.zeros(len(points))
    for i in range(len(points) - 1, -1, -1):
        if later[i].any():
            found[i] = min(found[later[i]].max() + _RIM_PT, _MOST_RIM_PT)
    return found.tolist()


def _draw_gaps(ax: Axes, roofs: Sequence[Roofline], points: Sequence[Point]) -> None:
    """Draw thin verticals from the points to the no-overlap model: what is left to gain."""
    for point in points:
        x = point.intensity_flops_per_byte
        ends = [point.flops_per_s, float(_roof_of(roofs, point).smooth(x))]
        ax.plot([x, x], ends, color=GREY, lw=0.8, ls=":", zorder=2)


def _texts(roofs: Sequence[Roofline], points: Sequence[Point], columns: int) -> list[str]:
    """Write the label of every point."""
    groups = {p.group for p in points}
    texts = []
    for point in points:
        name = point.label
        if len(groups) == 1:  # the only report needs no name
            name = name.removeprefix(f"{point.group}: ")
        text = "\n".join(wrap(part, columns) for part in name.split(": ", 1))
        if len(points) <= FEW:
            share = 100 * _share(roofs, point)
            text += f"\n{share:.{0 if share >= 1 else 1}f} % of the model"
        texts.append(text)
    return texts


def _roof_legend(
    ax: Axes, roofs: Sequence[Roofline], colors: dict[str, str], extra: Sequence[tuple[Line2D, str]]
) -> Legend:
    lines = [Line2D([], [], color=INK, lw=1.6), Line2D([], [], color=INK, lw=1.1, ls=DASHED)]
    texts = ["model: no overlap", "roof: perfect overlap"]
    lines += [line for line, _ in extra]
    texts += [text for _, text in extra]
    for roof in roofs:
        ridge = f"ridge {_number(roof.ridge_flops_per_byte)} FLOP/byte"
        look: dict[str, Any] = {"ls": "", "marker": "o", "ms": 4.5}
        if len(roofs) > 1:
            look, ridge = {"lw": 4.0}, f"{entry(wrap(roof.label, 30))}\n{ridge}"
        lines.append(Line2D([], [], color=colors[roof.label], **look))
        texts.append(f"{ridge}, {amount(roof.flops_per_s, 'FLOP/s')}")
    return ax.legend(lines, texts, loc="upper left", borderaxespad=0.2, **legend_look())


def _point_legends(roofs: Legend, keys: Keys, ax: Axes, width_pt: float) -> None:
    """Explain the points beside the axes, or below narrow ones: all legends in one box."""
    entries: list[Line2D] = []
    texts: list[str] = []
    for title, lines, names in keys.legends:
        heads = [""] * bool(entries) + [title] * bool(title)
        entries += [Line2D([], [], linestyle="none") for _ in heads]
        texts += [f"$\\bf{{{head}}}$" if head.isalnum() else plain(head) for head in heads]
        entries += lines
        texts += [entry(name) for name in names]
    ax.add_artist(roofs)  # the next legend would replace this one
    widest = max(text_width_pt(text) for text in texts) + 22
    common: dict[str, Any] = {"loc": "upper left", "borderaxespad": 0.0, **legend_look()}
    place = ax.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    room = 72 * ax.figure.canvas.figure.get_figwidth() / columns - _TICKS_PT
    if room - widest > _BESIDE_PT:  # also beside the panels above and below
        ax.legend(entries, texts, bbox_to_anchor=(1.01, 1.0), **common)
        return
    deep = 1 + ax.get_xlabel().count("\n")
    down = ScaledTranslation(0.0, -0.33 - 0.17 * deep, ax.figure.dpi_scale_trans)
    below = ax.transAxes + down
    columns = 2 if 2 * widest < width_pt else 1
    ax.legend(
        entries, texts, bbox_to_anchor=(0.0, 0.0), bbox_transform=below, ncols=columns, **common
    )


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
        By default a figure of its own, 7.2 by at least 4.6 inches.

    Raises
    ------
    ModelError
        If there is no point to draw.
    """
    shown = sorted(filter(drawable, placed), key=lambda p: -(p.counted.time_s or 0.0))[:MOST]
    if not shown:
        raise ModelError(
            "a roofline needs kernels with operations, bytes and time; got none that has all "
            "three; collect what perfmodel counters --command prints"
        )
    peaks = {p.unit: p.peak_flops_per_s for p in shown if p.unit and p.peak_flops_per_s}
    links = shown[0].bandwidths_bytes_per_s
    total = sum(p.counted.time_s or 0.0 for p in placed)
    hues = list(PALETTE) if len(shown) <= len(PALETTE) else ordered_colors(len(shown))
    entries = _entries(shown, hues, peaks, links, total)
    lines = sum(text.count("\n") + 1 for text, _ in entries)
    axes = axes_of(ax, DOUBLE_IN, max(4.6, 0.3 + _LINE_IN * lines))
    frame = _limits_of(shown, peaks, links)
    apply(axes, frame)
    finish(axes, "Arithmetic intensity of a level of memory (FLOP/byte)",
           "Performance per GPU (FLOP/s)")  # fmt: skip
    draw_ceilings(axes, peaks, links, frame)
    for p, hue in zip(shown, hues, strict=False):
        _draw_point(axes, p, hue, (p.counted.time_s or 0.0) / total)
    axes.legend(
        [Line2D([], [], **{"ls": "", "ms": 6.0, **look}) for _, look in entries],
        [entry(text) for text, _ in entries], loc="upper left", bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0, **legend_look(),
    )  # fmt: skip
    put_title(axes, title, size_pt(axes, foreign=ax is not None)[0])
    return axes


def _limits_of(
    shown: Sequence[Placed], peaks: Mapping[str, float], links: Mapping[str, float]
) -> Limits:
    """Limits around all points, ridges and peaks."""
    at = [x for p in shown for x in intensities(p).values()]
    ridges = [peak / bandwidth for peak in peaks.values() for bandwidth in links.values()]
    rates = [p.counted.flops_per_s or 1.0 for p in shown]
    top = max([*rates, *peaks.values()])
    return min(at) / 4, max([*at, *ridges]) * 4, min(rates) / 4, top * 3


def draw_ceilings(
    ax: Axes, peaks: Mapping[str, float], links: Mapping[str, float], frame: Limits
) -> None:
    """Bandwidths as diagonals up to the highest peak, peaks from the steepest diagonal on."""
    x_low, x_high, _, y_high = frame
    top = max(peaks.values(), default=y_high)
    for level, bandwidth in links.items():
        end = min(x_high, top / bandwidth)
        ax.plot(
            [x_low, end], [bandwidth * x_low, bandwidth * end],
            color=GREY, lw=1.2, ls=LINES[level], zorder=2,
        )  # fmt: skip
    steepest = max(links.values(), default=math.inf)
    for peak in peaks.values():
        ax.plot([max(x_low, peak / steepest), x_high], [peak, peak], color=INK, lw=1.2, zorder=2)


def _draw_point(ax: Axes, p: Placed, hue: str, share: float) -> None:
    rate = p.counted.flops_per_s or math.nan
    found = intensities(p)
    ax.plot(list(found.values()), [rate] * len(found), color=hue, lw=0.8, zorder=3)
    size = _LEAST_PT + _MORE_PT * math.sqrt(share)
    for level, x in found.items():
        ax.plot([x], [rate], linestyle="", zorder=4, markersize=size, **_look(p, hue, level))
        if p.above:
            ring(ax, x, rate, size + 6)


def _look(p: Placed, hue: str, level: str) -> dict[str, Any]:
    return {"marker": _marker(p.unit), "color": hue, "fillstyle": _FILLS[level],
            "markerfacecoloralt": "white", "markeredgewidth": 1.2}  # fmt: skip


def _marker(unit: str | None) -> str:
    return MARKERS[list(UNITS).index(unit)] if unit in UNITS else "x"


def _entries(
    shown: Sequence[Placed],
    hues: Sequence[str],
    peaks: Mapping[str, float],
    links: Mapping[str, float],
    total: float,
) -> list[tuple[str, dict[str, Any]]]:
    """The legend's texts and looks: hues, fillings and markers, each below a heading."""
    found: list[tuple[str, dict[str, Any]]] = [("$\\bf{Share\\ of\\ time}$", {})]
    for p, hue in zip(shown, hues, strict=False):
        share = f", {percent((p.counted.time_s or 0.0) / total)}{', mixed' * p.mixed}"
        found.append((wrap(short(p.counted.label) + share, _LETTERS), _look(p, hue, "dram")))
    found += [("", {}), ("$\\bf{Level}$", {})]
    for level, name in LEVELS.items():
        known = level in links
        look = {"marker": "o", "color": GREY, "fillstyle": _FILLS[level]}
        look |= {"markerfacecoloralt": "white", "ls": LINES[level] if known else ""}
        rate = amount(links[level], "B/s") if known else "bandwidth unknown"
        found.append((f"{name}, {rate}", look))
    found += [("", {}), ("$\\bf{Unit}$", {})]
    for unit in dict.fromkeys(p.unit for p in shown):
        peak = f", {amount(peaks[unit], 'FLOP/s')}" if unit and unit in peaks else ""
        found.append(((unit or "none") + peak, {"marker": _marker(unit), "color": INK}))
    if any(p.above for p in shown):
        found.append(("above a ceiling: cannot be", RING))
    return found


def short(kernel: str) -> str:
    """A kernel's name without its return type and parameters, not longer than two lines."""
    name = plain(kernel).replace("void ", "").partition("(")[0] or kernel
    if name.count("<") > name.count(">"):  # cut inside its template arguments
        name = name.partition("<")[0]
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
