"""Spans: every interval of host time with a meaning, of all levels of a program in one table.

A step is a span, and so are the epoch around it and the layers in it. What one step is, is decided
once (`perfmodel.timing.candidates`); other code asks the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64
from perfmodel.readers.trace import NO_NAME, PUSH_POP, Events, Ranges, Trace, concatenate
from perfmodel.readers.trace import rows as select
from perfmodel.timing.nesting import closed_ends

Level = Literal["run", "epoch", "step", "micro_batch", "phase", "module", "layer", "range"]
"""Levels of spans, from the outermost to the innermost."""
Source = Literal["declared", "asked", "found"]
"""Sources of a span: the program by a range, the user, or the sequence of operations."""
FoundBy = Literal["mark", "asked", "declared", "found", "whole"]

_DIGITS: Final = re.compile(r"\d+")
LEVELS: Final = get_args(Level)
SOURCES: Final = get_args(Source)
WHOLE: Final = "the whole recording"
"""Name of the candidate that all is one step."""
PAUSE: Final = 0.5
"""A pause is longer than a usual one by more than this share of a usual step: below it is how much
the steps of the recordings in `profiles/programs` differ of themselves."""
_PAUSED_OF: Final = 4
"""Of fewer steps no pause is usual: the median of two pauses is not the usual one of either."""


@dataclass(frozen=True, slots=True)
class Spans(Events):
    """Spans, by level, process and start.

    Attributes
    ----------
    level, source : int8, shape (n,)
        Index into `LEVELS` and `SOURCES`.
    label : int32, shape (n,)
        Index into `labels`.
    parent : int64, shape (n,)
        Row of the tightest span of an outer level that holds it, -1 for none.
    instance : int32, shape (n,)
        Counted from 0 in each process and label, in time order: the same step of all ranks has one
        number.
    process, thread : int32, shape (n,)
        Indices into `Trace.processes` and `Trace.threads` (-1 where no thread is known).
    start_ns, end_ns : int64, shape (n,)
        Host time.
    row : int64, shape (n,)
        Row of `Trace.ranges`, -1 for spans that are no ranges.
    gpu_ns : int64, shape (n,)
        GPU time launched inside by the process (without a GPU: the host's time).
    """

    labels: tuple[str, ...]
    level: Int8
    source: Int8
    label: Int32
    parent: Int64
    instance: Int32
    process: Int32
    thread: Int32
    start_ns: Int64
    end_ns: Int64
    row: Int64
    gpu_ns: Int64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the step, and the evidence for it.

    Attributes
    ----------
    name : str
        Label of the ranges, or the operation that begins each repetition.
    source : str
        One of `SOURCES`.
    count : int
        Largest number of them in one process.
    median_s : float
        Median time on the host from one beginning to the next; of one, its own time.
    score : float
        Probability that it is the step.
    reason : str
        Reason for or against it.
    """

    name: str
    source: Source
    count: int
    median_s: float
    score: float
    reason: str

    def is_like(self, other: Candidate) -> bool:
        """Whether this is the same answer on another rank, where ranges and operations differ.

        Ranges are by name. What repeats is by number, which may differ by the one at an end.
        """
        if "declared" in (self.source, other.source):
            return (self.source, self.name) == (other.source, other.name)
        if WHOLE in (self.name, other.name):
            return self.name == other.name
        return abs(self.count - other.count) <= 1


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of every process: the spans of the level that is the unit of an analysis.

    An operation belongs to the step in which its process launched it, whatever the thread.

    Attributes
    ----------
    label : str
        What one step is called, digits that differ as `*`; empty where nothing names it.
    found_by : str
        `mark` (the program's configuration mark names the range), `asked` (the user names it),
        `declared` (ranges whose name or place says so), `found` (what the sequence of operations
        repeats) or `whole` (the whole recording).
    confidence : float
        Share of the GPU's work (of the host's recorded time where there is no GPU) inside steps,
        from 0 to 1.
    process, thread : int32, shape (n,)
        Indices into `Trace.processes` and `Trace.threads` (-1 where no thread is known).
    number : int32, shape (n,)
        Counted from 0 in every process, in time order.
    start_ns, end_ns : int64, shape (n,)
        Host time.
    row : int64, shape (n,)
        Row of `Trace.ranges`, -1 for steps that are no ranges.
    candidates : tuple of Candidate
        What may be the step, the chosen one first, then the likeliest.
    apart : bool
        Whether other work lies between two of them, as between layers: each lasts until its own
        last operation, not until the next one's first.
    """

    label: str
    found_by: FoundBy
    confidence: float
    process: Int32
    thread: Int32
    number: Int32
    start_ns: Int64
    end_ns: Int64
    row: Int64
    candidates: tuple[Candidate, ...] = ()
    apart: bool = False

    def __len__(self) -> int:
        return len(self.process)

    @classmethod
    def numbered(
        cls,
        label: str,
        found_by: FoundBy,
        confidence: float,
        process: Int32,
        thread: Int32,
        start_ns: Int64,
        end_ns: Int64,
        row: Int64 | None = None,
    ) -> Steps:
        """Return steps of these processes, numbered in time order."""
        order = np.lexsort((start_ns, process))
        process, thread = process[order], thread[order]
        number = np.arange(len(process)) - np.searchsorted(process, process)
        row = np.full(len(order), -1, np.int64) if row is None else row[order]
        return cls(
            label, found_by, confidence, process, thread, number.astype(np.int32),
            start_ns[order], end_ns[order], row,
        )  # fmt: skip

    @property
    def declared(self) -> bool:
        """Whether the program or the user says what a step is."""
        return self.found_by in ("mark", "asked", "declared")

    def of(self, process: Int64) -> Steps:
        """Return the steps of some processes."""
        at = np.isin(self.process, process)
        names = ("process", "thread", "number", "start_ns", "end_ns", "row")
        columns = {name: getattr(self, name)[at] for name in names}
        return replace(self, **columns)

    def long_pauses(self) -> tuple[tuple[int, int, float], ...]:
        """Return where more than half a usual step lies between two steps.

        Process, number of the step before, and how many usual steps (medians of their beginnings'
        distances) the pause is longer than a usual one. There a step may have no range, or other
        operations.
        """
        found: list[tuple[int, int, float]] = []
        for p in np.unique(self.process).tolist():
            mine = np.flatnonzero(self.process == p)
            mine = mine[np.argsort(self.start_ns[mine], kind="stable")]
            if len(mine) < _PAUSED_OF:
                continue
            begins = np.diff(self.start_ns[mine])
            pauses = self.start_ns[mine][1:] - self.end_ns[mine][:-1]
            usual = max(float(np.median(begins)), 1.0)
            longer = (pauses - np.median(pauses)) / usual
            numbers = self.number[mine]
            found += [
                (p, int(numbers[i]), float(longer[i])) for i in np.flatnonzero(longer > PAUSE)
            ]
        return tuple(found)

    def holding(self, process: Int32, at_ns: Int64) -> Int64:
        """Return the index of the step of a process that holds each moment, -1 for none."""
        found = np.full(len(at_ns), -1, np.int64)
        for p in np.unique(self.process):
            mine = np.flatnonzero(self.process == p)
            mine = mine[np.argsort(self.start_ns[mine], kind="stable")]
            asked = np.flatnonzero(process == p)
            when = at_ns[asked]
            at = np.searchsorted(self.start_ns[mine], when, side="right") - 1
            inside = (at >= 0) & (when <= self.end_ns[mine][at])
            found[asked] = np.where(inside, mine[at], -1)
        return found


def pattern_of(name: str) -> str:
    """Return a name with every run of digits as `*`: what the names of steps have in common."""
    return _DIGITS.sub("*", name)


def relabel(trace: Trace, label: Callable[[str, str], str | None]) -> Trace:
    """Return the trace with other labels of its ranges, and without some of them.

    Parameters
    ----------
    trace : Trace
    label : callable
        Turns a domain and a label into the new label; None leaves its ranges out.
    """
    codes: dict[tuple[str, str], int] = {}
    recode = np.full(len(trace.range_labels) + 1, NO_NAME, np.int32)
    for i, (domain, text) in enumerate(zip(trace.range_domains, trace.range_labels, strict=True)):
        new = label(domain, text)
        if new is not None:
            recode[i] = codes.setdefault((domain, new), len(codes))
    name = recode[trace.ranges.name]
    kept = select(trace.ranges, name >= 0)
    return replace(
        trace,
        left_out_ns={} if trace.op_count else _extents(trace, np.flatnonzero(name < 0)),
        range_names=tuple(f"{domain}:{text}" if domain else text for domain, text in codes),
        range_labels=tuple(text for _, text in codes),
        range_domains=tuple(domain for domain, _ in codes),
        ranges=replace(kept, name=name[name >= 0], number=np.zeros(len(kept), np.int64)),
        numbers=None,
    )


def _extents(trace: Trace, rows: Int64) -> dict[int, tuple[int, int]]:
    """First start and last end of some ranges, and of those left out before, by process."""
    start, end = trace.ranges.start_ns[rows], closed_ends(trace.ranges)[rows]
    process = trace.thread_process[trace.ranges.thread[rows]]
    found = dict(trace.left_out_ns)
    for p in np.unique(process).tolist():
        mine = process == p
        first, last = int(start[mine].min()), int(end[mine].max())
        low, high = found.get(p, (first, last))
        found[p] = min(first, low), max(last, high)
    return found


def with_steps(trace: Trace, steps: Steps, unnamed: str) -> tuple[Trace, Steps]:
    """Return the trace with a range of one name for every step, and the steps called so.

    Ranges that are steps are renamed; steps that are no ranges become ranges of their thread,
    called `unnamed`.
    """
    label = steps.label or unnamed
    names = (*trace.range_names, label)
    code = len(trace.range_names)
    name = trace.ranges.name.copy()
    name[steps.row[steps.row >= 0]] = code
    ranges = replace(trace.ranges, name=name)
    made = np.flatnonzero((steps.row < 0) & (steps.thread >= 0))
    if len(made):
        count = len(made)
        more = Ranges(
            steps.start_ns[made], steps.end_ns[made], steps.thread[made],
            np.full(count, code, np.int32), np.full(count, PUSH_POP, np.int8),
            np.zeros(count, np.bool_), np.zeros(count, np.int64),
        )  # fmt: skip
        ranges = concatenate([ranges, more])
    shown = replace(
        trace,
        range_names=names,
        range_labels=(*trace.range_labels, label),
        range_domains=(*trace.range_domains, ""),
        ranges=ranges,
    )
    return shown, replace(steps, label=label)


def named_steps(trace: Trace, label: str, found_by: FoundBy) -> Steps:
    """Return the steps that are the ranges of one label; none if no range has it."""
    codes = [i for i, text in enumerate(trace.range_labels) if text == label]
    chosen = np.isin(trace.ranges.name, codes) & ~trace.ranges.other_thread
    rows = outermost(trace, one_thread_each(trace, np.flatnonzero(chosen)))
    return range_steps(trace, label, found_by, 1.0, rows)


def range_steps(
    trace: Trace, label: str, found_by: FoundBy, confidence: float, rows: Int64
) -> Steps:
    """Return the steps that are some of the ranges."""
    ranges = trace.ranges
    thread = ranges.thread[rows]
    ends = closed_ends(ranges)[rows]
    process, start = trace.thread_process[thread], ranges.start_ns[rows]
    return Steps.numbered(label, found_by, confidence, process, thread, start, ends, rows)


def one_thread_each(trace: Trace, rows: Int64) -> Int64:
    """Of every process, the rows of the thread that has most of them."""
    thread = trace.ranges.thread[rows]
    process = trace.thread_process[thread]
    keep = []
    for p in np.unique(process):
        mine = rows[process == p]
        values, counts = np.unique(trace.ranges.thread[mine], return_counts=True)
        keep.append(mine[trace.ranges.thread[mine] == values[np.argmax(counts)]])
    return np.concatenate(keep) if keep else rows


def overlapping(trace: Trace, rows: Int64) -> Bool:
    """Return whether ranges begin before an earlier one of their thread ends."""
    order, reached = _reached(trace, rows)
    late = np.zeros(len(rows), np.bool_)
    late[order] = trace.ranges.start_ns[rows][order] < reached
    return late


def outermost(trace: Trace, rows: Int64) -> Int64:
    """Of ranges that nest in each other, those that no other one holds."""
    return rows[~overlapping(trace, rows)] if len(rows) else rows


def _reached(trace: Trace, rows: Int64) -> tuple[Int64, Int64]:
    """Ranges by thread and start, the longest first, and the latest end before each."""
    start, end = trace.ranges.start_ns[rows], closed_ends(trace.ranges)[rows]
    thread = trace.ranges.thread[rows]
    order = np.lexsort((-end, start, thread))
    reached = np.full(len(rows), np.iinfo(np.int64).min)
    for t in np.unique(thread):
        mine = np.flatnonzero(thread[order] == t)
        reached[mine[1:]] = np.maximum.accumulate(end[order][mine])[:-1]
    return order, reached
