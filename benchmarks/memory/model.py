"""A model of measured memory: constant + slope x amount, with intervals and errors elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.models.spread import t_quantile
from perfmodel.programs.mlp.memory import UNIT_BYTES

_LEVEL: Final = 0.05


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
        mean, spread, n = _moments(self.at)
        noise = self.residual_bytes * math.sqrt(1 + 1 / n + (x - mean) ** 2 / spread)
        half = max(t_quantile(_LEVEL, n - 2) * noise, UNIT_BYTES)  # nobody hands out less
        value = self.constant_bytes + self.slope_bytes * x
        return value, value - half, value + half


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A size that the fit did not see: measured bytes, predicted ones with their interval."""

    x: float
    measured_bytes: float
    predicted_bytes: float
    low_bytes: float
    high_bytes: float

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


def fit_memory(x: Sequence[float], measured_bytes: Sequence[float]) -> MemoryModel:
    """Fit a constant and a slope.

    Parameters
    ----------
    x : sequence of float
        Samples of a batch, or bytes that theory counts.
    measured_bytes : sequence of float, as long

    Raises
    ------
    ModelError
        If there are fewer than three measurements, or all at one x.

    Examples
    --------
    >>> round(fit_memory([1, 2, 3], [110.0, 120.0, 130.0]).constant_bytes)
    100
    """
    if len(x) != len(measured_bytes) or len(set(x)) < 2 or len(x) < 3:
        raise ModelError(
            f"expected three measurements of memory or more, at two sizes or more; got {len(x)} at "
            f"{len(set(x))}; measure more sizes"
        )
    at, y = np.asarray(x, float), np.asarray(measured_bytes, float)
    mean, spread, n = _moments(x)
    slope = float(((at - mean) * (y - y.mean())).sum() / spread)
    constant = float(y.mean() - slope * mean)
    residual = math.sqrt(float(((y - constant - slope * at) ** 2).sum()) / (n - 2))
    t = t_quantile(_LEVEL, n - 2)
    return MemoryModel(
        constant,
        slope,
        t * residual * math.sqrt(1 / n + mean * mean / spread),
        t * residual / math.sqrt(spread),
        residual,
        tuple(map(float, x)),
    )


def held_out(
    model: MemoryModel, x: Sequence[float], measured_bytes: Sequence[float]
) -> tuple[HeldOut, ...]:
    """Predict sizes that the fit did not see."""
    return tuple(
        HeldOut(float(at), float(found), *model.predict(at))
        for at, found in zip(x, measured_bytes, strict=True)
    )


def _moments(x: Sequence[float]) -> tuple[float, float, int]:
    """Mean, sum of squared differences from it, and number."""
    mean = sum(x) / len(x)
    return mean, sum((value - mean) ** 2 for value in x), len(x)
