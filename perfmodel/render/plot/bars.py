"""Where a median batch goes: three clocks for every range, as bars with values and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.render.plot.style import (
    GRID,
    INK,
    LABEL_PT,
    TEXT_PT,
    VALUE_PT,
    axes_of,
    finish,
    plain,
    put_title,
    shortened,
    si_tick,
    size_pt,
    text_width_pt,
)

Clock = tuple[str, str, str]

CLOCKS: Final[tuple[Clock, ...]] = (
    ("host_s", "host time", "#a6cee3"),
    ("gpu_projection_s", "GPU projection", "#3a87c0"),
    ("gpu_busy_s", "GPU busy", "#08306b"),
)
_QUEUED: Final = "batch: until done; ranges: host, queueing"
_LONGEST: Final = 40  # letters of a range's name
_MOST_ROWS: Final = 80


class Row(Protocol):
    """What a bar needs to know of a range; None is missing."""

    @property
    def path(self) -> tuple[str, ...]:
        """Labels from the outermost range inwards."""

    @property
    def host_s(self) -> float | None:
        """Median host time."""

    @property
    def gpu_projection_s(self) -> float | None:
        """Median time from the first GPU operation's start to the last one's end."""

    @property
    def gpu_busy_s(self) -> float | None:
        """Median time that the GPU was busy."""


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """One range of a median batch on three clocks, in seconds; None is missing."""

    path: tuple[str, ...]
    host_s: float | None
    gpu_projection_s: float | None = None
    gpu_busy_s: float | None = None


def breakdown(
    rows: Sequence[Row],
    *,
    ax: Axes | None = None,
    title: str | None = None,
    queued: bool = False,
) -> Axes:
    """Draw host time, GPU projection and GPU busy time of every range as horizontal bars.

    Values are followed by their share of the first row's host time (of its first clock known, if
    the host time is missing). A missing time has no bar; a clock missing everywhere no legend.

    Parameters
    ----------
    rows : sequence
        Ranges in the order of the tree, the batch first: `BreakdownRow` or anything with its
        attributes. Of more than 80, the batch and the longest; the title says so.
    ax : matplotlib Axes, optional
        Where to draw; by default a figure of its own, 6.2 inches wide.
    title : str, optional
    queued : bool
        The host only queues: the batch's host time is that until all its work is done, and that of
        other ranges the time of queueing, which the legend then says.

    Raises
    ------
    ModelError
        If there is no time to draw.
    """
    if len(rows) > _MOST_ROWS:
        title = f"{title or 'A median batch'}: the {_MOST_ROWS} longest of {len(rows)} ranges"
        rows = _longest(rows)
    known = [
        [(clock, t) for clock in CLOCKS if (t := getattr(row, clock[0])) is not None]
        for row in rows
    ]
    if not known or not known[0] or not known[0][0][1] > 0:
        raise ModelError("a breakdown needs the time of the batch in its first row; found none")
    used = [clock for clock in CLOCKS if any(clock == c for line in known for c, _ in line)]
    foreign = ax is not None
    ax = axes_of(ax, 6.2, 1.0 + len(rows) * (0.115 * len(used) + 0.07))
    _tree(ax, rows)
    ax.grid(True, axis="x", color=GRID, lw=0.6)
    finish(ax, "Median time, and its share of the batch", "")
    width = size_pt(ax, foreign)[0]
    _bars(ax, known, 0.9 / len(used), width)
    _legend(ax, [_named(clock, queued) for clock in used], title, width)
    if text_width_pt(ax.get_xlabel(), LABEL_PT) > width:
        ax.set_xlabel("Median time")
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="both", length=0)
    return ax


def _longest(rows: Sequence[Row]) -> list[Row]:
    """Return the first row and the longest others, in their order."""
    by_time = sorted(range(1, len(rows)), key=lambda i: -(rows[i].host_s or 0.0))
    return [rows[i] for i in sorted([0, *by_time[: _MOST_ROWS - 1]])]


def _bars(
    ax: Axes, known: Sequence[Sequence[tuple[Clock, float]]], height: float, width: float
) -> None:
    """Draw the bars of every row, centred on it, and write their values beside them."""
    whole = known[0][0][1]
    widest = 0.0
    for i, line in enumerate(known):
        for j, ((_, _, color), seconds) in enumerate(line):
            y = i + (j - (len(line) - 1) / 2) * height
            ax.barh(y, seconds, height * 0.82, color=color, edgecolor=INK, lw=0.3, zorder=2)
            text = si(seconds, "s").replace(" us", " µs") + f"  {_percent(seconds, whole)}"
            widest = max(widest, text_width_pt(text, VALUE_PT))
            ax.annotate(
                text, (seconds, y), (3, 0), textcoords="offset points", va="center_baseline",
                fontsize=VALUE_PT, color=INK, zorder=4,
            )  # fmt: skip
    longest = max(seconds for line in known for _, seconds in line)
    ax.set_xlim(0, longest / (1 - min(0.7, (widest + 9.0) / width)))
    ax.set_ylim(len(known) - 0.45, -0.55)
    ax.xaxis.set_major_locator(MaxNLocator(max(2, int(width / 50)), steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(_time_tick))


def _legend(ax: Axes, used: Sequence[Clock], title: str | None, width: float) -> None:
    """Put the legend between the bars and the title."""
    fits = sum(text_width_pt(name) + 28 for _, name, _ in used) < width
    rows = 1 if fits else len(used)
    ax.legend(
        [Patch(facecolor=color, edgecolor=INK, lw=0.3) for _, _, color in used],
        [name for _, name, _ in used],
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(used) if fits else 1,
        fontsize=TEXT_PT, handlelength=1.2, handleheight=0.8, borderaxespad=0.2, labelcolor=INK,
        columnspacing=1.2, borderpad=0.2, frameon=False,
    )  # fmt: skip
    put_title(ax, title, width, 7 + 13 * rows)


def _named(clock: Clock, queued: bool) -> Clock:
    """Name the host's clock for what it shows."""
    key, name, color = clock
    return (key, _QUEUED if queued and key == "host_s" else name, color)


def _time_tick(seconds: float, _: float) -> str:
    return si_tick(seconds, "s").replace("us", "µs") if seconds else "0"


def _percent(seconds: float, whole: float) -> str:
    share = 100 * seconds / whole
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %"


def _tree(ax: Axes, rows: Sequence[Row]) -> None:
    """Label the rows on the left, flush left, indented by their depth."""
    root = min(len(row.path) for row in rows)
    names = ["\u2003" * (len(row.path) - root) + shortened(row.path[-1], _LONGEST) for row in rows]
    widest = max(text_width_pt(plain(n)) for n in names)
    ax.set_yticks(np.arange(len(rows)), [plain(name) for name in names])
    ax.tick_params(axis="y", pad=widest + 6)
    for label in ax.get_yticklabels():
        label.set_horizontalalignment("left")
