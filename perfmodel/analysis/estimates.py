"""Medians and rates with two intervals: for this launch's own batches, and for another launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.models.launches import ENOUGH, across, limits, sum_of_medians, within_batches
from perfmodel.timing.samples import Estimate

if TYPE_CHECKING:
    from perfmodel.analysis.rates import Rate
    from perfmodel.analysis.result import RunAnalysis

_Known = TypeVar("_Known", "Estimate", "Rate")


def estimate(table: Floats, launch_sd: float) -> Estimate | None:
    """Take the median over ranks and batches; None without any value.

    Parameters
    ----------
    table : array, shape (ranks, batches)
        Seconds; NaN where a rank lacks it in a batch.
    launch_sd : float
        Relative standard deviation between launches (`perfmodel.models.launches.LAUNCH_SD`).
    """
    usable = int(np.count_nonzero(~np.isnan(table)))
    if usable == 0:
        return None
    found = sum_of_medians([table])
    low, high = within_batches(table, *limits(found.seconds, found.within))
    another = limits(found.seconds, found.another(launch_sd))
    return Estimate(found.seconds, low, high, usable, *another)


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
    calibrated = run.program.calibrated
    settings = calibrated.settings(run.identity.config) if calibrated else {}
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
    mean, width = across([math.log(value) for value in values])
    low, high = limits(math.exp(mean), width)
    return replace(mine, launch_low=low, launch_high=high, launches=len(values))
