"""Launches made in memory for the tests of comparisons: series with known noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.analysis.compare.compare import CompareOptions, Comparison, Side, compare_sides
from perfmodel.analysis.compare.series import Launch, Series

PATHS = [("batch",), *(("batch", f"range {i}") for i in range(1, 12))]


def autocorrelated(
    generator: np.random.Generator, shape: tuple[int, int], phi: float, sd: float
) -> np.ndarray:
    """AR(1) noise of standard deviation `sd` in equilibrium, along the last axis of `shape`."""
    noise = generator.standard_normal(shape) * sd
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    for i in range(1, shape[1]):
        noise[:, i] += phi * noise[:, i - 1]
    return noise


def launch(
    generator: np.random.Generator,
    *,
    batches: int = 60,
    phi: float = 0.6,
    within: float = 0.05,
    between: float = 0.1,
    speedup: Mapping[int, float] | None = None,
) -> Launch:
    """One launch of a batch and 11 ranges; half of its variance is the launch's own speed."""
    common = generator.standard_normal() * between * np.sqrt(0.5)
    noise = autocorrelated(generator, (len(PATHS), batches), phi, within)
    series = {}
    for i, path in enumerate(PATHS):
        level = np.log(1e-3 / (i + 1)) - np.log((speedup or {}).get(i, 1.0))
        level += common + generator.standard_normal() * between * np.sqrt(0.5)
        series["range", path] = Series(np.exp(level + noise[i]))
    return Launch("made", 0, 2, frozenset(), frozenset({"nvtx"}), series)


def compared(
    before: Sequence[Launch], after: Sequence[Launch], noise: float = 0.1, **options: float
) -> Comparison:
    sides = (Side(tuple(side), ({},) * len(side)) for side in (before, after))
    return compare_sides(*sides, CompareOptions(noise=noise, **options))


def certain(comparison: Comparison) -> list[str]:
    """Names of what is said to be faster or slower."""
    return [r.name for r in comparison.rows if r.verdict in ("faster", "slower")]
