"""Serving: what the steps of an engine must take at least, beside what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal

import numpy as np

from perfmodel.analysis.steps import StepBreakdown
from perfmodel.machines.machine import Machine
from perfmodel.timing.engine_steps import EngineWork, Stage
from perfmodel.timing.run import Run

FloorBy = Literal["memory", "compute", "exchange"]


@dataclass(frozen=True, slots=True)
class ServingRow:
    """Engine steps of one stage and number of sequences: medians over steps and GPUs.

    Attributes
    ----------
    engine, phase : str
        The engine, and 'prefill', 'decode' or 'mixed'.
    model : str
        The model that the operators' sizes are of; '' if none is recognized.
    shards : int
        GPUs that share each layer.
    steps : int
    sequences, context_tokens, generation_tokens, cached_tokens : float
        Cached tokens are those whose keys and values are read; at least so many without `exact`.
    exact : bool
        Whether the engine names all of them.
    step_s, busy_s : float
        From a step's first operation to the next step's, and the time in which the GPU works.
    weight_bytes, cache_bytes : float or None
        Weights and KV cache, moved once.
    memory_s, compute_s, exchange_s : float or None
        Least times by bandwidth, peaks and link.
    floor_s : float or None
        The largest of them: these may overlap.
    floor_by : str or None
    compute_bound_sequences : float or None
        Sequences from which decoding is bound by computing, with as many tokens each; None where
        it is not a decode, or where the KV cache of each takes longer than its computing.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"host_s": "host_s", "tokens_per_s": "tokens_per_s"}

    engine: str
    phase: Stage
    model: str
    shards: int
    steps: int
    sequences: float
    context_tokens: float
    generation_tokens: float
    cached_tokens: float
    exact: bool
    step_s: float
    busy_s: float
    weight_bytes: float | None
    cache_bytes: float | None
    memory_s: float | None
    compute_s: float | None
    exchange_s: float | None
    floor_s: float | None
    floor_by: FloorBy | None
    compute_bound_sequences: float | None

    @property
    def host_s(self) -> float:
        """What the step takes beside the GPU's work: waiting for the host, gaps between steps."""
        return max(self.step_s - self.busy_s, 0.0)

    @property
    def of_floor(self) -> float | None:
        """Share of the step that the floor is."""
        return self.floor_s / self.step_s if self.floor_s and self.step_s else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens that are computed in a second."""
        return (self.context_tokens + self.generation_tokens) / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    work: EngineWork
    step_s: float
    busy_s: float


def serving_rows(run: Run, steps: StepBreakdown, machine: Machine | None) -> tuple[ServingRow, ...]:
    """Return the engine's steps by stage and sequences, the one with most time first."""
    grouped: dict[tuple[str, Stage, int], list[_Step]] = {}
    for one in _steps(run, range(steps.warmup, steps.warmup + steps.count)):
        said = one.work.step
        batch = said.sequences if said.stage == "decode" else 0
        grouped.setdefault((said.engine, said.stage, batch), []).append(one)
    rows = [_row(group, machine) for group in grouped.values()]
    return tuple(sorted(rows, key=lambda row: -row.steps * row.step_s))


def _steps(run: Run, window: range) -> Iterator[_Step]:
    for report, found in zip(run.steps, run.operators, strict=False):
        at = {int(number): i for i, number in enumerate(np.unique(report.steps.number))}
        for (lane, number), work in found.engine.items():
            lasted = int(report.times.step_ns[lane, at[number]]) if number in at else -1
            if number in window and lasted >= 0:
                busy = int(report.times.busy_ns[lane, at[number]])
                yield _Step(work, lasted * 1e-9, busy * 1e-9)


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
    return ServingRow(
        engine=first.engine,
        phase=first.stage,
        model=next((w.model for w in works if w.model), ""),
        shards=works[0].shards,
        steps=len(group),
        sequences=sequences,
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
        compute_bound_sequences=_ridge(sequences, weights, memory_s, compute_s, cache, first.stage),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _memory_s(work: EngineWork, machine: Machine | None) -> float | None:
    """Weights and KV cache over the memory's bandwidth."""
    rate = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
    if not rate or work.weight_bytes is None:
        return None
    return (work.weight_bytes + (work.cache_bytes or 0.0)) / rate


def _compute_s(work: EngineWork, machine: Machine | None) -> float | None:
    """FLOPs over the peaks of their units; None where one has no peak."""
    if machine is None or not work.flops:
        return None
    peaks = [machine.peak_flops_per_s.get(unit) for unit, _ in work.flops]
    if not all(peaks):
        return None
    return sum(count / (peak or 1.0) for (_, count), peak in zip(work.flops, peaks, strict=True))


def _exchange_s(work: EngineWork, machine: Machine | None) -> float | None:
    """Bytes of exchanged tensors over one direction of the link, each sent once."""
    links = machine.bandwidth_bytes_per_s if machine else {}
    rate = links.get("nvlink", links.get("infinity_fabric"))
    return work.exchange_bytes / (rate / 2) if rate and work.exchange_bytes else None


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
