"""Measures large reports of which a window is drawn, and reads only its operations and calls.

A report is read twice: first packed by process, which is measured to find the window, then for
what overlaps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.analysis.runs import (
    distinct_reports,
    has_parts,
    is_large,
    runs_of,
    time_one,
    time_streamed,
)
from perfmodel.programs.program import Options
from perfmodel.readers import opened
from perfmodel.readers.checks import unchanged
from perfmodel.readers.nsys import read_by_process, read_sqlite, read_window
from perfmodel.readers.packed import EventsByProcess
from perfmodel.readers.trace import Trace
from perfmodel.readers.window import overlaps
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.timeline import Window, clocks
from perfmodel.timing.trim import needed

_MOST_OPS: Final = 1
"""Operations of a lane that are kept for the replay, which no timeline shows."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A report; a large one without operations and calls, which `events` has.

    `file` is where a large one is read again.
    """

    trace: Trace
    file: Path
    events: EventsByProcess | None = None


def read_light(path: Path, files: ExitStack) -> Opened:
    """Read a report; a large one's file stays open until `files` is closed."""
    with ExitStack() as mine:
        file = mine.enter_context(opened(path))
        if not is_large(file):
            return Opened(read_sqlite(file, source=path), file)
        mine.enter_context(unchanged(file, path))
        found = read_by_process(file, source=path)
        files.push(mine.pop_all())
        return Opened(found[0], file, found[1])


def time_light(reports: Sequence[Opened], options: Options) -> tuple[Run, list[Trace]]:
    """Measure the reports of one run; of large ones few operations and calls stay.

    Returns
    -------
    run : Run
    traces : list of Trace
        The reports as they were read; those that must be measured whole have all their rows.

    Raises
    ------
    SchemaError
        If it has no batches.
    """
    keep = partial(needed, replays=False)
    events_of = {id(one.trace): one.events for one in reports}
    timed, traces = [], []
    for trace in distinct_reports([one.trace for one in reports]):
        events = events_of[id(trace)]
        if events and has_parts(trace, options):
            timed.append(time_streamed(trace, events, options, keep, _MOST_OPS, all_gaps=True))
            traces.append(trace)
        else:
            traces.append(events.whole(trace) if events else trace)
            timed.append(time_one(traces[-1], options))
    (run,) = runs_of(timed)
    return run, traces


def only_window(run: Run, window: Window, reports: Sequence[Opened]) -> Run:
    """Return the run with what its large reports have in the window, to be drawn."""
    files = {one.trace.source: one for one in reports}
    parts = [*run.parts]
    steps = [*run.steps]
    for at, ((trace, found), clock) in enumerate(zip(run.parts, clocks(run), strict=True)):
        if trace.whole:
            continue
        when = window.start_ns - clock, window.end_ns - clock
        report = _within(run.steps[at], when) if len(steps) == len(parts) else None
        one = files[trace.source]
        assert one.events is not None
        named = np.unique(report.gaps.op).astype(np.int64) if report else np.empty(0, np.int64)
        counts = [len(table) for table in one.events.ops]
        ops, api, row = read_window(one.file, trace, when, named, counts)
        if report:
            op = np.searchsorted(row, report.gaps.op).astype(np.int32)
            steps[at] = replace(report, gaps=replace(report.gaps, op=op))
        none = found.among(np.zeros(len(trace.ops), np.bool_))
        parts[at] = replace(trace, ops=ops, api=api, whole=True), none
    return replace(run, parts=tuple(parts), steps=tuple(steps))


def _within(report: StepReport, when: tuple[int, int]) -> StepReport:
    """Return a report with the gaps in a window."""
    gaps = report.gaps
    at = np.flatnonzero(overlaps(gaps.start_ns, gaps.start_ns + gaps.idle_ns, when))
    columns = {name: getattr(gaps, name)[at] for name in gaps.__slots__[1:]}
    return replace(report, gaps=replace(gaps, **columns))
