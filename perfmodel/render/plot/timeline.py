"""A timeline: bars by rank and lane over one axis of time, as a profiler's screen shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    CAUSE_COLORS,
    COPYING,
    GREY,
    INK,
    KERNEL,
    LABEL_PT,
    SENDING,
    VALUE_PT,
    amount,
    axes_of,
    finish,
    legend_above,
    plain,
    size_pt,
    text_width_pt,
)
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.timeline import COPIES, Bar, Lane

COLORS: Final[Mapping[str, str]] = {
    "range": "#dfe5ea", "mpi": SENDING, "api": "#7a8b99", "kernel": KERNEL, "graph": KERNEL,
    "nccl": SENDING, **dict.fromkeys(COPIES, COPYING), **CAUSE_COLORS,
}  # fmt: skip
"""Of every kind of bar; copies differ by their lane and their label."""
WORDS: Final = {
    "range": "NVTX range", "mpi": "MPI call", "api": "CUDA API call", "kernel": "kernel",
    "graph": "CUDA graph", "nccl": "NCCL kernel", "h2d": "copy host to device",
    "d2h": "copy device to host", "d2d": "copy on a device", "p2p": "copy between devices",
    "copy": "other copy", "memset": "memset",
    **{cause: f"idle: {CAUSE_NAMES[cause]}" for cause in CAUSE_COLORS},
}  # fmt: skip
_PARTLY: Final = "partly filled columns: share of the time"
_PALE: Final = 0.3
"""Opacity of what belongs to other batches."""

WIDTHS_IN: Final = {"single": 3.5, "double": 7.2, "wide": 11.0}
_LANE_IN: Final = 0.17
_MOST_LANES: Final = 500
_LABEL_PT: Final = 6.0
_PAD_PT: Final = 1.5
_FULL: Final = 0.84  # of a lane's height is the bar's
_NARROW: Final = 0.3  # where it waits for other ranks
_SHORTEST: Final = 4  # letters of a shortened label that still say something
_NUMBER: Final = re.compile(r" \d{1,2}$")
_TICKS: Final = 9
_HEIGHTS: Final = 24
"""Heights of a column in a lane, which is 12 points high."""
_COLUMN_PT: Final = 1.0
"""Width of a column; what is shorter is drawn as its share of the column's time."""
_LONG_US: Final = 2_000.0


def timeline(
    lanes: Sequence[Lane],
    start_ns: int,
    end_ns: int,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    since: str = "the start of the step",
    width: str = "wide",
) -> Axes:
    """Draw the bars of a window, one row for every lane.

    A label is written on its bar where it fits, else shortened, else left out: labels never
    touch. What belongs to other batches is pale. Bars shorter than a column of one point are not
    drawn as such: the column is filled to the share of its time that they take, by kind.

    Parameters
    ----------
    lanes : sequence of Lane
        Those of a rank in succession.
    start_ns, end_ns : int
        The window; time is counted from its start, and bars are cut at its borders.
    since : str
        What the window starts with.
    width : {'single', 'double', 'wide'}
        Of a figure of its own: one or two columns of a page, or a screen.
    """
    if not lanes or end_ns <= start_ns:
        raise ModelError("expected bars to draw; got none in the window; choose another step")
    if len(lanes) > _MOST_LANES:
        raise ModelError(
            f"expected at most {_MOST_LANES} lanes in a picture; got {len(lanes)}; choose fewer "
            f"ranks with --rank, or write a trace with -o FILE.json"
        )
    rows = _rows(lanes)
    height = max(rows) + 1.0
    ax = axes_of(ax, WIDTHS_IN[width], 1.3 + _LANE_IN * height)
    ax.set_xlim(0.0, (end_ns - start_ns) * 1e-3)
    ax.set_ylim(height + 0.2, -0.2)
    _frame(ax, lanes, rows)
    columns = int(72 * ax.figure.canvas.figure.get_figwidth() / _COLUMN_PT)
    least_ns = (end_ns - start_ns) / columns
    _time_axis(ax, since)
    for kind in kinds(lanes):
        _draw_bars(ax, kind, [*zip(rows, lanes, strict=True)], start_ns, end_ns, least_ns)
    for at, lane in zip(rows, lanes, strict=True):
        _draw_columns(ax, at, lane, (start_ns, end_ns), columns)
    if any(b.end_ns - b.start_ns < least_ns for lane in lanes for b in lane.bars):
        ax.set_xlabel(f"{ax.get_xlabel()}; {_PARTLY}")
        if text_width_pt(ax.get_xlabel(), LABEL_PT) > 0.75 * columns * _COLUMN_PT:
            ax.set_xlabel(ax.get_xlabel().replace("; ", "\n"))
    _legend(ax, lanes, title)
    width_pt = size_pt(ax)[0]
    for at, lane in zip(rows, lanes, strict=True):
        _write_labels(ax, at, lane, (start_ns, end_ns), width_pt)
    return ax


def kinds(lanes: Sequence[Lane]) -> list[str]:
    """Return the kinds of bars, in the order in which they are drawn and explained."""
    seen = {bar.kind for lane in lanes for bar in lane.bars}
    return [kind for kind in COLORS if kind in seen]


def _rows(lanes: Sequence[Lane]) -> list[float]:
    """Return the place of every lane; a rank begins with a row for its name."""
    rows: list[float] = []
    at, before = 0.0, object()
    for lane in lanes:
        if lane.rank != before:
            at += 1.0 if before is None or isinstance(before, int) else 0.75
            before = lane.rank
        rows.append(at)
        at += 1.0
    return rows


def _frame(ax: Axes, lanes: Sequence[Lane], rows: Sequence[float]) -> None:
    """Names of lanes and ranks, lines between ranks."""
    ax.set_yticks([at + 0.5 for at in rows], [plain(lane.name) for lane in lanes])
    before: Any = object()
    for at, lane in zip(rows, lanes, strict=True):
        if lane.rank == before:
            continue
        before = lane.rank
        name = "no rank" if lane.rank is None else f"rank {lane.rank}"
        ax.annotate(
            name, (0.0, at), xycoords=("axes fraction", "data"), xytext=(0, 1),
            textcoords="offset points", fontsize=VALUE_PT, fontweight="bold", color=INK,
            va="bottom", ha="left", annotation_clip=False,
        )  # fmt: skip
        ax.axhline(at - 0.02, color=GREY, lw=0.6, zorder=1.5)


def _time_axis(ax: Axes, since: str) -> None:
    """Ticks in µs, or in ms where the window is long."""
    unit, scale = ("ms", 1e-3) if ax.get_xlim()[1] > _LONG_US else ("µs", 1.0)
    finish(ax, f"Time since {since} ({unit})", "", "x")
    ax.tick_params(axis="y", labelsize=VALUE_PT, length=0)
    ax.locator_params(axis="x", nbins=_TICKS)
    ax.xaxis.set_major_formatter(lambda value, _: f"{scale * value:,.10g}")
    ax.spines["left"].set_visible(False)


def _draw_bars(
    ax: Axes, kind: str, lanes: Sequence[tuple[float, Lane]], start_ns: int, end_ns: int,
    least_ns: float,
) -> None:  # fmt: skip
    """Draw the bars of a kind that a column has no room for, those of other batches pale.

    They are narrow as long as they wait for other ranks.
    Idle time has no edges, which would make a thousand short gaps look like long ones.
    """
    edge = "none" if kind in CAUSE_COLORS else _edge(COLORS[kind])
    for own in (False, True):
        corners = [
            _corners(at, bar, start_ns, end_ns)
            for at, lane in lanes for bar in lane.bars
            if bar.kind == kind and bar.own is own and bar.end_ns - bar.start_ns >= least_ns
        ]  # fmt: skip
        if corners:
            ax.add_collection(
                PolyCollection(
                    corners, facecolor=COLORS[kind], edgecolor=edge, lw=0.3,
                    alpha=None if own else _PALE, zorder=2, gid=f"{kind}{'' if own else ' others'}",
                ),
                autolim=False,
            )  # fmt: skip


def _draw_columns(ax: Axes, at: float, lane: Lane, window: tuple[int, int], columns: int) -> None:
    """Fill columns of a lane from below to the share of their time that short bars take."""
    start, end = window
    width = (end - start) / columns
    edges: npt.NDArray[Any] = np.arange(columns + 1) * width * 1e-3
    low = at + (1 + _FULL) / 2
    parts = shares(lane.bars, window, columns)
    total: npt.NDArray[Any] = np.sum([*parts.values(), np.zeros(columns)], axis=0)
    scale = _FULL / np.maximum(total, 1.0)
    base: npt.NDArray[Any] = np.zeros(columns)
    for (kind, own), share in parts.items():
        top: npt.NDArray[Any] = base + np.round(share * scale * _HEIGHTS) / _HEIGHTS
        filled = np.flatnonzero(top > base)
        runs = np.split(filled, np.flatnonzero(np.diff(filled) > 1) + 1) if len(filled) else []
        outlines = []
        for run in runs:
            x = edges[run[0] : run[-1] + 2]
            there, back = _stairs(x, low - top[run]), _stairs(x, low - base[run])
            outlines.append(np.concatenate([there, back[::-1]]))
        ax.add_collection(
            PolyCollection(
                outlines, facecolor=COLORS[kind], edgecolor="none", zorder=2,
                alpha=None if own else _PALE, gid=f"{kind} columns{'' if own else ' others'}",
            ),
            autolim=False,
        )  # fmt: skip
        base = top


def _stairs(
    edges: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the corners of columns of these heights, between one more edges."""
    turns = np.flatnonzero(np.diff(heights)) + 1
    x = np.concatenate([edges[:1], np.repeat(edges[turns], 2), edges[-1:]])
    y = np.repeat(heights[np.concatenate([[0], turns])], 2)
    return np.column_stack([x, y])


def shares(
    bars: Sequence[Bar], window: tuple[int, int], columns: int
) -> dict[tuple[str, bool], npt.NDArray[np.float64]]:
    """Return the share of every column's time that bars shorter than it take.

    Parameters
    ----------
    bars : sequence of Bar
    window : (int, int)
        Start and end in ns.
    columns : int
        Into how many equal columns the window is cut.

    Returns
    -------
    dict
        By kind and whether they belong to the batch: float64, shape (columns,); more than 1 where
        they overlap.
    """
    start, end = window
    width = (end - start) / columns
    short: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for bar in bars:
        if bar.end_ns - bar.start_ns < width and bar.start_ns < end and bar.end_ns > start:
            short.setdefault((bar.kind, bar.own), []).append((bar.start_ns, bar.end_ns))
    found: dict[tuple[str, bool], npt.NDArray[np.float64]] = {}
    for key in [(kind, own) for kind in COLORS for own in (True, False)]:
        if key not in short:
            continue
        at = (np.clip(np.array(short[key]), start, end) - start) / width
        first = np.minimum(at[:, 0].astype(np.intp), columns - 1)
        here = np.minimum(at[:, 1], first + 1.0) - at[:, 0]
        share: npt.NDArray[Any] = np.bincount(first, here, columns)
        share += np.bincount(first + 1, at[:, 1] - at[:, 0] - here, columns + 1)[:columns]
        found[key] = share
    return found


def _corners(at: float, bar: Bar, start_ns: int, end_ns: int) -> npt.NDArray[np.float64]:
    left, last, right = (
        (min(max(ns, start_ns), end_ns) - start_ns) * 1e-3
        for ns in (bar.start_ns, bar.start_ns + bar.waits_ns, bar.end_ns)
    )
    top, low = at + (1 - _FULL) / 2, at + (1 + _FULL) / 2
    whole = [(last, top), (right, top), (right, low), (last, low)]
    if bar.waits_ns <= 0:
        return np.array(whole)
    over, under = at + (1 - _NARROW) / 2, at + (1 + _NARROW) / 2
    return np.array([(left, over), (last, over), *whole, (last, under), (left, under)])


def _edge(color: str) -> tuple[float, float, float]:
    red, green, blue = to_rgb(color)
    return 0.72 * red, 0.72 * green, 0.72 * blue


def _legend(ax: Axes, lanes: Sequence[Lane], title: str | None) -> None:
    """Explain the colours that there are."""
    words: dict[str, list[str]] = {}
    for kind in kinds(lanes):
        words.setdefault(COLORS[kind], []).append(WORDS[kind])
    handles: list[Artist] = [
        Patch(facecolor=color, edgecolor=_edge(color), lw=0.3, label=_together(said))
        for color, said in words.items()
    ]
    if any(bar.waits_ns > 0 for lane in lanes for bar in lane.bars):
        kind = next(b.kind for lane in lanes for b in lane.bars if b.waits_ns > 0)
        handles.append(Line2D([], [], color=COLORS[kind], lw=2, label="waiting for other ranks"))
    if any(not bar.own for lane in lanes for bar in lane.bars):
        handles.append(
            Patch(facecolor=GREY, edgecolor=INK, lw=0.3, alpha=_PALE, label="other steps")
        )
    texts = [str(handle.get_label()) for handle in handles]
    legend_above(ax, handles, texts, title=title, size=VALUE_PT)


def _together(words: Sequence[str]) -> str:
    """Name the kinds of one colour."""
    copies = [word for word in words if word in map(WORDS.get, COPIES)]
    others = [word for word in words if word not in copies]
    return ", ".join([*others, *(["copy or memset"] if len(copies) > 1 else copies)])


def _write_labels(
    ax: Axes, at: float, lane: Lane, window: tuple[int, int], width_pt: float
) -> None:
    """Write on every bar of a lane what fits, where no bar with a label is below."""
    start, end = window
    scale = width_pt / (end - start)
    written = start
    for bar in lane.bars:
        left, right = max(bar.start_ns + bar.waits_ns, start), min(bar.end_ns, end)
        width = (right - left) * scale - 2 * _PAD_PT
        if width < _LABEL_PT or left < written:
            continue
        timed = f"{bar.label}, {amount((bar.end_ns - bar.start_ns) * 1e-9, 's')}"
        text = plain(timed) if _fits(timed, width) else fitting(bar.label, width)
        if text:
            written = right
            ink = INK if _luminance(bar.kind) > 0.45 or not bar.own else "white"
            ax.text(
                ((left + right) / 2 - start) * 1e-3, at + 0.5, text, fontsize=_LABEL_PT, color=ink,
                ha="center", va="center_baseline", zorder=3, in_layout=False,
                gid=f"{bar.kind} label{'' if bar.own else ' others'}",
            )  # fmt: skip


def fitting(label: str, width_pt: float) -> str:
    """Return the label as matplotlib is to write it, shortened to the width; '' if too narrow.

    A short number at the end stays, which tells 'forward GEMM 1' from 'forward GEMM 2'.
    """
    if width_pt < _LABEL_PT:
        return ""
    if _fits(label, width_pt):
        return plain(label)
    number = _NUMBER.search(label)
    tail = "…" + (number[0] if number else "")
    low, high = 0, min(len(label) - 1, _most(width_pt))
    while low < high:  # the longest beginning that fits with its tail
        middle = (low + high + 1) // 2
        fits = _width(label[:middle] + tail) <= width_pt
        low, high = (middle, high) if fits else (low, middle - 1)
    return plain(label[:low].rstrip() + tail) if low >= _SHORTEST else ""


def _fits(text: str, width_pt: float) -> bool:
    return len(text) <= _most(width_pt) and _width(text) <= width_pt


def _most(width_pt: float) -> int:
    """More letters than fit, whatever they are: what is longer is not measured."""
    return int(width_pt / (0.2 * _LABEL_PT)) + 1


@lru_cache(maxsize=8192)
def _width(text: str) -> float:
    return text_width_pt(plain(text), _LABEL_PT) * 1.04  # hinting widens letters on the screen


def _luminance(kind: str) -> float:
    red, green, blue = to_rgb(COLORS[kind])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
