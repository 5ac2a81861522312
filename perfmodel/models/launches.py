"""Medians of launches: how far a run's own batches and other launches move them, and effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.models.spread import t_95, t_quantile, t_two_sided

ENOUGH: Final = 3
"""Launches a side from which launches themselves say how much they differ."""

LAUNCH_NOISE: Final = 0.10
"""Relative standard deviation of host times between launches of one configuration.

Measured on the campaign's H200s: 0.08 to 0.12 for ranges that do not depend on what was varied
(0.10 over host and pinned runs of one size, 0.12 for 'step' over all sizes), 0.05 for the
all-reduce's transfer, 0.07 for copies; see docs/compare.md.
"""

SCALES: Final = {"host": 1.0, "collective": 2.0, "waiting": 12.0, "kernel": 0.2}
"""Noise of a kind of time over that of host times, measured likewise: kernels 0.01 to 0.03, as
batches that the GPU limits (0.002, and their idle time 0.011, in the ladder's CUDA graphs); ranges
that hold a collective 0.22, waiting for other ranks 1.2 (of the logarithm)."""

GATE_SCALES: Final = {"waiting": 1.3, "queued": 1.8}
"""Noise of batches that the host limits, over `LAUNCH_NOISE`, where it waits in each of them and
where it queues them: medians of launches differ by 0.13 (211 launches of profiles/launches) and by
0.18 (48). Less would raise false alarms."""

LAUNCH_SD: Final = {
    "replayed": 0.005, "waiting": LAUNCH_NOISE * GATE_SCALES["waiting"],
    "queued": LAUNCH_NOISE * GATE_SCALES["queued"], "GEMMs": 0.002, "copies": 0.16, "NCCL": 0.0175,
}  # fmt: skip
"""Standard deviation of the logarithm of medians between launches, with which 90 to 97 % of the
launches in profiles/launches lie in the interval of another: of batches that replay CUDA graphs,
whose host waits in each and whose host queues them, of GEMMs, copies and NCCL on the GPU."""

_NOISE_DF: Final = 10.0
_BLOCKS: Final = 8
MEDIAN_BATCHES: Final = 6  # of so many, least and most hold the median with 97 %: 1 - 2 / 2^6
_TICK_S: Final = 32e-9  # timestamps of an H200 step by 32 ns
_MACHINES: Final = 3.0  # variance between machines over that between launches
_FLOOR_S: Final = {"waiting": 1e-7}  # clocks of ranks agree to about 0.1 µs
_LEAST_S: Final = 1e-9
_MOST_CORRELATED: Final = 0.9
_LEAST_DF: Final = 3.0


@dataclass(frozen=True, slots=True)
class Median:
    """Median over the batches of one launch, with the standard error of its logarithm.

    `df` are those of the blocks, `free` those left where blocks correlate: an interval of this
    launch alone needs them, beside the noise between launches they hardly count.
    """

    seconds: float
    log: float
    error: float
    df: float
    free: float = math.inf

    @property
    def within(self) -> float:
        """Half the width of the 95 % interval of the logarithm, for this launch's own batches."""
        return t_95(min(self.df, self.free)) * self.error

    def another(self, noise: float) -> float:
        """Half the width of that for the median of another launch; launches differ by `noise`."""
        return math.hypot(t_95(_NOISE_DF) * math.sqrt(2) * noise, self.within)


@dataclass(frozen=True, slots=True)
class Effect:
    """Logarithm of after over before, its standard error and degrees of freedom."""

    value: float
    error: float
    df: float

    def p(self, least: float) -> float:
        """Probability of so large an effect if the true one were at most 1 + `least`."""
        beyond = abs(self.value) - math.log1p(least)
        return t_two_sided(beyond / self.error, self.df) if beyond > 0 else 1.0

    def ratio(self, level: float) -> tuple[float, float, float]:
        """After over before, with the limits that it leaves with probability `level`."""
        width = t_quantile(level, self.df) * self.error
        return _exp(self.value), _exp(self.value - width), _exp(self.value + width)

    def detectable(self, level: float, least: float) -> float:
        """Smallest relative change that would pass at `level`, upwards: 0.25 is +25 %."""
        return _exp(t_quantile(level, self.df) * self.error + math.log1p(least)) - 1.0


def median(seconds: Floats, noise: str = "host") -> Median:
    """Take the median over batches and how far noise within the launch can move it.

    Parameters
    ----------
    seconds : array, shape (batches,)
        NaN in batches without it; at least one is finite.
    """
    return sum_of_medians([seconds[None]], noise)


def sum_of_medians(tables: Sequence[Floats], noise: str = "host") -> Median:
    """Add up the medians of several times, each over ranks and batches, and their common error.

    Source: batch means (Law, Simulation Modeling and Analysis, 5th edition, 9.5.3), here medians
    of up to 8 blocks of successive batches, which carry the correlation of neighbours with them.
    Where the blocks themselves still correlate (rho at lag 1, corrected for its bias of
    -(1 + 3 rho) / n, Kendall 1954), their standard error grows by sqrt((1 + rho) / (1 - rho)),
    and so many fewer, but at least 3, are its degrees of freedom.

    Parameters
    ----------
    tables : sequence of array, shape (ranks, batches)
        NaN where a rank lacks it in a batch; each has a finite value.
    """
    known = [t[:, np.isfinite(t).any(axis=0)] for t in tables]
    centre = sum(_median(t) for t in known)
    floor = max(_FLOOR_S.get(noise, _LEAST_S), _LEAST_S)
    count = min(_BLOCKS, *(t.shape[1] for t in known))
    split = [[_median(b) for b in np.array_split(t, count, axis=1)] for t in known]
    blocks = np.maximum(np.sum(split, axis=0), floor)
    error, df = 0.0, max(count - 1.0, 1.0)
    free = df
    if count > 1:
        off = np.log(blocks) - np.mean(np.log(blocks))
        square = float((off**2).sum())
        rho = float((off[1:] * off[:-1]).sum()) / square if square > 0 else 0.0
        rho += (1 + 3 * max(rho, 0.0)) / count
        rho = min(max(rho, 0.0), _MOST_CORRELATED)
        fewer = (1 + rho) / (1 - rho)
        error = math.sqrt(square / (count - 1) / count * fewer)
        free = max(df / fewer, _LEAST_DF)
    tick = _TICK_S / 2 / max(centre, floor)
    return Median(centre, math.log(max(centre, floor)), math.hypot(error, tick), df, free)


def drawn_medians(tables: Sequence[Floats], draws: int, seed: int = 213) -> Floats:
    """Draw medians of several times as this launch could have shown them, together.

    Each median's draws are the quantiles of its own interval (`Median.within`): neighbouring
    batches are not independent, so that resampling single batches would make intervals too narrow.
    What the times of one draw share follows the blocks of batches: a Gaussian copula, R. L. Iman,
    W. J. Conover, Commun. Stat. B 11(3), 311-334 (1982).

    Parameters
    ----------
    tables : sequence of k arrays, shape (ranks, batches)
        Seconds of the same batches; NaN where a rank lacks it, each has a finite value.

    Returns
    -------
    array, shape (draws, k)
        Every column holds the same quantiles whatever the seed, which decides on their order.
    """
    from scipy.special import stdtrit

    generator = np.random.default_rng(seed)
    count = min(_BLOCKS, tables[0].shape[1])
    shared = generator.standard_normal((draws, count))
    levels = (np.arange(draws) + 0.5) / draws
    found = []
    for table in tables:
        centre = _median(table)
        held = np.maximum(table, centre / 100)  # what others are subtracted from may be below 0
        one = sum_of_medians([held])
        blocks = [_median(b) if np.isfinite(b).any() else math.nan
                  for b in np.array_split(held, count, axis=1)]  # fmt: skip
        off = np.nan_to_num(np.array(blocks) - np.nanmean(blocks))
        own = 1e-6 * generator.standard_normal(draws)  # orders what does not vary over the blocks
        direction = off / max(float(np.linalg.norm(off)), _LEAST_S)
        order = np.argsort(np.argsort(shared @ direction + own))
        width = np.clip(one.error * stdtrit(min(one.df, one.free), levels), -600.0, 600.0)
        low, high = within_batches(held, 0.0, math.inf)
        found.append(np.clip(one.seconds * np.exp(width[order]), low, high))
    return np.column_stack(found)


def within_batches(table: Floats, low: float, high: float) -> tuple[float, float]:
    """Keep an interval of the median within the batches, where these hold the median with 95 %."""
    if np.isfinite(table).any(axis=0).sum() < MEDIAN_BATCHES:
        return low, high
    return max(low, float(np.nanmin(table))), min(high, float(np.nanmax(table)))


def _median(table: Floats) -> float:
    return float(np.median(table[np.isfinite(table)]))


def across(logs: Sequence[float]) -> tuple[float, float]:
    """Return the mean over launches, and half the width of the 95 % interval of another one.

    Source: prediction interval of a normal variable, t s sqrt(1 + 1/n) with n - 1 degrees of
    freedom; NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.1 and 4.1.3.

    Examples
    --------
    >>> [round(x, 3) for x in across([0.0, 0.1, 0.2])]
    [0.1, 0.497]
    """
    n = len(logs)
    s = float(np.std(logs, ddof=1))
    return float(np.mean(logs)), t_95(n - 1) * s * math.sqrt(1 + 1 / n)


def another(logs: Sequence[float], noise: float) -> tuple[float, float]:
    """Return the mean over launches, and half the width of the 95 % interval of another one.

    From `ENOUGH` launches on as `across`. Of fewer, what they cannot know is assumed as in
    `effect`: launches differ by `noise`, known as well as from 10 degrees of freedom, or by more
    where they say so.

    Parameters
    ----------
    noise : float
        Standard deviation of the logarithms between launches.

    Examples
    --------
    >>> [round(x, 3) for x in another([0.1], 0.05)]
    [0.1, 0.158]
    """
    n = len(logs)
    if n >= ENOUGH:
        return across(logs)
    mean = float(np.mean(logs))
    variance = _assumed(noise, sum((x - mean) ** 2 for x in logs), n - 1)
    return mean, t_95(_NOISE_DF + n - 1) * math.sqrt(variance * (1 + 1 / n))


def _assumed(noise: float, seen: float, more: int) -> float:
    """Return the variance between launches: `noise` squared, or more where `seen` squares say so.

    Source: assumed and seen variance weighted by their degrees of freedom after G. K. Smyth,
    Stat. Appl. Genet. Mol. Biol. 3, 3 (2004).
    """
    return max(noise**2, (noise**2 * _NOISE_DF + seen) / (_NOISE_DF + more))


def effect(
    before: Sequence[Median], after: Sequence[Median], noise: float, *, machines: bool = False
) -> Effect:
    """Compare two sides whose unit is the launch.

    With `ENOUGH` launches a side, Welch's test on the logarithms of their medians, which vary
    with everything that differs between launches. With fewer, what one launch cannot know is
    assumed: launches differ by `noise`, known as well as from 10 degrees of freedom, or by more
    where they say so; the noise within each launch adds to it.

    Source: B. L. Welch, Biometrika 34, 28-35 (1947); degrees of freedom after F. E.
    Satterthwaite, Biometrics 2, 110-114 (1946); `_assumed`.

    Parameters
    ----------
    noise : float
        Relative standard deviation between launches.
    machines : bool
        Whether the two sides ran on different machines, whose difference is added.
    """
    sides = (before, after)
    value = float(np.mean([m.log for m in after]) - np.mean([m.log for m in before]))
    spread = [float(np.var([m.log for m in s], ddof=1)) if len(s) > 1 else 0.0 for s in sides]
    parts: list[tuple[float, float]] = []
    if min(map(len, sides)) >= ENOUGH:
        for side, variance in zip(sides, spread, strict=True):
            tick = (_TICK_S / 2 / max(max(m.seconds for m in side), _LEAST_S)) ** 2
            parts.append(((variance + tick) / len(side), len(side) - 1.0))
    else:
        more = sum(len(s) - 1 for s in sides)
        seen = sum(v * (len(s) - 1) for s, v in zip(sides, spread, strict=True))
        each = _assumed(noise, seen, more)
        parts.append((each * sum(1 / len(s) for s in sides), _NOISE_DF + more))
        parts += [(m.error**2 / len(s) ** 2, m.df) for s in sides for m in s]
    if machines:
        parts.append((2 * _MACHINES * noise**2, _NOISE_DF))
    total = sum(v for v, _ in parts)
    df = total**2 / sum(v**2 / d for v, d in parts)
    return Effect(value, math.sqrt(total), df)


def holm(
    p: Sequence[float], weights: Sequence[float], alpha: float
) -> tuple[list[bool], list[float]]:
    """Decide which of several differences pass, and at which level each was tested.

    All together are wrong with a probability of at most `alpha`, whatever their dependence.
    Source: S. Holm, Scand. J. Stat. 6, 65-70 (1979), with weights.

    Parameters
    ----------
    p : sequence of float
    weights : sequence of float
        Share of `alpha` that each is given, in any unit.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.2], [1, 1, 1], 0.05)[0]
    [True, False, False]
    """
    passed, level = [False] * len(p), [0.0] * len(p)
    left = float(sum(weights))
    going = True
    for i in sorted(range(len(p)), key=lambda i: p[i] / weights[i]):
        level[i] = alpha * weights[i] / left
        going = going and p[i] <= level[i]
        passed[i] = going
        left -= weights[i] if going else 0.0
    return passed, level


def limits(value: float, width: float) -> tuple[float, float]:
    """Return the limits of an interval of `width` either side of the logarithm of `value`."""
    width = min(width, 600.0)
    return value * math.exp(-width), value * math.exp(width)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
