"""Reads what unified memory did: migrations and page faults of a report, also by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers import opened, read
from perfmodel.readers.sqlite import Database, needed_columns
from perfmodel.readers.trace import (
    COPY_KINDS,
    KERNEL,
    MEMCPY,
    NULL,
    UNIFIED_BETWEEN,
    UNIFIED_TO_GPU,
    UNIFIED_TO_HOST,
)

COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
CPU_FAULTS: Final = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
GPU_FAULTS: Final = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
COLLECT: Final = "nsys profile --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true"
"""What makes Nsight Systems record migrations and both tables of page faults."""

CAUSES: Final = {
    0: "unknown", 1: "asked for", 2: "coherence", 3: "prefetch by the driver", 4: "eviction",
    5: "access counters",
}  # fmt: skip
"""CUPTI's `CUpti_ActivityUnifiedMemoryMigrationCause`."""


KERNELS: Final = ("explicit", "unified first", "unified second")
"""The last kernels of the program, in their order."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """Pages that moved, an entry for each copy, by start; `cause` is NULL where it is not told."""

    start_ns: Int64
    end_ns: Int64
    bytes: Int64
    kind: Int64
    cause: Int64


@dataclass(frozen=True, slots=True)
class Faults:
    """Page faults, by start: `count` of them in each entry, which for a CPU is one."""

    start_ns: Int64
    count: Int64


@dataclass(frozen=True, slots=True)
class UnifiedMemory:
    """What a report says of unified memory; faults are None where they were not recorded."""

    migrations: Migrations
    cpu_faults: Faults | None
    gpu_faults: Faults | None


def read_unified(path: Path) -> UnifiedMemory:
    """Read the migrations and page faults of a report.

    Nsight Systems makes a table when there is a first row for it: a table of faults that is absent
    was not asked for (`COLLECT`), or nothing faulted. Faults are counted as its report ``um_sum``
    counts them: rows of the CPU's, `numberOfPageFaults` of the GPU's.

    Parameters
    ----------
    path : Path
        Any report that `perfmodel.readers.read` opens.

    Raises
    ------
    ReportError
        If the file cannot be read whole.
    SchemaError
        If a table lacks a column, or holds no number where one must be.
    """
    with opened(path) as file, Database(file, shown=path) as db:

        def faults(table: str, *counts: str) -> Faults | None:
            if table not in db.tables:
                return None
            found = needed_columns(db, path, table, ("start", *counts))
            count = found[counts[0]] if counts else np.ones_like(found["start"])
            return Faults(found["start"], count)

        names = ("start", "end", "bytes", "copyKind")
        found = needed_columns(db, path, COPIES, names, ("migrationCause",))
        mine = np.isin(found["copyKind"], (UNIFIED_TO_GPU, UNIFIED_TO_HOST, UNIFIED_BETWEEN))
        moved = Migrations(*(found[name][mine] for name in (*names, "migrationCause")))
        return UnifiedMemory(moved, faults(CPU_FAULTS), faults(GPU_FAULTS, "numberOfPageFaults"))


def evidence(report: Path) -> dict[str, Any]:
    """Return copies, migrations and faults of a report, whole and inside each kernel.

    Raises
    ------
    ValueError
        If the report has fewer kernels than the program launches.
    """
    trace, unified = read(report), read_unified(report)
    at = np.flatnonzero(trace.ops.kind == KERNEL)
    at = at[np.argsort(trace.ops.start_ns[at])][-len(KERNELS) :]
    if len(at) < len(KERNELS):
        raise ValueError(f"expected {len(KERNELS)} kernels; got {len(at)}; profile it again")
    inside = []
    for name, op in zip(KERNELS, at.tolist(), strict=True):
        span = int(trace.ops.start_ns[op]), int(trace.ops.end_ns[op])
        inside.append(
            {"kernel": name, "seconds": (span[1] - span[0]) / 1e9,
             "gpu_faults": count_faults(unified.gpu_faults, span),
             **moved(unified.migrations, span, UNIFIED_TO_GPU)}
        )  # fmt: skip
    return {
        "kernels": inside, "copies": copies(trace.ops),
        "to_device": moved(unified.migrations, None, UNIFIED_TO_GPU),
        "to_host": moved(unified.migrations, None, UNIFIED_TO_HOST),
        "causes": causes(unified.migrations),
        "cpu_faults": count_faults(unified.cpu_faults, None),
        "gpu_faults": count_faults(unified.gpu_faults, None),
        "absent_tables": [
            table
            for table, found in ((CPU_FAULTS, unified.cpu_faults), (GPU_FAULTS, unified.gpu_faults))
            if found is None
        ],
    }  # fmt: skip


def count_faults(found: Faults | None, span_ns: tuple[int, int] | None) -> int | None:
    """Count faults that began in a span, or all; None if none were recorded."""
    if found is None:
        return None
    return int(found.count[_within(found.start_ns, span_ns)].sum())


def moved(found: Migrations, span_ns: tuple[int, int] | None, kind: int) -> dict[str, Any]:
    """Add up the migrations of a kind that began in a span, or all."""
    mine = _within(found.start_ns, span_ns) & (found.kind == kind)
    size = int(found.bytes[mine].sum())
    taken = int((found.end_ns - found.start_ns)[mine].sum())
    return {"migrations": int(mine.sum()), "bytes": size, "migration_s": taken / 1e9}


def causes(found: Migrations) -> dict[str, int]:
    """Add up the bytes that moved, by why they did."""
    said = {**CAUSES, NULL: "not told"}
    sums = {c: int(found.bytes[found.cause == c].sum()) for c in np.unique(found.cause).tolist()}
    return {said.get(c, "unknown"): size for c, size in sums.items()}


def copies(ops: Any) -> dict[str, dict[str, Any]]:
    """Add up the copies of every kind."""
    result = {}
    for kind in np.unique(ops.copy_kind[ops.kind == MEMCPY]).tolist():
        mine = (ops.kind == MEMCPY) & (ops.copy_kind == kind)
        result[COPY_KINDS.get(kind, "Unknown")] = {
            "count": int(mine.sum()), "bytes": int(ops.bytes[mine].sum()),
            "seconds": float((ops.end_ns - ops.start_ns)[mine].sum()) / 1e9,
        }  # fmt: skip
    return result


def _within(start_ns: Any, span_ns: tuple[int, int] | None) -> Any:
    if span_ns is None:
        return np.ones(len(start_ns), np.bool_)
    return (start_ns >= span_ns[0]) & (start_ns <= span_ns[1])
