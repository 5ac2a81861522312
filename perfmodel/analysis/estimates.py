"""Medians and rates with two intervals: of this run's own batches, and for a rerun."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.models.launches import ENOUGH, Median, spreads, sum_of_medians
from perfmodel.programs import settings_of_mark
from perfmodel.timing.samples import Estimate

if TYPE_CHECKING:
    from perfmodel.analysis.rates import Rate
    from perfmodel.analysis.result import RunAnalysis

_Known = TypeVar("_Known", "Estimate", "Rate")


def estimate(table: Floats, limited_by: str) -> Estimate | None:
    """Take the median over ranks and batches; None without any value.

    Parameters
    ----------
    table : array, shape (ranks, batches)
        Seconds; NaN where a rank lacks it in a batch.
    limited_by : str
        What decides how much runs differ: a name of `perfmodel.models.launches.spreads`.
    """
    usable = int(np.count_nonzero(~np.isnan(table)))
    if usable == 0:
        return None
    found = sum_of_medians([table])
    another = spreads()[limited_by].another([found]) or (None, None)
    return Estimate(found.seconds, found.low, found.high, usable, limited_by, *another)


def with_launches(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Take the interval of another launch from the launches, where three or more are given.

    Launches are of one configuration if their program, sizes, settings and GPU are the same, as
    their configuration marks say; of runs without one it is not known.
    """
    groups: dict[object, list[RunAnalysis]] = {}
    for run in runs:
        groups.setdefault(_configuration(run), []).append(run)
    return [_with(run, groups[_configuration(run)]) for run in runs]


def _configuration(run: RunAnalysis) -> object:
    if not run.identity.config:
        return id(run)
    settings = settings_of_mark(run.program, run.identity.config)
    sizes = sorted(run.identity.values.items())
    gpu = run.machine.name if run.machine else None
    return run.program.name, tuple(sizes), tuple(sorted(settings.items())), gpu, len(run.ranks)


def _with(run: RunAnalysis, group: Sequence[RunAnalysis]) -> RunAnalysis:
    if len(group) < ENOUGH:
        return run
    median = _of_launches(run.batch.median, [other.batch.median for other in group])
    products = [{label: rate for label, _, rate in other.products} for other in group]
    return replace(
        run,
        batch=replace(run.batch, median=median),
        rates={
            name: rate and _of_launches(rate, [o.rates.get(name) for o in group])
            for name, rate in run.rates.items()
        },
        rates_by_clock={
            name: {
                clock: rate and _of_launches(rate, [o.rates_by_clock[name][clock] for o in group])
                for clock, rate in by_clock.items()
            }
            for name, by_clock in run.rates_by_clock.items()
        },
        products=tuple(
            (label, work, _of_launches(rate, [other.get(label) for other in products]))
            for label, work, rate in run.products
        ),
    )


def _of_launches(mine: _Known, group: Sequence[_Known | None]) -> _Known:
    values = [one.value for one in group if one is not None and one.value > 0]
    if len(values) < ENOUGH:
        return mine
    medians = [Median(value, math.log(value), 0.0, 1.0) for value in values]
    another = spreads()[mine.limited_by].another(medians) or (None, None)
    return replace(mine, launch_low=another[0], launch_high=another[1], launches=len(values))
