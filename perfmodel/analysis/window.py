"""Measures large reports of which a window is drawn, and reads only its operations and calls.

A report is read twice: first packed by process, which is measured to find the window, then for
what overlaps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.analysis.runs import (
    distinct_reports,
    has_parts,
    is_large,
    read_large,
    runs_of,
    time_one,
    time_streamed,
)
from perfmodel.programs.program import Options
from perfmodel.readers import opened
from perfmodel.readers.nsys import read_sqlite, read_window
from perfmodel.readers.packed import EventsByProcess
from perfmodel.readers.trace import Trace
from perfmodel.readers.window import overlaps
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.timeline import Window, clocks
from perfmodel.timing.trim import needed

_MOST_OPS: Final = 1
"""Operations of a lane that are kept for the replay, which no timeline shows."""


def read_light(
    path: Path, files: ExitStack, options: Options
) -> tuple[Trace, EventsByProcess | None]:
    """Read a report, a large one without operations and API calls, which are beside it.

    Its file stays until `files` is closed.
    """
    file = files.enter_context(opened(path))
    if not is_large(file):
        return read_sqlite(file, source=path), None
    return read_large(file, path, options)


def time_light(
    reports: Sequence[tuple[Trace, EventsByProcess | None]], options: Options
) -> tuple[Run, list[Trace]]:
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
    events_of: Mapping[int, EventsByProcess | None] = {id(trace): e for trace, e in reports}
    timed, traces = [], []
    for trace in distinct_reports([trace for trace, _ in reports]):
        events = events_of[id(trace)]
        if events and has_parts(trace, options):
            timed.append(time_streamed(trace, events, options, keep, _MOST_OPS, all_gaps=True))
            traces.append(trace)
        else:
            traces.append(events.whole(trace) if events else trace)
            timed.append(time_one(traces[-1], options))
    (run,) = runs_of(timed, options)
    return run, traces


def only_window(run: Run, window: Window) -> Run:
    """Return the run with what its large reports have in the window, to be drawn.

    Raises
    ------
    ReportError
        If one of them is not the file that was read before.
    """
    parts = [*run.parts]
    steps = [*run.steps]
    for at, ((trace, found), clock) in enumerate(zip(run.parts, clocks(run), strict=True)):
        if trace.left_out is None:
            continue
        when = window.start_ns - clock, window.end_ns - clock
        report = _within(run.steps[at], when) if len(steps) == len(parts) else None
        named = np.unique(report.gaps.op).astype(np.int64) if report else np.empty(0, np.int64)
        ops, api, row = read_window(trace, trace.left_out, when, named)
        if report:
            by_row = np.argsort(row)
            op = by_row[np.searchsorted(row, report.gaps.op, sorter=by_row)].astype(np.int32)
            steps[at] = replace(report, gaps=replace(report.gaps, op=op))
        none = found.among(np.zeros(len(trace.ops), np.bool_))
        parts[at] = replace(trace, ops=ops, api=api, whole=True, left_out=None), none
    return replace(run, parts=tuple(parts), steps=tuple(steps))


def _within(report: StepReport, when: tuple[int, int]) -> StepReport:
    """Return a report with the gaps in a window."""
    gaps = report.gaps
    at = np.flatnonzero(overlaps(gaps.start_ns, gaps.start_ns + gaps.idle_ns, when))
    columns = {name: getattr(gaps, name)[at] for name in gaps.__slots__[1:]}
    return replace(report, gaps=replace(gaps, **columns))
