"""The calibrated model: coefficients of every part with their evidence, and what they predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.models.alone import Alone
from perfmodel.models.part import Part
from perfmodel.models.regress import Floats
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.parts import parts_of

VERSION: Final = 3
"""Version of the file format; other versions are refused."""

USUAL_NOISE: Final = 0.08
"""Relative standard deviation of a batch from launch to launch, where it cannot be estimated."""

Z90: Final = 1.6448536269514722
"""Half-width of a 90 % interval in standard deviations."""


@dataclass(frozen=True)
class Term:
    """One calibrated part.

    Attributes
    ----------
    key : str
        `Part.key`.
    amounts : tuple of str
        Names of the amounts, in the order of the arrays.
    coefficients : array, shape (k,)
        Seconds per unit of each amount, at least 0.
    covariance : array, shape (k, k)
        Of the coefficients, by bootstrap over configurations.
    noise : float
        Standard deviation of log(measured / fitted) from launch to launch.
    largest : array, shape (k,)
        Largest amount of the runs it was fitted on.
    space : array, shape (r, k)
        Directions of amounts / largest that the runs tell apart.
    runs : tuple of str
        Reports it was fitted on.
    microbenchmarks : tuple of str
        Series of a machine's measurement that it was fitted on, beside the reports.
    """

    key: str
    amounts: tuple[str, ...]
    coefficients: Floats
    covariance: Floats
    noise: float
    largest: Floats
    space: Floats
    runs: tuple[str, ...]
    microbenchmarks: tuple[str, ...] = ()

    def vector(self, amounts: Mapping[str, float]) -> Floats:
        """Arrange amounts in the order of the coefficients."""
        return np.array([amounts.get(name, 0.0) for name in self.amounts])

    def seconds(self, amounts: Mapping[str, float]) -> float:
        """Return the time of so much work."""
        return float(self.vector(amounts) @ self.coefficients)

    def variance(self, amounts: Mapping[str, float]) -> float:
        """Return the variance of `seconds` that the coefficients leave, in s^2."""
        x = self.vector(amounts)
        return max(float(x @ self.covariance @ x), 0.0)

    def told(self, amounts: Mapping[str, float]) -> bool:
        """Whether the runs tell the time of these amounts, whatever they leave open."""
        scaled = self.vector(amounts) / np.where(self.largest > 0, self.largest, 1.0)
        if ((self.largest <= 0) & (self.vector(amounts) > 0)).any():
            return False
        rest = scaled - self.space.T @ (self.space @ scaled)
        return bool(np.linalg.norm(rest) <= 1e-6 * max(float(np.linalg.norm(scaled)), 1.0))


@dataclass(frozen=True)
class Model:
    """Terms by key, the launch-to-launch noise of a batch, and what was seen.

    Attributes
    ----------
    workload : str
        'mlp', or the name of a workload of the user's own.
    terms : mapping of str to Term
    batch_noise : mapping of str to float
        Standard deviation of log(measured / predicted) of batches, by what sets their pace; of
        launches that the coefficients were not fitted to.
    phase_noise : mapping of str to float
        The same by phase.
    seen : mapping of str to tuple of int
        Values of every symbol in the runs, ascending.
    machine : str
    runs : tuple of mapping
        The evidence: file, sizes, settings, measured and fitted seconds of every run.
    tracing_s : float or None
        What a batch takes longer while Nsight Systems records it; None where no run was timed
        without it.
    alone : Alone or None
        Microbenchmarks of the products that cuBLAS multiplies; None without them.
    """

    workload: str
    terms: Mapping[str, Term]
    batch_noise: Mapping[str, float]
    phase_noise: Mapping[str, float]
    seen: Mapping[str, tuple[int, ...]]
    machine: str
    runs: tuple[Mapping[str, object], ...]
    tracing_s: float | None = None
    alone: Alone | None = None

    def noise(self, pace: str) -> float:
        """Return the noise of batches of a pace; the largest known where that one is not known."""
        return self.batch_noise.get(pace, max(self.batch_noise.values(), default=USUAL_NOISE))

    def parts(self, case: Case) -> tuple[Part, ...]:
        """Return the parts of a case, products as microbenchmarks measured them where known."""
        return parts_known(case, self.alone)


def parts_known(case: Case, alone: Alone | None) -> tuple[Part, ...]:
    """Return the parts of a case; products measured alone have those seconds as their amounts."""
    parts = parts_of(case)
    return parts if alone is None else tuple(alone.part(part, case) for part in parts)
