"""Steps: which intervals of a program are its repeated unit of work, found without a flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.base.pattern import matching
from perfmodel.base.units import percent
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import (
    NO_NAME,
    PUSH_POP,
    TO_GPU,
    TO_HOST,
    GpuOps,
    Ranges,
    Trace,
    concatenate,
)
from perfmodel.readers.trace import rows as select
from perfmodel.timing.host_steps import extents, host_steps
from perfmodel.timing.nesting import closed_ends, nest
from perfmodel.timing.period import Operations, pattern_of, period_of, repetitions_of
from perfmodel.timing.projection import Joined, join_launches

FoundBy = Literal["mark", "range", "kernels", "optimizer", "whole"]

_STEP_NAME: Final = re.compile(
    r"(?:^|[^a-z])(?:train_?|training_?|profiler)?(?:step|iter|iteration|batch)", re.I
)
_PART_NAME: Final = re.compile(r"micro|optimizer|epoch|\.step\b|forward|backward", re.I)
_PAUSED_OF: Final = 4
PAUSE: Final = 0.5
"""A pause is longer than a usual one by more than this share of a usual step."""
"""Of fewer steps no pause is usual."""
_MOST: Final = 0.5
"""A step's ranges hold at least this share of the GPU's work (or of the host's recorded time)."""
_NEARLY: Final = 0.9
"""Candidates that hold this share of the best one's work are as good, and their names decide."""
_MOST_NAMES: Final = 2000
"""Range names looked at, those of the longest ranges: a step's range holds most others."""
_LEAST_REPEATS: Final = 3
"""Equal names in a pattern are candidates of their own if they repeat at least so often."""
_BESIDE: Final = 0.1
"""Steps follow each other: no more of one runs beside the next."""
BLOCKING: Final = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaThreadSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
)  # fmt: skip
"""CUDA calls that wait until the GPU has done what was launched."""
_OPTIMIZER: Final = re.compile(r"multi_tensor_apply|adam|sgd|adagrad|rmsprop|lamb(?!da)", re.I)
"""Kernels that update parameters: PyTorch's optimizers are loops over lists of tensors."""
_INNER: Final = 0.75
"""Share of a step's operations that a shorter sequence in it repeats to be said."""
_OTHER_KIND: Final = 1.5
"""Ranges of one name are of two kinds if their medians in different ranges differ so many times."""
_OFTEN, _OFTEN_ON_HOST = 10, 5
_SOME: Final = 0.1
"""Set-up may be long: ranges that repeat so often, and are all the work while they go on (without a
GPU also any ranges named as steps, and periods of calls that repeat as often as on a GPU), hold at
least this share of the work. On a GPU a period may not: the last part of one step, such as an
optimizer's loop, repeats as well."""


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU operations with the host time and thread of the API call that launched each.

    Attributes
    ----------
    op : int64, shape (k,)
        Rows of `GpuOps`, each once, ascending.
    process : int32, shape (k,)
        Index into `Trace.processes`.
    thread : int32, shape (k,)
        Index into `Trace.threads` of the launching thread.
    at_ns : int64, shape (k,)
        Start of the launching call.
    call : int64, shape (k,)
        Row of `ApiCalls` of the launching call.
    """

    op: Int64
    process: Int32
    thread: Int32
    at_ns: Int64
    call: Int64

    def row_of(self, op: Int64) -> Int64:
        """Return where each row of `GpuOps` is in `op`, -1 for those without a known launch."""
        place = np.full(max(self.op.max(initial=-1), op.max(initial=-1)) + 1, -1)
        place[self.op] = np.arange(len(self.op))
        return place[op]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of every process: intervals of host time.

    An operation belongs to the step in which its process launched it, whatever the thread.

    Attributes
    ----------
    label : str
        What one step is called, digits that differ as `*`; empty where nothing names it.
    found_by : str
        `mark` (the program's configuration mark names the range), `range` (ranges of one name),
        `kernels` (the period of the sequence of kernels), `optimizer` (that period, divided by the
        steps of an optimizer) or `whole` (the whole recording).
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
    inner : int
        How often a shorter sequence of operations repeats in each step of a sequence, if it is most
        of the step: iterations of a solver that do the same but for a check now and then; else 1.
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
    inner: int = 1

    def __len__(self) -> int:
        return len(self.process)

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


def launched(trace: Trace, joined: Joined | None = None) -> Launched:
    """Join every GPU operation to the call that launched it; those without one are left out.

    The nodes of a CUDA graph are launched by the call that launched the graph. `joined` is what
    `join_launches` returns, where it is known.
    """
    op, call, repeated = joined or join_launches(trace, trace.ops, trace.api)
    if repeated:
        op, first = np.unique(op, return_index=True)
        call = call[first]
    thread = trace.api.thread[call]
    return Launched(op, trace.thread_process[thread], thread, trace.api.start_ns[call], call)


Parts = Callable[[], Iterable[tuple[Trace, Launched]]]
"""Makes the parts of a report, in the order of their processes, each with what it launched."""


def find_steps(trace: Trace, asked: str | None = None, parts: Parts | None = None) -> Steps:
    """Find the steps of a program.

    In this order: the ranges that `asked` names; ranges whose names are equal or differ in digits
    only, that repeat on one thread without nesting in each other and hold most of the GPU's work
    (the host's recorded time where there is no GPU); the period of the sequence of operations;
    the whole recording. Ranges called like a part of a step, such as `backward`, give way to a
    period that holds more of the work.

    Parameters
    ----------
    trace : Trace
    asked : str, optional
        A range's name, a glob such as `step *`, or a regular expression between slashes.
    parts : callable, optional
        Makes the parts that have the operations and calls, where the trace holds none.

    Raises
    ------
    SchemaError
        If `asked` names no range, or ranges that hold most of no GPU work, with a better name;
        or if the report has neither GPU operations nor ranges nor MPI calls.
    """
    if parts is None:
        everything = [(trace, launched(trace))]
        parts = everything.copy
    work = _Work.of(trace, parts)
    if asked is not None:
        return _asked(trace, work, asked)
    best = _best(_candidates(trace, work))
    if best is not None and not work.on_gpu:
        best = _of_one_kind(trace, work, best)
    least = _MOST if work.on_gpu or best is None or not best.named_as_step else _SOME
    held = best is not None and best.share >= least
    if best is not None and held and not best.is_part(work.on_gpu):
        return best.steps(trace, "range")
    often = _OFTEN if work.on_gpu else _OFTEN_ON_HOST
    after_setup = best is not None and work.lasting(best.steps(trace, "range"), often)
    share = 0.0 if best is None else best.share / (_NEARLY if after_setup else 1.0)
    by_kernels = _periodic(trace, parts, work)
    if by_kernels is not None and by_kernels.confidence > share:
        return by_kernels
    if best is not None and (held or after_setup):
        return best.steps(trace, "range")
    return _whole(trace, parts, work)


def held_share(trace: Trace, steps: Steps, parts: Parts) -> float:
    """Share of the work of `parts`, as `Steps.confidence`, that lies in steps."""
    return _Work.of(trace, parts).inside(steps.process, steps.start_ns, steps.end_ns)


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
        range_names=tuple(f"{domain}:{text}" if domain else text for domain, text in codes),
        range_labels=tuple(text for _, text in codes),
        range_domains=tuple(domain for domain, _ in codes),
        ranges=replace(kept, name=name[name >= 0], number=np.zeros(len(kept), np.int64)),
        numbers=None,
    )


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
    rows = _on_one_thread(trace, np.flatnonzero(chosen))
    if len(rows):
        ends = closed_ends(trace.ranges)[rows]
        rows = _outermost(trace.ranges.thread[rows], trace.ranges.start_ns[rows], ends, rows)
    return Candidate(label, rows, 1.0).steps(trace, found_by)


# --- ranges


@dataclass(frozen=True, slots=True)
class Candidate:
    """Ranges of one name that may be the steps."""

    label: str
    rows: Int64
    share: float

    @property
    def named_as_step(self) -> bool:
        """Whether the name says that it is a step."""
        return bool(_STEP_NAME.search(self.label)) and not _PART_NAME.search(self.label)

    def is_part(self, on_gpu: bool) -> bool:
        """Whether it may be a part of a step by its name, and much of the work is elsewhere.

        Without a GPU any name may be a part's that is not a step's: all ranges take host time.
        """
        named = bool(_PART_NAME.search(self.label)) or not (on_gpu or self.named_as_step)
        return self.share < _NEARLY and named

    def steps(self, trace: Trace, found_by: FoundBy) -> Steps:
        """Number the ranges in every process."""
        ranges = trace.ranges
        thread = ranges.thread[self.rows]
        process = trace.thread_process[thread]
        order = np.lexsort((ranges.start_ns[self.rows], process))
        rows, process, thread = self.rows[order], process[order], thread[order]
        first = np.concatenate([[True], process[1:] != process[:-1]])
        at = np.arange(len(rows))
        number = at - np.maximum.accumulate(np.where(first, at, 0))
        return Steps(
            self.label, found_by, self.share, process, thread, number.astype(np.int32),
            ranges.start_ns[rows], closed_ends(trace.ranges)[rows], rows,
        )  # fmt: skip


def _candidates(trace: Trace, work: _Work) -> list[Candidate]:
    """Ranges that repeat under one name, with the share of the work that they hold."""
    ranges = trace.ranges
    if len(ranges) == 0:
        return []
    ends = closed_ends(trace.ranges)
    groups: dict[str, list[int]] = {}
    counts = np.bincount(ranges.name[ranges.name >= 0], minlength=len(trace.range_names))
    counts[[i for i, domain in enumerate(trace.range_domains) if domain == MPI_DOMAIN]] = 0
    for code in _longest(trace, counts, ends).tolist():
        groups.setdefault(pattern_of(trace.range_labels[code]), []).append(code)
    for codes in [c for c in groups.values() if len(c) > 1]:  # equal names repeat in a pattern
        groups.update({trace.range_labels[c]: [c] for c in codes if counts[c] >= _LEAST_REPEATS})
    by_name = np.argsort(ranges.name, kind="stable")
    first = np.searchsorted(ranges.name[by_name], np.arange(len(counts) + 1))
    made, thread = [], ranges.thread
    for label, codes in groups.items():
        rows = np.concatenate([by_name[first[c] : first[c + 1]] for c in codes])
        rows = _on_one_thread(trace, rows[~ranges.other_thread[rows]])
        process, start, end = trace.thread_process[thread[rows]], ranges.start_ns[rows], ends[rows]
        repeats = np.bincount(process).max(initial=0) >= 2  # in one process
        if repeats and not _overlapping(thread[rows], start, end):
            made.append(Candidate(label, rows, work.inside(process, start, end)))
    return made


def _longest(trace: Trace, counts: Int64, ends: Int64) -> Int64:
    """Names whose ranges are the longest on average: a step's range holds most others."""
    ranges = trace.ranges
    named = ranges.name >= 0
    spent = np.bincount(ranges.name[named], (ends - ranges.start_ns)[named] * 1.0, len(counts))
    mean = np.where(counts > 0, spent / np.maximum(counts, 1), -1.0)
    longest = np.argsort(-mean, kind="stable")[:_MOST_NAMES]
    return longest[mean[longest] >= 0]


def _on_one_thread(trace: Trace, rows: Int64) -> Int64:
    """Of every process, the rows of the thread that has most of them."""
    thread = trace.ranges.thread[rows]
    keep = []
    for process in np.unique(trace.thread_process[thread]):
        mine = rows[trace.thread_process[thread] == process]
        values, counts = np.unique(trace.ranges.thread[mine], return_counts=True)
        keep.append(mine[trace.ranges.thread[mine] == values[np.argmax(counts)]])
    return np.concatenate(keep) if keep else rows


def _overlapping(thread: Int32, start: Int64, end: Int64) -> bool:
    """Whether any two ranges of a thread overlap or nest."""
    order = np.lexsort((start, thread))
    thread, start, end = thread[order], start[order], end[order]
    return bool(((thread[1:] == thread[:-1]) & (start[1:] < end[:-1])).any())


def _best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate that is a step: of those with nearly the most work, a step's name decides.

    Without such a name the outermost, which has the fewest ranges: its parts repeat as well.
    """
    if not candidates:
        return None
    most = max(c.share for c in candidates)
    good = [c for c in candidates if c.share >= _NEARLY * most and c.share > 0]
    named = [c for c in good if c.named_as_step]
    pool = named or [c for c in good if "epoch" not in c.label.lower()] or good
    return min(pool, key=lambda c: (len(c.rows), -c.share, c.label), default=None)


def _of_one_kind(trace: Trace, work: _Work, best: Candidate) -> Candidate:
    """Of ranges of one name in ranges of others, such as `train` and `validate`, those of one.

    The ones with most time, if the others take longer or shorter: a median of both says nothing.
    """
    ranges, rows = trace.ranges, best.rows
    nesting = nest(ranges, len(trace.threads))
    place = np.full(len(ranges), -1, np.int64)
    place[nesting.row] = np.arange(len(nesting.row))
    parent = np.where(place[rows] >= 0, nesting.parent[place[rows]], -1)
    above = np.where(parent >= 0, ranges.name[nesting.row[parent]], NO_NAME)
    names = {
        code: pattern_of(trace.range_labels[code]) if code >= 0 else ""
        for code in {*above.tolist()}
    }
    around = np.array([names[code] for code in above.tolist()])
    spent = closed_ends(ranges)[rows] - ranges.start_ns[rows]
    kinds = {name: np.flatnonzero(around == name) for name in dict.fromkeys(around.tolist())}
    kinds = {name: at for name, at in kinds.items() if len(at) >= _LEAST_REPEATS}
    usual = [float(np.median(spent[at])) for at in kinds.values()]
    if len(kinds) < 2 or max(usual) <= _OTHER_KIND * min(usual):
        return best
    most = max(kinds.values(), key=lambda at: int(spent[at].sum()))
    process = trace.thread_process[ranges.thread[rows[most]]]
    start, end = ranges.start_ns[rows[most]], closed_ends(ranges)[rows[most]]
    return Candidate(best.label, rows[most], work.inside(process, start, end))


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of every process by launch time, summed up, so that intervals are differences.

    `parts` are processes, when they launch, and the work until then; `on_gpu` whether it is that
    of a GPU.
    """

    parts: tuple[tuple[int, Int64, Floats], ...]
    on_gpu: bool

    @classmethod
    def of(cls, trace: Trace, parts: Parts) -> _Work:
        """GPU time by launch; without a GPU the host's time from the first event to the last."""
        summed: list[tuple[int, Int64, Floats]] = []
        for part, found in parts():
            weight = (part.ops.end_ns - part.ops.start_ns)[found.op].astype(np.float64)
            summed += _summed(found.process, found.at_ns, weight)
            del part, found, weight  # before the next one is made
        if summed:
            return cls(tuple(summed), on_gpu=True)
        times = extents(trace).items()
        host = [(p, np.array(ends, np.int64), np.zeros(2)) for p, ends in times]
        return cls(tuple(host), on_gpu=False)

    def inside(self, process: Int32, start: Int64, end: Int64) -> float:
        """Share of all work that lies in the intervals, each of one process."""
        everything = held = 0.0
        for p, at, total in self.parts:
            mine = process == p
            if self.on_gpu:
                lo = np.searchsorted(at, start[mine], side="left")
                hi = np.searchsorted(at, end[mine], side="right")
                held += float((total[hi] - total[lo]).sum())
                everything += float(total[-1])
            else:  # intervals that do not overlap
                inside = np.minimum(end[mine], at[1]) - np.maximum(start[mine], at[0])
                held += float(np.maximum(inside, 0).sum())
                everything += float(at[1] - at[0])
        return held / everything if everything else 0.0

    def lasting(self, steps: Steps, often: int = _OFTEN) -> bool:
        """Whether steps are many, and all the work while they go on, after a long set-up."""
        if steps.confidence < _SOME or int(steps.number.max()) + 1 < often:
            return False
        who = np.unique(steps.process)
        ends = [(steps.start_ns[m].min(), steps.end_ns[m].max())
                for m in (steps.process == p for p in who)]  # fmt: skip
        first, last = np.array(ends, np.int64).T
        return steps.confidence >= _NEARLY * self.inside(who, first, last)


def _summed(process: Int32, at: Int64, weight: Floats) -> Iterator[tuple[int, Int64, Floats]]:
    """Sum the work of every process up in time order."""
    for p in np.unique(process):
        mine = np.flatnonzero(process == p)
        mine = mine[np.argsort(at[mine], kind="stable")]
        yield int(p), at[mine], np.concatenate([[0.0], np.cumsum(weight[mine])])


# --- asked for


def _asked(trace: Trace, work: _Work, asked: str) -> Steps:
    called = [*trace.range_names, *trace.range_labels]
    matched = matching(asked, called, "--batch-range")
    codes = sorted({i % len(trace.range_names) for i in matched})
    where = trace.source.name
    best = _best(_candidates(trace, work))
    better = ""
    if best is not None and best.share >= _MOST:
        better = f"; most of the work is in ranges called {best.label!r}"
    rows = np.flatnonzero(np.isin(trace.ranges.name, codes) & ~trace.ranges.other_thread)
    rows = _on_one_thread(trace, rows)
    if len(rows) == 0:
        names = ", ".join(repr(n[:60]) for n in dict.fromkeys(trace.range_labels[:8])) or "none"
        raise SchemaError(
            f"{where}: expected ranges called {asked!r}, one per step; got {names}{better}; name "
            f"the range that is one step with --batch-range, or leave it out to have it found"
        )
    ends = closed_ends(trace.ranges)
    thread = trace.ranges.thread[rows]
    if _overlapping(thread, trace.ranges.start_ns[rows], ends[rows]):
        rows = _outermost(thread, trace.ranges.start_ns[rows], ends[rows], rows)
    share = work.inside(
        trace.thread_process[trace.ranges.thread[rows]], trace.ranges.start_ns[rows], ends[rows]
    )
    if work.on_gpu and share < 0.1 and better:
        raise SchemaError(
            f"{where}: expected ranges called {asked!r} to hold the work of a step; got "
            f"{percent(share, 1)} of the GPU time{better}; name these with --batch-range, or "
            f"leave it out"
        )
    return Candidate(asked, rows, share).steps(trace, "range")


def _outermost(thread: Int32, start: Int64, end: Int64, rows: Int64) -> Int64:
    """Of ranges that nest in each other, those that no other one holds."""
    order = np.lexsort((-end, start, thread))
    kept, last = [], (-1, np.iinfo(np.int64).min)
    for i in order.tolist():
        if (int(thread[i]) != last[0]) or start[i] >= last[1]:
            kept.append(i)
            last = (int(thread[i]), int(end[i]))
    return rows[np.array(kept, np.int64)]


# --- without ranges


def _periodic(trace: Trace, parts: Parts, work: _Work) -> Steps | None:
    """Steps from the sequence of operations of every process, if it repeats.

    The operations are those that the process launches on the GPU; without any, its MPI calls and
    ranges.
    """
    columns = _launch_columns(parts) if work.on_gpu else _host_columns(trace)
    if not columns:
        return None
    processes, threads, number, start, end, inner = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    share = work.inside(processes, start, end)
    row = np.full(len(processes), -1, np.int64)
    found = Steps(
        "", "kernels", share, processes, threads, number, start, end, row, int(inner.min())
    )
    behind_setup = not work.on_gpu and work.lasting(found)
    return found if share >= _MOST or behind_setup else None


def _launch_columns(parts: Parts) -> list[tuple[Any, ...]]:
    """Process, thread, number, start, end and `inner` of the periods of every process's work."""
    columns: list[tuple[Any, ...]] = []
    for part, found in parts():
        order = np.lexsort((part.ops.start_ns[found.op], found.at_ns, found.process))
        process, op = found.process[order], found.op[order]
        for p in np.unique(process):
            mine = np.flatnonzero(process == p)
            at_ns, codes = found.at_ns[order[mine]], operation_codes(part.ops, op[mine])
            cut = repetitions_of(_operations(part, op[mine], codes))
            if cut is None:
                return []
            if _overlap(part.ops, op[mine], cut):
                at_ns, codes = _with_waits(part, int(p), at_ns, codes)
                cut = repetitions_of(Operations.of(codes)) or cut
            first, after = cut
            repeats, start = len(first), at_ns[first]
            end = np.full(repeats, _last_call(part, int(p)), np.int64)
            end[after < len(at_ns)] = at_ns[after[after < len(at_ns)]] - 1
            end = np.maximum(end, start)
            again = period_of(codes[first[0] : after[0]], _INNER)
            alike = len(np.unique((after - first)[:-1])) == 1
            inner = again[2] if again and alike else 1
            threads, counts = np.unique(found.thread[order[mine]], return_counts=True)
            columns.append((
                np.full(repeats, p, np.int32),
                np.full(repeats, threads[np.argmax(counts)], np.int32),
                np.arange(repeats, dtype=np.int32), start, end, np.full(repeats, inner),
            ))  # fmt: skip
        del part, found, order, process, op, at_ns, codes  # before the next one is made
    return columns


def _operations(trace: Trace, op: Int64, codes: Int64) -> Operations:
    """GPU operations `op`, in this order, as `repetitions_of` compares them."""
    ops, names = trace.ops, trace.ops.name[op]
    updates = np.array([bool(_OPTIMIZER.search(n)) for n in trace.strings] + [False], np.bool_)
    to_gpu, to_host = (np.isin(ops.copy_kind[op], kinds) for kinds in (TO_GPU, TO_HOST))
    spent_ns = ops.end_ns[op] - ops.start_ns[op]
    return Operations(codes, spent_ns, to_gpu, to_host, updates[names])


def _overlap(ops: GpuOps, op: Int64, cut: tuple[Int64, Int64]) -> bool:
    """Whether what repeats runs beside the next of its kind, as parts of a step on streams do."""
    edges = np.column_stack(cut).ravel()
    none = np.iinfo(np.int64)
    start = np.minimum.reduceat(np.append(ops.start_ns[op], none.max), edges)[::2]
    end = np.maximum.reduceat(np.append(ops.end_ns[op], none.min), edges)[::2]
    beside = end[:-1] - start[1:]
    return bool(np.median(beside) > _BESIDE * np.median(np.diff(start)))


def _with_waits(trace: Trace, process: int, at_ns: Int64, codes: Int64) -> tuple[Int64, Int64]:
    """Times and codes of a process's operations and of the calls that wait for them."""
    waits = np.array([n.startswith(BLOCKING) for n in trace.strings] + [False], np.bool_)
    api = trace.api
    rows = np.flatnonzero(waits[api.name] & (trace.thread_process[api.thread] == process))
    times = np.concatenate([at_ns, api.start_ns[rows]])
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([codes, -1 - api.name[rows].astype(np.int64)])[order]


def _host_columns(trace: Trace) -> list[tuple[Any, ...]]:
    """The same of the periods of MPI calls and ranges."""
    columns: list[tuple[Any, ...]] = []
    for one in host_steps(trace):
        count = len(one.begin_ns) - 1
        columns.append((
            np.full(count, one.process, np.int32), np.full(count, one.thread, np.int32),
            np.arange(count, dtype=np.int32), one.begin_ns[:-1], one.begin_ns[1:] - 1,
            np.ones(count, np.int64),
        ))  # fmt: skip
    return columns


def operation_codes(ops: GpuOps, rows: Int64) -> Int64:
    """A code for every operation that is equal for equal operations of different steps."""
    kind, name = ops.kind[rows].astype(np.int64), ops.name[rows].astype(np.int64)
    return (
        (kind * 16 + np.maximum(ops.copy_kind[rows], 0)) * (int(name.max(initial=0)) + 2) + name + 1
    )


def _last_call(trace: Trace, process: int) -> int:
    tables = (trace.api, trace.mpi)
    ends = [t.end_ns[trace.thread_process[t.thread] == process] for t in tables]
    return int(np.concatenate(ends).max(initial=np.iinfo(np.int64).min))


def _whole(trace: Trace, parts: Parts, work: _Work) -> Steps:
    """One step per process: all that was recorded of it, on the thread of most calls and ranges.

    Without a GPU no time before the first call or range but MPI_Init, and none in MPI_Finalize.
    """
    times: dict[int, list[int]] = {}
    counts = np.zeros(len(trace.threads), np.int64)
    tables: Iterator[Any] = chain((trace.ranges, trace.mpi), (part.api for part, _ in parts()))
    for table in tables:
        counts += np.bincount(table.thread, minlength=len(counts))
        process = trace.thread_process[table.thread]
        for p in np.unique(process).tolist():
            mine = process == p
            last = max(int(table.end_ns[mine].max()), int(table.start_ns[mine].max()))
            times.setdefault(p, []).extend((int(table.start_ns[mine].min()), last))
    if not times:
        said = [d.text for d in trace.diagnostics if "NVTX" in d.text or "CUDA" in d.text]
        complaint = f" (Nsight Systems says: {said[0]!r})" if said else ""
        expected = "GPU operations, MPI calls or NVTX ranges"
        if count := trace.op_count:
            expected = f"CUDA calls, MPI calls or ranges of the host beside {count} GPU operations"
        raise SchemaError(
            f"{trace.source.name}: expected {expected}; got none{complaint}; {trace.how_to_record}"
        )
    if not work.on_gpu:
        times.update((p, ends.tolist()) for p, ends, _ in work.parts)
    process = np.array(sorted(times), np.int32)
    start, end = (
        np.array([pick(times[p]) for p in process.tolist()], np.int64) for pick in (min, max)
    )
    threads = (np.flatnonzero(trace.thread_process == p) for p in process)
    thread = np.array([mine[np.argmax(counts[mine])] for mine in threads], np.int32)
    number, row = np.zeros(len(process), np.int32), np.full(len(process), -1, np.int64)
    return Steps("", "whole", 1.0, process, thread, number, start, end, row)
