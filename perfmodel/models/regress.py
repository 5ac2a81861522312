"""Robust, non-negative regression of log times: t = sum of c_k x_k with c_k at least 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROUNDS: Final = 20
_SETTLED: Final = 1e-5
_HUBER: Final = 1.5
"""Residuals beyond so many standard deviations count linearly: 96 % efficient on Gaussian noise."""
_LEAST_SCALE: Final = 0.003
"""Relative noise that no clock of a report is below."""
_SAME: Final = 1e-6
"""Directions of the design matrix below this share of the largest are not measured."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients (k,), residuals log(measured / fitted) (n,) and their robust scale."""

    coefficients: Floats
    residuals: Floats
    scale: float


def fit(
    x: Floats,
    seconds: Floats,
    weights: Floats | None = None,
    start: Floats | None = None,
    rounds: int = ROUNDS,
) -> Fitted:
    """Fit t = x c in log time, with c at least 0 and Huber's weights.

    Gauss-Newton: log(x c) = log t0 + x c / t0 - 1 around the times t0 of the round before, so that
    every round is a non-negative linear least-squares problem.

    Parameters
    ----------
    x : array, shape (n, k)
        Amounts of work, all at least 0.
    seconds : array, shape (n,)
        Measured times, all above 0.
    weights : array, shape (n,), optional
        How often every row counts.
    start : array, shape (n,), optional
        Fitted times to begin with, by default the measured ones.
    rounds : int
        At most.
    """
    usual = np.where(x.max(axis=0) > 0, np.abs(x).max(axis=0), 1.0)
    scaled = x / usual
    often = np.ones(len(seconds)) if weights is None else weights
    fitted = seconds if start is None else start
    weight = often
    c = np.zeros(x.shape[1])
    for _ in range(rounds):
        target = 1.0 + np.log(seconds / fitted)
        before, c = c, nonnegative(scaled / fitted[:, None], target, weight)
        fitted = np.maximum(scaled @ c, 1e-12)
        residual = np.log(seconds / fitted)
        scale = spread(residual, often, int((c > 0).sum()))
        weight = often * np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-12))
        if (np.abs(c - before) <= 1e-12 + _SETTLED * np.abs(before)).all():
            break
    return Fitted(c / usual, residual, scale)


def nonnegative(a: Floats, y: Floats, weights: Floats) -> Floats:
    """Minimize sum of weights (y - a c)^2 over c at least 0, by trying every set of free c."""
    count = a.shape[1]
    root = np.sqrt(weights)
    rows, wanted = a * root[:, None], y * root
    whole = np.asarray(np.linalg.lstsq(rows, wanted, rcond=None)[0])
    if (whole >= 0).all():
        return whole
    best, least = np.zeros(count), np.inf
    for size in range(count - 1, 0, -1):
        for free in combinations(range(count), size):
            part, *_ = np.linalg.lstsq(rows[:, free], wanted, rcond=None)
            if (part < 0).any():
                continue
            error = float(np.sum(weights * (y - a[:, free] @ part) ** 2))
            if error < least * (1 - 1e-9):
                best, least = np.zeros(count), error
                best[list(free)] = part
    return best


def spread(residuals: Floats, often: Floats, used: int) -> float:
    """Estimate the standard deviation of residuals as 1.4826 times the median absolute one."""
    values = np.repeat(np.abs(residuals), np.maximum(often, 0).astype(int))
    if len(values) == 0:
        return _LEAST_SCALE
    degrees = max(len(values) - used, 1)
    usual = 1.4826 * float(np.median(values)) * math.sqrt(len(values) / degrees)
    return max(usual, _LEAST_SCALE)


def measured_space(x: Floats) -> Floats:
    """Return an orthonormal basis (r, k) of the directions of the scaled columns that x measures.

    Columns are divided by their largest entry first. A case whose scaled amounts lie in this space
    can be predicted, whatever the coefficients that cannot be told apart.
    """
    usual = np.where(x.max(axis=0) > 0, x.max(axis=0), 1.0)
    _, sizes, rows = np.linalg.svd(x / usual, full_matrices=False)
    return np.asarray(rows[sizes > _SAME * max(sizes[0], 1e-300)])
