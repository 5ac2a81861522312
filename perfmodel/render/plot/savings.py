"""Savings of changes as horizontal bars with their 90 % intervals, predictions above bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.render.plot.style import (
    GRID,
    INK,
    TEXT_PT,
    VALUE_PT,
    axes_of,
    finish,
    plain,
    put_title,
    si_tick,
    size_pt,
    text_width_pt,
)

_PREDICTED: Final = "#3a87c0"
_BOUND: Final = "white"


@dataclass(frozen=True, slots=True)
class Bar:
    """One change: seconds saved with their 90 % interval, predicted or at most."""

    label: str
    saving_s: float
    low_s: float
    high_s: float
    bound: bool


def savings(
    bars: Sequence[Bar], batch_s: float, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw savings, in the order given, from the top; bounds are hollow.

    Parameters
    ----------
    bars : sequence of Bar
    batch_s : float
        The batch that they are savings of.
    ax : matplotlib Axes, optional
    title : str, optional

    Raises
    ------
    ModelError
        If there is no change to draw.
    """
    if not bars:
        raise ModelError("wanted changes to draw; found none: the run has made them all")
    foreign = ax is not None
    ax = axes_of(ax, 6.2, 1.3 + 0.24 * len(bars))
    for i, bar in enumerate(bars):
        hatch = "////" if bar.bound else None
        ax.barh(i, bar.saving_s, 0.62, color=_BOUND if bar.bound else _PREDICTED, hatch=hatch,
                edgecolor=_PREDICTED if bar.bound else INK, lw=0.6, zorder=2)  # fmt: skip
        ax.plot([bar.low_s, bar.high_s], [i, i], color=INK, lw=1.1, zorder=3)
        for end in (bar.low_s, bar.high_s):
            ax.plot([end, end], [i - 0.16, i + 0.16], color=INK, lw=1.1, zorder=3)
    ax.axvline(0, color=INK, lw=0.6)
    ax.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    finish(ax, f"Saved of {si(batch_s, 's').replace(' us', ' µs')} a batch; 90 %", "")
    width = size_pt(ax, foreign)[0]
    _values(ax, bars, batch_s, width)
    kinds = {bar.bound: None for bar in bars}
    ax.legend(
        [Patch(facecolor=_BOUND if k else _PREDICTED, edgecolor=_PREDICTED if k else INK,
               hatch="////" if k else None, lw=0.6) for k in kinds],
        ["at most, by the report alone" if k else "predicted by the model" for k in kinds],
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=TEXT_PT, frameon=False,
        borderaxespad=0.2, labelcolor=INK,
    )  # fmt: skip
    put_title(ax, title, width, 22)
    ax.tick_params(axis="both", length=0)
    return ax


def _values(ax: Axes, bars: Sequence[Bar], batch_s: float, width: float) -> None:
    """Write every saving and its share behind its interval."""
    texts = [
        f"{'≤ ' if bar.bound else ''}{si(bar.saving_s, 's').replace(' us', ' µs')}  "
        f"{100 * bar.saving_s / batch_s:.0f} %"
        for bar in bars
    ]
    for i, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        ax.annotate(
            text, (max(bar.saving_s, bar.high_s, 0.0), i), (4, 0), textcoords="offset points",
            va="center_baseline", fontsize=VALUE_PT, color=INK,
        )  # fmt: skip
    widest = max(text_width_pt(text, VALUE_PT) for text in texts) + 9.0
    longest = max(max(bar.saving_s, bar.high_s) for bar in bars)
    least = min(0.0, *(bar.low_s for bar in bars))
    longest = max(longest, 1e-9)
    ax.set_xlim(least * 1.05, least + (longest - least) / (1 - min(0.7, widest / width)))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda s, _: si_tick(s, "s").replace("us", "µs") if s else "0")
    )
