"""Values of several kinds in rows, one mark each, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import GREY, GRID, MARKERS, PALETTE, axes_of, entry, finish, plain


@dataclass(frozen=True, slots=True)
class Dot:
    """One value of one kind in one row."""

    row: str
    kind: str
    value: float


def dots(
    found: Sequence[Dot], *, x_label: str, ax: Axes | None = None, level: float | None = None
) -> Axes:
    """Draw rows in the order they come, a marker and colour for every kind.

    The legend is for `perfmodel.render.plot.shares.legend_above` to put above the figure.

    Parameters
    ----------
    found : sequence of Dot
    x_label : str
    level : float, optional
        A vertical line, such as 1 where values are ratios.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    """
    if not found:
        raise ModelError("wanted values to draw; found none; measure some")
    rows = list(dict.fromkeys(d.row for d in found))
    kinds = list(dict.fromkeys(d.kind for d in found))
    ax = axes_of(ax, 3.5, 0.9 + 0.24 * len(rows))
    for i, row in enumerate(rows):
        mine = [d.value for d in found if d.row == row]
        ax.plot([min(mine), max(mine)], [i, i], color=GRID, lw=2.5, zorder=1)
    for k, kind in enumerate(kinds):
        mine_of = [(d.value, rows.index(d.row)) for d in found if d.kind == kind]
        ax.plot(
            *zip(*mine_of, strict=True), ls="", marker=MARKERS[k % len(MARKERS)], ms=5.5,
            color=PALETTE[k % len(PALETTE)], mfc="white" if k % 2 else PALETTE[k % len(PALETTE)],
            mew=1.2, zorder=3, label=entry(plain(kind)),
        )  # fmt: skip
    if level is not None:
        ax.axvline(level, color=GREY, lw=0.9, zorder=0)
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    ax.set_yticks(range(len(rows)), [plain(row) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    finish(ax, x_label, "")
    ax.tick_params(axis="y", length=0)
    return ax
