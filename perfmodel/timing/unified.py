"""Page migrations of unified memory: copies that the driver makes, which no call launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64, distinct_rows
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import (
    MEMCPY,
    UNIFIED_BETWEEN,
    UNIFIED_TO_GPU,
    UNIFIED_TO_HOST,
    GpuOps,
    Trace,
)
from perfmodel.timing.intervals import union
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes

_UNIFIED = (UNIFIED_TO_GPU, UNIFIED_TO_HOST, UNIFIED_BETWEEN)


@dataclass(frozen=True, slots=True)
class Migrations:
    """Migrations inside steps; a row per process and step that has any.

    Attributes
    ----------
    step : int32, shape (n,)
        The step's number.
    count, to_gpu_bytes, to_host_bytes, ns : int64, shape (n,)
        `ns` is the union of their times.
    """

    step: Int32
    count: Int64
    to_gpu_bytes: Int64
    to_host_bytes: Int64
    ns: Int64

    @classmethod
    def join(cls, parts: Sequence[Migrations]) -> Migrations:
        """Put those of parts of a report together."""
        columns = (np.concatenate([getattr(p, name) for p in parts]) for name in cls.__slots__)
        return cls(*columns)


@dataclass(frozen=True, slots=True)
class UnifiedFacts:
    """Migrations of a step, the mean over steps and ranks."""

    count: float
    to_gpu_bytes: float
    to_host_bytes: float
    seconds: float


def is_migration(ops: GpuOps) -> Bool:
    """Whether each GPU operation is a migration of unified memory."""
    found: Bool = (ops.kind == MEMCPY) & np.isin(ops.copy_kind, _UNIFIED)
    return found


def migrations(trace: Trace, steps: Steps, times: StepTimes) -> Migrations:
    """Sum migrations up by the step that their process was in when they began."""
    rows = np.flatnonzero(is_migration(trace.ops))
    process = trace.ops.process[rows].copy()
    for lane, device in enumerate(times.device.tolist()):  # where the report does not say
        process[(process < 0) & (trace.ops.device[rows] == device)] = times.process[lane]
    start, end = trace.ops.start_ns[rows], trace.ops.end_ns[rows]
    step = steps.holding(process, start)
    inside = (step >= 0) & (process >= 0)
    rows = rows[inside]
    cells, cell = distinct_rows(process[inside], steps.number[step[inside]])
    size, kind = np.maximum(trace.ops.bytes[rows], 0), trace.ops.copy_kind[rows]
    to_gpu, to_host = (
        sums(cell, np.where(kind == which, size, 0), len(cells))
        for which in (UNIFIED_TO_GPU, UNIFIED_TO_HOST)
    )
    held, first, last = union(cell, start[inside], end[inside])
    return Migrations(
        cells[:, 1].astype(np.int32),
        np.bincount(cell, minlength=len(cells)),
        to_gpu,
        to_host,
        sums(held, last - first, len(cells)),
    )


def unified_facts(parts: Sequence[Migrations], window: slice, lanes: int) -> UnifiedFacts | None:
    """Sum the migrations up of the steps that count; None if there are none."""
    found = Migrations.join(parts)
    inside = (found.step >= window.start) & (found.step < window.stop)
    cells = lanes * (window.stop - window.start)
    count, to_gpu, to_host, ns = (
        float(getattr(found, name)[inside].sum()) / max(cells, 1)
        for name in ("count", "to_gpu_bytes", "to_host_bytes", "ns")
    )
    return UnifiedFacts(count, to_gpu, to_host, ns * 1e-9) if count else None
