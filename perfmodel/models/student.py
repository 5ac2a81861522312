"""Student's t distribution, for any degrees of freedom: tail and quantile."""

from __future__ import annotations

import math
from typing import Final

_TINY: Final = 1e-300
_STEPS: Final = 500


def two_sided(t: float, df: float) -> float:
    """Probability that |T| exceeds `t` for `df` degrees of freedom.

    Source: P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t^2); Abramowitz & Stegun, Handbook of
    Mathematical Functions (1964), 26.7.1 and 26.5.27.

    Examples
    --------
    >>> round(two_sided(2.228, 10), 4)
    0.05
    """
    if t <= 0:
        return 1.0
    if math.isinf(t):
        return 0.0
    return _beta(df / 2, 0.5, df / (df + t * t))


def quantile(p: float, df: float) -> float:
    """Return t with P(|T| > t) = `p`, by bisection.

    Examples
    --------
    >>> round(quantile(0.05, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while two_sided(high, df) > p and high < 1e30:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > p else (low, middle)
    return high


def _beta(a: float, b: float, x: float) -> float:
    """Regularized incomplete beta function I_x(a, b), by its continued fraction.

    Source: Abramowitz & Stegun 26.5.8, evaluated as Lentz does (Press et al., Numerical Recipes,
    3rd edition, 6.4); the fraction converges fast for x < (a + 1) / (a + b + 2).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front += a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            fraction *= c * d
        if abs(fraction - before) < 1e-14 * abs(fraction):
            break
    return math.exp(front) * fraction / a


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
