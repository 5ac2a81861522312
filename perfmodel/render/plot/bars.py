"""Horizontal bars and dots, one row for each thing: times, shares of a whole, savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    BLUE,
    BOUND,
    CAUSE_COLORS,
    DARK_BLUE,
    DASHED,
    DOUBLE_IN,
    FILLS,
    GRID,
    INK,
    LABEL_PT,
    MARKERS,
    PALE_BLUE,
    PALE_GREY,
    PALETTE,
    SINGLE_IN,
    VALUE_PT,
    Measure,
    amount,
    axes_of,
    entry,
    finish,
    legend_above,
    plain,
    room_at_end,
    rows,
    shortened,
    size_pt,
    text_width_pt,
    ticks,
)
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.step_facts import IdleCause

if TYPE_CHECKING:
    from perfmodel.analysis.compare.compare import Row as Compared
    from perfmodel.analysis.result import RangeRow

Clock = tuple[str, str, str]

CLOCKS: Final[tuple[Clock, ...]] = (
    ("host_s", "host time", PALE_BLUE),
    ("gpu_projection_s", "GPU projection", BLUE),
    ("gpu_busy_s", "GPU busy", DARK_BLUE),
)
_QUEUED: Final = "step: until done; ranges: host, queueing"
_LONGEST: Final = 40  # letters of a range's name
_MOST_ROWS: Final = 80
_TALL_IN: Final = 8.0
"""Height of all bars together that is not passed."""
_MOST_NAMES: Final = 64
"""Rows of that height that are named."""
_PLATE: Final[dict[str, Any]] = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
"""The background of a number, so that hatching and lines do not cross it."""

_PREDICTED: Final[dict[str, Any]] = {"facecolor": BLUE, "edgecolor": INK}
_SOURCES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "bound": (BOUND, "at most, by the report alone; line: 90 % by its steps"),
    "model": (_PREDICTED, "predicted by the model; line: 90 % of next launches"),
    "replay": (_PREDICTED, "by a replay of the recorded steps; savings overlap"),
}
"""Look and name of savings in the legend."""
_APART: Final = 0.17
"""From a row's middle to the values of two kinds that have intervals, in rows."""


def breakdown(
    ranges: Sequence[RangeRow],
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
    ranges : sequence of RangeRow
        Ranges in the order of the tree, the batch first. Of more than 80, the batch and the
        longest; the title says so.
    ax : matplotlib Axes, optional
        Where to draw; by default a figure of its own, 7.2 inches wide.
    title : str, optional
    queued : bool
        The host only queues: the batch's host time is that until all its work is done, and that of
        other ranges the time of queueing, which the legend then says.

    Raises
    ------
    ModelError
        If there is no time to draw.
    """
    if len(ranges) > _MOST_ROWS:
        title = f"{title or 'A median batch'}: the {_MOST_ROWS} longest of {len(ranges)} ranges"
        ranges = _longest(ranges)
    known = [
        [(clock, t) for clock in CLOCKS if (t := getattr(row, clock[0])) is not None]
        for row in ranges
    ]
    if not known or not known[0] or not known[0][0][1] > 0:
        raise ModelError("a breakdown needs the time of the step in its first row; got none")
    used = [clock for clock in CLOCKS if any(clock == c for line in known for c, _ in line)]
    foreign = ax is not None
    ax = axes_of(ax, DOUBLE_IN, 1.0 + len(ranges) * (0.115 * len(used) + 0.07))
    _tree(ax, ranges)
    finish(ax, "Median time, and its share of the step", "", "x")
    width = size_pt(ax, foreign)[0]
    _clocks(ax, known, 0.9 / len(used), width)
    handles = [Patch(facecolor=color, edgecolor=INK, lw=0.3) for _, _, color in used]
    names = [_QUEUED if queued and key == "host_s" else name for key, name, _ in used]
    legend_above(ax, handles, names, title=title, width_pt=width)
    if text_width_pt(ax.get_xlabel(), LABEL_PT) > width:
        ax.set_xlabel("Median time")
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="x", length=0)
    return ax


def _longest(ranges: Sequence[RangeRow]) -> list[RangeRow]:
    """Return the first row and the longest others, in their order."""
    by_time = sorted(range(1, len(ranges)), key=lambda i: -(ranges[i].host_s or 0.0))
    return [ranges[i] for i in sorted([0, *by_time[: _MOST_ROWS - 1]])]


def _clocks(
    ax: Axes, known: Sequence[Sequence[tuple[Clock, float]]], height: float, width: float
) -> None:
    """Draw the bars of every row, centred on it, and write their values beside them."""
    whole, texts = known[0][0][1], []
    bars: dict[str, list[tuple[float, float]]] = {}
    for i, line in enumerate(known):
        for j, ((_, _, color), seconds) in enumerate(line):
            y = i + (j - (len(line) - 1) / 2) * height
            bars.setdefault(color, []).append((y, seconds))
            share = 100 * seconds / whole
            texts.append(f"{amount(seconds, 's')}  {share:.{0 if share >= 9.95 else 1}f} %")
            _write(ax, texts[-1], seconds, y)
    for color, found in bars.items():
        places, lengths = zip(*found, strict=True)
        ax.barh(places, lengths, height * 0.82, color=color, edgecolor=INK, lw=0.3, zorder=2)
    ax.set_xlim(left=0)
    room_at_end(ax, max(seconds for line in known for _, seconds in line), texts, width)
    ticks(ax.xaxis, "s", max(2, int(width / 50)))


def _tree(ax: Axes, ranges: Sequence[RangeRow]) -> None:
    """Label the rows on the left, flush left, indented by their depth."""
    root = min(len(row.path) for row in ranges)
    names = [
        "\u2003" * (len(row.path) - root) + shortened(row.path[-1], _LONGEST) for row in ranges
    ]
    rows(ax, names)
    ax.tick_params(axis="y", pad=max(text_width_pt(plain(n)) for n in names) + 6)
    for label in ax.get_yticklabels():
        label.set_horizontalalignment("left")


@dataclass(frozen=True, slots=True)
class SavingBar:
    """One change: seconds saved, and a 90 % interval where one is known.

    `source` is 'model' for a prediction, whose interval is for the next launch, 'bound' for an
    upper bound, whose interval is for the steps of the report, and 'replay'.
    """

    label: str
    saving_s: float
    low_s: float | None
    high_s: float | None
    source: Literal["model", "bound", "replay"]


def savings(
    found: Sequence[SavingBar], batch_s: float, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw savings, in the order given, from the top; upper bounds are hatched.

    Parameters
    ----------
    found : sequence of SavingBar
    batch_s : float
        The batch that they are savings of.
    ax : matplotlib Axes, optional
    title : str, optional

    Raises
    ------
    ModelError
        If there is no change to draw.
    """
    if not found:
        raise ModelError("expected changes to draw; got none: the run has made them all")
    foreign = ax is not None
    ax = axes_of(ax, DOUBLE_IN, 1.3 + 0.24 * len(found))
    rows(ax, [one.label for one in found])
    texts = []
    for i, one in enumerate(found):
        ax.barh(i, one.saving_s, 0.62, lw=0.6, zorder=2, **_SOURCES[one.source][0])
        if one.low_s is not None and one.high_s is not None:
            _interval(ax, i, one.low_s, one.high_s, INK)
        share = 100 * one.saving_s / batch_s
        most = "≤ " * (one.source == "bound")
        texts.append(f"{most}{amount(one.saving_s, 's')}  {share:.0f} %")
        _write(ax, texts[-1], max(one.saving_s, one.high_s or 0.0, 0.0), i)
    ax.axvline(0, color=INK, lw=0.6)
    finish(ax, f"Saved of {amount(batch_s, 's')} a step", "", "x")
    ax.set_xlim(left=1.05 * min(0.0, *(one.low_s or 0.0 for one in found)))
    longest = max(1e-9, *(max(one.saving_s, one.high_s or 0.0) for one in found))
    width = size_pt(ax, foreign)[0]
    room_at_end(ax, longest, texts, width)
    ticks(ax.xaxis, "s")
    looks = {
        name: Patch(lw=0.6, **look)
        for source in dict.fromkeys(one.source for one in found)
        for look, name in [_SOURCES[source]]
    }
    legend_above(ax, list(looks.values()), list(looks), title=title, width_pt=width)
    return ax


def pairs(found: Sequence[Compared], sides: tuple[str, str], *, title: str | None = None) -> Axes:
    """Draw everything twice, before above after, with the ratio and its verdict.

    Parameters
    ----------
    found : sequence of perfmodel.analysis.compare.compare.Row
    sides : (str, str)
        What the legend calls the two.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    """
    if not any(one.before_s or one.after_s for one in found):
        raise ModelError("expected times to draw; got none on both sides")
    ax = axes_of(None, DOUBLE_IN, 1.2 + 0.34 * len(found))
    rows(ax, [shortened(one.name, _LONGEST) for one in found])
    finish(ax, "Time of a step", "", "x")
    looks: list[dict[str, Any]] = [{"facecolor": PALE_BLUE}, {"facecolor": DARK_BLUE}]
    texts = []
    for i, one in enumerate(found):
        for j, seconds in enumerate((one.before_s, one.after_s)):
            ax.barh(i + 0.36 * j - 0.18, seconds or 0.0, 0.34, edgecolor=INK, lw=0.3, zorder=2,
                    **looks[j])  # fmt: skip
        ends = [amount(s, "s") if s is not None else "none" for s in (one.before_s, one.after_s)]
        texts.append(f"{ends[0]} → {ends[1]}, {one.verdict}")
        _write(ax, texts[-1], max(one.before_s or 0.0, one.after_s or 0.0), i)
    width = size_pt(ax)[0]
    ax.set_xlim(left=0)
    room_at_end(ax, max(max(o.before_s or 0.0, o.after_s or 0.0) for o in found), texts, width)
    ticks(ax.xaxis, "s")
    handles = [Patch(edgecolor=INK, lw=0.3, **look) for look in looks]
    legend_above(ax, handles, sides, title=title, width_pt=width)
    return ax


def stacks(
    bars: Mapping[str, Mapping[str, float]],
    *,
    unit: str = "",
    total: str = "",
    rest: str = "",
    label: str = "Share of the time (%)",
    named: bool = True,
    legend: bool = True,
    colors: Mapping[str, str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    width_in: float = DOUBLE_IN,
) -> Axes:
    """Draw every bar as its parts, in a row: shares of the whole in per cent, or amounts.

    Parameters
    ----------
    bars : mapping of str to mapping of str to float
        By the bar's name, amounts by part; bars share the names of parts.
    unit : str
        Draw amounts in this unit; shares without one.
    total : str
        The unit of the wholes, which are written below the names of rows.
    rest : str
        The part that is what is left, which is light grey.
    label : str
        Of the horizontal axis.
    named, legend : bool
        Whether rows are named and parts explained here; not in panels beside another.
    colors : mapping of str to str, optional
        By part; `FILLS` in turn by default.

    Raises
    ------
    ModelError
        If there is no bar, or one whose parts are not all at least 0 or add up to nothing.
    """
    if not bars or not all(
        p and sum(p.values()) > 0 and min(p.values()) >= 0 for p in bars.values()
    ):
        raise ModelError("expected bars with parts of at least 0; got none, or others")
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    foreign = ax is not None
    row_in = min(0.34 if total else 0.3, _TALL_IN / len(bars))
    ax = axes_of(ax, width_in, 1.0 + row_in * len(bars))
    rows(ax, list(bars), named)
    finish(ax, label, "", "x")
    wholes = [sum(bar.values()) for bar in bars.values()]
    if total:
        said = zip(bars, wholes, strict=True)
        ax.set_yticklabels([f"{plain(name)}\n{amount(whole, total)}" for name, whole in said])
    ax.set_xlim(0, 1.02 * max(wholes) if unit else 100)
    ticks(ax.xaxis, unit, 5)
    width = size_pt(ax, foreign)[0]
    looks = {part: part_look(i) for i, part in enumerate(p for p in parts if p != rest)}
    if colors:
        looks = {p: {"facecolor": colors[p], "edgecolor": "none"} for p in parts if p != rest}
    looks[rest] = {"facecolor": PALE_GREY, "edgecolor": "white", "lw": 0.5}
    for row, (bar, whole) in enumerate(zip(bars.values(), wholes, strict=True)):
        left = 0.0
        for part, value in bar.items():
            size = value if unit else 100 * value / whole
            ax.barh(row, size, 0.68, left=left, zorder=2, **looks[part])
            text = f"{100 * value / whole:.0f}"
            if not unit and text_width_pt(text, VALUE_PT) + 4 < size / 100 * width:
                ax.text(left + size / 2, row, text, fontsize=VALUE_PT, ha="center",
                        va="center_baseline", color=INK, zorder=3, bbox=_PLATE)  # fmt: skip
            left += size
    if legend:
        handles = [Patch(**looks[part]) for part in parts]
        legend_above(ax, handles, parts, title=title, width_pt=width)
    else:
        for part in parts:
            ax.barh(0, 0, label=entry(plain(part)), **looks[part])
    return ax


def idle(causes: Sequence[IdleCause], *, title: str | None = None) -> Axes:
    """Draw the idle time of every rank's GPU in a median step, a bar of causes for each."""
    shown = [CAUSE_NAMES[c] for c in CAUSE_COLORS if any(one.cause == c for one in causes)]
    ranks: dict[int, dict[str, float]] = {}
    for one in causes:
        parts = ranks.setdefault(one.rank, dict.fromkeys(shown, 0.0))
        parts[CAUSE_NAMES[one.cause]] += one.seconds
    bars = {f"rank {rank}": found for rank, found in sorted(ranks.items()) if any(found.values())}
    label = "Idle time of the GPU in a median step"
    colors = {CAUSE_NAMES[cause]: color for cause, color in CAUSE_COLORS.items()}
    ax = stacks(bars, unit="s", label=label, colors=colors, title=title)
    every = -(-len(bars) // _MOST_NAMES)
    ax.set_yticks(range(0, len(bars), every), list(bars)[::every])
    ax.tick_params(axis="y", labelsize=VALUE_PT)
    return ax


def part_look(i: int) -> dict[str, Any]:
    """Filling of the i-th part of a bar."""
    color, hatch = FILLS[i % len(FILLS)]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "lw": 0.5}


@dataclass(frozen=True, slots=True)
class Dot:
    """One value of one kind in one row, perhaps with an interval, perhaps hollow."""

    row: str
    kind: str
    value: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False


def dots(
    found: Sequence[Dot],
    x: Measure,
    *,
    names: Sequence[str] = (),
    limits: tuple[str, Mapping[str, float]] | None = None,
    levels: Mapping[str, float] | None = None,
    written: str = "",
    hollow: str = "",
    named: bool = True,
    legend: bool = True,
    apart: float = 0.0,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw rows in the order they come, a marker and colour for every kind.

    Kinds that have intervals stand below each other in their row.

    Parameters
    ----------
    found : sequence of Dot
    x : Measure
    names : sequence of str
        The rows, where they are more than those of `found`, as in panels that share them.
    limits : (str, mapping of str to float), optional
        What it is, and by row where: a short line that cannot be passed, such as the time at a
        machine's peaks.
    levels : mapping of str to float, optional
        Dashed lines through all rows, such as another program's time, by what they are.
    written : str
        The kind whose values are also written in numbers.
    hollow : str
        What hollow dots are.
    named, legend : bool
        Whether rows are named and kinds explained here; not in panels beside another.
    apart : float
        Values of one kind and row that are closer stand above each other.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    """
    if not found:
        raise ModelError("expected values to draw; got none; measure some")
    names = list(names) or list(dict.fromkeys(d.row for d in found))
    kinds = list(dict.fromkeys(d.kind for d in found))
    foreign = ax is not None
    ax = axes_of(ax, SINGLE_IN, 0.9 + 0.24 * len(names))
    ax.set_xscale(x.scale)
    rows(ax, names, named)
    finish(ax, x.label, "", "x")
    spread = any(d.low is not None for d in found)
    for i, name in enumerate(names):
        mine = [d.value for d in found if d.row == name]
        if mine and not spread:
            ax.plot([min(mine), max(mine)], [i, i], color=GRID, lw=2.5, zorder=1)
    for k, kind in enumerate(kinds):
        color, marker = PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]
        same = [d for d in found if d.kind == kind]
        for d, step in zip(same, _steps(same, apart), strict=True):
            y = names.index(d.row) + (_APART * (2 * k - len(kinds) + 1) if spread else 0.0)
            y += _APART * step
            if d.low is not None and d.high is not None:
                _interval(ax, y, d.low, d.high, color)
            _dot(ax, [d.value], [y], marker, color, hollow=d.hollow)
            if kind == written:
                _write(ax, amount(d.value, x.unit), d.value, y, 6.0, bbox=_PLATE | {"alpha": 0.8})
        _dot(ax, [], [], marker, color, label=kind)
    if hollow and any(d.hollow for d in found):
        _dot(ax, [], [], "o", INK, label=hollow, hollow=True)
    what, places = limits or ("", {})
    for name, place in places.items():
        at = names.index(name)
        ax.plot([place, place], [at - 0.4, at + 0.4], color=INK, lw=1.8, zorder=3)
    if places:
        ax.plot([], [], color=INK, ls="", marker="|", ms=9, mew=1.8, label=entry(plain(what)))
    for color, (name, level) in zip((INK, *PALETTE[:0:-1]), (levels or {}).items(), strict=False):
        ax.axvline(level, color=color, lw=1.1, ls=DASHED, zorder=2, label=entry(plain(name)))
    if numbers := {amount(d.value, x.unit): d.value for d in found if d.kind == written}:
        room_at_end(ax, max(numbers.values()), list(numbers), size_pt(ax, foreign)[0])
    ticks(ax.xaxis, x.unit)
    handles, texts = ax.get_legend_handles_labels() if legend else ([], [])
    legend_above(ax, handles, texts, title=title, foreign=foreign)
    return ax


def _steps(found: Sequence[Dot], apart: float) -> list[float]:
    """Return how far from its row each dot stands, -1 to 1: 0 where no other is close."""
    groups: list[list[int]] = []
    for i in sorted(range(len(found)), key=lambda i: (found[i].row, found[i].value)):
        before = found[groups[-1][-1]] if groups else None
        one = found[i]
        if before and before.row == one.row and one.value - before.value < apart:
            groups[-1].append(i)
        else:
            groups.append([i])
    steps = [0.0] * len(found)
    for close in groups:
        for place, i in enumerate(close):
            steps[i] = (2 * place - len(close) + 1) / max(1, len(close) - 1)
    return steps


def _dot(
    ax: Axes, x: Sequence[float], y: Sequence[float], marker: str, color: str, *,
    hollow: bool = False, label: str = "",
) -> None:  # fmt: skip
    ax.plot(
        x, y, ls="", marker=marker, ms=5.5, color=color, mew=1.2, zorder=4, clip_on=not len(x),
        mfc="white" if hollow else color, label=entry(plain(label)) if label else None,
    )  # fmt: skip


def _interval(ax: Axes, y: float, low: float, high: float, color: str) -> None:
    """Draw an interval with ends."""
    ends, heights = [low] * 3 + [high] * 3, [y - 0.12, y + 0.12, y, y, y - 0.12, y + 0.12]
    ax.plot(ends, heights, color=color, lw=1.1, zorder=3)


def _write(ax: Axes, text: str, x: float, y: float, gap_pt: float = 4.0, **more: Any) -> None:
    """Write a value behind the end of its bar."""
    ax.annotate(
        text,
        (x, y),
        (gap_pt, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=VALUE_PT,
        color=INK,
        zorder=5,
        in_layout=False,
        **more,
    )  # fmt: skip  (the axes have room for it)
