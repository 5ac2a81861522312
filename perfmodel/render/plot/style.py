"""The look of all figures: it survives print, photocopies and colour blindness."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from perfmodel.base.escape import printable
from perfmodel.base.units import si

INK: Final = "#222222"
GREY: Final = "#808080"
GRID: Final = "#e3e3e3"
PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito (2008), without yellow (too light for lines) and black (the ink)."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
TITLE_PT: Final = 10.0
LABEL_PT: Final = 9.0
TEXT_PT: Final = 8.0
VALUE_PT: Final = 7.0
MARKER_PT: Final = 6.5
WIDE_COLUMNS: Final = 28
NARROW_COLUMNS: Final = 18
"""Letters in a line of a point's label, in axes that are wide and in narrow ones."""

NARROW_PT: Final = 216.0
"""Axes below 3 inches are narrow, as in one column of a page."""


def axes_of(ax: Axes | None, width_in: float, height_in: float) -> Axes:
    """Give `ax`, or new axes that fill a figure of their own, unknown to pyplot."""
    if ax is not None:
        return ax
    figure = Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def size_pt(ax: Axes, foreign: bool = False) -> tuple[float, float]:
    """Lay out the figure as it is now; give width and height of the axes in points.

    In a `foreign` figure, neighbours drawn later may take a tenth of the width.
    """
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()
    extent = ax.get_window_extent()
    scale = 72.0 / figure.dpi
    return scale * extent.width * (0.9 if foreign else 1.0), scale * extent.height


def text_width_pt(text: str, size: float = TEXT_PT) -> float:
    """Width of the longest line of `text`, leading blanks included."""
    lines = [line for line in text.split("\n") if line.strip()]
    paths = (TextPath((0, 0), line, size=size) for line in lines)
    return max((float(np.max(path.vertices[:, 0])) for path in paths), default=0.0)


def put_title(ax: Axes, title: str | None, width_pt: float, pad_pt: float = 6.0) -> None:
    """Write the title in as many lines as fit above axes of this width."""
    if title:
        text = wrap(title, max(12, int(width_pt / (0.6 * TITLE_PT))))
        ax.set_title(text, fontsize=TITLE_PT, color=INK, loc="left", pad=pad_pt)


def finish(ax: Axes, x_label: str, y_label: str) -> None:
    """Set labels, fonts, grid and spines."""
    ax.set_xlabel(plain(x_label), fontsize=LABEL_PT, color=INK)
    ax.set_ylabel(plain(y_label), fontsize=LABEL_PT, color=INK)
    ax.tick_params(labelsize=TEXT_PT, color=GREY, labelcolor=INK)
    ax.tick_params(which="minor", length=2, color=GREY)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)


def plain(text: str) -> str:
    """One line without matplotlib's math: a name holding ``$`` is printed as it is."""
    return printable(text).replace("$", r"\$")


def entry(text: str) -> str:
    """Put a blank before a leading underscore: legends leave out what starts with one."""
    return " " + text if text.startswith("_") else text


def shortened(name: str, most: int) -> str:
    """Cut out the middle of a name of more than so many letters."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def wrap(text: str, columns: int) -> str:
    """Break a long name into lines of at most `columns` letters, after blanks, ``_ - / :``."""
    lines = [""]
    for part in re.findall(r"[^\s_/:-]*[\s_/:-]*", printable(text)):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > columns:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > columns:
            lines[-1:] = [lines[-1][:columns], lines[-1][columns:]]
    return "\n".join(plain(line.rstrip()) for line in lines)


def si_tick(value: float, unit: str) -> str:
    """SI number without the trailing zeros of three digits: '200 GFLOP/s', '1 TFLOP/s'."""
    number, _, suffix = si(value, unit).partition(" ")
    return f"{float(number):g} {suffix}" if suffix else number
