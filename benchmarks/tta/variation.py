"""Tests two coefficients of variation against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr
from scipy.stats import permutation_test

from perfmodel.base.arrays import Floats

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
