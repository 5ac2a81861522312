"""Parts of a whole side by side: one bar per run, from left to right what its time goes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.render.plot.style import (
    GRID,
    INK,
    PALETTE,
    TEXT_PT,
    VALUE_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    size_pt,
    text_width_pt,
)

_HATCHES: Final = ("", "////", "", "....", "", "\\\\\\\\", "xxx", "")
_REST: Final = "#ffffff"
_PLATE: Final[dict[str, Any]] = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
"""What a number stands on, so that hatching does not cross it."""


def stacks(
    bars: Mapping[str, Mapping[str, float]],
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw every bar as the shares of its parts, with per cent, and its total behind its name.

    Parameters
    ----------
    bars : mapping of str to mapping of str to float
        By the bar's name, seconds by part; bars share the names of parts.

    Raises
    ------
    ModelError
        If there is no bar, or one whose parts are not all at least 0 or add up to nothing.
    """
    if not bars or not all(
        p and sum(p.values()) > 0 and min(p.values()) >= 0 for p in bars.values()
    ):
        raise ModelError("wanted bars with parts of at least 0; found none, or others")
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    foreign = ax is not None
    ax = axes_of(ax, 7.2, 1.0 + 0.34 * len(bars))
    ax.set_xlim(0, 100)
    ax.set_ylim(len(bars) - 0.45, -0.55)
    width = size_pt(ax, foreign)[0]
    colors = {n: PALETTE[i] if i < len(PALETTE) else _REST for i, n in enumerate(names)}
    hatches = {n: _HATCHES[i % len(_HATCHES)] for i, n in enumerate(names)}
    for row, parts in enumerate(bars.values()):
        left, whole = 0.0, sum(parts.values())
        for name, seconds in parts.items():
            share = 100 * seconds / whole
            edge = "white" if colors[name] != _REST else INK
            ax.barh(row, share, 0.66, left=left, color=colors[name], hatch=hatches[name],
                    edgecolor=edge, lw=0.5, zorder=2)  # fmt: skip
            text = f"{share:.0f}"
            if text_width_pt(text, VALUE_PT) + 6 < share / 100 * width:
                ax.text(left + share / 2, row, text, fontsize=VALUE_PT, ha="center",
                        va="center_baseline", color=INK, zorder=3, bbox=_PLATE)  # fmt: skip
            left += share
    totals = [f"{plain(n)}\n{si(sum(p.values()), 's')}" for n, p in bars.items()]
    ax.set_yticks(range(len(bars)), totals)
    finish(ax, "Share of the time (%)", "")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    ax.tick_params(axis="y", length=0)
    put_title(ax, title, width, 6 + 12 * _legend(ax, names, colors, hatches, width))
    return ax


def _legend(
    ax: Axes, names: list[str], colors: Mapping[str, str], hatches: Mapping[str, str], width: float
) -> int:
    widest = max(text_width_pt(plain(n)) for n in names) + 30
    columns = max(1, min(len(names), int(width / widest)))
    handles = [
        Patch(facecolor=colors[n], hatch=hatches[n], lw=0.5,
              edgecolor="white" if colors[n] != _REST else INK) for n in names
    ]  # fmt: skip
    ax.legend(
        handles, [entry(plain(n)) for n in names], loc="lower left", bbox_to_anchor=(0.0, 1.0),
        ncols=columns, frameon=False, fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2,
        columnspacing=1.0, handlelength=1.4, handletextpad=0.4,
    )  # fmt: skip
    return -(-len(names) // columns)
