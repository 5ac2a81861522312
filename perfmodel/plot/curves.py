"""Lines of one quantity over another, each with a marker and a dash of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from perfmodel.errors import ModelError
from perfmodel.plot.style import (
    GREY,
    GRID,
    INK,
    MARKER_PT,
    MARKERS,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    si_tick,
)

Place = Literal["best", "upper left", "lower left", "lower right", "upper right"]
DASHES: Final[tuple[Any, ...]] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1)),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: `y` over `x`, both in base units or as the axes say."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def curves(
    found: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    ax: Axes | None = None,
    y_unit: str | None = None,
    log_y: bool = True,
    level: tuple[str, float] | None = None,
    reference: Curve | None = None,
    legend: Place | None = "best",
) -> Axes:
    """Draw lines over a logarithmic axis whose ticks are the values of x.

    Parameters
    ----------
    found : sequence of Curve
    x_label, y_label : str
    y_unit : str, optional
        Ticks of y get SI prefixes and this unit; without one they are plain numbers.
    log_y : bool
    level : (str, float), optional
        A horizontal line and its name, such as a peak, or 0.
    reference : Curve, optional
        A grey dashed line, such as the ideal.
    legend : str, optional
        Where in the axes it is, such as 'lower right'; None leaves it out.

    Raises
    ------
    ModelError
        If there is no line to draw, or a value that a logarithmic axis cannot show.
    """
    values = [v for c in found for v in (*c.x, *(c.y if log_y else ()))]
    if not values or min(values) <= 0:
        raise ModelError(
            f"wanted lines of values above 0; found {min(values, default='none')}; measure more"
        )
    ax = axes_of(ax, 3.5, 2.8)
    ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")
    for i, one in enumerate(found):
        ax.plot(
            one.x, one.y, color=PALETTE[i % len(PALETTE)], marker=MARKERS[i % len(MARKERS)],
            ms=MARKER_PT - 1.5, lw=1.3, ls=DASHES[i % len(DASHES)], label=entry(plain(one.label)),
            zorder=3,
        )  # fmt: skip
    if reference is not None:
        ax.plot(reference.x, reference.y, color=GREY, lw=1.0, ls=(0, (4, 2)), zorder=1,
                label=entry(plain(reference.label)))  # fmt: skip
    if level is not None:
        name, at = level
        ax.axhline(at, color=INK if at else GREY, lw=0.9, zorder=1)
        if name:
            ax.annotate(
                plain(name), (0, at), (3, -3), xycoords=("axes fraction", "data"), va="top",
                textcoords="offset points", fontsize=TEXT_PT, color=INK,
            )  # fmt: skip
    ax.grid(True, color=GRID, lw=0.6)
    finish(ax, x_label, y_label)
    ax.xaxis.set_major_locator(FixedLocator(sorted({v for c in found for v in c.x})))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    if log_y:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    if y_unit is not None:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: si_tick(v, y_unit)))
    if legend is None:
        return ax
    ax.legend(
        loc=legend, frameon=False, fontsize=TEXT_PT, labelcolor=INK, handlelength=2.6,
        borderaxespad=0.3,
    )  # fmt: skip
    return ax
