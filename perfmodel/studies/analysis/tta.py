"""Time to accuracy: runs grouped and summarized, compared, and the epochs that reach a target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.models.launches import holm
from perfmodel.models.spread import LARGEST_CV, LEVEL, Spread, spread, t_quantile, t_two_sided
from perfmodel.readers.run_records import Training, differences, read_trainings


@dataclass(frozen=True, slots=True)
class Reached:
    """When a run first had the target, or that it never did.

    Attributes
    ----------
    reached : bool
        False: the run is censored, and all below say where it ended instead.
    epoch : int
        The first evaluated epoch at or above the target.
    time_s : float
        Training time at its end: what was observed.
    epochs_between, time_between_s : float
        The moment in between where the line from the evaluation before crosses the target; equal
        to `epoch` and `time_s` for the first evaluation, which has none before it.
    """

    reached: bool
    epoch: int
    time_s: float
    epochs_between: float
    time_between_s: float


def reach(training: Training, target: float) -> Reached:
    """Find the first evaluation with a test accuracy of `target` or more.

    Source: time to accuracy as DAWNBench has it (C. Coleman et al., Analysis of DAWNBench, 2019,
    arXiv:1806.01427): when a run first reaches the target; later falls do not count.
    """
    before = None
    for now in training.evaluated:
        assert now.precision is not None
        if now.precision >= target:
            share = 1.0
            if before is not None and before.precision is not None:
                share = (target - before.precision) / (now.precision - before.precision)
            first, began_s = (before.epoch, before.time_s) if before else (0, 0.0)
            return Reached(
                True, now.epoch, now.time_s,
                first + share * (now.epoch - first), began_s + share * (now.time_s - began_s),
            )  # fmt: skip
        before = now
    last = training.epochs[-1]
    return Reached(False, last.epoch, last.time_s, float(last.epoch), last.time_s)


Test = Literal["Welch", "permutation"]

LEAST_RUNS: Final = 3
"""Runs a side that Welch's test is given."""
MOST_SPLITS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Difference:
    """After less before, or of logarithms the ratio, with the limits of an interval and p."""

    value: float
    low: float
    high: float
    p: float
    df: float


class Moment(NamedTuple):
    """When a run had its target, or (not `reached`) when it ended without; any unit."""

    value: float
    reached: bool = True


def welch(
    before: Sequence[float], after: Sequence[float], level: float = 1 - LEVEL
) -> Difference | None:
    """Compare two means; None with fewer than `LEAST_RUNS` a side, or without any spread.

    Source: B. L. Welch, Biometrika 34, 28-35 (1947); degrees of freedom after F. E.
    Satterthwaite, Biometrics 2, 110-114 (1946).
    """
    if min(len(before), len(after)) < LEAST_RUNS:
        return None
    parts = [(variance(side) / len(side), len(side) - 1) for side in (before, after)]
    total = sum(part for part, _ in parts)
    if total <= 0:
        return None
    df = total**2 / sum(part**2 / n for part, n in parts)
    value, error = fmean(after) - fmean(before), math.sqrt(total)
    half = t_quantile(level, df) * error
    return Difference(value, value - half, value + half, t_two_sided(abs(value) / error, df), df)


def ratio(
    before: Sequence[float], after: Sequence[float], level: float = 1 - LEVEL
) -> Difference | None:
    """Compare positive values by Welch's test on their logarithms: the ratio of geometric means."""
    if min([*before, *after], default=0.0) <= 0:
        return None
    found = welch([math.log(v) for v in before], [math.log(v) for v in after], level)
    if found is None:
        return None
    low, value, high = (math.exp(min(v, 700.0)) for v in (found.low, found.value, found.high))
    return Difference(value, low, high, found.p, found.df)


def permutation(before: Sequence[Moment], after: Sequence[Moment]) -> float | None:
    """Return p over all permutations of the runs; None beyond `MOST_SPLITS` of them.

    Every run scores +1 for each run that it is surely later than and -1 for each that it is surely
    earlier than; a run that ended without the target is later than one that reached it by
    then, and not comparable otherwise. The test is of the sum over one side, two-sided.
    Source: E. A. Gehan, Biometrika 52, 203-223 (1965), with the exact permutation distribution.
    """
    runs, n = [*before, *after], len(before)
    if not before or not after or math.comb(len(runs), n) > MOST_SPLITS:
        return None
    scores = np.array([sum(_later(a, b) - _later(b, a) for b in runs) for a in runs])
    if min(n, len(after)) == 1:  # SciPy's takes two runs a side or more; all scores add up to 0
        return float(np.mean(np.abs(scores) >= abs(scores[0 if n == 1 else -1])))
    from scipy.stats import permutation_test

    return float(
        permutation_test(
            (scores[:n], scores[n:]), lambda a, _, axis: np.abs(a.sum(axis=axis)),
            vectorized=True, batch=10_000, n_resamples=np.inf, alternative="greater",
        ).pvalue
    )  # fmt: skip


def _later(a: Moment, b: Moment) -> bool:
    """Whether run `a` surely needs longer than `b`."""
    if not b.reached:
        return False
    return a.value > b.value if a.reached else a.value >= b.value


ENOUGH: Final = 5
"""Runs of one configuration that the HPML lab asks for (5A, problem 2)."""
MOMENTS: Final = ("time_s", "time_between_s", "epoch", "epochs_between")
COMPARED: Final = ("time_between_s", "epochs_between")
ACCURACIES: Final = ("accuracy_final", "accuracy_best", "accuracy_gap")


@dataclass(frozen=True, slots=True)
class Run:
    """A training with its moment and its accuracies; the gap is train less test, at the end."""

    training: Training
    moment: Reached
    accuracy_final: float
    accuracy_best: float
    accuracy_gap: float | None


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one configuration; spreads by the names in `MOMENTS` and `ACCURACIES`.

    Moments are those of the runs that reached the target alone.
    """

    name: str
    runs: tuple[Run, ...]
    spreads: dict[str, Spread | None]

    @property
    def censored(self) -> int:
        """Runs that never had the target."""
        return sum(not run.moment.reached for run in self.runs)

    def moments(self, name: str) -> list[Moment]:
        """Return a moment of every run, censored ones included."""
        return [Moment(getattr(r.moment, name), r.moment.reached) for r in self.runs]


@dataclass(frozen=True, slots=True)
class Compared:
    """A quantity of the first side against the other's: a ratio, or of accuracies a difference.

    Attributes
    ----------
    test : {'Welch', 'permutation', None}
        Welch's where every run reached the target, else the permutations of all runs, which has
        no interval; None where neither can be made.
    p : float or None
        Of that test.
    level : float or None
        What `p` must be at most, by Holm's method over all quantities of the comparison.
    differs : bool or None
        Whether it is; the interval of `effect` leaves the limits with probability `level`, so that
        both agree.
    effect : Difference or None
        Of Welch's test.
    """

    quantity: str
    test: Test | None
    p: float | None
    effect: Difference | None
    level: float | None = None
    differs: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One side or two, what differs between them, how far, and what to be careful with."""

    target: float
    sides: tuple[Side, ...]
    differences: dict[str, tuple[Any, Any]]
    compared: tuple[Compared, ...]
    warnings: tuple[str, ...]


def answer(runs: Sequence[Path], against: Sequence[Path], target: float) -> Answer:
    """Read the records and compare.

    Raises
    ------
    ReportError, SchemaError
        If a file cannot be read, is no run record, or a side mixes configurations.
    ModelError
        If the target is no share of one.
    """
    if not 0 < target <= 1:
        raise ModelError(f"expected a target accuracy above 0 and up to 1; got {target:g}")
    sides = [side(paths, target) for paths in (runs, against) if paths]
    if len({one.name for one in sides}) < len(sides):  # files of one name, from two folders
        sides = [
            replace(one, name=name) for one, name in zip(sides, ("RUNS", "OTHER"), strict=True)
        ]
    warnings = [text for one in sides for text in _warnings(one, target)]
    if len(sides) == 1:
        return Answer(target, tuple(sides), {}, (), tuple(warnings))
    mine, other = sides
    changed = differences(other.runs[0].training, mine.runs[0].training)
    return Answer(target, tuple(sides), changed, compare(mine, other), tuple(warnings))


def side(paths: Sequence[Path], target: float) -> Side:
    """Read one configuration's runs."""
    runs = tuple(_run(training, target) for training in read_trainings(paths))
    reached = [run.moment for run in runs if run.moment.reached]
    spreads = {name: spread([getattr(m, name) for m in reached]) for name in MOMENTS}
    for name in ACCURACIES:
        spreads[name] = spread([v for r in runs if (v := getattr(r, name)) is not None])
    name = paths[0].stem + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    return Side(name, runs, spreads)


def compare(mine: Side, other: Side) -> tuple[Compared, ...]:
    """Compare times, epochs and final accuracies: mine over, or less, the other's.

    Time and epochs are the interpolated ones, which evaluation once an epoch does not round up.
    """
    sides = {name: (other.moments(name), mine.moments(name)) for name in COMPARED}
    sides["accuracy_final"] = (
        [Moment(r.accuracy_final) for r in other.runs],
        [Moment(r.accuracy_final) for r in mine.runs],
    )
    found = [_tested(name, *pair) for name, pair in sides.items()]
    known = [i for i, one in enumerate(found) if one.p is not None]
    p = [one.p for one in found if one.p is not None]
    for i, passed, level in zip(known, *holm(p, [1.0] * len(p), 1 - LEVEL), strict=True):
        found[i] = replace(
            _tested(found[i].quantity, *sides[found[i].quantity], level),
            level=level, differs=passed,
        )  # fmt: skip
    return tuple(found)


def _tested(
    name: str, before: Sequence[Moment], after: Sequence[Moment], level: float = 1 - LEVEL
) -> Compared:
    """One test: Welch's, or permutations where it cannot be made or would leave runs out."""
    if all(m.reached for m in (*before, *after)):
        how = welch if name == "accuracy_final" else ratio
        effect = how([m.value for m in before], [m.value for m in after], level)
        if effect is not None:
            return Compared(name, "Welch", effect.p, effect)
    p = permutation(before, after)
    return Compared(name, None if p is None else "permutation", p, None)


def _run(training: Training, target: float) -> Run:
    seen = training.evaluated
    accuracies = [e.precision for e in seen if e.precision is not None]
    train = seen[-1].precision_train
    gap = None if train is None else train - accuracies[-1]
    return Run(training, reach(training, target), accuracies[-1], max(accuracies), gap)


def _warnings(one: Side, target: float) -> list[str]:
    n, found = len(one.runs), []
    if n < ENOUGH:
        found.append(f"{one.name}: {n} of {ENOUGH} runs or more that are needed; train more seeds")
    if one.censored:
        found.append(
            f"{one.name}: {one.censored} of {n} runs never reached {target:g}: times are of the "
            "others, and too low without these; train longer, or lower --target"
        )
    seeds = Counter(run.training.seed for run in one.runs)
    twice = [str(seed) for seed, count in seeds.items() if count > 1]
    if twice:
        found.append(
            f"{one.name}: several runs of seed {', '.join(twice)}: their spread is the machine's, "
            "not training's; give each run a --seed of its own"
        )
    cut = sum(not run.training.finished for run in one.runs)
    if cut:
        found.append(f"{one.name}: {cut} of {n} runs were stopped early; their last epoch counts")
    times = one.spreads["time_s"]
    if times is not None and (times.cv or 0) > LARGEST_CV:
        found.append(
            f"{one.name}: the coefficient of variation is above {LARGEST_CV:g}, where its interval "
            "is rough; train more seeds"
        )
    return found
