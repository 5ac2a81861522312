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
    later_bytes : int64, shape (n,)
        What moves to the host after the last step, in the row of that one.
    """

    step: Int32
    count: Int64
    to_gpu_bytes: Int64
    to_host_bytes: Int64
    ns: Int64
    later_bytes: Int64

    @classmethod
    def join(cls, parts: Sequence[Migrations]) -> Migrations:
        """Put those of parts of a report together."""
        columns = (np.concatenate([getattr(p, name) for p in parts]) for name in cls.__slots__)
        return cls(*columns)


@dataclass(frozen=True, slots=True)
class UnifiedFacts:
    """Migrations of a step, the mean over steps and ranks; those after the last step by rank."""

    count: float
    to_gpu_bytes: float
    to_host_bytes: float
    seconds: float
    later_bytes: float = 0.0


def is_migration(ops: GpuOps) -> Bool:
    """Whether each GPU operation is a migration of unified memory."""
    found: Bool = (ops.kind == MEMCPY) & np.isin(ops.copy_kind, _UNIFIED)
    return found


def migrations(trace: Trace, steps: Steps, times: StepTimes) -> Migrations:
    """Sum migrations up by the step of their process that began last before they did.

    Those after the end of the last one are no part of it: the host may read what it computed.
    """
    rows = np.flatnonzero(is_migration(trace.ops))
    process = trace.ops.process[rows].copy()
    for lane, device in enumerate(times.device.tolist()):  # where the report does not say
        process[(process < 0) & (trace.ops.device[rows] == device)] = times.process[lane]
    start, end = trace.ops.start_ns[rows], trace.ops.end_ns[rows]
    ended = np.full(len(trace.processes), np.iinfo(np.int64).min)
    np.maximum.at(ended, times.process[times.ops.lane], trace.ops.end_ns[times.ops.op])
    step, later = _begun(steps, process, start, ended)
    inside = (step >= 0) & (process >= 0)
    rows, later = rows[inside], later[inside]
    cells, cell = distinct_rows(process[inside], steps.number[step[inside]])
    size, kind = np.maximum(trace.ops.bytes[rows], 0), trace.ops.copy_kind[rows]
    to_gpu, to_host, after = (
        sums(cell, np.where((kind == which) & (later == behind), size, 0), len(cells))
        for which, behind in (
            (UNIFIED_TO_GPU, False),
            (UNIFIED_TO_HOST, False),
            (UNIFIED_TO_HOST, True),
        )
    )
    held, first, last = union(cell[~later], start[inside][~later], end[inside][~later])
    return Migrations(
        cells[:, 1].astype(np.int32),
        np.bincount(cell[~later], minlength=len(cells)),
        to_gpu,
        to_host,
        sums(held, last - first, len(cells)),
        after,
    )


def _begun(steps: Steps, process: Int32, at: Int64, ended: Int64) -> tuple[Int64, Bool]:
    """Step of each process that began last before each moment, -1 before the first one.

    And whether the last one had ended: on the host, and by process on the GPU.
    """
    step = steps.holding(process, at).astype(np.int64)
    later = np.zeros(len(at), np.bool_)
    for one in np.unique(process[step < 0]).tolist():
        mine = np.flatnonzero(steps.process == one)
        rows = np.flatnonzero((step < 0) & (process == one))
        if len(mine) == 0:
            continue
        mine = mine[np.argsort(steps.start_ns[mine], kind="stable")]
        begun = np.searchsorted(steps.start_ns[mine], at[rows], side="right") - 1
        step[rows] = np.where(begun >= 0, mine[np.maximum(begun, 0)], -1)
        later[rows] = (begun == len(mine) - 1) & (at[rows] >= ended[one])
    return step, later


def unified_facts(parts: Sequence[Migrations], window: slice, lanes: int) -> UnifiedFacts | None:
    """Sum the migrations up of the steps that count; None if there are none."""
    found = Migrations.join(parts)
    inside = (found.step >= window.start) & (found.step < window.stop)
    cells = lanes * (window.stop - window.start)
    count, to_gpu, to_host, ns = (
        float(getattr(found, name)[inside].sum()) / max(cells, 1)
        for name in ("count", "to_gpu_bytes", "to_host_bytes", "ns")
    )
    later = float(found.later_bytes.sum()) / max(lanes, 1)
    return UnifiedFacts(count, to_gpu, to_host, ns * 1e-9, later) if count else None
