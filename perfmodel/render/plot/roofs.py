"""The roofline figure: smooth and hard roofs, ridge points, ceilings and measured points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.models.roofline import Point, Roofline
from perfmodel.render.plot.keys import Keys, choose
from perfmodel.render.plot.labels import Label, LabelLayer, Obstacles
from perfmodel.render.plot.scales import (
    ROOM,
    Limits,
    apply,
    label_share,
    legend_share,
    lie_apart,
    limits,
)
from perfmodel.render.plot.style import (
    GREY,
    INK,
    MARKER_PT,
    NARROW_COLUMNS,
    NARROW_PT,
    PALETTE,
    TEXT_PT,
    WIDE_COLUMNS,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    shortened,
    size_pt,
    text_width_pt,
    wrap,
)

FEW: Final = 4
"""So many points also tell their share of the roof."""

LISTED: Final = 8
"""So many points that lie apart are named in place, `FEW` others one by one in a legend; more are
told apart by their symbols or reports."""

_BESIDE_PT: Final = 190.0  # width of axes that may have a legend beside them
_HEIGHT: Final = 0.09  # share of the axes' height that the label of a point takes


def roofline(
    rooflines: Sequence[Roofline] | Roofline,
    points: Sequence[Point] = (),
    *,
    ax: Axes | None = None,
    title: str | None = None,
    ceiling_flops_per_s: float | None = None,
    ceiling_label: str | None = None,
) -> Axes:
    """Draw rooflines and measured points (the document's Figures 12 to 14).

    Solid is the smooth roof (compute, then move), dashed the hard one (perfect overlap). Up to
    eight points are named in place if they lie apart, up to four in a legend if they do not; up to
    four also say how much of their smooth roof they reach. More are told apart by marker and
    colour: by the symbols that vary (H, B) or by report. The first kind is filled, others hollow.

    Parameters
    ----------
    rooflines, points
        A point is compared with the roof whose label is its group, else with the first.
    ax
        Where to draw; by default a figure of its own, 5 inches wide (6.2 with a legend).
    ceiling_flops_per_s, ceiling_label
        A horizontal ceiling, such as the datasheet's peak, and what it is.

    Raises
    ------
    ModelError
        If there is no roofline, or a point or ceiling that log axes cannot show.
    """
    roofs = (rooflines,) if isinstance(rooflines, Roofline) else tuple(rooflines)
    _check(roofs, points, ceiling_flops_per_s)
    frame = _frame(ax, roofs, points, ceiling_flops_per_s, title)
    colors, obstacles = _roof_colors(roofs), Obstacles()
    labels = [_draw_roof(frame.ax, r, colors, obstacles) for r in roofs]
    if ceiling_flops_per_s is not None:
        _draw_ceiling(frame, ceiling_flops_per_s, ceiling_label, obstacles)
    legend = _roof_legend(frame.ax, roofs, colors)
    obstacles.boxes.append(legend.get_window_extent)
    listed = LISTED if frame.direct else FEW
    keys = choose(points, frame.texts, colors if len(roofs) > 1 else {}, listed)
    _draw_points(frame.ax, points, keys, obstacles)
    if len(points) <= FEW:
        _draw_gaps(frame.ax, roofs, points, obstacles)
    if frame.direct:
        labels += map(_label, points, frame.texts)
    else:
        _point_legends(legend, keys, frame)
    LabelLayer(frame.ax, labels, obstacles, MARKER_PT)
    return frame.ax


@dataclass(frozen=True, slots=True)
class _Frame:
    """Axes made ready, the points' labels, and whether there is room to place these."""

    ax: Axes
    texts: list[str]
    direct: bool
    width: float
    headroom: Callable[[float], Limits]


def _frame(
    ax: Axes | None,
    roofs: Sequence[Roofline],
    points: Sequence[Point],
    ceiling: float | None,
    title: str | None,
) -> _Frame:
    """Set limits, so that labels fit to the right of points, and a legend above the roofs."""

    def prepare(width_in: float) -> tuple[Axes, float, float]:
        axes = axes_of(ax, width_in, 3.7)
        apply(axes, limits(roofs, points, ceiling))
        finish(axes, "Arithmetic intensity (FLOP/byte)", "Performance (FLOP/s)")
        width, height = size_pt(axes, foreign=ax is not None)
        put_title(axes, title, width)
        return axes, width, height

    def headroom(height: float, right: float = 0.0) -> Limits:
        lines = 2 + (len(roofs) if len(roofs) > 1 else 0)
        above = legend_share(lines + (3.0 if narrow else 1.5), height)  # with a label below it
        return limits(roofs, points, ceiling, right, above)

    axes, width, height = prepare(5.0)
    narrow = width < NARROW_PT
    texts = _texts(roofs, points, NARROW_COLUMNS if narrow else WIDE_COLUMNS)
    direct = len(points) <= LISTED
    if direct:
        right = label_share(texts, width)
        frame = headroom(height, right)
        free = len(points) <= 2 or lie_apart(points, frame, right, _HEIGHT)
        direct = free and right < ROOM
    if not direct:
        axes, width, height = prepare(6.2)
        frame = headroom(height)
    apply(axes, frame)
    return _Frame(axes, texts, direct, width, headroom)


def _label(point: Point, text: str) -> Label:
    return Label(text, point.intensity_flops_per_byte, point.flops_per_s)


def _check(roofs: Sequence[Roofline], points: Sequence[Point], ceiling: float | None) -> None:
    if not roofs:
        raise ModelError("a roofline figure needs at least one roofline, found none")
    for point in points:
        pair = (point.intensity_flops_per_byte, point.flops_per_s)
        if not all(np.isfinite(v) and v > 0 for v in pair):
            raise ModelError(
                f"a roofline figure needs positive, finite points; found {point.label!r} at "
                f"{pair[0]!r} FLOP/byte and {pair[1]!r} FLOP/s; leave it out"
            )
    if ceiling is not None and not (np.isfinite(ceiling) and ceiling > 0):
        raise ModelError(f"a ceiling must be positive and finite, found {ceiling!r} FLOP/s")


def _roof_colors(roofs: Sequence[Roofline]) -> dict[str, str]:
    if len(roofs) == 1:
        return {roofs[0].label: INK}
    return {r.label: PALETTE[i % len(PALETTE)] for i, r in enumerate(roofs)}


def _roof_of(roofs: Sequence[Roofline], point: Point) -> Roofline:
    return next((r for r in roofs if r.label == point.group), roofs[0])


def _draw_roof(ax: Axes, roof: Roofline, colors: dict[str, str], obstacles: Obstacles) -> Label:
    """Draw both roofs and the ridge point; give the ridge's label."""
    color = colors[roof.label]
    low, high = ax.get_xlim()
    ridge = roof.ridge_flops_per_byte
    smooth_x: npt.NDArray[np.float64] = np.geomspace(low, high, 256)
    hard_x = np.array([low, ridge, high])
    ax.plot(smooth_x, roof.smooth(smooth_x), color=color, lw=1.6, zorder=3)
    ax.plot(hard_x, roof.hard(hard_x), color=color, lw=1.1, ls=(0, (4, 2)), zorder=3)
    ax.plot([ridge], [roof.flops_per_s], "o", color=color, ms=4.5, zorder=5)
    obstacles.lines += [(smooth_x, roof.smooth(smooth_x)), (hard_x, roof.hard(hard_x))]
    obstacles.markers.append((ridge, roof.flops_per_s))
    text = f"ridge {_number(ridge)} FLOP/byte\n{si(roof.flops_per_s, 'FLOP/s')}"
    return Label(text, ridge, roof.flops_per_s, 100.0, color)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw_ceiling(frame: _Frame, ceiling: float, name: str | None, obstacles: Obstacles) -> None:
    """Draw the machine's peak and its name, which is cut to the width of the axes."""
    ax, rate = frame.ax, si(ceiling, "FLOP/s")
    ax.axhline(ceiling, color=GREY, lw=1.1, ls=(0, (6, 2, 1, 2)), zorder=2)
    obstacles.lines.append((ax.get_xlim(), (ceiling, ceiling)))
    whole = f"{name}, {rate}" if name else rate
    most = min(len(whole), int(frame.width / (0.25 * TEXT_PT)))  # more letters than fit
    while text_width_pt(plain(shortened(whole, most))) > frame.width and most > len(rate):
        most -= 1
    note = ax.annotate(
        plain(shortened(whole, most)), (1, ceiling), (-2, 2), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="bottom", fontsize=TEXT_PT, color=INK,
    )  # fmt: skip
    obstacles.boxes.append(note.get_window_extent)


def _draw_points(ax: Axes, points: Sequence[Point], keys: Keys, obstacles: Obstacles) -> None:
    for point, look in zip(points, keys.looks, strict=True):
        x, y = point.intensity_flops_per_byte, point.flops_per_s
        low, high = point.low_flops_per_s or y, point.high_flops_per_s or y
        if low < y or high > y:
            ax.errorbar(
                [x], [y], yerr=[[max(y - low, 0.0)], [max(high - y, 0.0)]], fmt="none",
                ecolor=look.color, elinewidth=1.0, capsize=2.5, zorder=4,
            )  # fmt: skip
            obstacles.lines.append(([x, x], [low, high]))
        marker = look.line(zorder=5)
        marker.set_data([x], [y])
        ax.add_line(marker)
        obstacles.markers.append((x, y))


def _draw_gaps(
    ax: Axes, roofs: Sequence[Roofline], points: Sequence[Point], obstacles: Obstacles
) -> None:
    """Draw thin verticals from the points to the smooth roof: what is left to gain."""
    for point in points:
        x = point.intensity_flops_per_byte
        ends = [point.flops_per_s, float(_roof_of(roofs, point).smooth(x))]
        ax.plot([x, x], ends, color=GREY, lw=0.8, ls=":", zorder=2)
        obstacles.lines.append(([x, x], ends))


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
            roof = float(_roof_of(roofs, point).smooth(point.intensity_flops_per_byte))
            percent = 100 * point.flops_per_s / roof
            text += f"\n{percent:.{0 if percent >= 1 else 1}f} % of the roof"
        texts.append(text)
    return texts


def _roof_legend(ax: Axes, roofs: Sequence[Roofline], colors: dict[str, str]) -> Legend:
    lines = [Line2D([], [], color=INK, lw=1.6), Line2D([], [], color=INK, lw=1.1, ls=(0, (4, 2)))]
    texts = ["smooth roof: no overlap", "hard roof: perfect overlap"]
    if len(roofs) > 1:
        lines += [Line2D([], [], color=colors[r.label], lw=4.0) for r in roofs]
        texts += [entry(wrap(r.label, 30)) for r in roofs]
    legend = ax.legend(
        lines, texts, loc="upper left", fontsize=TEXT_PT, frameon=False, borderaxespad=0.2,
        handlelength=2.2, labelspacing=0.3, labelcolor=INK,
    )  # fmt: skip
    return legend


def _point_legends(roofs: Legend, keys: Keys, frame: _Frame) -> None:
    """Explain the points beside the axes, or below narrow ones: all legends in one box."""
    entries: list[Line2D] = []
    texts: list[str] = []
    for title, lines, names in keys.legends:
        heads = [""] * bool(entries) + [title] * bool(title)
        entries += [Line2D([], [], linestyle="none") for _ in heads]
        texts += [f"$\\bf{{{head}}}$" if head.isalnum() else plain(head) for head in heads]
        entries += lines
        texts += [entry(name) for name in names]
    ax = frame.ax
    ax.add_artist(roofs)  # the next legend would replace this one
    widest = max(text_width_pt(text) for text in texts) + 22
    common: dict[str, Any] = {
        "loc": "upper left", "fontsize": TEXT_PT, "frameon": False, "borderaxespad": 0.0,
        "handletextpad": 0.3, "labelspacing": 0.35, "labelcolor": INK,
    }  # fmt: skip
    if frame.width - widest > _BESIDE_PT:
        ax.legend(entries, texts, bbox_to_anchor=(1.01, 1.0), **common)
        return
    below = ax.transAxes + ScaledTranslation(0.0, -0.5, ax.figure.dpi_scale_trans)
    columns = 2 if 2 * widest < frame.width else 1
    ax.legend(
        entries, texts, bbox_to_anchor=(0.0, 0.0), bbox_transform=below, ncols=columns, **common
    )
    apply(ax, frame.headroom(size_pt(ax)[1]))  # the legend has made the axes lower
