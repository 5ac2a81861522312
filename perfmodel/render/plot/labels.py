"""Distinguishes points: labels beside them that touch nothing, or markers and a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from perfmodel.base.arrays import Floats
from perfmodel.models.roofline import Point
from perfmodel.render.plot.style import GREY, INK, MARKER_PT, MARKERS, PALETTE, TEXT_PT, plain

_SLIDE: Final = np.linspace(-1.0, 1.0, 9)
_SIDES: Final = np.concatenate(
    [[(1.0, t), (-1.0, t), (t, 1.0), (t, -1.0)] for t in _SLIDE]
)  # where a box sits around its anchor, in half sizes of the box
_STEPS: Final = (0.0, 0.6, 1.2, 2.0, 3.0, 4.2, 5.6, 7.2, 9.0, 11.0)  # in heights of a line of text
_SWEEPS: Final = 6
_OVERLAP, _OUTSIDE, _LEADER_HITS, _LINE_HITS = 1e4, 1e4, 1e3, 400.0  # costs of one hit
_AWAY, _TURN = 6.0, 4.0  # costs of one line height of distance, of pointing the wrong way

_FIRST: Final = ("H", "B", "p")  # symbols shown first where several vary
_MOST: Final = 16  # lines of a legend


@dataclass(frozen=True, slots=True)
class Scene:
    """Obstacles of labels, in pixels.

    Attributes
    ----------
    bounds : float64, shape (4,)
        x0, y0, x1, y1 that labels stay within.
    blocks : float64, shape (m, 4)
        Boxes that labels must not touch: markers, legends, other text.
    dots : float64, shape (k, 2)
        Densely sampled lines that labels should not touch.
    """

    bounds: Floats
    blocks: Floats
    dots: Floats


def place(
    anchors: Floats, sizes: Floats, toward: Floats, scene: Scene, line_px: float,
    gap_px: float | Floats,
) -> Floats:  # fmt: skip
    """Choose a box for every label, the same for the same input.

    Every label takes the cheapest of a fixed set of boxes around its anchor, one label after the
    other; then each is chosen again with the others in place, until nothing moves. Of several
    orders to begin with, the one that ends cheapest counts.

    Parameters
    ----------
    anchors, sizes : float64, shape (n, 2)
        Points to be labelled, and widths and heights of the labels, in pixels.
    toward : float64, shape (n,)
        Preferred direction of every label from its anchor, in radians.
    scene : Scene
    line_px : float
        Height of a line of text.
    gap_px : float or float64, shape (n,)
        Smallest distance of a label from its anchor.

    Returns
    -------
    float64, shape (n, 4)
        x0, y0, x1, y1 of every label.
    """
    count = len(anchors)
    gaps = np.broadcast_to(gap_px, count)
    options = [_candidates(anchors[i], sizes[i], line_px, float(gaps[i])) for i in range(count)]
    fixed = [
        _fixed_cost(options[i], anchors[i], float(toward[i]), scene, line_px) for i in range(count)
    ]
    crowded = sorted(range(count), key=lambda i: (-float(np.min(fixed[i])), i))
    upwards = sorted(range(count), key=lambda i: (float(anchors[i, 1]), i))
    starts = (crowded, upwards, upwards[::-1])
    settled = [_settle(order, anchors, options, fixed, line_px / 4) for order in starts]
    return min(settled, key=lambda one: one[0])[1]


def _settle(
    order: Sequence[int],
    anchors: Floats,
    options: Sequence[Floats],
    fixed: Sequence[Floats],
    pad: float,
) -> tuple[float, Floats]:
    """Choose boxes in this order until nothing moves; give their cost and them."""
    chosen: dict[int, Floats] = {}
    costs: dict[int, float] = {}
    for _ in range(_SWEEPS):
        before = dict(chosen)
        for i in order:
            others = [j for j in chosen if j != i]
            cost = fixed[i].copy()
            if others:
                boxes = np.array([chosen[j] for j in others])
                cost += _OVERLAP * _hits(options[i], boxes, pad)
                leaders = np.concatenate([_leader(anchors[j], chosen[j]) for j in others])
                cost += _LEADER_HITS * _inside(options[i], leaders, 0.0)
                cost += _LEADER_HITS * _crossings(anchors[i], options[i], boxes)
            best = int(np.argmin(cost))
            chosen[i], costs[i] = options[i][best], float(cost[best])
        if before and all(np.array_equal(before[i], chosen[i]) for i in order):
            break
    boxes = np.array([chosen[i] for i in range(len(order))]).reshape(-1, 4)
    return sum(costs.values()), boxes


def _candidates(anchor: Floats, size: Floats, line_px: float, gap_px: float) -> Floats:
    reach = [size / 2 + gap_px + step * line_px for step in _STEPS]
    centres = anchor + np.concatenate([_SIDES * r for r in reach])
    return np.concatenate([centres - size / 2, centres + size / 2], axis=1)


def _fixed_cost(
    boxes: Floats, anchor: Floats, toward: float, scene: Scene, line_px: float
) -> Floats:
    """Cost of every candidate that does not depend on where the other labels are."""
    out = np.maximum(scene.bounds[:2] - boxes[:, :2], 0) + np.maximum(
        boxes[:, 2:] - scene.bounds[2:], 0
    )
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 - anchor
    turn = 1 - np.cos(np.arctan2(centre[:, 1], centre[:, 0]) - toward)
    nearest = np.clip(anchor, boxes[:, :2], boxes[:, 2:])
    away = np.hypot(*(nearest - anchor).T) / line_px
    own = _hits(np.concatenate([anchor, anchor])[None], scene.blocks, 0.0)[0]
    crossed = np.maximum(_crossings(anchor, boxes, scene.blocks) - own, 0)
    cost: Floats = (
        _OUTSIDE * (out.sum(axis=1) > 0)
        + _OVERLAP * _hits(boxes, scene.blocks, line_px / 5)
        + _LINE_HITS * (_inside(boxes, scene.dots, line_px / 5) > 0)
        + _LEADER_HITS * crossed
        + _TURN * turn
        + _AWAY * away
    )
    return cost


def _hits(boxes: Floats, blocks: Floats, pad: float) -> Floats:
    """Return the number of blocks that every box overlaps when blown up by `pad`."""
    a, b = boxes[:, None], blocks[None]
    low = (a[..., :2] - pad < b[..., 2:]).all(axis=-1)
    high = (b[..., :2] < a[..., 2:] + pad).all(axis=-1)
    return np.asarray((low & high).sum(axis=1), np.float64)


def _inside(boxes: Floats, dots: Floats, pad: float) -> Floats:
    """Return the number of dots in every box blown up by `pad`."""
    a, b = boxes[:, None], dots[None]
    within = (a[..., :2] - pad < b) & (b < a[..., 2:] + pad)
    return np.asarray(within.all(axis=-1).sum(axis=1), np.float64)


def _leader(anchor: Floats, box: Floats) -> Floats:
    """16 dots of the line from `anchor` to the nearest point of `box`."""
    end = np.clip(anchor, box[:2], box[2:])
    return np.asarray(anchor + np.linspace(0.1, 1.0, 16)[:, None] * (end - anchor))


def _crossings(anchor: Floats, boxes: Floats, blocks: Floats) -> Floats:
    """Return the number of blocks that the leader to every box crosses."""
    ends = np.clip(anchor, boxes[:, :2], boxes[:, 2:])
    steps = np.linspace(0.05, 0.95, 12)
    dots = anchor + steps[None, :, None] * (ends - anchor)[:, None]
    a = blocks[None, None]
    within = (a[..., :2] < dots[:, :, None]) & (dots[:, :, None] < a[..., 2:])
    touched = np.any(np.all(within, axis=-1), axis=1)
    return np.asarray(np.sum(touched, axis=1), np.float64)


@dataclass(frozen=True, slots=True)
class Label:
    """Text for one point in data coordinates, preferably in direction `toward` (degrees).

    `away_pt` is the radius of a point that is larger than the others.
    """

    text: str
    x: float
    y: float
    toward: float = 0.0
    color: str = INK
    away_pt: float = 0.0


@dataclass
class Obstacles:
    """Obstacles of the labels of an axes, in data coordinates until it is drawn.

    A marker has its place, and its size in points with the ring around it.
    """

    markers: list[tuple[float, float, float]] = field(default_factory=list)
    lines: list[tuple[npt.ArrayLike, npt.ArrayLike]] = field(default_factory=list)
    boxes: list[Callable[[RendererBase], Bbox]] = field(default_factory=list)


class LabelLayer(Artist):
    """Places its labels whenever the figure is drawn, at any size, layout and resolution.

    It draws before the labels and lines it owns, which are ordinary children of the axes.
    """

    zorder = 0.5

    def __init__(
        self, ax: Axes, labels: Sequence[Label], obstacles: Obstacles, marker_pt: float
    ) -> None:
        super().__init__()
        self.labels, self.obstacles, self.marker_pt = tuple(labels), obstacles, marker_pt
        common: dict[str, Any] = {"transform": IdentityTransform(), "clip_on": False}
        self.texts = [
            Text(0, 0, label.text, fontsize=TEXT_PT, color=label.color, va="bottom", zorder=6,
                 multialignment="left", linespacing=1.1, **common)
            for label in self.labels
        ]  # fmt: skip
        self.leaders = [Line2D([], [], lw=0.7, color=GREY, zorder=4, **common) for _ in self.labels]
        ax.add_artist(self)
        for artist in (*self.texts, *self.leaders):
            ax.add_artist(artist)
            artist.set_in_layout(False)
        self.set_in_layout(False)

    def draw(self, renderer: RendererBase) -> None:
        """Move the labels; they draw themselves afterwards."""
        ax = self.axes
        if not self.labels or not isinstance(ax, Axes):
            return
        pixel = float(np.asarray(renderer.points_to_pixels(1.0)))
        data = np.array([[label.x, label.y] for label in self.labels])
        anchors = ax.transData.transform(data)
        gap = (self.marker_pt / 2 + 3.5) * pixel
        extents = [text.get_window_extent(renderer) for text in self.texts]
        sizes = np.array([[e.width, e.height] for e in extents])
        toward = np.radians([label.toward for label in self.labels])
        scene = self._scene(ax, renderer, pixel)
        own = np.array([label.away_pt for label in self.labels]) * pixel
        gaps = np.maximum(gap, own + gap / 2)
        boxes = place(anchors, sizes, toward, scene, TEXT_PT * pixel, gaps)
        for text, leader, anchor, box in zip(self.texts, self.leaders, anchors, boxes, strict=True):
            text.set_position((box[0], box[1]))
            end = np.clip(anchor, box[:2], box[2:])
            length = float(np.hypot(*(end - anchor)))
            leader.set_visible(length > 2.5 * gap)
            start = anchor + (end - anchor) * (self.marker_pt / 2 * pixel / max(length, 1e-9))
            leader.set_data([start[0], end[0]], [start[1], end[1]])

    def _scene(self, ax: Axes, renderer: RendererBase, pixel: float) -> Scene:
        frame = ax.get_window_extent(renderer)
        inset = 2.0 * pixel
        bounds = np.array([frame.x0 + inset, frame.y0 + inset, frame.x1 - inset, frame.y1 - inset])
        markers = np.array(self.obstacles.markers).reshape(-1, 3)
        radius = (markers[:, 2:] / 2 + 1.0) * pixel
        centres = ax.transData.transform(markers[:, :2])
        blocks = [np.concatenate([centres - radius, centres + radius], axis=1)]
        blocks += [np.array([box(renderer).extents]) for box in self.obstacles.boxes]
        dots = [np.empty((0, 2))]
        for x, y in self.obstacles.lines:
            corners = ax.transData.transform(np.column_stack([x, y]))
            dots.append(_dense(corners, 2.0 * pixel))
        return Scene(bounds, np.concatenate(blocks), np.concatenate(dots))


def _dense(corners: Floats, step_px: float) -> Floats:
    """Dots every `step_px` along a line of straight pieces."""
    lengths = np.hypot(*np.diff(corners, axis=0).T)
    at = np.concatenate([[0.0], np.cumsum(lengths)])
    along = np.linspace(0.0, at[-1], max(2, int(at[-1] / step_px)))
    return np.column_stack([np.interp(along, at, corners[:, k]) for k in (0, 1)])


@dataclass(frozen=True, slots=True)
class Look:
    """Marker, colour and filling of one point."""

    marker: str
    color: str
    hollow: bool

    def line(self, **more: Any) -> Line2D:
        """One marker without a line, as drawn and as shown in a legend.

        A filled one has a white rim, so that one of two at a place does not hide the other.
        """
        return Line2D(
            [], [], linestyle="none", marker=self.marker,
            markersize=MARKER_PT + (0.0 if self.hollow else 1.2),
            markerfacecolor="white" if self.hollow else self.color,
            markeredgecolor=self.color if self.hollow else "white", color=self.color,
            markeredgewidth=1.4 if self.hollow else 0.5, **more,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Keys:
    """The look of every point, and the legends that explain it: title and entries each."""

    looks: tuple[Look, ...]
    legends: list[tuple[str, list[Line2D], list[str]]] = field(default_factory=list)


def choose(
    points: Sequence[Point], texts: Sequence[str], colors: dict[str, str], listed: int
) -> Keys:
    """Choose how `points`, named by `texts`, are distinguished.

    Up to `listed` points are listed one by one, as are more that neither symbols nor report and
    kind tell apart.
    """
    plainly = len({(p.group, p.kind) for p in points}) == len(points)
    symbols = varying_symbols(points)
    if len(points) > listed and symbols and _entries(points, symbols) <= _MOST:
        return by_symbol(points, symbols)
    if len({p.group for p in points}) > _MOST:  # too many to list: tell what the symbols tell
        shared = varying_symbols(points, whole=False)[:2]
        return by_symbol(points, shared) if shared else by_group(points, colors, listed=False)
    keys = by_group(points, colors) if plainly else by_point(points, colors)
    if len(points) > listed and plainly:
        return keys
    return Keys(keys.looks, [("", [look.line() for look in keys.looks], list(texts))])


def by_point(points: Sequence[Point], colors: dict[str, str]) -> Keys:
    """Marker of every point on its own, in the colour of its group, else also its own."""
    hollow = _hollow(points)
    looks = [
        Look(
            MARKERS[i % len(MARKERS)], colors.get(p.group, PALETTE[i % len(PALETTE)]),
            hollow[p.kind] and p.group in colors,
        )
        for i, p in enumerate(points)
    ]  # fmt: skip
    return Keys(tuple(looks))


def by_group(points: Sequence[Point], colors: dict[str, str], *, listed: bool = True) -> Keys:
    """Marker and colour by group (a report); `colors` fixes the colour of some groups."""
    groups = list(dict.fromkeys(p.group for p in points))
    free = [c for c in PALETTE if c not in colors.values()] or list(PALETTE)
    others = [g for g in groups if g not in colors]
    hues = colors | {g: free[i % len(free)] for i, g in enumerate(others)}
    shapes = {g: MARKERS[i % len(MARKERS)] for i, g in enumerate(groups)}
    hollow = _hollow(points)
    looks = tuple(Look(shapes[p.group], hues[p.group], hollow[p.kind]) for p in points)
    entries = [Look(shapes[g], hues[g], False).line() for g in groups]
    legends = [("", entries, [plain(g) for g in groups])] if listed and len(groups) > 1 else []
    return Keys(looks, [*legends, *_kinds(hollow)])


def by_symbol(points: Sequence[Point], varying: Sequence[str]) -> Keys:
    """Marker by the first of the `varying` symbols, colour by the others (or by the same)."""
    first, rest = varying[0], tuple(varying[1:]) or (varying[0],)
    names = [_values(p, (first,)) for p in points]
    hues = [_values(p, rest) for p in points]
    shapes = {v: MARKERS[i % len(MARKERS)] for i, v in enumerate(sorted(set(names)))}
    colors = dict(zip(sorted(set(hues)), ordered_colors(len(set(hues))), strict=True))
    hollow = _hollow(points)
    looks = tuple(
        Look(shapes[n], colors[h], hollow[p.kind])
        for p, n, h in zip(points, names, hues, strict=True)
    )
    alone = rest == (first,)
    markers = [Look(m, colors[v] if alone else INK, False).line() for v, m in shapes.items()]
    legends = [(first, markers, [f"{v[0]:,}" for v in shapes])]
    if not alone:
        entries = [Look("o", c, False).line() for c in colors.values()]
        texts = [", ".join(f"{v:,}" for v in values) for values in colors]
        legends.append((", ".join(rest), entries, texts))
    return Keys(looks, [*legends, *_kinds(hollow)])


def _entries(points: Sequence[Point], varying: Sequence[str]) -> int:
    """Most lines of a legend of `by_symbol`."""
    rest = tuple(varying[1:]) or (varying[0],)
    return len({_values(p, rest) for p in points})


def varying_symbols(points: Sequence[Point], *, whole: bool = True) -> list[str]:
    """Symbols whose values tell the groups of `points` apart; empty if they do not.

    With `whole` false also those that tell only some apart.
    """
    if not points or any(not p.symbols for p in points):
        return []
    names = [n for n in (points[0].symbols or {}) if all(n in (p.symbols or {}) for p in points)]
    varying = [n for n in names if len({(p.symbols or {})[n] for p in points}) > 1]
    varying.sort(key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n))
    configurations = {(p.kind, *_values(p, varying)) for p in points}
    return varying if not whole or len(configurations) == len(points) else []


def ordered_colors(count: int) -> list[str]:
    """Colours from dark to light, distinct in grey as well, never too light for white paper."""
    if count == 1:
        return [PALETTE[0]]
    ramp = colormaps["viridis"]
    return [to_hex(ramp(0.02 + 0.83 * i / (count - 1))) for i in range(count)]


def _values(point: Point, names: Sequence[str]) -> tuple[int, ...]:
    symbols = point.symbols or {}
    return tuple(symbols[n] for n in names)


def _hollow(points: Sequence[Point]) -> dict[str, bool]:
    """Kinds in the order they come: the first is filled, the others are hollow."""
    return {k: i > 0 for i, k in enumerate(dict.fromkeys(p.kind for p in points))}


def _kinds(hollow: dict[str, bool]) -> list[tuple[str, list[Line2D], list[str]]]:
    if len(hollow) < 2:
        return []
    entries = [Look("o", INK, h).line() for h in hollow.values()]
    return [("", entries, [plain(k) for k in hollow])]
