"""Terms: one part's coefficients from all runs that have it, and from microbenchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.models.micro import IN_A_BATCH, Evidence
from perfmodel.models.model import USUAL_NOISE, Term
from perfmodel.models.part import Part
from perfmodel.models.regress import Fitted, Floats, fit, measured_space, spread
from perfmodel.programs.mlp.observe import Observation

RESAMPLES: Final = 100
FEWEST: Final = 4
"""Launches below which noise is not estimated but taken to be the usual."""
_SEED: Final = 213
_ROUNDS: Final = 5
"""Of a resampled fit, which begins near its end."""

Row = tuple[Part, float, Observation]
"""A part as it is known, its seconds in one launch, and the launch."""


@dataclass(frozen=True, slots=True)
class _Table:
    """What a term is fitted to: configurations' medians, then rows of microbenchmarks.

    Attributes
    ----------
    x : array, shape (n, k)
        Amounts.
    seconds : array, shape (n,)
    weights : array, shape (n,)
        1 for a configuration; the rows of one series share one.
    series : tuple of int
        For every row the number of its series, -1 for a configuration.
    """

    x: Floats
    seconds: Floats
    weights: Floats
    series: tuple[int, ...]

    @property
    def measured(self) -> int:
        """How many rows are configurations."""
        return self.series.count(-1)


def fit_term(
    part: Part, rows: Sequence[Row], micro: Sequence[Evidence], resamples: int = RESAMPLES
) -> Term:
    """Fit one part on the median launch of every case: what disturbs a launch only delays it.

    Parameters
    ----------
    part : Part
        Any with its key and its amounts.
    rows : sequence of Row
    micro : sequence of Evidence
        Those of this key are taken. Without them and without rows it takes no time.
    resamples : int
        Of the bootstrap; 0 leaves the covariance at 0.
    """
    amounts = tuple(part.amounts)
    cases: dict[object, list[tuple[Part, float]]] = {}
    for known, seconds, o in rows:
        cases.setdefault(o.case.key, []).append((known, seconds))
    mine = [e for e in micro if e.key == part.key and e.rows]
    if not rows and not mine:
        none = np.zeros(len(amounts))
        space = np.eye(len(amounts))
        return Term(part.key, amounts, none, np.diag(none), USUAL_NOISE, none + 1, space, ())
    table = _table(amounts, list(cases.values()), mine)
    found = fit(table.x, table.seconds, table.weights)
    left = [
        residual + float(np.log(s / median))
        for launches, median, residual in zip(
            cases.values(), table.seconds, found.residuals, strict=False
        )
        for _, s in launches
    ]
    noise = spread(np.array(left), np.ones(len(left)), int((found.coefficients > 0).sum()))
    noise = noise if len(rows) >= FEWEST else max(noise, USUAL_NOISE)
    return Term(
        part.key, amounts, found.coefficients,
        _covariance(table, found, noise / np.sqrt(max(len(rows), 1)), resamples), noise,
        table.x.max(axis=0), measured_space(table.x),
        tuple(dict.fromkeys(o.source for _, _, o in rows)), tuple(e.source for e in mine),
    )  # fmt: skip


def _table(
    amounts: Sequence[str],
    cases: Sequence[Sequence[tuple[Part, float]]],
    micro: Sequence[Evidence],
) -> _Table:
    work: list[Mapping[str, float]] = [launches[0][0].amounts for launches in cases]
    seconds = [float(np.median([s for _, s in launches])) for launches in cases]
    weights, series = [1.0] * len(cases), [-1] * len(cases)
    for number, evidence in enumerate(micro):
        for row, taken in evidence.rows:
            work.append(row)
            seconds.append(taken)
            weights.append(1 / len(evidence.rows))
            series.append(number)
    x = np.array([[each.get(name, 0.0) for name in amounts] for each in work])
    return _Table(x, np.array(seconds), np.array(weights), tuple(series))


def _covariance(table: _Table, found: Fitted, one: float, resamples: int) -> Floats:
    """Bootstrap over configurations; a microbenchmark is off by as much as batches differ from it.

    One configuration alone tells its own time only, to the noise of its launches (`one`).
    """
    count = len(found.coefficients)
    if not resamples:
        return np.zeros((count, count))
    if len(table.seconds) == 1:
        return np.outer(found.coefficients, found.coefficients) * one**2
    generator = np.random.default_rng(_SEED)
    series = np.array(table.series)
    usual = np.maximum(table.x @ found.coefficients, 1e-12)
    draws = []
    for _ in range(resamples):
        drawn = generator.integers(0, max(table.measured, 1), table.measured)
        often = np.bincount(drawn, minlength=len(series))
        weights = np.where(series < 0, often, table.weights)
        off = generator.normal(0.0, IN_A_BATCH, max(table.series) + 1)
        moved = np.where(series < 0, 0.0, np.append(off, 0.0)[series])
        if table.measured == 1:
            moved[0] = generator.normal(0.0, one)
        keep = weights > 0
        seconds = (table.seconds * np.exp(moved))[keep]
        again = fit(table.x[keep], seconds, weights[keep], usual[keep], _ROUNDS)
        draws.append(again.coefficients)
    return np.atleast_2d(np.cov(np.array(draws), rowvar=False))
