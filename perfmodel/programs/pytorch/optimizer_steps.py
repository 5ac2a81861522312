"""Steps by the ranges of optimizers, where what repeats is several of them, or nothing does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.trace import Trace
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.steps import Launched, Parts, Steps, held_share, launched, operation_codes

_STEP: Final = "Optimizer.step#"
"""What PyTorch calls the range of every optimizer's step (torch/optim/optimizer.py)."""
_SAME: Final = 1.1
"""Of one network the median times of the optimizer's kernels differ by at most this factor."""
_LONGEST: Final = 3.0
"""A step has at most so many times as many operations as the median one: more is several steps."""

_TURNS: Final = 3
"""Optimizers of several networks take turns at least so often to be known by their times."""
_LEAST: Final = 4
"""Optimizers' steps of a process in which nothing repeats."""


def divided(trace: Trace, steps: Steps, parts: Parts | None) -> Steps:
    """Return the steps that each end with an optimizer's, of what holds several of them.

    A program whose batches have two lengths in turn, or that writes a checkpoint in every third
    step, repeats only several steps. These are steps where two that follow each other launch the
    same operations and none has many times as many as the others, as a reinforcement learner's
    first update after its roll-out has. All optimizers of a period launch the same kernels, which
    take as long: a critic and a generator are two networks, and the updates of both one step.
    Where nothing repeats, since every batch has sizes of its own, all optimizers launch the same
    kernels, and the first step, which set-up precedes, is none. All other steps are returned
    unchanged.

    Parameters
    ----------
    trace : Trace
        With the program's own ranges.
    steps : Steps
        Of the period of the sequence of operations, or the whole recording.
    parts : callable, optional
        As `perfmodel.timing.steps.find_steps`.
    """
    is_step = np.array([text.startswith(_STEP) for text in (*trace.range_labels, "")], np.bool_)
    rows = np.flatnonzero(is_step[trace.ranges.name])
    if steps.found_by not in ("kernels", "whole") or len(rows) == 0:
        return steps
    whole = steps.found_by == "whole"
    if parts is None:
        everything = [(trace, launched(trace))]
        parts = everything.copy
    thread = trace.ranges.thread[rows]
    process, end = trace.thread_process[thread], closed_ends(trace.ranges)[rows]
    updates: dict[int, tuple[Int64, Int64]] = {}
    for p in np.unique(steps.process).tolist():
        mine = process == p
        updates[p] = np.sort(trace.ranges.start_ns[rows][mine]), np.sort(end[mine])
        held = np.diff(np.searchsorted(updates[p][1], steps.start_ns[steps.process == p]))
        several = mine.sum() >= _LEAST if whole else len(held) > 0 and (held >= 2).all()
        if not several or len(np.unique(thread[mine])) > 1:
            return steps
    for part, found in parts():
        for p in np.unique(found.process).tolist():
            if not _are_steps(part, found, steps, p, updates[p]):
                return steps
    on = {int(p): int(t) for p, t in zip(process, thread, strict=True)}
    made = _ending(steps, {p: ends for p, (_, ends) in updates.items()}, on)
    return replace(made, confidence=held_share(trace, made, parts))


def _are_steps(
    trace: Trace, found: Launched, steps: Steps, process: int, updates: tuple[Int64, Int64]
) -> bool:
    """Whether what a process launches from one optimizer's step to the next is a step.

    Parameters
    ----------
    trace, found : Trace, Launched
        The part of the report that has the process.
    steps : Steps
        Whose periods the optimizers are compared in.
    process : int
    updates : two int64 arrays
        When the optimizers' steps of the process start and end, ascending.
    """
    starts, ends = updates
    whole = steps.found_by == "whole"
    mine = np.flatnonzero(found.process == process)
    mine = mine[np.argsort(found.at_ns[mine], kind="stable")]
    codes = operation_codes(trace.ops, found.op[mine])
    begins, cuts = (np.searchsorted(found.at_ns[mine], edges) for edges in (starts, ends))
    spent = (trace.ops.end_ns - trace.ops.start_ns)[found.op[mine]]
    period = np.searchsorted(np.sort(steps.start_ns[steps.process == process]), starts, "right")
    periods = [period]
    if whole:  # the first is of a set-up; those of several networks take turns
        at = np.arange(-1, len(cuts) - 1)
        periods = [at // k + 1 for k in range(1, max(len(cuts) // _TURNS, 1) + 1)]
    same = all(_of_one_network(codes, spent, begins, cuts, each) for each in periods)
    return same and _alike(np.split(codes, cuts)[1:-1], whole)


def _ending(steps: Steps, ends: dict[int, Int64], threads: dict[int, int]) -> Steps:
    """Steps that end with the optimizers', of processes whose optimizers run on these threads."""
    whole = steps.found_by == "whole"
    columns = []
    for p, end in ends.items():
        start = np.append(steps.start_ns[steps.process == p][:1], end[:-1] + 1)
        kept = (end > start) & (start > end[0] if whole else True)
        columns.append(np.array([np.full(kept.sum(), p), start[kept], end[kept]]))
    who, start, end = np.concatenate(columns, axis=1)
    first = np.searchsorted(who, who)
    return replace(
        steps,
        found_by="optimizer",
        process=who.astype(np.int32),
        thread=np.array([threads[p] for p in who.tolist()], np.int32),
        number=(np.arange(len(who)) - first).astype(np.int32),
        start_ns=start,
        end_ns=end,
        row=np.full(len(who), -1, np.int64),
        inner=1,
    )


def _alike(found: list[Int64], whole: bool) -> bool:
    """Whether none of some sequences is very long, and two that follow each other are equal.

    Where nothing repeats none need be.
    """
    if len(found) < 2 or max(map(len, found)) > _LONGEST * np.median([len(one) for one in found]):
        return False
    return whole or any(np.array_equal(one, two) for one, two in pairwise(found))


def _of_one_network(
    codes: Int64, spent_ns: Int64, begins: Int64, ends: Int64, period: Int64
) -> bool:
    """Whether all optimizers of each period launch the same kernels, which take about as long.

    `begins` and `ends` are the optimizers' first operations and those after their last, `period`
    counts from 1; optimizers of period 0 come before the first.
    """
    took: dict[int, list[int]] = {}
    first = np.searchsorted(period, period)
    known = np.flatnonzero(period > 0).tolist()
    for i in known:
        if not np.array_equal(codes[begins[i] : ends[i]], codes[begins[known[0]] : ends[known[0]]]):
            return False
        took.setdefault(i - int(first[i]), []).append(int(spent_ns[begins[i] : ends[i]].sum()))
    usual = [float(np.median(times)) for times in took.values()]
    return max(usual, default=0.0) <= _SAME * min(usual, default=0.0)
