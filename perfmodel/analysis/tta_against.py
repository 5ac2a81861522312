"""Two configurations compared: Welch's test, and a permutation test that knows censored runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance
from typing import Final, NamedTuple

from perfmodel.models.spread import LEVEL
from perfmodel.models.student import quantile, two_sided

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


def welch(before: Sequence[float], after: Sequence[float]) -> Difference | None:
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
    half = quantile(1 - LEVEL, df) * error
    return Difference(value, value - half, value + half, two_sided(abs(value) / error, df), df)


def ratio(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Compare positive values by Welch's test on their logarithms: the ratio of geometric means."""
    if min([*before, *after], default=0.0) <= 0:
        return None
    found = welch([math.log(v) for v in before], [math.log(v) for v in after])
    if found is None:
        return None
    low, value, high = (math.exp(min(v, 700.0)) for v in (found.low, found.value, found.high))
    return Difference(value, low, high, found.p, found.df)


def permutation(before: Sequence[Moment], after: Sequence[Moment]) -> float | None:
    """Return p of all ways to deal the runs out to the sides; None beyond `MOST_SPLITS` of them.

    Every run scores +1 for each run that it is surely later than and -1 for each that it is surely
    earlier than; a run that ended without the target is later than one that reached it by
    then, and not comparable otherwise. The test is of the sum over one side, two-sided.
    Source: E. A. Gehan, Biometrika 52, 203-223 (1965), with the exact permutation distribution.
    """
    runs, n = [*before, *after], len(before)
    if not before or not after or math.comb(len(runs), n) > MOST_SPLITS:
        return None
    scores = [sum(_later(a, b) - _later(b, a) for b in runs) for a in runs]
    seen = abs(sum(scores[:n]))
    sums = [abs(sum(chosen)) for chosen in combinations(scores, n)]
    return sum(s >= seen for s in sums) / len(sums)


def _later(a: Moment, b: Moment) -> bool:
    """Whether run `a` surely needs longer than `b`."""
    if not b.reached:
        return False
    return a.value > b.value if a.reached else a.value >= b.value
