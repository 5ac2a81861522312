"""The chi-square distribution: probability and quantile, for intervals of a spread."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

_TERMS: Final = 10_000


def below(x: float, df: float) -> float:
    """Probability that chi-square with `df` degrees of freedom is at most `x`.

    Source: P(df/2, x/2), the regularized incomplete gamma function, by its series
    (Abramowitz & Stegun, Handbook of Mathematical Functions (1964), 26.4.19 and 6.5.29).

    Examples
    --------
    >>> round(below(9.488, 4), 4)
    0.95
    """
    if x <= 0:
        return 0.0
    a, z = df / 2, x / 2
    term = total = 1 / a
    for n in range(1, _TERMS):
        term *= z / (a + n)
        total += term
        if term < 1e-16 * total:
            break
    return min(1.0, math.exp(a * math.log(z) - z - math.lgamma(a)) * total)


@cache
def quantile(p: float, df: float) -> float:
    """Return x that chi-square is at most with probability `p`, by bisection.

    Examples
    --------
    >>> round(quantile(0.95, 4), 3)
    9.488
    """
    low, high = 0.0, max(1.0, df)
    while below(high, df) < p and high < 1e6:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle, df) < p else (low, middle)
    return high
