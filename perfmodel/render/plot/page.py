"""Axes as wide as a column of a page, for figures that a paper shows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import INK, LABEL_PT

WIDTHS_IN: Final = {"single": 3.5, "double": 7.2}
"""Inches: one column, or both, of a two-column page of US letter or A4."""


def panels(
    width: str = "single",
    height_in: float = 2.8,
    *,
    columns: int = 1,
    rows: int = 1,
    letters: bool = True,
) -> tuple[Axes, ...]:
    """Give empty axes of one figure, row by row, to draw in with `ax=`.

    Parameters
    ----------
    width : {'single', 'double'}
        3.5 or 7.2 inches.
    height_in : float
        Height of the whole figure in inches.
    columns, rows : int
    letters : bool
        Whether several panels are marked (a), (b), ..., which captions refer to.

    Returns
    -------
    tuple of Axes
        All have one figure, ``axes[0].figure``.

    Raises
    ------
    ModelError
        If there is no such width, or no panel.
    """
    if width not in WIDTHS_IN:
        raise ModelError(f"wanted a width of {' or '.join(WIDTHS_IN)}; found {width!r}; take one")
    if columns < 1 or rows < 1:
        raise ModelError(f"wanted at least one panel; found {rows} x {columns}; give more")
    size = (WIDTHS_IN[width], height_in)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = tuple(figure.subplots(rows, columns, squeeze=False).ravel())
    if letters and len(axes) > 1:
        _mark(axes)
    return axes


def _mark(axes: Sequence[Axes]) -> None:
    for i, ax in enumerate(axes):
        ax.set_title(f"({chr(ord('a') + i)})", loc="right", fontsize=LABEL_PT, color=INK)
