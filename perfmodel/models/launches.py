"""Medians of launches: how far a run's own batches and other launches move them, and effects."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.models.spread import t_95, t_quantile, t_two_sided

ENOUGH: Final = 3
"""Launches a side from which launches themselves say how much they differ."""

FEWEST_PIECES: Final = 5
"""Pieces of the host's time whose median says how fast it was: a change of one or two leaves it."""

_AS_RUNS: Final = 10.0
"""Runs that say that all pieces follow the host alike; 10 and 30 find equally many changes."""

HOST_LIMITED: Final = 0.2
"""Share of a step: where the GPU idles less, hosts that differ by 13 % move it by less than 3 %."""

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

_NOISE_DF: Final = 10.0
_BLOCKS: Final = 8
"""Of successive batches: a chi-squared of 7 degrees of freedom, each of five batches or more."""
MEDIAN_BATCHES: Final = 6  # of so many, least and most hold the median with 97 %: 1 - 2 / 2^6
_NORMAL_95: Final = 1.959964
_TICK_S: Final = 32e-9  # timestamps of an H200 step by 32 ns
_MACHINES: Final = 3.0  # variance between machines over that between launches
_FLOOR_S: Final = {"waiting": 1e-7}  # clocks of ranks agree to about 0.1 µs
_LEAST_S: Final = 1e-9
_MOST_CORRELATED: Final = 0.8
_LEAST_DF: Final = 2.0


@dataclass(frozen=True, slots=True)
class Median:
    """Median over the batches of one run, with its 95 % limits and what they say of its logarithm.

    `error` is the standard error of the logarithm by the width of the limits, with `df` degrees of
    freedom.
    """

    seconds: float
    log: float
    error: float
    df: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of medians between runs, as `reruns.toml` has it."""

    sd: float
    df: float
    alone: bool
    runs: int

    def another(self, medians: Sequence[Median]) -> tuple[float, float] | None:
        """Return where the median of another run lies with 95 %; None where three are needed.

        The variance between runs is that of the runs given and that of typical configurations,
        weighted by their degrees of freedom (Smyth 2004); what one run alone does not know of its
        own median adds to it.
        """
        n = len(medians)
        if n < ENOUGH and not self.alone:
            return None
        logs = [m.log for m in medians]
        mean = float(np.mean(logs))
        df = self.df + n - 1
        variance = (self.df * self.sd**2 + sum((x - mean) ** 2 for x in logs)) / df
        width = t_95(df) * math.sqrt(variance * (1 + 1 / n))
        if n == 1:
            width = math.hypot(width, _NORMAL_95 * medians[0].error)
        return limits(math.exp(mean), width)

    def effect(self, before: Sequence[Median], after: Sequence[Median]) -> Effect:
        """Compare two sides, whose variance between runs is that of `another`.

        It holds what the medians of about 20 batches of a run are off, too.
        """
        sides = before, after
        df, squares = self.df, self.df * self.sd**2
        for side in sides:
            mean = float(np.mean([m.log for m in side]))
            squares += sum((m.log - mean) ** 2 for m in side)
            df += len(side) - 1
        total = squares / df * sum(1 / len(side) for side in sides)
        value = float(np.mean([m.log for m in after]) - np.mean([m.log for m in before]))
        return Effect(value, math.sqrt(total), df)


def host_speeds(pieces: Sequence[Mapping[str, float]], without: str | None = None) -> Floats | None:
    """Say how slow the host was in each of several runs, by what it was slow in alike.

    A host whose neighbours, clocks or cores make it slower takes longer in all pieces of a step; a
    change of the program takes longer in some. So the factor of a run is the median of the factors
    of its pieces, weighted by their times: pieces of less than half of the time do not move it far.
    Between two pieces it is interpolated. Source: weighted medians, F. Y. Edgeworth, Hermathena 6,
    279-285 (1887).

    Parameters
    ----------
    pieces : sequence of mapping of str to float
        Seconds of the host in a median step by piece, one mapping a run.
    without : str, optional
        A piece that is left out.

    Returns
    -------
    array, shape (runs,), or None
        Logarithm of the factor over the geometric mean of all runs; None where fewer than
        `FEWEST_PIECES` are in all of them.

    Examples
    --------
    >>> first = {"load": 2.0, "forward": 2.0, "backward": 3.0, "step": 1.0, "log": 1.0}
    >>> second = {name: 1.21 * s for name, s in first.items()} | {"load": 5.0}
    >>> np.exp(np.diff(host_speeds([first, second]))).round(2)
    array([1.21])
    """
    names = [n for n in pieces[0] if all(one.get(n, 0.0) > 0 for one in pieces)]
    if len(names) < FEWEST_PIECES:
        return None
    names = [n for n in names if n != without]
    logs = np.log([[one[n] for n in names] for one in pieces])
    usual = logs.mean(axis=0)
    weight = np.exp(usual) / np.exp(usual).sum()
    found = []
    for off in logs - usual:
        order = np.argsort(off, kind="stable")
        below = np.cumsum(weight[order]) - weight[order] / 2
        found.append(float(np.interp(0.5, below, off[order])))
    return np.array(found)


def beside_host(pieces: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """Take out of each piece of several runs what the others say of the host that ran it.

    The others say how fast the host was (`host_speeds`), and some follow it more than others:
    copies of pinned memory less, launches more. So of the logarithms x_k of piece k,

        r_k = x_k - c_k - sum over j of b_j x_j,

    c_k being the speed by all others, and b the least squares of the differences between successive
    runs, which a change of the program moves once only, drawn to 0 as by `_AS_RUNS` more runs.
    Source: ridge regression, A. E. Hoerl, R. W. Kennard, Technometrics 12, 55-67 (1970).

    Parameters
    ----------
    pieces : sequence of mapping of str to float
        Seconds of the host in a median step by piece, one mapping a run, in the order of the runs.

    Returns
    -------
    dict of str to array, shape (runs,)
        Seconds of a piece on a usual host; empty where fewer than `FEWEST_PIECES` are in all runs.
    """
    names = [n for n in pieces[0] if all(one.get(n, 0.0) > 0 for one in pieces)]
    if len(names) < FEWEST_PIECES or len(pieces) < ENOUGH:
        return {}
    logs = np.log([[one[n] for n in names] for one in pieces])
    usual = logs.mean(axis=0)
    found = {}
    for k, name in enumerate(names):
        speed = host_speeds(pieces, without=name)
        assert speed is not None  # as many pieces as were counted
        own, others = logs[:, k] - speed, np.delete(logs - usual, k, axis=1)
        apart = np.diff(others, axis=0)
        square = apart.T @ apart
        drawn = _AS_RUNS * float(np.mean(np.diag(square))) / len(apart) + _LEAST_S
        follow = np.linalg.solve(square + drawn * np.eye(len(square)), apart.T @ np.diff(own))
        found[name] = np.exp(own - others @ follow)
    return found


@cache
def spreads() -> dict[str, Spread]:
    """Return the spread between runs by what limits a time: 'GPU', 'host', 'GEMMs', ..."""
    text = resources.files("perfmodel.models").joinpath("reruns.toml").read_text("utf-8")
    return {name: Spread(**row) for name, row in tomllib.loads(text).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter:
    """Seconds per step on both sides of a change."""

    before_s: float
    after_s: float

    @property
    def difference_s(self) -> float:
        """After less before."""
        return self.after_s - self.before_s


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
    """Add up the medians of several times, each over ranks and batches, with their 95 % limits.

    What each is off its median, towards either limit (`interval`), adds up as the batches in which
    they are above their medians correlate.

    Parameters
    ----------
    tables : sequence of array, shape (ranks, batches)
        Of the same batches; NaN where a rank lacks it in one; each has a finite value.
    """
    found = [interval(t) for t in tables]
    count = max(min(one.above.size for one in found), 2)
    df = min(count, _BLOCKS) - 1.0
    centre = sum(one.value for one in found)
    sides = np.nan_to_num(np.array([one.above for one in found]))
    length = np.maximum(np.linalg.norm(sides, axis=1, keepdims=True), _LEAST_S)
    alike = (sides / length) @ (sides / length).T
    np.fill_diagonal(alike, 1.0)
    off = np.array([(one.value - one.low, one.high - one.value) for one in found])
    down, up = np.sqrt(np.maximum(np.einsum("is,ij,js->s", off, alike, off), 0.0))
    floor = max(_FLOOR_S.get(noise, _LEAST_S), _LEAST_S)
    low, high = centre - float(down), centre + float(up)
    if len(found) == 1:  # as seen, to the last digit
        low, high = found[0].low, found[0].high
    width = math.log(max(high, floor) / max(low, floor)) / 2 / _NORMAL_95
    tick = _TICK_S / 2 / max(centre, floor)
    log = math.log(max(centre, floor))
    return Median(centre, log, math.hypot(width, tick), df, low, high)


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % limits, and the side of it on which each batch is.

    `above`, shape (batches,), is 1/2 for a batch above the median on all ranks and -1/2 below; NaN
    without a value.
    """

    value: float
    low: float
    high: float
    above: Floats


def interval(table: Floats) -> Interval:
    """Take the median over ranks and batches and its 95 % limits, which are values of the table.

    The limits are order statistics: with S the number of values above the true median m, the k-th
    smallest and largest values hold m as long as S is within N/2 - k, whatever the distribution and
    its modes (W. J. Conover, Practical Nonparametric Statistics, 3.2). Batches correlate, and S
    varies by the variance of I(t) = 1{x(t) > m} - 1/2 and its autocorrelations rho:

        var(S/N) = var(I) tau / n,   tau = 1 + 2 sum rho_k,

    by Geyer's initial monotone sequence (Statist. Sci. 7, 473, 1992), rho corrected for its bias of
    tau/n, or by blocks of batches (`_by_blocks`) where that is more, which sees slow drifts; with
    Student's quantile for half of the n/tau independent batches. I is the mean over ranks, and
    varies at least as it would on independent ones. Fewer than 6 batches give the least and the
    most.

    Examples
    --------
    >>> found = interval(np.arange(1.0, 12.0)[None] % 7)
    >>> found.value, found.low, found.high
    (3.0, 0.0, 6.0)
    """
    values = np.sort(table[np.isfinite(table)])
    centre = float(np.median(values))
    off = np.sign(np.nan_to_num(table, nan=centre) - centre) / 2
    ranks = np.isfinite(table).sum(axis=0)
    above = np.where(ranks > 0, off.sum(axis=0) / np.maximum(ranks, 1), math.nan)
    known = above[ranks > 0]
    n = known.size
    if n < MEDIAN_BATCHES:
        return Interval(centre, float(values[0]), float(values[-1]), above)
    tau = _correlated(known - known.mean())
    variance = max(float(np.var(known)), 0.25 / len(table))
    df = max(n / tau / 2 - 1, _LEAST_DF)
    share = t_95(df) * math.sqrt(variance * tau / n * (1 + tau / n))
    k = max(math.floor((0.5 - share) * values.size), 0)
    low, high = min(values[k], centre), max(values[-1 - k], centre)
    return Interval(centre, float(low), float(high), above)


def _correlated(off: Floats) -> float:
    """Return tau, the batches that count as one: 1 + 2 sum rho_k; at least 1."""
    n = off.size
    square = float(off @ off) / n
    if square == 0:
        return 1.0
    spectrum = np.abs(np.fft.rfft(off, 2 * n)) ** 2
    rho = np.fft.irfft(spectrum)[:n] / square / (n - np.arange(n))
    tau = 1.0
    for _ in range(3):  # the bias depends on tau: three rounds settle it
        pairs = (rho + tau / n)[1 : 1 + 2 * (n // 4)].reshape(-1, 2).sum(axis=1)
        pairs = np.minimum.accumulate(pairs)
        tau = min(max(1 + 2 * float(pairs[pairs > 0].sum()), 1.0), 0.4 * n)
    return max(tau, min(_by_blocks(off, square), 0.5 * n))


def _by_blocks(off: Floats, square: float) -> float:
    """Return tau by the variance of the means of 8 blocks, or of their correlation, too.

    Source: batch means (Law, Simulation Modeling and Analysis, 5th edition, 9.5.3). Where the
    blocks themselves correlate (rho at lag 1, corrected for its bias of -(1 + 3 rho) / n, Kendall
    1954), their variance grows by (1 + rho) / (1 - rho).
    """
    size = off.size // _BLOCKS
    if size < 2:
        return 1.0
    means = off[: size * _BLOCKS].reshape(_BLOCKS, size).mean(axis=1)
    means = means - means.mean()
    total = float(means @ means)
    rho = float(means[1:] @ means[:-1]) / total if total > 0 else 0.0
    rho += (1 + 3 * max(rho, 0.0)) / _BLOCKS
    rho = min(max(rho, 0.0), _MOST_CORRELATED)
    return total / (_BLOCKS - 1) * size / square * (1 + rho) / (1 - rho)


def drawn_medians(tables: Sequence[Floats], draws: int, seed: int = 213) -> Floats:
    """Draw medians of several times as this launch could have shown them, together.

    Each median's draws are the quantiles of its own `interval`: neighbouring
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
    from scipy.special import ndtri

    generator = np.random.default_rng(seed)
    count = min(_BLOCKS, tables[0].shape[1])
    shared = generator.standard_normal((draws, count))
    drawn = ndtri((np.arange(draws) + 0.5) / draws)
    found = []
    for table in tables:
        one = interval(np.maximum(table, _median(table) / 100))  # a difference may be below 0
        blocks = [np.mean(b) for b in np.array_split(np.nan_to_num(one.above), count)]
        off = np.array(blocks) - np.mean(blocks)
        own = 1e-6 * generator.standard_normal(draws)  # orders what does not vary over the blocks
        direction = off / max(float(np.linalg.norm(off)), _LEAST_S)
        at = drawn[np.argsort(np.argsort(shared @ direction + own))] / _NORMAL_95
        limit = np.where(at < 0, one.value - one.low, one.high - one.value)
        values = table[np.isfinite(table)]
        found.append(np.clip(one.value + at * limit, max(values.min(), 0.0), values.max()))
    return np.column_stack(found)


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
