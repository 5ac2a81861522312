"""Measures the reports of one run: times of all ranks, which ranges are batches, by which rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Bool, Int64, release_freed
from perfmodel.base.errors import SchemaError
from perfmodel.readers.order import in_order, row_order
from perfmodel.readers.packed import EventsByProcess
from perfmodel.readers.trace import NULL, ApiCalls, GpuOps, Trace, rows
from perfmodel.readers.trace import concatenate as concatenate_rows
from perfmodel.timing.by_process import Part, by_process
from perfmodel.timing.projection import join_launches
from perfmodel.timing.range_times import (
    Attribution,
    JoinedTimes,
    RangeTimes,
    concatenate,
    join_attributions,
    of_report,
    ranks_of,
    time_ranges,
)

if TYPE_CHECKING:
    from perfmodel.timing.operator_times import OperatorTimes
    from perfmodel.timing.step_report import StepReport, StepsByPart


@dataclass(frozen=True, slots=True)
class Run:
    """The reports of one run, measured but not yet interpreted.

    `parts` has one entry per report, and `steps` too, of those whose steps were measured; `ranks`
    is ascending; `program` is the name of the program that recognized the first report, '' where
    none was asked. `operators` are those of the reports that name their sizes.
    """

    label: str
    parts: tuple[tuple[Trace, Attribution], ...]
    range_times: RangeTimes
    ranks: tuple[int, ...]
    batch_label: str
    steps: tuple[StepReport, ...] = ()
    program: str = ""
    operators: tuple[OperatorTimes, ...] = ()

    def __repr__(self) -> str:
        return f"<Run {self.label}: {len(self.parts)} reports, {len(self.ranks)} ranks>"

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The reports."""
        return tuple(trace for trace, _ in self.parts)

    @property
    def rank_of(self) -> tuple[dict[int, int], ...]:
        """Rank by process index, of every report."""
        if len(self.steps) == len(self.parts):
            return tuple(report.rank_of for report in self.steps)
        return tuple(ranks_of(trace) for trace in self.traces)


@dataclass(frozen=True, slots=True)
class TimedReport:
    """One report with the times of its ranges, and of its steps if it has any."""

    trace: Trace
    range_times: RangeTimes
    attribution: Attribution
    batch_label: str
    steps: StepReport | None = None
    program: str = ""
    operators: OperatorTimes | None = None


Needed = Callable[[Trace, Attribution], tuple[Bool, Bool]]
"""The operations and API calls that a part of a report keeps."""


def time_report(
    trace: Trace,
    batch_label: str,
    *,
    by_time: bool = False,
    steps: StepsByPart | None = None,
    program: str = "",
    events: tuple[EventsByProcess, Needed] | None = None,
) -> TimedReport:
    """Measure the ranges of one report, which may hold no batch, and its steps.

    Parameters
    ----------
    trace : Trace
    batch_label : str
        Label of the range that is one batch.
    by_time : bool
        As `range_times.time_ranges`.
    steps : StepsByPart, optional
        Measures the report's steps.
    program : str
        Name of the program that recognized it.
    events : (EventsByProcess, callable), optional
        Operations and calls, where the trace holds none, and which of them are kept.

    Raises
    ------
    ValueError
        If the trace was trimmed: rows that a measurement needs are gone.
    """
    if not trace.whole:
        raise ValueError("expected a whole trace; got a trimmed one: analyze with whole=True")
    if steps is not None and len({*trace.ranks.values()}) == len(trace.ranks):
        return _time_parts(trace, batch_label, by_time, steps, program, events)
    trace = events[0].whole(trace) if events else trace
    report = None
    if steps is not None:
        everything = np.arange(len(trace.ops)), np.arange(len(steps.steps))
        steps.add(Part(trace, steps.steps, *everything))
        report = steps.joined()
    rank_of = report.rank_of if report else None
    times = time_ranges(trace, batch_label, by_time=by_time, rank_of=rank_of)
    return TimedReport(trace, *times, batch_label, report, program)


def _time_parts(
    trace: Trace,
    batch_label: str,
    by_time: bool,
    steps: StepsByPart,
    program: str,
    events: tuple[EventsByProcess, Needed] | None,
) -> TimedReport:
    """Measure a report some processes at a time, whose ranks are all different."""
    ranges = JoinedTimes()
    attributed: list[Attribution] = []
    places: list[Int64] = []
    kept: list[tuple[GpuOps, ApiCalls]] = []
    numbers = {process: process for process in range(len(trace.processes))}
    for part in by_process(trace, steps.steps, events and events[0]):
        joined = join_launches(part.trace, part.trace.ops, part.trace.api)
        steps.add(part, joined)
        times, found = time_ranges(
            part.trace, batch_label, by_time=by_time, rank_of=numbers, report=trace, joined=joined
        )
        if events:
            op, call = events[1](part.trace, found)
            kept.append((rows(part.trace.ops, op), rows(part.trace.api, call)))
            found = found.among(op)
            found = replace(found, op=(np.cumsum(op) - 1)[found.op])
        ranges.append(times)
        attributed.append(found)
        places.append(part.op)
        del part, joined, times  # before the next one is made
    if events:
        release_freed()  # what is kept lies between what was dropped
    report = steps.joined()
    times = of_report(trace, report.rank_of, ranges.times())
    if kept:
        ops, api = zip(*kept, strict=True)
        together, places = _joined([*ops], trace.strings)
        calls = in_order(concatenate_rows(api), trace.strings)
        trace = replace(trace, ops=together, api=calls, whole=False)
    found = join_attributions(trace, report.rank_of, attributed, places)
    return TimedReport(trace, times, found, batch_label, report, program)


def _joined(parts: list[GpuOps], strings: Sequence[str]) -> tuple[GpuOps, list[Int64]]:
    """Put the operations of parts of a report together, in order, and say where each one went."""
    ends = np.cumsum([len(part) for part in parts])
    ops = concatenate_rows(parts)
    by_kind = np.argsort(ops.kind, kind="stable")
    ops = rows(ops, by_kind)
    order = row_order(ops, strings)
    if order is not None:
        ops, by_kind = rows(ops, order), by_kind[order]
    place = np.empty(len(ops), np.int64)
    place[by_kind] = np.arange(len(ops))
    return ops, np.split(place, ends[:-1])


def time_run(
    traces: Sequence[Trace], batch_label: str, *, label: str, by_time: bool = False
) -> Run:
    """Measure the ranges of the reports of one run.

    Raises
    ------
    SchemaError
        If no report has NVTX ranges, or none is called `batch_label`.
    """
    return assemble([time_report(t, batch_label, by_time=by_time) for t in traces], label=label)


def assemble(members: Sequence[TimedReport], *, label: str) -> Run:
    """Put the reports of one run together, as `time_run` does."""
    batch_label = members[0].batch_label
    times = concatenate([m.range_times for m in members])
    batches = [p for p in times.paths if p[-1] == batch_label]
    if not batches:
        raise _no_batches([m.trace for m in members], batch_label)
    inside = times.batch >= 0
    ranks = tuple(int(r) for r in np.unique(times.rank[inside]))
    parts = tuple((m.trace, m.attribution) for m in members)
    steps = tuple(m.steps for m in members if m.steps is not None)
    operators = tuple(m.operators for m in members if m.operators is not None)
    program = members[0].program
    return Run(label, parts, times, ranks, batch_label, steps, program, operators)


def without_steps(traces: Sequence[Trace], label: str) -> Run:
    """Put reports together in which no step can be found, for what needs none."""
    members = [time_report(trace, "") for trace in traces]
    times = concatenate([m.range_times for m in members])
    ranks = tuple(sorted({rank for trace in traces for rank in ranks_of(trace).values()}))
    return Run(label, tuple((m.trace, m.attribution) for m in members), times, ranks, "")


def batch_seconds(run: Run) -> npt.NDArray[np.float64]:
    """Measure every batch until the host and the GPU are done with it.

    Returns
    -------
    array, shape (ranks, batches)
        Lengths of `batch_windows`; NaN where a batch never ended on the host.
    """
    since, done = batch_windows(run)
    known = since != NULL
    seconds = np.full(since.shape, np.nan)
    seconds[known] = np.maximum(done[known] - since[known], 0) * 1e-9
    return seconds


def batch_windows(run: Run) -> tuple[Int64, Int64]:
    """Find when every batch begins and when the host and the GPU are done with it.

    A host that waits for nothing queues batch after batch, so that its own time tells nothing of
    a batch. A batch is done when the host has left its range and the last of its GPU operations
    has ended; its time is from its start, or from the end of the batch before it where that is
    later, to its end. The times of successive batches do not overlap.

    Returns
    -------
    begin_ns, done_ns : int64 arrays, shape (ranks, batches)
        `NULL` where a batch never ended on the host.
    """
    times = run.range_times
    at = np.flatnonzero(times.labelled(run.batch_label) & (times.batch >= 0))
    start = times.start_ns[at]
    shape = len(run.ranks), int(times.batch.max()) + 1
    begin, end = (np.full(shape, NULL) for _ in range(2))
    cell = np.searchsorted(run.ranks, times.rank[at]), times.batch[at]
    begin[cell] = start
    timed = times.host_ns[at] != NULL
    end[tuple(c[timed] for c in cell)] = (start + times.host_ns[at])[timed]
    last = np.full(shape, np.iinfo(np.int64).min)
    for trace, found in run.parts:
        where = np.searchsorted(run.ranks, found.op_rank), found.op_batch
        np.maximum.at(last, where, trace.ops.end_ns[found.op])
    done = np.maximum(end, last)
    before = np.full(shape[0], NULL)
    for batch in range(shape[1]):
        known = end[:, batch] != NULL
        begin[:, batch] = np.where(known, np.maximum(begin[:, batch], before), NULL)
        before[known] = np.maximum(before, done[:, batch])[known]
    return begin, np.where(begin == NULL, NULL, done)


def _no_batches(traces: Sequence[Trace], batch_label: str) -> SchemaError:
    names = dict.fromkeys(
        label for t in traces for label in t.range_labels if not label.startswith("MPI_")
    )
    where = ", ".join(t.source.name for t in traces)
    if not names:
        said = [d.text for t in traces for d in t.diagnostics if "NVTX" in d.text]
        hint = f" (Nsight Systems says: {said[0]!r})" if said else ""
        return SchemaError(
            f"{where}: no NVTX range was recorded{hint}; annotate the program and "
            f"{traces[0].how_to_record}"
        )
    if batch_label in names:
        return SchemaError(
            f"{where}: ranges called {batch_label!r} were found, but each starts on one thread and "
            f"ends on another, so that nothing lies inside them; push and pop them on one thread"
        )
    short = [n if len(n) <= 60 else f"{n[:59]}…" for n in list(names)[:8]]
    shown = ", ".join(map(repr, short)) + (", ..." if len(names) > 8 else "")
    return SchemaError(
        f"{where}: expected ranges called {batch_label!r}, one per batch; got {shown}; "
        f"name the range that is one batch with --batch-range"
    )
