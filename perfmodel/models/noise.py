"""Noise of predictions: what launches differ by and what the model misses, by what sets the pace.

Both are estimated from the calibration's own runs. Launches of one configuration tell the first.
For the second every configuration is predicted by a model that was fitted without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from perfmodel.analysis.predict import predict
from perfmodel.base.errors import ModelError
from perfmodel.models.model import USUAL_NOISE, Model
from perfmodel.programs.mlp.observe import Observation

FEWEST: Final = 4
"""Configurations below which noise is taken to be the usual."""
MOST: Final = 40
"""Configurations that are left out, one after the other: of more, every second or third."""
_LEAST: Final = 0.003
"""Relative noise that no clock of a report is below."""
_PRIOR: Final = 2.0
"""Degrees of freedom by which one pace borrows from all of them (on logarithms)."""
_DRAWS: Final = 200_000

Refit = Callable[[Sequence[Observation]], Model]


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log(measured / predicted): by pace, and of phases by their name."""

    batch: Mapping[str, float]
    phase: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Missed:
    """One configuration, predicted without it: log errors of its launches, and their variance."""

    pace: str
    errors: tuple[float, ...]
    variance: float
    phases: Mapping[str, float]


def estimate(observations: Sequence[Observation], refit: Refit, most: int = MOST) -> Noise:
    """Estimate noise by leaving out one configuration after the other.

    Parameters
    ----------
    observations : sequence of Observation
    refit : callable
        Fits a model to a part of the observations.
    most : int
        Configurations to leave out.
    """
    groups: dict[object, list[Observation]] = {}
    for o in observations:
        groups.setdefault(o.case.key, []).append(o)
    if len(groups) < FEWEST or most < 1:
        return Noise({}, {})
    every = list(groups.values())
    missed = [
        found
        for group in every[:: -(-len(every) // most)]
        if (found := _missed(group, refit, [o for o in observations if o not in group]))
    ]
    return Noise(_by_pace(missed), _by_phase(missed))


def _missed(
    group: Sequence[Observation], refit: Refit, others: Sequence[Observation]
) -> _Missed | None:
    """Predict one configuration without its own runs; None where the others do not tell it."""
    try:
        said = predict(refit(others), group[0].case)
    except ModelError:
        return None
    phases: dict[str, float] = {}
    for phase in said.phases:
        times = [o.phases[phase.name] for o in group if o.phases.get(phase.name, 0.0) > 0]
        if times and phase.seconds > 0:
            phases[phase.name] = math.log(float(np.median(times)) / phase.seconds)
    errors = tuple(math.log(o.batch_s / said.batch_s) for o in group)
    return _Missed(said.pace, errors, said.variance, phases)


def _by_pace(missed: Sequence[_Missed]) -> dict[str, float]:
    """Put launches' and the model's own variance together, each shrunk to that of all paces."""
    launches, misses = {}, {}
    for pace in dict.fromkeys(m.pace for m in missed):
        mine = [m for m in missed if m.pace == pace]
        free = sum(len(m.errors) - 1 for m in mine)
        within = sum(float(np.var(m.errors)) * len(m.errors) for m in mine)
        launch = math.sqrt(within / free) if free else 0.0
        launches[pace] = launch, free
        left = [
            float(np.median(m.errors)) ** 2 - (median_sd(len(m.errors)) * launch) ** 2 - m.variance
            for m in mine
        ]
        misses[pace] = math.sqrt(max(float(np.mean(left)), 0.0)), len(mine)
    within_sd, own_sd = shrunk(launches), shrunk(misses)
    return {pace: math.hypot(within_sd[pace], own_sd[pace]) for pace in launches}


def _by_phase(missed: Sequence[_Missed]) -> dict[str, float]:
    phases: dict[str, list[float]] = {}
    for m in missed:
        for name, error in m.phases.items():
            phases.setdefault(name, []).append(error)
    return {
        name: max(math.sqrt(float(np.mean(np.square(errors)))), _LEAST)
        for name, errors in phases.items()
        if len(errors) >= FEWEST
    }


def shrunk(found: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Shrink standard deviations with their degrees of freedom to their common geometric mean.

    A deviation that few degrees of freedom tell is moved most; logarithms, because paces differ by
    factors.
    """
    known = [(max(sd, _LEAST), free) for sd, free in found.values() if free > 0]
    if not known:
        return dict.fromkeys(found, USUAL_NOISE)
    weight = sum(free for _, free in known)
    common = sum(free * math.log(sd) for sd, free in known) / weight
    return {
        name: math.exp((free * math.log(max(sd, _LEAST)) + _PRIOR * common) / (free + _PRIOR))
        for name, (sd, free) in found.items()
    }


@cache
def _medians(count: int) -> tuple[float, float]:
    """Mean absolute value and standard deviation of medians of so many standard normals."""
    draws = np.random.default_rng(213).standard_normal((_DRAWS, count))
    medians = np.median(draws, axis=1)
    return float(np.mean(np.abs(medians))), float(np.sqrt(np.mean(medians**2)))


def median_error(count: int) -> float:
    """Return how far the median of so many launches is off on average, in standard deviations.

    Of a normal distribution, by simulation (0.2 %): 0.80, 0.56, 0.53, 0.44, 0.43 of one to five.
    The mean would be nearer: 0.80, 0.56, 0.46, 0.40, 0.36.
    """
    return _medians(count)[0]


def median_sd(count: int) -> float:
    """Return the standard deviation of the median of so many launches, in theirs."""
    return _medians(count)[1]
