"""Lines over a few sizes that the axis names, with the legend inside: `lines` for small panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.lines import Measure, Series, lines
from perfmodel.render.plot.style import GREY, INK, TEXT_PT, entry, plain

Place = Literal["best", "upper left", "lower left", "lower right", "upper right"]


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
    y_unit: str = "",
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
    y_unit : str
        Ticks of y get SI prefixes and this unit; without one they are plain numbers.
    log_y : bool
    level : (str, float), optional
        A horizontal line and its name, such as a peak.
    reference : Curve, optional
        A grey dashed line, such as the ideal.
    legend : str, optional
        Where in the axes it is, such as 'lower right'; None leaves it out.

    Raises
    ------
    ModelError
        If there is no line to draw, or a value that a logarithmic axis cannot show.
    """
    if not found:
        raise ModelError("wanted lines to draw; found none; measure some")
    series = {one.label: Series(one.x, one.y) for one in found}
    y = Measure(y_label, y_unit, "log" if log_y else "linear")
    ax = lines(series, Measure(x_label, scale="log"), y, ax=ax)
    if (above := ax.get_legend()) is not None:
        above.remove()
    if reference is not None:
        ax.plot(reference.x, reference.y, color=GREY, lw=1.0, ls=(0, (4, 2)), zorder=1,
                label=entry(plain(reference.label)))  # fmt: skip
    if level is not None:
        name, at = level
        ax.axhline(at, color=INK, lw=0.9, zorder=1)
        ax.annotate(
            plain(name), (0, at), (3, -3), xycoords=("axes fraction", "data"), va="top",
            textcoords="offset points", fontsize=TEXT_PT, color=INK,
        )  # fmt: skip
    ax.xaxis.set_major_locator(FixedLocator(sorted({v for c in found for v in c.x})))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    if legend is not None:
        ax.legend(
            loc=legend, frameon=False, fontsize=TEXT_PT, labelcolor=INK, handlelength=2.6,
            borderaxespad=0.3,
        )  # fmt: skip
    return ax
