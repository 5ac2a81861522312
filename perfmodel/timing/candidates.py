"""Candidates for a program's steps: all that may be one, in one order, scored by one formula.

What may be a step is visited in turn: ranges that are called steps by a profiler or a framework,
then those that a programmer calls so, then other ranges that repeat, and then the levels of the
loop nest of the sequence of operations, from the innermost one outward. The step is the first that
is a complete one, so that with z_i the evidence for the i-th

    P(i) = s(z_i) prod_{j<i} (1 - s(z_j)),      P(one step) = prod_j (1 - s(z_j)),

s the logistic function (`perfmodel.timing.evidence.chain`). For ranges z = a + b ln c, with c the
share of the work inside and a, b by what their name says: a step holds all of a program's work, and
the less a name says, the more must the work. For levels of the nest z is `evidence`. Where no
candidate is a step, the recording is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain as joined
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import SchemaError
from perfmodel.base.pattern import matching
from perfmodel.base.units import percent
from perfmodel.readers.trace import Trace
from perfmodel.timing.declared import Declared, declared, of_one_kind, spans_of
from perfmodel.timing.evidence import chain, reason
from perfmodel.timing.launched import Parts, launched
from perfmodel.timing.nest import Level, best_of, nest_on_gpu, nest_on_host
from perfmodel.timing.spans import (
    WHOLE,
    Candidate,
    Source,
    Steps,
    one_thread_each,
    outermost,
    range_steps,
)
from perfmodel.timing.work import WorkByTime

_SAID: Final = {"certain": (6.0, 2.0), "step": (4.5, 3.0), "other": (3.0, 6.0),
                "part": (-1.0, 4.0), "epoch": (-4.0, 1.0), "host": (3.0, 8.0)}  # fmt: skip
"""a and b of the formula by what a range's name says; `host` of other names without a GPU, where
parts of a step are ranges of all its time as well."""
_OFTEN, _OFTEN_ON_HOST = 10, 5
_SOME: Final = 0.1
"""Set-up may be long: of ranges that repeat so often, and hold at least this share of the work,
the share counts of what is done from the first to the last of them."""
_SURE: Final = 0.05
"""Probability of all other evidence below which repetition is not searched."""
_SHOWN: Final = 12
"""Candidates that are shown."""


def find_steps(
    trace: Trace,
    asked: str | None = None,
    parts: Parts | None = None,
    agreed: Candidate | None = None,
) -> Steps:
    """Find the steps of a program: those asked for, else the likeliest of all candidates.

    Parameters
    ----------
    trace : Trace
        With the program's own ranges.
    asked : str, optional
        A range's name, a glob such as `step *`, or a regular expression between slashes.
    parts : callable, optional
        Makes the parts that have the operations and calls, where the trace holds none.
    agreed : Candidate, optional
        The step of all ranks of the run, which is the step here if it is among the candidates.

    Raises
    ------
    SchemaError
        If `asked` names no range, or ranges that hold most of no GPU work, with a better name;
        or if the report has neither GPU operations nor ranges nor MPI calls.
    """
    if parts is None:
        everything = [(trace, launched(trace))]
        parts = everything.copy
    work = WorkByTime.of(trace, parts)
    options = _by_name(trace, work)
    if asked is not None:
        return _asked(trace, work, asked, options)
    likely = chain([one.z for one in options])
    if likely[-1] > _SURE or (agreed is not None and agreed.source == "found"):
        levels = nest_on_gpu(trace, parts) if work.on_gpu else nest_on_host(trace)
        options += [
            _Option(
                one.name, "found", one.z, one.count, one.median_s, reason(one.features),
                partial(_of_level, one),
            )
            for one in best_of(levels)
        ]  # fmt: skip
        likely = chain([one.z for one in options])
    every = _candidates(options, likely)
    alike = [i for i, one in enumerate(every) if agreed is not None and one.is_like(agreed)]
    best = max(alike or range(len(every)), key=lambda i: every[i].score)
    steps = _whole(trace, parts, work) if best == len(options) else options[best].steps(trace, work)
    others = sorted((*every[:best], *every[best + 1 :]), key=lambda one: -one.score)
    return replace(steps, candidates=(every[best], *others)[:_SHOWN])


def held_share(trace: Trace, steps: Steps, parts: Parts) -> float:
    """Share of the work of `parts`, as `Steps.confidence`, that lies in steps."""
    return WorkByTime.of(trace, parts).inside(steps.process, steps.start_ns, steps.end_ns)


@dataclass(frozen=True, slots=True)
class _Option:
    """Ranges, or a level of the loop nest, that may be the steps, and what makes these of it."""

    name: str
    source: Source
    z: float
    count: int
    median_s: float
    reason: str
    steps: Callable[[Trace, WorkByTime], Steps]


def _of_ranges(ranges: Declared, trace: Trace, work: WorkByTime) -> Steps:
    """Return the steps, of all processes that the ranges are about."""
    one = ranges if work.on_gpu else of_one_kind(trace, work, ranges)
    process, start, end = spans_of(trace, one.rows, work)
    if np.array_equal(process, trace.thread_process[trace.ranges.thread[one.rows]]):
        return range_steps(trace, one.label, "declared", one.share, one.rows)
    at = process.astype(np.int32)
    thread = np.array([int(np.argmax(trace.thread_process == p)) for p in at], np.int32)
    return Steps.numbered(one.label, "declared", one.share, at, thread, start, end)


def _of_level(level: Level, _: Trace, work: WorkByTime) -> Steps:
    """Return the repetitions of a level."""
    process, _thread, start, end = level.columns
    return Steps.numbered("", "found", work.inside(process, start, end), *level.columns)


def _candidates(options: Sequence[_Option], likely: Floats) -> tuple[Candidate, ...]:
    """All candidates, and that the recording is one step."""
    shown = [
        Candidate(one.name, one.source, one.count, one.median_s, float(p), one.reason)
        for one, p in zip(options, likely[:-1], strict=True)
    ]
    one_step = Candidate(WHOLE, "found", 1, 0.0, float(likely[-1]), "nothing else is a step")
    return (*shown, one_step)


# --- ranges


def _by_name(trace: Trace, work: WorkByTime) -> list[_Option]:
    """Ranges that may be the steps, in the order in which they are visited."""
    made = [_named(trace, work, one) for one in declared(trace, work)]
    return sorted(made, key=lambda one: (-round(one.z, 1), one.count, one.median_s, one.name))


def _named(trace: Trace, work: WorkByTime, one: Declared) -> _Option:
    """Return how likely ranges of one name are the steps."""
    process, start, end = spans_of(trace, one.rows, work)
    counts = np.bincount(process)
    unnamed = "other" if work.on_gpu else "host"
    said = unnamed if one.said is None else "certain" if one.said.certain else one.said.level
    a, b = _SAID.get(said, _SAID["part"])
    often = counts.max() >= (_OFTEN if work.on_gpu else _OFTEN_ON_HOST)
    share = one.share
    if said == "certain" or (often and share >= _SOME):
        who = np.unique(process)
        first = np.array([start[process == p].min() for p in who.tolist()], np.int64)
        last = np.array([end[process == p].max() for p in who.tolist()], np.int64)
        share = max(share, share / max(work.inside(who, first, last), 1e-9))
    mine = np.sort(start[process == int(np.argmax(counts))])
    usual = np.diff(mine) if len(mine) > 1 else (end - start)[:1]
    z = a + b * float(np.log(max(min(share, 1.0), 1e-6)))
    why = f"the name says: {one.said.level.replace('_', '-')}" if one.said else "ranges that repeat"
    return _Option(
        one.label, "declared", z, int(counts.max()), float(np.median(usual)) * 1e-9,
        f"{why}; {percent(one.share, 0)} of the work is inside", partial(_of_ranges, one),
    )  # fmt: skip


def _asked(trace: Trace, work: WorkByTime, asked: str, options: Sequence[_Option]) -> Steps:
    """The ranges that the user names."""
    called = [*trace.range_names, *trace.range_labels]
    matched = matching(asked, called, "--batch-range")
    codes = sorted({i % len(trace.range_names) for i in matched})
    where = trace.source.name
    better = ""
    if options and options[0].z > 0:
        better = f"; most of the work is in ranges called {options[0].name!r}"
    rows = np.flatnonzero(np.isin(trace.ranges.name, codes) & ~trace.ranges.other_thread)
    rows = one_thread_each(trace, rows)
    if len(rows) == 0:
        names = ", ".join(repr(n[:60]) for n in dict.fromkeys(trace.range_labels[:8])) or "none"
        raise SchemaError(
            f"{where}: expected ranges called {asked!r}, one per step; got {names}{better}; name "
            f"the range that is one step with --batch-range, or leave it out to have it found"
        )
    rows = outermost(trace, rows)
    share = work.inside(*spans_of(trace, rows, work))
    if work.on_gpu and share < _SOME and better:
        raise SchemaError(
            f"{where}: expected ranges called {asked!r} to hold the work of a step; got "
            f"{percent(share, 1)} of the GPU time{better}; name these with --batch-range, or "
            f"leave it out"
        )
    return range_steps(trace, asked, "asked", share, rows)


# --- one step


def _whole(trace: Trace, parts: Parts, work: WorkByTime) -> Steps:
    """One step per process: all that was recorded of it, on the thread of most calls and ranges.

    Without a GPU no time before the first call or range but MPI_Init, and none in MPI_Finalize.
    """
    times: dict[int, list[int]] = {}
    counts = np.zeros(len(trace.threads), np.int64)
    tables: Iterator[Any] = joined((trace.ranges, trace.mpi), (part.api for part, _ in parts()))
    for table in tables:
        counts += np.bincount(table.thread, minlength=len(counts))
        process = trace.thread_process[table.thread]
        for p in np.unique(process).tolist():
            mine = process == p
            last = max(int(table.end_ns[mine].max()), int(table.start_ns[mine].max()))
            times.setdefault(p, []).extend((int(table.start_ns[mine].min()), last))
    if not work.on_gpu:
        times.update((p, ends.tolist()) for p, ends, _ in work.parts)
    if not times:
        said = [d.text for d in trace.diagnostics if "NVTX" in d.text or "CUDA" in d.text]
        complaint = f" (Nsight Systems says: {said[0]!r})" if said else ""
        expected = "GPU operations, MPI calls or NVTX ranges"
        if count := trace.op_count:
            expected = f"CUDA calls, MPI calls or ranges of the host beside {count} GPU operations"
        raise SchemaError(
            f"{trace.source.name}: expected {expected}; got none{complaint}; {trace.how_to_record}"
        )
    process = np.array(sorted(times), np.int32)
    start, end = (
        np.array([pick(times[p]) for p in process.tolist()], np.int64) for pick in (min, max)
    )
    threads = (np.flatnonzero(trace.thread_process == p) for p in process)
    thread = np.array([mine[np.argmax(counts[mine])] for mine in threads], np.int32)
    return Steps.numbered("", "whole", 1.0, process, thread, start, end)
