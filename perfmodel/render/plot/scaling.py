"""Scaling over ranks: speed-up, efficiency and the ideal, what a batch holds, bus bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    LABEL_PT,
    MARKERS,
    PALETTE,
    TEXT_PT,
    VALUE_PT,
    entry,
    finish,
    plain,
    si_tick,
)

PARTS: Final = (
    ("kernels", "#3a87c0", ""),
    ("exposed communication", "#D55E00", "///"),
    ("copies only", "#a6cee3", ""),
    ("neither: the host", "#e8e8e8", ""),
)
"""What a batch holds: name, colour and hatch, from the bottom."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of strong or weak scaling."""

    label: str
    kind: str
    ranks: tuple[int, ...]
    speedups: tuple[float, ...]
    efficiencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One batch by what goes on, seconds in the order of `PARTS`."""

    label: str
    ranks: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Bus bandwidth of an all-reduce of one size; equal labels are joined."""

    label: str
    bytes: int
    bus_bytes_per_s: float


def scaling(
    curves: Sequence[Curve], stacks: Sequence[Stack] = (), messages: Sequence[Message] = ()
) -> Figure:
    """Draw speed-up and efficiency, and, where given, the parts of batches and bus bandwidth.

    Raises
    ------
    ModelError
        If there is no series to draw.
    """
    if not curves:
        raise ModelError("wanted series over ranks to draw; found none; give runs of more ranks")
    rows = 1 + bool(stacks) + bool(messages)
    legend = 0.17 * len(curves)
    heights = [2.9 + legend, *([3.0] if stacks else []), *([3.1] if messages else [])]
    figure = Figure(figsize=(7.2, sum(heights)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 2, height_ratios=heights)
    _over_ranks(figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1]), curves)
    if stacks:
        _parts(figure.add_subplot(grid[1, :]), stacks)
    if messages:
        bandwidths(messages, figure.add_subplot(grid[rows - 1, :]))
    return figure


def _over_ranks(left: Axes, right: Axes, curves: Sequence[Curve]) -> None:
    """Draw speed-ups left and efficiencies right, both beside the ideal."""
    ranks = sorted({p for curve in curves for p in curve.ranks})
    lines: list[Any] = []
    for i, curve in enumerate(curves):
        look: dict[str, Any] = {
            "color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)], "ms": 5,
            "lw": 1.4, "ls": "-" if curve.kind == "strong" else ":", "zorder": 3,
            "mfc": None if curve.kind == "strong" else "white",
        }  # fmt: skip
        lines += left.plot(curve.ranks, curve.speedups, label=entry(plain(curve.label)), **look)
        right.plot(curve.ranks, [100 * e for e in curve.efficiencies], **look)
    first = min(curve.ranks[0] for curve in curves)
    ideal: dict[str, Any] = {"color": GREY, "lw": 1.0, "ls": (0, (4, 2)), "zorder": 1}
    lines += left.plot(ranks, [p / first for p in ranks], label="ideal", **ideal)
    right.plot(ranks, [100.0] * len(ranks), **ideal)
    for ax, name in ((left, "Speed-up (images per second)"), (right, "Efficiency (%)")):
        ax.xaxis.set_major_locator(FixedLocator(ranks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda p, _: f"{p:g}"))
        ax.set_ylim(0, 1.04 * ax.get_ylim()[1])  # linear: the ideal is a straight line
        ax.grid(True, color=GRID, lw=0.6)
        finish(ax, "Ranks p", name)
    left.figure.canvas.figure.legend(
        lines, [str(line.get_label()) for line in lines], loc="outside upper left", frameon=False,
        ncols=2 if len(lines) > 3 else 1, fontsize=TEXT_PT, labelcolor=INK,
    )  # fmt: skip


def _parts(ax: Axes, stacks: Sequence[Stack]) -> None:
    """Draw bars of 100 %, one for every number of ranks, by configuration."""
    places, ticks, labels = [], [], []
    at = 0.0
    for label in dict.fromkeys(stack.label for stack in stacks):
        mine = [i for i, stack in enumerate(stacks) if stack.label == label]
        places += [(i, at + k) for k, i in enumerate(mine)]
        ticks.append(at + (len(mine) - 1) / 2)
        labels.append(plain(label))
        at += len(mine) + 0.7
    shares = np.array([np.array(s.seconds) / max(sum(s.seconds), 1e-30) for s in stacks]) * 100
    for part, (name, color, hatch) in enumerate(PARTS):
        x = [where for _, where in places]
        bottom = [shares[i, :part].sum() for i, _ in places]
        ax.bar(x, [shares[i, part] for i, _ in places], 0.86, bottom, color=color, hatch=hatch,
               edgecolor="white", lw=0.5, label=name, zorder=2)  # fmt: skip
    for i, where in places:
        ax.annotate(f"p={stacks[i].ranks}", (where, 101), ha="center", va="bottom",
                    fontsize=VALUE_PT, color=INK, annotation_clip=False)  # fmt: skip
    finish(ax, "", "Share of a batch (%)")
    ax.set_xticks(ticks, labels, fontsize=TEXT_PT)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.8, max(at - 0.9, 6.0))
    ax.set_ylim(0, 108)
    ax.set_yticks(range(0, 101, 25))
    ax.grid(True, axis="y", color=GRID, lw=0.6)
    _legend_above(ax, 4)


def bandwidths(messages: Sequence[Message], ax: Axes) -> Axes:
    """Draw bus bandwidth by size on logarithmic axes; single sizes are points."""
    for i, label in enumerate(dict.fromkeys(m.label for m in messages)):
        mine = sorted((m.bytes, m.bus_bytes_per_s) for m in messages if m.label == label)
        ax.plot(
            *zip(*mine, strict=True), color=PALETTE[i % len(PALETTE)],
            marker=MARKERS[i % len(MARKERS)], ms=5, lw=1.2, label=entry(plain(label)),
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: si_tick(n, "B")))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda r, _: si_tick(r, "B/s")))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(True, color=GRID, lw=0.6)
    finish(ax, "Size of the all-reduced vector", "Bus bandwidth, 2 (p-1)/p n/t")
    ax.yaxis.label.set_fontsize(LABEL_PT)
    _legend_above(ax, 3)
    return ax


def _legend_above(ax: Axes, columns: int) -> None:
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2,
    )  # fmt: skip
