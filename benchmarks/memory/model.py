"""A model of measured memory: constant + slope x amount, with intervals and errors elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import linregress

from perfmodel.base.errors import ModelError
from perfmodel.models.spread import t_quantile
from perfmodel.programs.mlp.memory import UNIT_BYTES


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """bytes = constant + slope x, by least squares.

    Attributes
    ----------
    constant_bytes, slope_bytes : float
        x is the samples of a batch, or the bytes that theory counts (then the slope is a ratio).
    constant_half, slope_half : float
        Half the 95 % intervals: Student's t times the standard error.
    residual_bytes : float
        Standard deviation of the residuals, n - 2 degrees of freedom.
    at : tuple of float
        The x of the fit.
    """

    constant_bytes: float
    slope_bytes: float
    constant_half: float
    slope_half: float
    residual_bytes: float
    at: tuple[float, ...]

    def predict(self, x: float) -> tuple[float, float, float]:
        """Return the prediction at `x` with its 95 % prediction interval.

        Source: N. R. Draper, H. Smith, Applied Regression Analysis (1998), eq. 3.1.7: the variance
        of a new observation is s^2 (1 + 1/n + (x - mean)^2 / Sxx).
        """
        n, mean = len(self.at), np.mean(self.at)
        share = (x - mean) ** 2 / np.sum((self.at - mean) ** 2)
        noise = self.residual_bytes * math.sqrt(1 + 1 / n + share)
        half = max(t_quantile(0.05, n - 2) * noise, UNIT_BYTES)  # nobody hands out less
        value = self.constant_bytes + self.slope_bytes * x
        return value, value - half, value + half


def fit_memory(x: Sequence[float], measured_bytes: Sequence[float]) -> MemoryModel:
    """Fit a constant and a slope to bytes at samples of a batch, or at bytes that theory counts.

    Raises
    ------
    ModelError
        If there are fewer than three measurements, or all at one x.
    """
    if len(x) != len(measured_bytes) or len(set(x)) < 2 or len(x) < 3:
        raise ModelError(
            f"expected three measurements of memory or more, at two sizes or more; got {len(x)} at "
            f"{len(set(x))}; measure more sizes"
        )
    line, t = linregress(x, measured_bytes), t_quantile(0.05, len(x) - 2)
    residual = line.stderr * math.sqrt(np.var(x) * len(x))
    found = (line.intercept, line.slope, t * line.intercept_stderr, t * line.stderr, residual)
    return MemoryModel(*map(float, found), tuple(map(float, x)))


def held_out(
    model: MemoryModel, x: Sequence[float], measured_bytes: Sequence[float]
) -> list[dict[str, Any]]:
    """Predict sizes that the fit did not see; the error is relative to what was measured."""
    rows = []
    for at, measured in zip(x, measured_bytes, strict=True):
        value, low, high = model.predict(at)
        rows.append({
            "x": at, "measured_bytes": measured, "predicted_bytes": value,
            "low_bytes": low, "high_bytes": high, "relative_error": value / measured - 1.0,
            "covered": low <= measured <= high,
        })  # fmt: skip
    return rows
