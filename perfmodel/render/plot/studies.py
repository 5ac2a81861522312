"""Figures of several panels: time to accuracy, scaling over ranks, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.bars import Dot, dots, stacks
from perfmodel.render.plot.lines import Series, lines, reference
from perfmodel.render.plot.style import (
    DASHED,
    DOUBLE_IN,
    INK,
    MARKERS,
    PALETTE,
    Measure,
    legend_above,
    legend_over,
    new_figure,
    si_tick,
)

_BELOW: Final = 0.25
"""Range below the target in which accuracies are shown."""
_MARKER: Final = 0.012
"""Width of a dot, as a share of the axis."""

_REST: Final = "neither: the host"


@dataclass(frozen=True, slots=True)
class AccuracyCurve:
    """One run of a side: when each accuracy was reached, and when the target.

    `at` and `moment` are in the unit of the axis; a run that never had the target has its end as
    `moment` and is not `reached`.
    """

    side: str
    at: Sequence[float]
    accuracy: Sequence[float]
    moment: float
    reached: bool


def time_to_accuracy(
    curves: Sequence[AccuracyCurve], target: float, *, label: str = "Training time (s)",
    width_in: float = DOUBLE_IN,
) -> Figure:  # fmt: skip
    """Draw accuracies above the moments at which the target was reached, on one axis of time.

    Parameters
    ----------
    curves : sequence of AccuracyCurve
        A colour and marker for each side.
    target : float
        A dashed line.
    label : str
        Of the axis of time.
    width_in : float

    Raises
    ------
    ModelError
        If there is no run to draw.
    """
    if not curves:
        raise ModelError("expected runs to draw; got none; train first")
    sides = list(dict.fromkeys(curve.side for curve in curves))
    colors = {side: PALETTE[i % len(PALETTE)] for i, side in enumerate(sides)}
    strip_in = 0.35 + 0.27 * len(sides)
    figure = new_figure(width_in, 3.0 + strip_in)
    above, strip = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, strip_in))
    series = {
        str(i): Series(c.at, c.accuracy, dash="-", marked=False, color=colors[c.side])
        for i, c in enumerate(curves)
    }
    lines(series, Measure(""), Measure("Test accuracy"), ax=above, legend=None)
    above.axhline(target, color=INK, lw=0.9, ls=DASHED)
    most = max(max(curve.accuracy) for curve in curves)
    least = max(min(min(curve.accuracy) for curve in curves), target - _BELOW)
    above.set_ylim(least - 0.01, max(most, target) + 0.02)
    moments = [Dot(c.side, c.side, c.moment, hollow=not c.reached) for c in curves]
    longest = max(max(curve.at) for curve in curves)
    dots(moments, Measure(label), ax=strip, legend=False, apart=_MARKER * longest)
    strip.set_xlim(left=0)
    handles: list[Any] = [
        Line2D([], [], color=colors[side], lw=1.3, marker=MARKERS[i % len(MARKERS)], ms=5.5)
        for i, side in enumerate(sides)
    ]
    handles.append(Line2D([], [], color=INK, lw=0.9, ls=DASHED))
    texts = [*sides, f"target {target:g}"]
    if not all(curve.reached for curve in curves):
        handles.append(Line2D([], [], ls="", marker="o", mfc="white", mec=INK, ms=5.5))
        texts.append("ended without it")
    legend_above(above, handles, texts)
    return figure


@dataclass(frozen=True, slots=True)
class Scaling:
    """One series of strong or weak scaling."""

    label: str
    kind: str
    ranks: tuple[int, ...]
    speedups: tuple[float, ...]
    efficiencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One batch by what goes on, seconds by part."""

    label: str
    ranks: int
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Message:
    """Bus bandwidth of an all-reduce of one size; equal labels are joined."""

    label: str
    bytes: int
    bus_bytes_per_s: float


def scaling(
    curves: Sequence[Scaling], stacked: Sequence[Stack] = (), messages: Sequence[Message] = ()
) -> Figure:
    """Draw speed-up and efficiency, and, where given, the parts of batches and bus bandwidth.

    Raises
    ------
    ModelError
        If there is no series to draw.
    """
    if not curves:
        raise ModelError("expected series over ranks to draw; got none; give runs of more ranks")
    heights = [2.9 + 0.1 * len(curves)]
    heights += [0.9 + 0.22 * len(stacked)] if stacked else []
    heights += [3.1] if messages else []
    figure = new_figure(DOUBLE_IN, sum(heights))
    parts = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    axes = parts[0].subplots(1, 2)
    draw_scaling(curves, axes)
    legend_over(axes[:1])
    if stacked:
        rows = {f"{s.label}, p = {s.ranks}": s.seconds for s in stacked}
        stacks(rows, rest=_REST, label="Share of a batch (%)", ax=parts[1].subplots())
    if messages:
        bandwidths(messages, parts[-1].subplots())
    return figure


def draw_scaling(
    curves: Sequence[Scaling], axes: Sequence[Axes], *, over: str = "Ranks p",
    speedup: str = "Speed-up (images per second)",
) -> None:  # fmt: skip
    """Draw speed-ups left and efficiencies right, both beside the ideal.

    Weak scaling is dotted and hollow.
    """
    ranks = sorted({p for curve in curves for p in curve.ranks})
    first = min(curve.ranks[0] for curve in curves)
    ideals = [p / first for p in ranks], [100.0] * len(ranks)
    words = speedup, "Efficiency (%)"
    for i, (ax, ideal, word) in enumerate(zip(axes, ideals, words, strict=True)):
        series = {
            c.label: Series(
                c.ranks, [100 * e for e in c.efficiencies] if i else c.speedups,
                hollow=c.kind != "strong", dash=":" if c.kind != "strong" else None,
            )
            for c in curves
        }  # fmt: skip
        series["ideal"] = reference(ranks, ideal)
        lines(series, Measure(over), Measure(word), legend=None, ticked=True, ax=ax)
        ax.set_ylim(0, 1.04 * ax.get_ylim()[1])  # linear: the ideal is a straight line


def bandwidths(messages: Sequence[Message], ax: Axes) -> Axes:
    """Draw bus bandwidth by size on logarithmic axes; single sizes are points."""
    series = {}
    for label in dict.fromkeys(m.label for m in messages):
        mine = sorted((m.bytes, m.bus_bytes_per_s) for m in messages if m.label == label)
        series[label] = Series([size for size, _ in mine], [rate for _, rate in mine])
    size = Measure("Size of the all-reduced vector", "B", "log")
    return lines(series, size, Measure("Bus bandwidth, 2 (p-1)/p n/t", "B/s", "log"), ax=ax)


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Live bytes from each time on, of one process."""

    label: str
    time_s: npt.NDArray[np.float64]
    live_bytes: npt.NDArray[np.int64]


def memory(
    parts: Mapping[str, int],
    curves: Sequence[LiveBytes],
    *,
    total_bytes: int | None = None,
    title: str | None = None,
    label: str = "By the formulas: device memory by what it is for",
) -> Figure:
    """Draw the formulas' parts as a bar, and measured memory as steps beside the formulas' total.

    Parameters
    ----------
    parts : mapping of str to int
        Bytes by what they are for.
    curves : sequence of LiveBytes
    total_bytes : int, optional
        What the formulas expect of a process: a dashed line.
    title : str, optional
    label : str
        Of the bar.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    """
    shown = sorted(((n, size) for n, size in parts.items() if size > 0), key=lambda one: -one[1])
    if not shown and not curves:
        raise ModelError("expected memory to draw; got none; give sizes, or a report that has it")
    heights = [1.5] * bool(shown) + [2.8] * bool(curves)
    figure = new_figure(DOUBLE_IN, sum(heights))
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    axes = [figure.add_subplot(grid[i, 0]) for i in range(len(heights))]
    if shown:
        named = {f"{name} {si_tick(size, 'B')}": float(size) for name, size in shown}
        stacks({"": named}, unit="B", label=label, ax=axes[0], title=title)
        axes[0].spines["left"].set_visible(False)
    if curves:
        series = {
            c.label: Series(c.time_s, c.live_bytes, dash="-", marked=False, steps=True)
            for c in curves
        }
        expected = {"formulas, device": float(total_bytes)} if total_bytes else {}
        ax = lines(
            series, Measure("Time in the report (s)"), Measure("Measured live bytes", "B"),
            references=expected, ax=axes[-1], title=None if shown else title,
        )  # fmt: skip
        ax.set_ylim(0, ax.get_ylim()[1] * 1.05)
    return figure
