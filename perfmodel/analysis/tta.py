"""What repeated trainings say: every run's moment, their spread, and one side against another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from perfmodel.analysis.tta_against import Difference, Moment, permutation, ratio, welch
from perfmodel.analysis.tta_reaching import Reached, reach
from perfmodel.base.errors import ModelError
from perfmodel.models.spread import LARGEST_CV, Spread, spread
from perfmodel.readers.training_records import Training, differences, read_trainings

ENOUGH: Final = 5
"""Runs of one configuration that the HPML lab asks for (5A, problem 2)."""
MOMENTS: Final = ("time_s", "time_between_s", "epoch", "epochs_between")
PRECISIONS: Final = ("precision_final", "precision_best", "precision_gap")


@dataclass(frozen=True, slots=True)
class Run:
    """A training with its moment and its precisions; the gap is train less test, at the end."""

    training: Training
    moment: Reached
    precision_final: float
    precision_best: float
    precision_gap: float | None


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one configuration; spreads by the names in `MOMENTS` and `PRECISIONS`.

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
    """A quantity of the first side against the other's: a ratio, or of precisions a difference.

    `effect` is of Welch's test on runs that reached the target, `permutation_p` of all runs.
    """

    quantity: str
    effect: Difference | None
    permutation_p: float | None


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
        raise ModelError(f"wanted a target precision above 0 and up to 1; found {target:g}")
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
    for name in PRECISIONS:
        spreads[name] = spread([v for r in runs if (v := getattr(r, name)) is not None])
    name = paths[0].stem + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    return Side(name, runs, spreads)


def compare(mine: Side, other: Side) -> tuple[Compared, ...]:
    """Compare times, epochs and final precisions: mine over, or less, the other's."""
    found = []
    for name in ("time_s", "epochs_between"):
        before, after = other.moments(name), mine.moments(name)
        effect = ratio(*([m.value for m in side if m.reached] for side in (before, after)))
        found.append(Compared(name, effect, permutation(before, after)))
    before, after = ([Moment(r.precision_final) for r in s.runs] for s in (other, mine))
    effect = welch([m.value for m in before], [m.value for m in after])
    return (*found, Compared("precision_final", effect, permutation(before, after)))


def _run(training: Training, target: float) -> Run:
    seen = training.evaluated
    precisions = [e.precision for e in seen if e.precision is not None]
    train = seen[-1].precision_train
    gap = None if train is None else train - precisions[-1]
    return Run(training, reach(training, target), precisions[-1], max(precisions), gap)


def _warnings(one: Side, target: float) -> list[str]:
    n, found = len(one.runs), []
    if n < ENOUGH:
        found.append(f"{one.name}: {n} of {ENOUGH} runs or more that are wanted; train more seeds")
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
