"""Declared spans: ranges whose names, or whose places, say that they are a program's steps."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import NO_NAME, Trace
from perfmodel.timing.nesting import closed_ends, nest
from perfmodel.timing.spans import Level, one_thread_each, outermost, overlapping, pattern_of
from perfmodel.timing.work import WorkByTime

_MOST_NAMES: Final = 2000
"""Names that are looked at, those of the longest ranges: a step's range holds most others."""
_LEAST_REPEATS: Final = 3
"""Equal names in a pattern are candidates of their own if they repeat at least so often: two may be
one name for the first part and the last of a step."""
_OTHER_KIND: Final = 1.5
"""Ranges of one name are of two kinds, such as steps of a training and of a validation, if their
medians in different ranges differ so many times: a forward pass takes a third of a step."""


@dataclass(frozen=True, slots=True)
class Said:
    """The level in a name, and whether a profiler or framework wrote it for its own steps."""

    level: Level
    certain: bool


@dataclass(frozen=True, slots=True)
class Declared:
    """Ranges of one name that may be the steps.

    Attributes
    ----------
    label : str
        Their name, digits that differ as `*`.
    rows : int64, shape (n,)
        Rows of `Trace.ranges`.
    said : Said or None
        What the name says; None if nothing.
    share : float
        Share of the work inside.
    """

    label: str
    rows: Int64
    said: Said | None
    share: float


@cache
def _names() -> tuple[tuple[re.Pattern[str], Said], ...]:
    text = files("perfmodel.timing").joinpath("level_names.toml").read_text(encoding="utf-8")
    return tuple(
        (re.compile(row["pattern"], re.I), Said(row["level"], row.get("certain", False)))
        for row in tomllib.loads(text)["name"]
    )


@cache
def said_by(name: str) -> Said | None:
    """Return what a range's name says of its level, by `level_names.toml`; None if nothing.

    >>> said_by("ProfilerStep#6"), said_by("backward"), said_by("solve")
    (Said(level='step', certain=True), Said(level='phase', certain=False), None)
    """
    return next((said for pattern, said in _names() if pattern.search(name)), None)


def declared(trace: Trace, work: WorkByTime) -> list[Declared]:
    """Return the ranges that repeat under one name, or are called a step, with their work.

    Operators are none of them: a program declares what it annotates, not what it calls.
    """
    ranges = trace.ranges
    if len(ranges) == 0:
        return []
    counts = np.bincount(ranges.name[ranges.name >= 0], minlength=len(trace.range_names))
    counts[[i for i, domain in enumerate(trace.range_domains) if domain == MPI_DOMAIN]] = 0
    counts[[i for i, text in enumerate(trace.range_labels) if text in trace.operators]] = 0
    by_name = np.argsort(ranges.name, kind="stable")
    first = np.searchsorted(ranges.name[by_name], np.arange(len(counts) + 1))
    found = []
    for label, codes in _groups(trace, _longest(trace, counts), counts):
        rows = np.concatenate([by_name[first[c] : first[c + 1]] for c in codes])
        one = _declared(trace, work, label, rows)
        if one is not None:
            found.append(one)
    return found


def _groups(trace: Trace, codes: Int64, counts: Int64) -> Iterator[tuple[str, list[int]]]:
    """Yield names that are alike: of steps up to their first number, of others but for digits."""
    groups: dict[str, list[int]] = {}
    for code in codes.tolist():
        groups.setdefault(pattern_of(trace.range_labels[code]), []).append(code)
    steps: dict[str, list[str]] = {}
    for pattern in groups:
        said = said_by(pattern) or said_by(pattern.replace("*", "0"))
        if said is not None and said.level == "step" and "*" in pattern:
            steps.setdefault(re.split(r"[*\[(]", pattern)[0], []).append(pattern)
    for beginning, patterns in steps.items():
        if len(patterns) > 1 and beginning:  # such as step[DECODE bs=4] and step[EXTEND bs=1 ...]
            groups[f"{beginning}*"] = [code for p in patterns for code in groups.pop(p)]
    yield from groups.items()
    for group in list(groups.values()):
        said = said_by(trace.range_labels[group[0]])
        if said is not None and said.certain:
            continue  # a framework calls each of them a step, whatever the batch in its name
        if len(group) > 1:  # equal names repeat in a pattern
            least = _LEAST_REPEATS * max(len(trace.processes), 1)
            yield from ((trace.range_labels[c], [c]) for c in group if counts[c] >= least)


def _declared(trace: Trace, work: WorkByTime, label: str, rows: Int64) -> Declared | None:
    """Return the steps that ranges of one name declare; None if they cannot be steps."""
    said = said_by(trace.range_labels[int(trace.ranges.name[rows[0]])])
    named = said is not None and said.level == "step"
    if not named:  # a range that ends on another thread holds nothing but by its time
        rows = rows[~trace.ranges.other_thread[rows]]
    rows = one_thread_each(trace, rows)
    if len(rows) and overlapping(trace, rows).any():
        if not named:
            return None
        rows = outermost(trace, rows)
    process = trace.thread_process[trace.ranges.thread[rows]]
    if np.bincount(process).max(initial=0) < (1 if named else 2):
        return None
    return Declared(label, rows, said, work.inside(*spans_of(trace, rows, work)))


def spans_of(trace: Trace, rows: Int64, work: WorkByTime) -> tuple[Int64, Int64, Int64]:
    """Return processes, starts and ends of ranges, of every process that they are about.

    Ranges of a process without work, such as of one that drives the others, are about all processes
    that have work and no such ranges.
    """
    ranges = trace.ranges
    process = trace.thread_process[ranges.thread[rows]].astype(np.int64)
    start, end = ranges.start_ns[rows], closed_ends(ranges)[rows]
    working = work.processes
    if work.on_gpu and len(rows) and not np.isin(process, working).any():
        speaker = process == process[0]
        start, end = start[speaker], end[speaker]
        count = len(start)
        process = np.repeat(working, count)
        start, end = np.tile(start, len(working)), np.tile(end, len(working))
    return process, start, end


def _longest(trace: Trace, counts: Int64) -> Int64:
    """Names whose ranges are the longest on average."""
    ranges = trace.ranges
    named = ranges.name >= 0
    spent = closed_ends(ranges) - ranges.start_ns
    total = np.bincount(ranges.name[named], spent[named] * 1.0, len(counts))
    mean = np.where(counts > 0, total / np.maximum(counts, 1), -1.0)
    longest = np.argsort(-mean, kind="stable")[:_MOST_NAMES]
    return longest[mean[longest] >= 0]


def of_one_kind(trace: Trace, work: WorkByTime, best: Declared) -> Declared:
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
    share = work.inside(*spans_of(trace, rows[most], work))
    return Declared(best.label, rows[most], best.said, share)
