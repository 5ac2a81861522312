"""The look of all figures and their axes: for print, photocopies and colour blindness."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    ScalarFormatter,
)
from matplotlib.transforms import Bbox

from perfmodel.base.escape import printable
from perfmodel.base.units import si
from perfmodel.models.roofline import Point, Roofline
from perfmodel.timing.host_timeline import CAUSES

INK: Final = "#222222"
GREY: Final = "#808080"
GRID: Final = "#e3e3e3"
PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#3B0062", "#76C4D8", "#892727")
"""Three colours of Okabe and Ito (2008), and three more that keep the distance.

Any two colours that can touch differ by 20 (CIEDE2000), from each other and from the paper, for
normal sight and under deuteranopia (Machado et al. 2009): `tests/support/colors.py` checks it.
Found by a search over a grid of sRGB for sets with that distance."""

BLUE: Final = "#3a87c0"
PALE_BLUE: Final = "#a6cee3"
DARK_BLUE: Final = "#08306b"
PALE_GREY: Final = "#e8e8e8"
KERNEL: Final = PALETTE[0]
SENDING: Final = PALETTE[1]
COPYING: Final = "#4E9D9D"
"""On a GPU: what computes, what communicates, and copies."""

FILLS: Final = (
    (KERNEL, ""), (SENDING, "///"), ("#FFD876", ""), (COPYING, "..."), ("#89D8FF", ""),
    ("#9D1462", "\\\\\\"), ("#00009D", ""), ("#764E14", "xxx"),
)  # fmt: skip
"""Colour and hatch of the parts of a bar, distinct in grey as well."""

CAUSE_COLORS: Final = dict(
    zip(
        CAUSES,
        ("#FFD876", "#9D1462", "#764E14", "#271427", "#00009D", "#142700", "#D89D9D", "#89D8FF",
         "#009E73", "#3B0062"),
        strict=False,  # the last two are for causes to come
    )
)  # fmt: skip
"""Colour of every cause of idle time, in all figures and on the HTML page; as far as `PALETTE`'s
from each other and from those of kernels, communication and copies, beside which they stand."""

DASHED: Final = (0, (4, 2))
"""What is predicted, ideal or a limit; solid is measured. Roofs are drawn as in the literature."""

BOUND: Final[dict[str, Any]] = {"facecolor": "white", "edgecolor": BLUE, "hatch": "////"}
"""A bar that is an upper bound.

In all figures what is measured or the first of two kinds is filled. Hollow is the second kind, as
the legend says: a bound beside a prediction, a part of the batch beside the batch, weak beside
strong scaling, L1 beside DRAM, a run that failed. A ring stands around what lies above its roof.
"""

SINGLE_IN: Final = 3.5
DOUBLE_IN: Final = 7.2
"""Inches: one column, or both, of a two-column page of US letter or A4."""

RING: Final[dict[str, Any]] = {
    "ls": "", "marker": "o", "mfc": "none", "mec": INK, "ms": 9.0, "mew": 1.4, "zorder": 6,
}  # fmt: skip
"""Around a point above its roof."""

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
    return new_figure(width_in, height_in).add_subplot() if ax is None else ax


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure, unknown to pyplot."""
    figure = Figure(figsize=(width_in, height_in), layout=_Layout(), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


class _Layout(ConstrainedLayoutEngine):
    """Constrained layout; axes that are alone in their figure are measured once, not twice."""

    def execute(self, figure: Figure) -> Any:
        """Place the axes so that what stands around them just fits into the figure."""
        axes = figure.get_axes()
        if len(axes) != 1 or figure.legends or figure.get_suptitle():
            return super().execute(figure)
        (ax,) = axes
        around = ax.get_tightbbox(None, for_layout_only=True)
        inner, pad = ax.get_window_extent(), self.get()["w_pad"] * figure.dpi
        if around is None:
            return None
        x, y = inner.x0 - around.x0 + pad, inner.y0 - around.y0 + pad
        width = figure.bbox.width - x - (around.x1 - inner.x1 + pad)
        height = figure.bbox.height - y - (around.y1 - inner.y1 + pad)
        if min(width, height) <= 0:
            return super().execute(figure)  # which warns
        place = Bbox.from_bounds(x, y, width, height)
        ax.set_position(place.transformed(figure.transFigure.inverted()))
        ax.set_in_layout(True)
        return None


def size_pt(ax: Axes, foreign: bool = False) -> tuple[float, float]:
    """Lay out the figure as it is now; give width and height of the axes in points.

    In a `foreign` figure, neighbours drawn later may take a tenth of the width.
    """
    figure = ax.figure.canvas.figure
    lay_out(figure)
    extent = ax.get_window_extent()
    scale = 72.0 / figure.dpi
    return scale * extent.width * (0.9 if foreign else 1.0), scale * extent.height


def lay_out(figure: Figure) -> None:
    """Place the axes of a figure, without drawing what is in them where that can be spared."""
    engine = figure.get_layout_engine()
    if engine is None:
        figure.draw_without_rendering()
    else:
        engine.execute(figure)


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


def finish(ax: Axes, x_label: str, y_label: str, grid: Literal["both", "x", "y"] = "both") -> None:
    """Set labels, fonts, grid and spines."""
    ax.grid(True, axis=grid, color=GRID, lw=0.6)
    ax.set_xlabel(plain(x_label), fontsize=LABEL_PT, color=INK)
    ax.set_ylabel(plain(y_label), fontsize=LABEL_PT, color=INK)
    ax.tick_params(labelsize=TEXT_PT, color=GREY, labelcolor=INK)
    ax.tick_params(which="minor", length=2, color=GREY)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)


def legend_above(
    ax: Axes,
    handles: Sequence[Any] | None = None,
    texts: Sequence[str] | None = None,
    *,
    title: str | None = None,
    heading: str = "",
    foreign: bool = False,
    size: float = TEXT_PT,
    width_pt: float | None = None,
) -> None:
    """Put the legend above the axes in as many columns as fit, and the title above the legend.

    Parameters
    ----------
    ax : Axes
    handles, texts : sequences, optional
        What the axes drew with a label, by default; of none only the title is written.
    title, heading : str, optional
        Of the axes, and of the legend.
    foreign : bool
        The axes are a caller's; see `size_pt`.
    size : float
        Of the letters, in points.
    width_pt : float, optional
        Of the axes, where it is known.
    """
    if handles is None or texts is None:
        handles, texts = ax.get_legend_handles_labels()
    width = width_pt or size_pt(ax, foreign)[0]
    if not texts:
        return put_title(ax, title, width)
    letter = text_width_pt(ax.get_title("right"), LABEL_PT) + size  # (a) stands to the right
    columns = _columns([plain(t) for t in texts], handles, width - letter, size)
    ax.legend(
        handles, [entry(plain(t)) for t in texts], loc="lower left", bbox_to_anchor=(0.0, 1.0),
        ncols=columns, title=plain(heading) or None, borderaxespad=0.2,
        **legend_look(size, handles),
    )  # fmt: skip
    rows = -(-len(texts) // columns) + bool(heading)
    put_title(ax, title, width, 7.0 + 1.45 * size * rows)


def legend_over(axes: Sequence[Axes]) -> None:
    """Put one legend, of all that these axes drew with a label, above their figure."""
    figure = axes[0].figure
    found = {t: h for ax in axes for h, t in zip(*ax.get_legend_handles_labels(), strict=True)}
    handles, width = list(found.values()), 72 * figure.canvas.figure.get_figwidth() - 10
    columns = _columns(list(found), handles, width, TEXT_PT)
    figure.legend(
        handles, [entry(t) for t in found], loc="outside upper left", ncols=columns,
        **legend_look(TEXT_PT, handles),
    )  # fmt: skip


def legend_look(size: float = TEXT_PT, handles: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the settings of every legend: no frame, small, close."""
    return {
        "fontsize": size, "title_fontsize": size, "alignment": "left", "frameon": False,
        "labelcolor": INK, "borderpad": 0.2, "columnspacing": 1.2, "handlelength": _handle(handles),
        "handletextpad": 0.5, "labelspacing": 0.3,
    }  # fmt: skip


def _handle(handles: Sequence[Any]) -> float:
    """Length of a legend's samples in letters: short ones do for patches."""
    return 1.2 if handles and all(isinstance(h, Patch | BarContainer) for h in handles) else 2.0


def _columns(texts: Sequence[str], handles: Sequence[Any], width: float, size: float) -> int:
    """Most columns that fit: a legend fills column by column, each as wide as its longest text."""
    count = len(texts)
    widths = [text_width_pt(t, size) + (_handle(handles) + 1.7) * size for t in texts]
    for rows in range(1, count + 1):
        columns = math.ceil(count / rows)
        filled = np.array_split(np.array(widths), columns)  # the first ones have one more
        if sum(float(np.max(one)) for one in filled) <= width:
            return columns
    return 1


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


def amount(value: float, unit: str) -> str:
    """Number with an SI prefix: '410 µs', '1.63 TFLOP/s'."""
    return si(value, unit).replace(" u", " µ")


def si_tick(value: float, unit: str) -> str:
    """SI number without the trailing zeros of three digits: '200 GFLOP/s', '1 TFLOP/s'."""
    number, _, suffix = amount(value, unit).partition(" ")
    return f"{float(number):g} {suffix}" if suffix else number


Limits = tuple[float, float, float, float]

ROOM: Final = 0.6
"""Largest share of an axis kept free for labels."""

_APART_PT: Final = 7.0  # from the label of a tick to the next
_LINE_PT: Final = 11.5  # from line to line of a legend


@dataclass(frozen=True, slots=True)
class Measure:
    """An axis: its words, its unit for SI ticks ('' for plain numbers), its scale."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"


def legend_share(lines: float, height_pt: float) -> float:
    """Share of the axes' height that a legend of `lines` takes at the top."""
    return (lines * _LINE_PT + 4.0) / height_pt


def with_room(low: float, last: float, high: float, share: float) -> float:
    """Upper limit, at least `high`, that leaves `share` of a log axis beyond `last`."""
    share = min(share, ROOM)
    return max(high, math.exp((math.log(last) - share * math.log(low)) / (1 - share)))


def limits(
    roofs: Sequence[Roofline],
    points: Sequence[Point],
    ceiling: float | None,
    above: float = 0.0,
) -> Limits:
    """Intensities and performances from below every ridge to its plateau, around all points.

    Of the height, the share `above` stays free for a legend over roofs and points.
    """
    ridges = [r.ridge_flops_per_byte for r in roofs]
    intensities = [p.intensity_flops_per_byte for p in points]
    x_low = min([min(ridges) / 16, *(v / 3 for v in intensities)])
    x_high = max([max(ridges) * 16, *(v * 4 for v in intensities)])
    top = [r.flops_per_s for r in roofs] + ([ceiling] if ceiling else [])
    top += [p.high_flops_per_s or p.flops_per_s for p in points]
    bottom = [float(r.smooth(x_low)) for r in roofs]
    bottom += [(p.low_flops_per_s or p.flops_per_s) / 2.5 for p in points]
    y_high = with_room(min(bottom), max(top), max(top) * 2.5, above)
    return x_low, x_high, min(bottom), y_high


def apply(ax: Axes, frame: Limits) -> None:
    """Make the axes of a roofline logarithmic, with these limits."""
    x_low, x_high, y_low, y_high = frame
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(x_low, x_high)
    ax.set_ylim(y_low, y_high)
    ticks(ax.xaxis)
    ticks(ax.yaxis, "FLOP/s")


def ticks(axis: Axis, unit: str = "", most: int = 7, ratio: float | None = None) -> None:
    """Set ticks, at most about so many on a linear axis, with SI prefixes where there is a unit.

    On a logarithmic axis the ends of which have at most this `ratio`, 2 and 5 are named, too.
    """
    low, high = axis.get_view_interval()
    if axis.get_scale() == "linear":
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
        if not unit:
            axis.set_major_formatter(ScalarFormatter(useOffset=False))
    else:
        few = high / low <= (ratio or (300.0 if isinstance(axis, YAxis) else 30.0))
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_minor_locator(LogLocator(subs=range(2, 10)))
        axis.set_minor_formatter(NullFormatter())
    if unit or (axis.get_scale() == "log" and low > 1e-5 and high < 1e6):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, unit)))


def ticks_at(ax: Axes, places: Sequence[float], width_pt: float, unit: str = "") -> None:
    """Put the ticks of the horizontal axis at these values, but where labels would touch."""
    scale = math.log if ax.get_xscale() == "log" else float
    low, high = (scale(v) for v in ax.get_xlim())
    per_unit = width_pt / (high - low)
    half = {v: text_width_pt(tick_text(v, unit)) / 2 for v in places}
    shown: list[float] = []
    for value in sorted(places, reverse=True):
        if shown:
            space = per_unit * (scale(shown[-1]) - scale(value))
            if space < half[value] + half[shown[-1]] + _APART_PT:
                continue
        shown.append(value)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(FixedLocator([v for v in places if v not in shown]))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, unit)))


def ring(ax: Axes, x: float, y: float, size_pt: float, transform: Any = None) -> None:
    """Mark a point above its roof."""
    ax.add_line(Line2D([x], [y], **RING | {"ms": size_pt}, transform=transform or ax.transData))


def tick_text(value: float, unit: str) -> str:
    """Return '200 GFLOP/s' with a unit, else '3,000' or '1e-07'."""
    if unit:
        return si_tick(value, unit) if value else "0"
    return f"{value:,.10g}" if value == 0 or 1e-4 < abs(value) < 1e6 else f"{value:g}"


def rows(ax: Axes, names: Sequence[str], named: bool = True) -> None:
    """Make the vertical axis rows with these names, the first at the top."""
    ax.set_yticks(range(len(names)), [plain(name) for name in names] if named else [])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)


def room_at_end(ax: Axes, longest: float, texts: Sequence[str], width_pt: float) -> None:
    """Set the end of the horizontal axis so that `texts` fit behind the longest bar."""
    low = ax.get_xlim()[0]
    share = min(0.7, (max(text_width_pt(t, VALUE_PT) for t in texts) + 9.0) / width_pt)
    if ax.get_xscale() == "log":
        ax.set_xlim(low, with_room(low, longest, longest, share))
    else:
        ax.set_xlim(low, low + (longest - low) / (1 - share))
