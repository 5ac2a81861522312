"""Predictions over one symbol: curves with their 90 % bands, and the measured points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GRID,
    INK,
    MARKER_PT,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    si_tick,
    size_pt,
)

_NAMES: Final = {"B": "Global batch size B", "H": "Hidden size H", "p": "Ranks p"}


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted seconds over one symbol, with what was measured.

    Attributes
    ----------
    at : sequence of int
        Values of the symbol, ascending.
    seconds, low_s, high_s : sequences of float, as long as `at`
    measured : sequence of (int, float)
        Value of the symbol and seconds of every measured run.
    extrapolated : sequence of bool
        Which points lie beyond the calibration: drawn dashed.
    """

    at: Sequence[int]
    seconds: Sequence[float]
    low_s: Sequence[float]
    high_s: Sequence[float]
    measured: Sequence[tuple[int, float]]
    extrapolated: Sequence[bool]


def predictions(
    curves: Mapping[str, Curve], symbol: str, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw curves by label over `symbol`, both axes logarithmic, times per batch.

    Raises
    ------
    ModelError
        If there is no curve, or one has no point.
    """
    if not curves or any(not curve.at for curve in curves.values()):
        raise ModelError("wanted predictions to draw; found none; give values to predict at")
    ax = axes_of(ax, 5.0, 3.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for i, (label, curve) in enumerate(curves.items()):
        color = PALETTE[i % len(PALETTE)]
        ax.fill_between(curve.at, curve.low_s, curve.high_s, color=color, alpha=0.15, lw=0)
        known = [not beyond for beyond in curve.extrapolated]
        ax.plot(curve.at, curve.seconds, color=color, ls=":", lw=1.2)
        inside = [(x, y) for x, y, k in zip(curve.at, curve.seconds, known, strict=True) if k]
        if inside:
            ax.plot(*zip(*inside, strict=True), color=color, lw=1.4, label=entry(plain(label)))
        else:
            ax.plot([], [], color=color, ls=":", label=entry(plain(label)))
        if curve.measured:
            x, y = zip(*curve.measured, strict=True)
            ax.plot(x, y, "o", ms=MARKER_PT, mfc="none", mec=color, label="measured")
    ticks = sorted({x for curve in curves.values() for x in curve.at})
    ax.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // 8)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: si_tick(y, "s")))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(True, which="major", color=GRID, lw=0.6)
    finish(ax, _NAMES.get(symbol, symbol), "Time per batch; 90 % band")
    ax.legend(frameon=False, fontsize=TEXT_PT, labelcolor=INK)
    put_title(ax, title, size_pt(ax)[0])
    return ax
