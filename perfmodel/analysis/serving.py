"""Serving: what the steps of an engine must take at least, beside what they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import numpy as np

from perfmodel.analysis.steps import StepBreakdown
from perfmodel.machines.machine import Machine
from perfmodel.models.serving import FloorBy, Recorded, link_bytes_per_s
from perfmodel.programs.facts import ServingRow
from perfmodel.timing.engine_steps import EngineWork, Stage
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import lane_ranks


@dataclass(frozen=True, slots=True)
class _Step:
    work: EngineWork
    step_s: float
    busy_s: float
    rank: int
    number: int
    gap_s: float | None


def serving_rows(run: Run, steps: StepBreakdown, machine: Machine | None) -> tuple[ServingRow, ...]:
    """Return the engine's steps by stage and sequences, the one with most time first."""
    found = [*_steps(run, steps.window.stop)]
    phases = {one.work.step.stage for one in found if one.number >= steps.window.start}
    grouped: dict[tuple[str, Stage, int], list[_Step]] = {}
    for one in found:
        said = one.work.step
        if one.number < steps.window.start and said.stage in phases:
            continue  # a phase that the first steps alone have counts, as a prefill before decodes
        batch = said.sequences if said.stage == "decode" else 0
        grouped.setdefault((said.engine, said.stage, batch), []).append(one)
    rows = [_row(group, machine) for group in grouped.values()]
    return tuple(sorted(rows, key=lambda row: -row.steps * row.step_s))


def usual_rows(rows: Sequence[ServingRow]) -> tuple[ServingRow, ...]:
    """Return the row of the median step of each phase, the phase with most time first."""
    phases: dict[str, list[ServingRow]] = {}
    for row in rows:
        phases.setdefault(row.phase, []).append(row)
    by_time = sorted(phases.values(), key=lambda of: -sum(row.steps * row.step_s for row in of))
    return tuple(_usual(of) for of in by_time)


def shares_of_time(rows: Sequence[ServingRow]) -> dict[str, float]:
    """Return the share of each phase in the time of all steps."""
    total_s = sum(row.steps * row.step_s for row in rows) or 1.0
    seconds = {phase: sum(r.steps * r.step_s for r in rows if r.phase == phase)
               for phase in {row.phase for row in rows}}  # fmt: skip
    return {phase: of_phase_s / total_s for phase, of_phase_s in seconds.items()}


def _usual(rows: Sequence[ServingRow]) -> ServingRow:
    ordered = sorted(rows, key=lambda row: (row.step_s, row.sequences))
    below = np.cumsum([row.steps for row in ordered])
    return ordered[int(np.searchsorted(2 * below, below[-1]))]


def _steps(run: Run, end: int) -> Iterator[_Step]:
    ranks = lane_ranks(run.steps)
    for report, found, rank in zip(run.steps, run.operators, ranks, strict=False):
        at = {int(number): i for i, number in enumerate(np.unique(report.steps.number))}
        for (lane, number), work in found.engine.items():
            lasted = int(report.times.step_ns[lane, at[number]]) if number in at else -1
            if number < end and lasted >= 0:
                busy = int(report.times.busy_ns[lane, at[number]])
                gap = max(lasted - work.times.span_ns, 0) * 1e-9 if number + 1 in at else None
                yield _Step(work, lasted * 1e-9, busy * 1e-9, rank[lane], number, gap)


def _row(group: Sequence[_Step], machine: Machine | None) -> ServingRow:
    works = [one.work for one in group]
    first = works[0].step
    weights = _median([w.weight_bytes for w in works])
    cache = _median([w.cache_bytes for w in works])
    memory_s, compute_s, exchange_s = (
        _median([seconds(work, machine) for work in works])
        for seconds in (_memory_s, _compute_s, _exchange_s)
    )
    floors: dict[FloorBy, float] = {}
    if memory_s is not None:
        floors["memory"] = memory_s
    if compute_s is not None:
        floors["compute"] = compute_s
    if exchange_s is not None and floors:
        floors["exchange"] = exchange_s
    by = max(floors, key=lambda name: floors[name], default=None)
    sequences = median(w.step.sequences for w in works)
    experts = _experts(group, "rank")
    return ServingRow(
        engine=first.engine,
        phase=first.stage,
        model=next((w.model for w in works if w.model), ""),
        shards=works[0].shards,
        steps=len({one.number for one in group}),
        sequences=sequences,
        generations=median(w.step.generations for w in works),
        context_tokens=median(w.step.context_tokens for w in works),
        generation_tokens=median(w.step.generation_tokens for w in works),
        cached_tokens=median(w.step.cached for w in works),
        exact=all(w.step.exact for w in works),
        step_s=median(one.step_s for one in group),
        busy_s=median(one.busy_s for one in group),
        weight_bytes=weights,
        cache_bytes=cache,
        memory_s=memory_s,
        compute_s=compute_s,
        exchange_s=exchange_s,
        floor_s=floors[by] if by else None,
        floor_by=by,
        compute_bound_sequences=_ridge(sequences, weights, memory_s, compute_s, cache, first.stage)
        if all(w.step.exact for w in works)
        else None,
        gap_s=_median([one.gap_s for one in group]),
        exchanges=median(w.times.exchanges for w in works),
        exchange_kernels_s=median(w.times.exchange_ns for w in works) * 1e-9,
        experts_s=tuple(median(times) for times in experts.values() if any(times)),
        experts_late_s=median(max(s) - fmean(s) for s in _experts(group, "number").values()),
        read_bytes=median(w.times.read_bytes for w in works),
        read_s=median(w.times.read_ns for w in works) * 1e-9,
        wide_bytes=median(w.wide_bytes for w in works),
        guesses=any(w.step.guesses for w in works),
        replayed=median(w.times.replayed_ns / max(w.times.kernels_ns, 1) for w in works),
        hidden=median(w.times.hidden_ns / max(w.times.kernels_ns, 1) for w in works),
    )


def _experts(group: Sequence[_Step], by: str) -> dict[int, list[float]]:
    """Return the times in experts by rank, or by step."""
    found: dict[int, list[float]] = {}
    for one in group:
        found.setdefault(getattr(one, by), []).append(one.work.times.experts_ns * 1e-9)
    return dict(sorted(found.items()))


def recorded(rows: Sequence[ServingRow]) -> dict[str, Recorded]:
    """Return what the steps of each phase reach of what bounds them, and what the host adds.

    A phase that has no rows for a bound has that of the others; those with most time come first.
    """
    everywhere: dict[str, float] = {}
    found: dict[str, dict[str, float]] = {}
    hosts: dict[str, float] = {}
    for row in rows:
        hosts.setdefault(row.phase, row.host_s)
        if row.floor_s is not None and row.floor_by is not None and row.busy_s:
            reached = row.floor_s / row.busy_s
            everywhere.setdefault(row.floor_by, reached)
            found.setdefault(row.phase, {}).setdefault(row.floor_by, reached)
    return {
        phase: Recorded({**everywhere, **found.get(phase, {})}, host_s)
        for phase, host_s in hosts.items()
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _memory_s(work: EngineWork, machine: Machine | None) -> float | None:
    """Weights and KV cache over the memory's bandwidth."""
    rate = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
    if not rate or work.weight_bytes is None:
        return None
    return (work.weight_bytes + (work.cache_bytes or 0.0)) / rate


_WIDER: Final = {
    "float4_tensor": "float8_tensor",
    "float8_tensor": "bfloat16_tensor",
    "int8_tensor": "bfloat16_tensor",
}
"""Units that compute with a type which a GPU's own units lack: the weights are widened."""


def _peak(unit: str, machine: Machine) -> float | None:
    peak = machine.peak_flops_per_s.get(unit)
    return _peak(_WIDER[unit], machine) if peak is None and unit in _WIDER else peak


def _compute_s(work: EngineWork, machine: Machine | None) -> float | None:
    """FLOPs over the peaks of their units; None where one has no peak."""
    if machine is None or not work.flops:
        return None
    peaks = [_peak(unit, machine) for unit, _ in work.flops]
    if not all(peaks):
        return None
    return sum(count / (peak or 1.0) for (_, count), peak in zip(work.flops, peaks, strict=True))


def _exchange_s(work: EngineWork, machine: Machine | None) -> float | None:
    """Bytes of exchanged tensors over one direction of the link, each sent once."""
    rate = link_bytes_per_s(machine) if machine else None
    return work.exchange_bytes / rate if rate and work.exchange_bytes else None


def _ridge(
    sequences: float,
    weights: float | None,
    memory_s: float | None,
    compute_s: float | None,
    cache: float | None,
    stage: Stage,
) -> float | None:
    """Sequences n with n c = w + n k: time to compute, to read the weights, and the KV cache."""
    if stage != "decode" or not weights or not memory_s or not compute_s or not sequences:
        return None
    weights_s = memory_s * weights / (weights + (cache or 0.0))
    more = (compute_s - (memory_s - weights_s)) / sequences
    return weights_s / more if more > 0 else None
