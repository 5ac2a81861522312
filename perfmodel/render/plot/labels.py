"""Place labels beside points so that they hit neither each other, nor markers, nor lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from perfmodel.render.plot.style import GREY, INK, TEXT_PT

Floats = npt.NDArray[np.float64]

_SLIDE: Final = np.linspace(-1.0, 1.0, 9)
_SIDES: Final = np.concatenate(
    [[(1.0, t), (-1.0, t), (t, 1.0), (t, -1.0)] for t in _SLIDE]
)  # where a box sits around its anchor, in half sizes of the box
_STEPS: Final = (0.0, 0.6, 1.2, 2.0, 3.0, 4.2, 5.6, 7.2, 9.0, 11.0)  # in heights of a line of text
_SWEEPS: Final = 6
_OVERLAP, _OUTSIDE, _LEADER_HITS, _LINE_HITS = 1e4, 1e4, 1e3, 400.0  # costs of one hit
_AWAY, _TURN = 6.0, 4.0  # costs of one line height of distance, of pointing the wrong way


@dataclass(frozen=True, slots=True)
class Scene:
    """What labels must stay clear of, in pixels.

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
    anchors: Floats, sizes: Floats, toward: Floats, scene: Scene, line_px: float, gap_px: float
) -> Floats:
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
    line_px, gap_px : float
        Height of a line of text; smallest distance of a label from its anchor.

    Returns
    -------
    float64, shape (n, 4)
        x0, y0, x1, y1 of every label.
    """
    count = len(anchors)
    options = [_candidates(anchors[i], sizes[i], line_px, gap_px) for i in range(count)]
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
    """How many blocks every box overlaps when blown up by `pad`."""
    a, b = boxes[:, None], blocks[None]
    low = (a[..., :2] - pad < b[..., 2:]).all(axis=-1)
    high = (b[..., :2] < a[..., 2:] + pad).all(axis=-1)
    return np.asarray((low & high).sum(axis=1), np.float64)


def _inside(boxes: Floats, dots: Floats, pad: float) -> Floats:
    """How many dots lie in every box blown up by `pad`."""
    a, b = boxes[:, None], dots[None]
    within = (a[..., :2] - pad < b) & (b < a[..., 2:] + pad)
    return np.asarray(within.all(axis=-1).sum(axis=1), np.float64)


def _leader(anchor: Floats, box: Floats, count: int = 16) -> Floats:
    """Dots of the line from `anchor` to the nearest point of `box`."""
    end = np.clip(anchor, box[:2], box[2:])
    return np.asarray(anchor + np.linspace(0.1, 1.0, count)[:, None] * (end - anchor))


def _crossings(anchor: Floats, boxes: Floats, blocks: Floats) -> Floats:
    """How many blocks the leader to every box crosses."""
    ends = np.clip(anchor, boxes[:, :2], boxes[:, 2:])
    steps = np.linspace(0.05, 0.95, 12)
    dots = anchor + steps[None, :, None] * (ends - anchor)[:, None]
    a = blocks[None, None]
    within = (a[..., :2] < dots[:, :, None]) & (dots[:, :, None] < a[..., 2:])
    touched = np.any(np.all(within, axis=-1), axis=1)
    return np.asarray(np.sum(touched, axis=1), np.float64)


@dataclass(frozen=True, slots=True)
class Label:
    """Text for one point in data coordinates, preferably in direction `toward` (degrees)."""

    text: str
    x: float
    y: float
    toward: float = 0.0
    color: str = INK


@dataclass
class Obstacles:
    """What the labels of an axes stay clear of, in data coordinates until it is drawn."""

    markers: list[tuple[float, float]] = field(default_factory=list)
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
        extents = [text.get_window_extent(renderer) for text in self.texts]
        sizes = np.array([[e.width, e.height] for e in extents])
        data = np.array([[label.x, label.y] for label in self.labels])
        anchors = ax.transData.transform(data)
        toward = np.radians([label.toward for label in self.labels])
        gap = (self.marker_pt / 2 + 3.5) * pixel
        scene = self._scene(ax, renderer, pixel)
        boxes = place(anchors, sizes, toward, scene, TEXT_PT * pixel, gap)
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
        radius = (self.marker_pt / 2 + 1.0) * pixel
        centres = ax.transData.transform(np.array(self.obstacles.markers).reshape(-1, 2))
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
