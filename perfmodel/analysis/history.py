"""Times over commits: where a step, its ranges and its kernels became faster or slower."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.steps import idle_pieces
from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.models.history import FEWEST, Change, change_points, newly_found
from perfmodel.models.launches import HOST_LIMITED, BeforeAfter, beside_host
from perfmodel.readers.results import Recorded

STEP: Final = "step"
GPU_BUSY: Final = "GPU busy"
HEADS: Final = (STEP, GPU_BUSY)
"""Kinds of time that are of the whole step."""
STEADY: Final = "range at one speed of the host"
"""The kind of the host's pieces without what a slower host explains: steps of a host that differs
by 13 % hide their changes."""
IDLE: Final = "idle"
"""The kind of the host's pieces, which say how fast it was."""
LEAST: Final = 0.01
NEAR: Final = 3
"""Commits by which two times may seem to change apart, and the delay of an alarm."""
_SHARE: Final = 0.1
"""Of the step's change: parts that changed by less are not its reason."""
Key = tuple[str, str]
"""Kind and name of a time."""


def times_of(run: RunAnalysis) -> Iterator[tuple[str, str, float]]:
    """Yield kind, name and seconds per step of what is followed over commits.

    The step and ranges are medians on the host's clock; kernels are means per step and rank; idle
    times are those of the GPUs that idle longest, by range.
    """
    yield STEP, STEP, run.batch.median.value
    busy = [rank.gpu_busy_s for rank in run.ranks if rank.gpu_busy_s]
    if busy:
        yield GPU_BUSY, GPU_BUSY, max(busy)
    head, *inside = run.ranges
    for row in inside:
        if row.host_s:
            yield "range", "/".join(row.path[len(head.path) :]), row.host_s
    for kernel in run.steps.kernels if run.steps else ():
        yield "kernel", kernel.name, kernel.seconds
    pieces = idle_pieces(run.measured.steps, run.run_steps)[0] if run.steps else {}
    for name, seconds in pieces.items():
        yield IDLE, name, seconds


@dataclass(frozen=True, slots=True)
class Part(BeforeAfter):
    """A range or kernel whose time changed together with a step.

    `before_s` and `after_s` are medians over the same commits as the step's; 0 where it was not.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of one time between two commits.

    Attributes
    ----------
    kind, name : str
    change : Change
        Counted in commits of the history.
    commit : str
        The first with the new time.
    first, last : str
        Between which commits, both included, the true one lies with 95 %.
    new : bool
        Whether the newest commit reveals it.
    of_step : float
        The change over the step: 0.05 is a step that is 5 % slower.
    parts : tuple of Part
        Ranges and kernels that changed with it, the largest first.
    """

    kind: str
    name: str
    change: Change
    commit: str
    first: str
    last: str
    new: bool
    of_step: float
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """One configuration over commits.

    Attributes
    ----------
    benchmark : str
    commits : tuple of str
        In their order.
    runs : tuple of int
        Of each commit.
    series : mapping of Key to array, shape (commits,)
        Seconds per step, the median of a commit's runs; NaN where a commit lacks it.
    shifts : tuple of Shift
        In the order of commits.
    """

    benchmark: str
    commits: tuple[str, ...]
    runs: tuple[int, ...]
    series: Mapping[Key, Floats]
    shifts: tuple[Shift, ...]

    def alarms(self, limit: float) -> tuple[Shift, ...]:
        """Return what the newest commit shows to make a step slower by more than a limit."""
        return tuple(s for s in self.shifts if s.new and s.of_step > limit)


def histories(
    runs: Sequence[Recorded], order: Sequence[str] = (), least: float = LEAST
) -> tuple[History, ...]:
    """Find the changes of every configuration.

    Parameters
    ----------
    runs : sequence of Recorded
        By the time when they were recorded.
    order : sequence of str
        Commits from old to new, or the first letters of them; others are left out. By default the
        order in which commits were first recorded.
    least : float
        Smaller relative changes do not count.

    Raises
    ------
    SchemaError
        If no run is of a commit in `order`.
    """
    chosen = _ordered(runs, order) if order else list(runs)
    if not chosen:
        raise SchemaError(
            "expected recorded commits among those given; got none; record them, or give those of "
            "another branch"
        )
    groups: dict[str, list[Recorded]] = {}
    for run in chosen:
        groups.setdefault(run.benchmark, []).append(run)
    return tuple(history_of(name, group, least) for name, group in groups.items())


def _ordered(runs: Sequence[Recorded], order: Sequence[str]) -> list[Recorded]:
    """Return the runs of the commits given, in that order."""
    found = []
    for commit in order:
        found += [
            r for r in runs if r.commit.startswith(commit) or commit.startswith(r.commit)
        ]  # fmt: skip
    return found


def history_of(benchmark: str, runs: Sequence[Recorded], least: float = LEAST) -> History:
    """Find the changes of one configuration, whose runs come in the order of commits."""
    runs = _at_one_speed(runs)
    commits = tuple(dict.fromkeys(run.commit for run in runs))
    by_commit = [[run for run in runs if run.commit == commit] for commit in commits]
    keys = dict.fromkeys(key for run in runs for key in run.seconds)
    series = {key: np.array([_median(group, key) for group in by_commit]) for key in keys}
    found = [
        shift
        for kind in HEADS
        for key in keys
        if key[0] == kind
        for shift in _shifts(key, series, commits, least)
    ]
    step = float(np.nanmedian(series[STEP, STEP]))
    steady = [key for key in keys if key[0] == STEADY]
    alone = [  # together they say more than the step does; one that changed moves the others a bit
        shift
        for key in steady
        for shift in _shifts(
            key, series, commits, least * step / float(np.nanmedian(series[key])), len(steady), step
        )
    ]
    alone.sort(key=lambda shift: -abs(shift.of_step))
    known = [shift for shift in found if shift.kind == STEP]
    for shift in alone:
        if all(abs(shift.change.at - other.change.at) > NEAR for other in known):
            known.append(shift)
            found.append(shift)
    for key in keys:  # what changed alone, in steps that did not
        if key[0] not in (*HEADS, STEADY, IDLE):
            found += [
                shift
                for shift in _shifts(key, series, commits, least, step=step)
                if abs(shift.of_step) > least
                and all(abs(shift.change.at - other.change.at) > NEAR for other in found)
            ]
    found.sort(key=lambda shift: shift.change.at)
    return History(benchmark, commits, tuple(map(len, by_commit)), series, tuple(found))


def _median(runs: Sequence[Recorded], key: Key) -> float:
    known = [run.seconds[key] for run in runs if key in run.seconds]
    return float(np.median(known)) if known else math.nan


def _at_one_speed(runs: Sequence[Recorded]) -> list[Recorded]:
    """Add to every run its pieces of the host's time on a usual host (`beside_host`).

    Runs are as they were where that is unknown, or the host limits nothing.
    """
    pieces = [{name: s for (kind, name), s in run.seconds.items() if kind == IDLE} for run in runs]
    known = [i for i, one in enumerate(pieces) if one and (STEP, STEP) in runs[i].seconds]
    found = list(runs)
    if not known:
        return found
    idle = [pieces[i] for i in known]
    shares = [
        sum(one.values()) / runs[i].seconds[STEP, STEP] for i, one in zip(known, idle, strict=True)
    ]
    if float(np.median(shares)) < HOST_LIMITED:
        return found
    steady = beside_host(idle)
    for place, i in enumerate(known):
        more = {(STEADY, name): float(seconds[place]) for name, seconds in steady.items()}
        found[i] = replace(found[i], seconds={**found[i].seconds, **more})
    return found


def _shifts(
    key: Key, series: Mapping[Key, Floats], commits: Sequence[str], least: float,
    together: int = 1, step: float | None = None,
) -> Iterator[Shift]:  # fmt: skip
    """Yield the changes of one time, over the commits that have it.

    `together` is as of `change_points`; `step` is the step of which the time is a part.
    """
    at = np.flatnonzero(np.isfinite(series[key]))
    seconds = series[key][at].tolist()
    found = change_points(seconds, least, together)
    if not found:
        return
    newest = at[-1] == len(commits) - 1
    new = {one.at for one in newly_found(seconds, least, NEAR, together)} if newest else set()
    places = [0, *(one.at for one in found), len(at)]
    for i, one in enumerate(found):
        here, first, last = int(at[one.at]), int(at[one.first]), int(at[one.last])
        old, now = at[places[i] : one.at], at[one.at : places[i + 2]]
        yield Shift(
            *key,
            Change(here, first, last, one.before, one.after),
            commits[here], commits[first], commits[last], one.at in new,
            (one.after - one.before) / (step or one.before),
            tuple(_parts(series, old, now, one)) if key[0] in HEADS else (),
        )  # fmt: skip


def _parts(series: Mapping[Key, Floats], old: Int64, now: Int64, change: Change) -> Iterator[Part]:
    """Yield ranges and kernels whose medians moved as the step did, by a tenth of it or more.

    The noise of a part must not explain it: the medians differ by more than twice what commits of
    either side differ from theirs.
    """
    found = []
    moved = change.after - change.before
    for (kind, name), values in series.items():
        if kind in (*HEADS, STEADY, IDLE):
            continue
        sides = [np.nan_to_num(values[place]) for place in (old, now)]
        before, after = (float(np.median(side)) for side in sides)
        spread = max(float(np.median(np.abs(side - np.median(side)))) for side in sides)
        part = Part(kind, name, before_s=before, after_s=after)
        if part.difference_s / moved >= _SHARE and abs(part.difference_s) > 2 * spread:
            found.append(part)
    yield from sorted(found, key=lambda part: -abs(part.difference_s))


def too_few(found: History) -> bool:
    """Whether the history is too short to say anything."""
    return len(found.commits) < FEWEST
