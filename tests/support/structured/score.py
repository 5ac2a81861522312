"""Scores how steps are found: share of generated programs whose steps are counted right."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np

from . import KINDS, Program, program
from .traces import BEGIN_NS

BUCKETS: Final = (0.0, 0.5, 0.7, 0.9)
"""Least scores of the rows of the calibration table."""
_WITHIN: Final = 1
"""A count of steps is right if it is off by no more: first and last steps may be incomplete."""


@dataclass(frozen=True)
class Found:
    """What the search says about one program.

    Attributes
    ----------
    count : int
        Steps of the process that has most; 0 if none were found.
    found_by : str
    start_ns : int64 array
        Host time at which the steps of process 0 begin.
    score : float or None
        Of the chosen candidate, where the search has candidates.
    counts : tuple of int
        Steps of all candidates.
    """

    count: int
    found_by: str
    start_ns: Any
    score: float | None = None
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Score:
    """A program with what was found; `seconds` is the time that the search took."""

    program: Program
    found: Found
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the count of steps is right."""
        return is_right(self.program, self.found.count, self.found.found_by)

    @property
    def in_candidates(self) -> bool:
        """Whether any candidate has a right count."""
        return self.right or any(is_right(self.program, n, "") for n in self.found.counts)

    @property
    def in_place(self) -> bool:
        """Whether the count is right and nearly every true step holds one begin of a step."""
        truth = self.program.truth
        return self.right and (
            truth.one
            or any(
                _in_place(truth.levels[level][0].start_ns, self.found.start_ns)
                for level in (truth.step, *truth.also)
            )
        )


def is_right(one: Program, count: int, found_by: str) -> bool:
    """Return whether a count of steps is one that an expert would accept."""
    if one.truth.one:
        return count == 1 or found_by == "whole"
    return any(abs(count - answer) <= _WITHIN for answer in one.truth.answers) and count > 0


def _in_place(true_ns: Any, found_ns: Any) -> bool:
    """Return whether one step was found to begin in nearly every interval between true begins."""
    usual = np.median(np.diff(true_ns)) if len(true_ns) > 1 else 0
    edges = np.append(true_ns, true_ns[-1] + usual) - 0.02 * usual  # calls before the first launch
    inside = np.histogram(found_ns, edges)[0]
    other = np.diff(edges) > 3 * usual  # other work follows the step
    return bool(((inside != 1) & ~other).sum() <= max(2, 0.1 * len(true_ns)))


def find(one: Program) -> Found:
    """Ask the search of the perfmodel that is imported."""
    trace = one.to_trace()
    try:
        search = import_module("perfmodel.timing.candidates").find_steps
    except ModuleNotFoundError:
        steps = import_module("perfmodel.timing.steps").find_steps(trace)
        divided = import_module("perfmodel.programs.pytorch.optimizer_steps").divided
        return _found(divided(trace, steps, None))
    steps = search(trace)
    candidates = list(getattr(steps, "candidates", ()))
    found = _found(steps)
    score = float(candidates[0].score) if candidates else None
    return Found(
        found.count, found.found_by, found.start_ns, score,
        tuple(int(candidate.count) for candidate in candidates),
    )  # fmt: skip


def _found(steps: Any) -> Found:
    process = np.asarray(steps.process)
    count = int(np.bincount(process).max()) if len(process) else 0
    mine = np.sort(np.asarray(steps.start_ns)[process == (process.min() if count else 0)])
    return Found(count, str(steps.found_by), mine - BEGIN_NS)


def scored(kinds: Iterable[str], seeds: Sequence[int]) -> Iterable[Score]:
    """Yield the score of every program."""
    for kind in kinds:
        for seed in seeds:
            one = program(kind, seed)
            begin = time.perf_counter()
            found = find(one)
            yield Score(one, found, time.perf_counter() - begin)


def table(scores: Sequence[Score]) -> str:
    """Return right programs by kind, with the time of the search."""
    lines = [f"{'kind':24}{'right':>8}{'in place':>10}{'candidate':>11}{'seconds':>9}"]
    for kind in [kind for kind in KINDS if any(s.program.kind == kind for s in scores)]:
        lines.append(_line(kind, [s for s in scores if s.program.kind == kind]))
    lines.append(_line("all", scores))
    return "\n".join(lines)


def _line(name: str, scores: Sequence[Score]) -> str:
    n = len(scores)
    cells = [sum(s.right for s in scores), sum(s.in_place for s in scores)]
    candidates = sum(s.in_candidates for s in scores)
    seconds = sum(s.seconds for s in scores)
    return (
        f"{name:24}{f'{cells[0]}/{n}':>8}{f'{cells[1]}/{n}':>10}{f'{candidates}/{n}':>11}"
        f"{seconds:9.1f}"
    )


def wrong(scores: Sequence[Score]) -> str:
    """Return the programs whose steps are not counted right."""
    lines = []
    for one in scores:
        if one.right:
            continue
        truth, draws = one.program.truth, one.program.draws
        levels = {name: len(found[0]) for name, found in truth.levels.items()}
        lines.append(
            f"{one.program.kind} {one.program.seed}: found {one.found.count} by "
            f"{one.found.found_by!r} (score {one.found.score}, candidates "
            f"{list(one.found.counts)[:8]}), truth {sorted(truth.answers)}, levels {levels}, "
            f"{len(one.program.operations)} operations, {dict(draws)}"
        )
    return "\n".join(lines)


def calibration(scores: Sequence[Score]) -> str:
    """Return the share of right answers by the score of the chosen candidate."""
    lines = [f"{'score':>10}{'programs':>10}{'right':>8}"]
    for least, most in zip(BUCKETS, (*BUCKETS[1:], float("inf")), strict=True):
        mine = [s for s in scores if s.found.score is not None and least <= s.found.score < most]
        label = f"{least} to {most}" if most <= 1 else f">= {least}"
        share = f"{sum(s.right for s in mine) / len(mine):.0%}" if mine else "-"
        lines.append(f"{label:>10}{len(mine):10}{share:>8}")
    return "\n".join(lines)
