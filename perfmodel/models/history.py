"""Change points of a series of times over commits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64

FEWEST: Final = 10
"""Commits from which a series says how much it varies; `benchmarks.history` measures from here."""
PENALTY: Final = 18.0
"""Cost of a change, in squared standard deviations. Two commits, however far
off, cost 18 in the bounded loss, so that a change needs three. 16 raises alarms in 2 to 8 % of
series of 100 independent commits that are looked at after every commit, 18 in 1 of 80
(`benchmarks.history`)."""
_BOUND: Final = 3.0
"""A commit is never further from a level than so many standard deviations: K of the source."""
_LAG: Final = 4
"""Commits apart whose differences show the correlation of neighbours."""
_SPACING: Final = 0.25
"""Distance of the levels that are tried, in standard deviations: costs at most 0.016 a commit."""
_MOST_LEVELS: Final = 2000
_MAD: Final = 1.482602
"""Standard deviation over median absolute deviation of a normal variable."""
_LEAST_SD: Final = 1e-4
"""Medians of the steadiest launches differ by so much (CUDA graphs: 0.2 %, clocks: 32 ns)."""
_UNKNOWN: Final = 5.0
"""Share of the noise that n commits leave unknown, times n."""
_PLACES: Final = 6.0
"""Cost by which another place of a change may be worse than the best: `benchmarks.history` counts
how often the true commit is among these places."""
_MOST_CORRELATED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Change:
    """A change between two commits of a series.

    Attributes
    ----------
    at : int
        The first commit with the new level.
    first, last : int
        Between which commits, both included, the true one lies with 95 %.
    before, after : float
        Medians of the commits from the change before to this one, and from here to the next.
    """

    at: int
    first: int
    last: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


def noise_of(logs: Floats) -> float:
    """Return the standard deviation of a mean of n commits, times the root of n.

    By medians of absolute differences, which few changes do not move: those of neighbours give
    2 s^2 (1 - r), those of commits 4 apart nearly 2 s^2 where neighbours correlate by r > 0; the
    long-run variance is s^2 (1 + r) / (1 - r) of a first-order autoregression. What r is above
    its own error, 1 / sqrt(n), counts. Fewer commits know the noise less well: it grows by
    1 + 5 / n.

    Parameters
    ----------
    logs : array, shape (n,)
        Logarithms of times; at least 2.

    Examples
    --------
    >>> round(noise_of(np.log([1.00, 1.02] * 10)), 3)
    0.026
    """
    n = len(logs)
    near, far = (
        float(np.median(np.abs(logs[lag:] - logs[:-lag]))) * _MAD / math.sqrt(2)
        for lag in (1, min(_LAG, n - 1))
    )
    seen = 1 - (near / far) ** 2 - 1 / math.sqrt(n) if far > 0 else 0.0
    r = min(max(seen, 0.0), _MOST_CORRELATED)
    found = max(near, far) * math.sqrt((1 + r) / (1 - r))
    return max(found, _LEAST_SD) * (1 + _UNKNOWN / n)


def change_points(
    seconds: Sequence[float], least: float = 0.0, together: int = 1
) -> tuple[Change, ...]:
    """Find the commits from which on a time is another one.

    The levels theta and their changes are those that minimize

        sum over commits of min(((log x_t - theta_t) / s)^2, 3^2)
            + (18 + 2 log `together`) times the number of changes

    over all levels and all places: the loss is bounded, so that single outliers are no changes.
    The minimum over all levels of a grid is carried from commit to commit, where a level stays or,
    at the price of a change, follows the best one. Source: P. Fearnhead, G. Rigaill, Changepoint
    Detection in the Presence of Outliers, J. Am. Stat. Assoc. 114, 169-183 (2019), whose R-FPOP
    carries the same minimum as a function; the noise s is `noise_of`.

    Parameters
    ----------
    seconds : sequence of float
        One positive time a commit, in their order.
    least : float
        Smaller relative changes do not count: 0.01 is 1 %.
    together : int
        Series that are looked at for the same change: with many, one of them jumps by chance.

    Returns
    -------
    tuple of Change
        In the order of commits; none of fewer than `FEWEST` commits.
    """
    if len(seconds) < FEWEST:
        return ()
    times = np.asarray(seconds, float)
    logs = np.log(times)
    s = noise_of(logs)
    count = math.ceil((float(np.ptp(logs))) / (s * _SPACING)) + 1
    levels = np.linspace(logs.min(), logs.max(), min(count, _MOST_LEVELS))
    loss = np.minimum(((logs[:, None] - levels) / s) ** 2, _BOUND**2)
    at = _segments(loss, PENALTY + 2 * math.log(together))
    while len(at) > 2:  # the smallest change goes first: what it divided is one level again
        middles = [float(np.median(times[a:b])) for a, b in itertools.pairwise(at)]
        sizes = np.abs(np.diff(np.log(middles)))
        if sizes.min() >= math.log1p(least):
            break
        del at[int(sizes.argmin()) + 1]
    found = []
    for a, b, c in zip(at, at[1:], at[2:], strict=False):
        first, last = _places(loss[a:c], b - a)
        before, after = float(np.median(times[a:b])), float(np.median(times[b:c]))
        found.append(Change(b, a + first, a + last, before, after))
    return tuple(found)


def _segments(loss: Floats, penalty: float) -> list[int]:
    """Return where the levels of least cost begin, and the number of commits."""
    n, count = loss.shape
    came: Int64 = np.full((n, count), -1)
    cost = loss[0]
    for t in range(1, n):
        best = int(cost.argmin())
        changed = cost[best] + penalty < cost
        came[t][changed] = best
        cost = np.minimum(cost, cost[best] + penalty) + loss[t]
    level, at = int(cost.argmin()), [n]
    for t in range(n - 1, 0, -1):
        if came[t, level] >= 0:
            at.append(t)
            level = int(came[t, level])
    return [0, *at[:0:-1], n]


def _places(loss: Floats, best: int) -> tuple[int, int]:
    """Return the first and last place of one change that cost little more than the best."""
    before = np.cumsum(loss, axis=0)
    costs = before[:-1].min(axis=1) + (before[-1] - before[:-1]).min(axis=1)
    near = np.flatnonzero(costs <= costs[best - 1] + _PLACES) + 1
    return int(near[0]), int(near[-1])


def newly_found(
    seconds: Sequence[float], least: float, near: int = 3, together: int = 1
) -> tuple[Change, ...]:
    """Return the changes that the last commit reveals: those that are not found without it.

    Parameters
    ----------
    seconds, least, together
        As `change_points`.
    near : int
        Commits by which a change may have moved.
    """
    known = [one.at for one in change_points(seconds[:-1], least, together)]
    return tuple(
        one
        for one in change_points(seconds, least, together)
        if all(abs(one.at - at) > near for at in known)
    )
