"""Stretches of a report as a timeline shows them: a batch, a part of one, the training, all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.base.errors import SchemaError
from perfmodel.readers import read
from perfmodel.timing.run import Run, time_run
from perfmodel.timing.timeline import Bar, Lane, select
from perfmodel.timing.timeline_window import Window, median_batch, window_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH: Final = "batch iteration"


@dataclass(frozen=True, slots=True)
class View:
    """What ran in a stretch of time, by rank and lane.

    Attributes
    ----------
    lanes : tuple of Lane
    start_ns, end_ns : int
        On the clock of the report.
    since : str
        What the stretch starts with.
    batch : int or None
        The batch that is shown, if it is one.
    """

    lanes: tuple[Lane, ...]
    start_ns: int
    end_ns: int
    since: str
    batch: int | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def bars(self) -> int:
        """How many ranges, calls and GPU operations it shows."""
        return sum(len(lane.bars) for lane in self.lanes)

    def draw(self, ax: Axes | None = None) -> Axes:
        """Draw it; see `perfmodel.render.plot.timeline.timeline`."""
        from perfmodel.render.plot.timeline import timeline

        return timeline(self.lanes, self.start_ns, self.end_ns, ax=ax, since=self.since)


def batch_view(
    report: Path | str,
    *,
    batch: int | None = None,
    inside: Sequence[str] = (),
    ranks: Collection[int] | None = None,
) -> View:
    """Return one batch of a report, the median one by default.

    Parameters
    ----------
    report : Path or str
    batch : int, optional
        From 0.
    inside : sequence of str
        Only from the start of the first of these ranges to the end of the last, such as
        ('forward', 'backward').
    ranks : collection of int, optional
        All by default.

    Raises
    ------
    SchemaError
        If the report has no such batch, or the batch no such range.
    """
    run = _run(report)
    number = median_batch(run) if batch is None else batch
    window = window_of(run, range(number, number + 1))
    if not inside:
        return View(_lanes(run, window, ranks), window.start_ns, window.end_ns,
                    "the start of the batch", number)  # fmt: skip
    bars = [bar for bar in _ranges(_lanes(run, window, ranks)) if bar.own and bar.name in inside]
    start, end = _around(bars, inside, run)
    return View(_lanes(run, replace(window, start_ns=start, end_ns=end), ranks), start, end,
                f"the start of {inside[0]}", number)  # fmt: skip


def range_view(report: Path | str, name: str, *, ranks: Collection[int] | None = None) -> View:
    """Return what ran while the ranks were in a range, such as 'GPU parallel train'.

    Raises
    ------
    SchemaError
        If the report has no such range.
    """
    run = _run(report)
    everything = select(run, None, ranks=ranks, api=False)
    start, end = _around([b for b in _ranges(everything) if b.name == name], (name,), run)
    inside = [
        replace(lane, bars=tuple(b for b in lane.bars if b.start_ns < end and b.end_ns > start))
        for lane in everything
    ]
    return View(tuple(lane for lane in inside if lane.bars), start, end, f"the start of {name}")


def whole_view(report: Path | str, *, ranks: Collection[int] | None = None) -> View:
    """Return all of a report, from the first thing it has of these ranks to the last."""
    run = _run(report)
    lanes = select(run, None, ranks=ranks, api=False)
    bars = [bar for lane in lanes for bar in lane.bars]
    start, end = min(b.start_ns for b in bars), max(b.end_ns for b in bars)
    return View(lanes, start, end, "the start of the report")


def _run(report: Path | str) -> Run:
    trace = read(report)
    return time_run([trace], BATCH, label=trace.source.name.split(".")[0], by_time=True)


def _lanes(run: Run, window: Window, ranks: Collection[int] | None) -> tuple[Lane, ...]:
    return select(run, window, ranks=ranks, api=False)


def _ranges(lanes: Sequence[Lane]) -> list[Bar]:
    return [bar for lane in lanes if lane.kind == "range" for bar in lane.bars]


def _around(bars: Sequence[Bar], names: Sequence[str], run: Run) -> tuple[int, int]:
    if not bars:
        raise SchemaError(
            f"{run.label}: wanted ranges called {', '.join(map(repr, names))}; found none there; "
            f"perfmodel stats --report nvtx_pushpop_sum lists the names"
        )
    return min(bar.start_ns for bar in bars), max(bar.end_ns for bar in bars)
