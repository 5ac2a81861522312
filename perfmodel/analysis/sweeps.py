"""Explains a sweep: how intensity and performance follow a symbol, by formula and measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.work import Counts, Workload

FLAT: Final = 0.05
"""Exponents of intensity closer to 0 than this hardly change it."""


def doublings(first: int, last: int) -> tuple[int, ...]:
    """Return first, 2 first, 4 first, ... up to last, which is the end in any case."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return (*values, last)


def elasticity(
    workload: Workload, values: Mapping[str, int], symbol: str
) -> tuple[float, float] | None:
    """Exponents with which FLOPs and bytes over the links follow a symbol, others held.

    The slope of log count over log symbol between half and twice its value, rounded to what the
    workload admits; None if the formulas are not defined there.
    """
    step = values.get("p", 1) if symbol == "B" else 1
    low = max(step, values[symbol] // 2 // step * step)
    high = values[symbol] * 2
    try:
        ends = [
            sum(workload.evaluate({**values, symbol: v}).values(), Counts()) for v in (low, high)
        ]
    except WorkloadError:
        return None
    scale = math.log(high / low)
    flops = [c.flops for c in ends]
    moved = [c.moved_bytes for c in ends]
    if min(*flops, *moved) <= 0 or scale == 0:
        return None
    return math.log(flops[1] / flops[0]) / scale, math.log(moved[1] / moved[0]) / scale


def trends(runs: Sequence[RunAnalysis]) -> tuple[str, ...]:
    """One sentence per symbol that differs between runs that agree in all else."""
    return tuple(_sentences(runs))


def _sentences(runs: Sequence[RunAnalysis]) -> Iterator[str]:
    kinds: dict[tuple[str, ...], list[RunAnalysis]] = {}
    for run in runs:
        kinds.setdefault((run.workload.name, *run.workload.ranges), []).append(run)
    for alike in kinds.values():
        for said in _sentences_of(alike):
            yield f"{alike[0].workload.name}: {said}" if len(kinds) > 1 else said


def _sentences_of(runs: Sequence[RunAnalysis]) -> Iterator[str]:
    """Return the statements on runs of one workload."""
    symbols = list(runs[0].workload.symbols)
    values = [{s: r.identity.values[s] for s in symbols} for r in runs]
    for symbol in symbols:
        rest = [
            (*(v[s] for s in symbols if s != symbol), _setting(r))
            for v, r in zip(values, runs, strict=True)
        ]
        groups: dict[tuple[object, ...], list[RunAnalysis]] = {}
        for key, run in zip(rest, runs, strict=True):
            groups.setdefault(key, []).append(run)
        swept = [
            sorted(g, key=lambda r: r.identity.values[symbol])
            for g in groups.values()
            if len({r.identity.values[symbol] for r in g}) > 1
        ]
        if swept:
            yield _sentence(symbol, swept)


def _setting(run: RunAnalysis) -> tuple[object, ...]:
    """Return the settings, besides the symbols, that must be equal to compare two runs."""
    gpus = {r.gpu for r in run.ranks}
    kinds = frozenset((c.direction, c.memory) for c in run.copies)
    machine = run.machine.name if run.machine else None
    settings = tuple(run.identity.settings.items())
    return machine, len(run.ranks) / len(gpus), kinds, settings


def _sentence(symbol: str, swept: Sequence[Sequence[RunAnalysis]]) -> str:
    first = swept[0][0]
    known = {s: first.identity.values[s] for s in first.workload.symbols}
    slopes = elasticity(first.workload, known, symbol)
    said = f"{symbol}: "
    if slopes is None:
        said += "the formulas do not say how intensity follows it"
    else:
        flops, moved = slopes
        rise = flops - moved
        how = "rises" if rise > FLAT else "falls" if rise < -FLAT else "hardly changes"
        said += (
            f"intensity {how} with {symbol}, because FLOPs go as {symbol}^{flops:.2f} and bytes "
            f"as {symbol}^{moved:.2f}"
        )
    changes = []
    for group in swept:
        low, high = group[0], group[-1]
        if low.points and high.points:
            gain = high.points[0].flops_per_s / low.points[0].flops_per_s
            ends = f"{low.identity.values[symbol]} to {high.identity.values[symbol]}"
            changes.append((gain, ends))
    if changes:
        gains = sorted(changes)
        span = (
            f"{gains[0][0]:.2f}x"
            if len(gains) == 1
            else (f"{gains[0][0]:.2f}x to {gains[-1][0]:.2f}x")
        )
        said += f"; measured FLOP/s per rank changed {span} from {symbol} = {gains[-1][1]}"
    return said + "."
