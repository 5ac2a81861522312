"""Says what a report of benchmarks.vecadd shows of pages: who faulted when, what moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.vecadd.unified import (
    CAUSES,
    CPU_FAULTS,
    GPU_FAULTS,
    TO_DEVICE,
    TO_HOST,
    Faults,
    Migrations,
    read_unified,
)
from perfmodel.readers import read
from perfmodel.readers.trace import COPY_KINDS, KERNEL, MEMCPY, NULL

KERNELS: Final = ("explicit", "unified first", "unified second")
"""The last kernels of the program, in their order."""


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
        raise ValueError(f"wanted {len(KERNELS)} kernels, found {len(at)}; profile it again")
    inside = []
    for name, op in zip(KERNELS, at.tolist(), strict=True):
        span = int(trace.ops.start_ns[op]), int(trace.ops.end_ns[op])
        inside.append(
            {"kernel": name, "seconds": (span[1] - span[0]) / 1e9,
             "gpu_faults": faults(unified.gpu_faults, span),
             **moved(unified.migrations, span, TO_DEVICE)}
        )  # fmt: skip
    return {
        "kernels": inside, "copies": copies(trace.ops),
        "to_device": moved(unified.migrations, None, TO_DEVICE),
        "to_host": moved(unified.migrations, None, TO_HOST), "causes": causes(unified.migrations),
        "cpu_faults": faults(unified.cpu_faults, None),
        "gpu_faults": faults(unified.gpu_faults, None),
        "absent_tables": [
            table
            for table, found in ((CPU_FAULTS, unified.cpu_faults), (GPU_FAULTS, unified.gpu_faults))
            if found is None
        ],
    }  # fmt: skip


def faults(found: Faults | None, span_ns: tuple[int, int] | None) -> int | None:
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
    return {
        CAUSES.get(int(c), "unknown") if c != NULL else "not told": int(
            found.bytes[found.cause == c].sum()
        )
        for c in np.unique(found.cause)
    }


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
