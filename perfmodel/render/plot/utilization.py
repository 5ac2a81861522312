"""Utilization over time: NVML's percentages per GPU, the window, and GPU busy by a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    size_pt,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentages:
    """One counter of one GPU in percent over time; NaN where it was not told."""

    gpu: int
    label: str
    time_s: Any
    percent: Any
    thin: bool = False


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
    busy_share: float | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw percentages over time.

    Parameters
    ----------
    curves : sequence of Percentages
        A colour for every GPU; thin ones are drawn lightly.
    window_s : (float, float), optional
        Shaded.
    busy_share : float, optional
        Share of time in which a report saw the GPU busy: a dashed line.
    """
    if not curves:
        raise ModelError("wanted samples to draw; found none; sample a command first")
    ax = axes_of(ax, 6.0, 3.0)
    if window_s is not None:
        ax.axvspan(*window_s, color=GRID, alpha=0.6, lw=0, label="window")
    gpus = list(dict.fromkeys(curve.gpu for curve in curves))
    for curve in curves:
        ax.plot(
            curve.time_s, curve.percent, color=PALETTE[gpus.index(curve.gpu) % len(PALETTE)],
            lw=0.9 if curve.thin else 1.5, ls=":" if curve.thin else "-",
            label=entry(plain(curve.label)), marker="." if len(curve.time_s) == 1 else "",
        )  # fmt: skip
    if busy_share is not None:
        ax.axhline(
            100 * busy_share, color=INK, lw=0.9, ls=(0, (4, 2)),
            label=f"GPU busy by the report, {busy_share:.0%}",
        )  # fmt: skip
    finish(ax, "Time since the command was started (s)", "Share of time (%)")
    ax.set_ylim(-2, 104)
    ax.axhline(100, color=GREY, lw=0.6)
    ax.grid(True, color=GRID, lw=0.6)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize=TEXT_PT,
        labelcolor=INK, borderaxespad=0.2,
    )  # fmt: skip
    rows = -(-len(ax.get_legend_handles_labels()[0]) // 2)
    put_title(ax, title, size_pt(ax)[0], 8 + 13 * rows)
    return ax
