"""Shares of a whole as stacked bars, one bar a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import INK, TEXT_PT, VALUE_PT, axes_of, finish, plain

FILLS: Final = (("#3a87c0", ""), ("#D55E00", "///"), ("#e8e8e8", ""), ("#a6cee3", "..."))
"""Colour and hatch of every part, told apart in grey as well."""

_LEAST: Final = 8.0
"""Per cent that a part must have to be written into it."""


def shares(
    rows: Mapping[str, Sequence[float]], parts: Sequence[str], *, x_label: str,
    ax: Axes | None = None, names: bool = True,
) -> Axes:  # fmt: skip
    """Draw each row's values as shares of their sum.

    Parameters
    ----------
    rows : mapping of str to sequence of float
        A value for each of `parts`.
    parts : sequence of str
    names : bool
        Whether rows are named at the axis; not in panels beside another.

    Raises
    ------
    ModelError
        If there is no row, or one has no value above 0.
    """
    if not rows or any(sum(values) <= 0 or len(values) != len(parts) for values in rows.values()):
        raise ModelError(
            f"wanted rows of {len(parts)} values with a sum above 0; found {len(rows)} rows; give "
            f"others"
        )
    ax = axes_of(ax, 3.5, 0.9 + 0.26 * len(rows))
    left = [0.0] * len(rows)
    for part, name in enumerate(parts):
        wide = [100 * values[part] / sum(values) for values in rows.values()]
        color, hatch = FILLS[part % len(FILLS)]
        ax.barh(range(len(rows)), wide, 0.7, left, color=color, hatch=hatch, edgecolor="white",
                lw=0.5, label=plain(name))  # fmt: skip
        for i, (value, at) in enumerate(zip(wide, left, strict=True)):
            if value >= _LEAST:
                ax.annotate(
                    f"{value:.0f}", (at + value / 2, i), ha="center", va="center_baseline",
                    fontsize=VALUE_PT, color=INK,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
                )  # fmt: skip
        left = [a + b for a, b in zip(left, wide, strict=True)]
    ax.set_yticks(range(len(rows)), [plain(row) for row in rows] if names else [])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    finish(ax, x_label, "")
    ax.tick_params(axis="y", length=0)
    return ax


def legend_above(ax: Axes, columns: int = 4) -> None:
    """Put the legend of these axes above all axes of their figure."""
    handles, texts = ax.get_legend_handles_labels()
    ax.figure.canvas.figure.legend(
        handles, texts, loc="outside upper left", ncols=columns, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK,
    )  # fmt: skip
