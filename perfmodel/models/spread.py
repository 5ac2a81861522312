"""Mean, standard deviation and coefficient of variation of a few runs, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats


def t_two_sided(t: float, df: float) -> float:
    """Return the probability that |T| exceeds `t` for `df` degrees of freedom of Student's T.

    Examples
    --------
    >>> round(t_two_sided(2.228, 10), 4)
    0.05
    """
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -t)) if t > 0 else 1.0


def t_quantile(p: float, df: float) -> float:
    """Return t with P(|T| > t) = `p`.

    Examples
    --------
    >>> round(t_quantile(0.05, 4), 3)
    2.776
    """
    from scipy.special import stdtrit

    return -float(stdtrit(df, p / 2))


_T_95: Final = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, math.inf: 1.960,
}  # fmt: skip


def t_95(df: float) -> float:
    """Return t with P(|T| > t) = 5 %, between tabled degrees of freedom a little too large.

    Without SciPy, whose import takes half as long as the analysis of a report.
    Source: M. Abramowitz, I. A. Stegun, Handbook of Mathematical Functions, table 26.10.

    Examples
    --------
    >>> t_95(4)
    2.776
    """
    inverse = [1 / n for n in _T_95]
    return float(np.interp(1 / df, inverse[::-1], [*_T_95.values()][::-1]))


def chi2_quantile(p: float, df: float) -> float:
    """Return x that chi-square is at most with probability `p`.

    Examples
    --------
    >>> round(chi2_quantile(0.95, 4), 3)
    9.488
    """
    from scipy.special import chdtri

    return float(chdtri(df, 1 - p))


Z90: Final = 1.6448536269514722
"""Half-width of a 90 % interval in standard deviations."""
LEVEL: Final = 0.95
LARGEST_CV: Final = 0.33
"""Up to here the interval of the coefficient of variation is good (Vangel 1996)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of n values; what n does not allow is None.

    Attributes
    ----------
    mean, low, high : float
        With Student's t interval.
    std : float
        Sample standard deviation (n - 1).
    cv, cv_low, cv_high : float
        std / mean; no upper limit where the interval is open.
    least, most : float
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    std: float | None
    cv: float | None
    cv_low: float | None
    cv_high: float | None
    least: float
    most: float


def spread(values: Sequence[float], level: float = LEVEL) -> Spread | None:
    """Describe values; None without any.

    Parameters
    ----------
    values : sequence of float
        In any unit: the coefficient of variation does not depend on it.
    level : float
        Coverage of the intervals.
    """
    n = len(values)
    if not n:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Spread(1, mean, None, None, None, None, None, None, mean, mean)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile(1 - level, n - 1) * std / math.sqrt(n)
    cv = std / mean if mean > 0 else None
    cv_low, cv_high = cv_interval(cv, n, level) if cv is not None else (None, None)
    return Spread(
        n, mean, mean - half, mean + half, std, cv, cv_low, cv_high, min(values), max(values)
    )


def cv_interval(cv: float, n: int, level: float = LEVEL) -> tuple[float, float | None]:
    """Return limits of the coefficient of variation of a normal population.

    K / sqrt(((u + 2) / n - 1) K^2 + u / (n - 1)) with u the quantiles of chi-square with n - 1
    degrees of freedom; the upper limit does not exist where the root's argument is negative.
    Source: M. G. Vangel, Confidence Intervals for a Normal Coefficient of Variation, The American
    Statistician 50, 21-26 (1996), modifying A. T. McKay, J. R. Stat. Soc. 95, 695-698 (1932).

    Examples
    --------
    >>> [round(limit, 3) for limit in cv_interval(0.1, 5)]
    [0.06, 0.294]
    """
    tail = (1 - level) / 2
    limits = []
    for p in (1 - tail, tail):
        u = chi2_quantile(p, n - 1)
        square = ((u + 2) / n - 1) * cv**2 + u / (n - 1)
        limits.append(cv / math.sqrt(square) if square > 0 else None)
    low, high = limits
    return low or 0.0, high


MOST_DEALT: Final = 200_000
"""Permutations of values over two samples that are all tried; ten in each are 184,756."""


@dataclass(frozen=True, slots=True)
class CvTest:
    """Whether two samples have one coefficient of variation.

    Attributes
    ----------
    ratio : float
        Of the first's coefficient over the second's.
    z, p_miller : float
        Of Miller's asymptotic test.
    p_permutation : float or None
        Of the logarithm of the ratio over all permutations of the values, each over its sample's
        mean, over the two samples: no distribution is assumed. None beyond `MOST_DEALT` ways.
    """

    ratio: float
    z: float
    p_miller: float
    p_permutation: float | None


def equal_cv(first: Sequence[float], second: Sequence[float]) -> CvTest | None:
    """Test two coefficients of variation against each other; None without two spreads.

    z = (c1 - c2) / sqrt(c^2 (1/2 + c^2) (1/(n1 - 1) + 1/(n2 - 1))), c the mean of both, weighted
    by n - 1, is standard normal where they are equal. Source: G. E. Miller, Communications in
    Statistics, Theory and Methods 20, 3351-3363 (1991).

    Examples
    --------
    >>> found = equal_cv([9.0, 10.0, 11.0], [8.0, 10.0, 12.0])
    >>> [round(v, 3) for v in (found.ratio, found.z, found.p_miller)]
    [0.5, -0.922, 0.356]
    """
    from scipy.special import ndtr
    from scipy.stats import permutation_test

    if min(len(first), len(second)) < 3 or min(*first, *second) <= 0:
        return None
    samples = [np.asarray(side, float) / float(np.mean(side)) for side in (first, second)]
    c1, c2 = (float(side.std(ddof=1)) for side in samples)
    if min(c1, c2) <= 0:
        return None
    m1, m2 = len(first) - 1, len(second) - 1
    c = (m1 * c1 + m2 * c2) / (m1 + m2)
    z = (c1 - c2) / math.sqrt(c**2 * (0.5 + c**2) * (1 / m1 + 1 / m2))

    def apart(a: Floats, b: Floats, axis: int) -> Floats:
        logs = [np.log(np.maximum(np.std(s, axis=axis, ddof=1), 1e-300)) for s in (a, b)]
        return np.asarray(np.abs(logs[0] - logs[1]), float)

    p = None
    if math.comb(m1 + m2 + 2, m1 + 1) <= MOST_DEALT:
        p = permutation_test(
            samples, apart, vectorized=True, batch=10_000, n_resamples=np.inf,
            alternative="greater",
        ).pvalue  # fmt: skip
    return CvTest(c1 / c2, z, 2 * float(ndtr(-abs(z))), None if p is None else float(p))
