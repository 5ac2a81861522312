"""Reads what an export holds of GPUs besides operations: allocations, and sampled counters.

The tables are CUDA_GPU_MEMORY_USAGE_EVENTS; and GPU_METRICS, named by TARGET_INFO_GPU_METRICS.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers import opened
from perfmodel.readers.sqlite import Database, needed_columns
from perfmodel.readers.trace import MEMORY_KINDS, NULL, Events

MEMORY_TABLE: Final = "CUDA_GPU_MEMORY_USAGE_EVENTS"
COLLECT_MEMORY: Final = "nsys profile --cuda-memory-usage=true"
"""Command with which Nsight Systems records the table."""

_ALLOCATION: Final = 0
_DEALLOCATION: Final = 1
_UNKNOWN: Final = 7
_COLUMNS: Final = ("globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")


@dataclass(frozen=True, slots=True)
class MemoryEvents(Events):
    """Allocations and releases, one row each, by start.

    Attributes
    ----------
    start_ns : int64, shape (n,)
    process : int64, shape (n,)
        Serialized global process id, as in `perfmodel.readers.trace.Trace.processes`.
    device : int32, shape (n,)
        CUDA ordinal in the process; of no meaning for host memory.
    kind : int32, shape (n,)
        Key of `perfmodel.readers.trace.MEMORY_KINDS`.
    address : int64, shape (n,)
    bytes : int64, shape (n,)
        As CUDA was asked for.
    frees : bool, shape (n,)
        Whether the row is a release (ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 allocation, 1 deallocation).
    """

    start_ns: Int64
    process: Int64
    device: Int32
    kind: Int32
    address: Int64
    bytes: Int64
    frees: Bool


def read_memory(path: Path) -> MemoryEvents | None:
    """Read the allocations of a report; None if they were not recorded.

    Parameters
    ----------
    path : Path
        Any report that `perfmodel.readers.read` opens.

    Raises
    ------
    ReportError
        If the file cannot be read whole.
    SchemaError
        If the table lacks a column, or holds what it should not.
    """
    with opened(path) as file, Database(file, shown=path) as db:
        if MEMORY_TABLE not in db.tables:
            return None
        row = needed_columns(db, path, MEMORY_TABLE, ("start", *_COLUMNS))
    odd = set(row["memoryOperationType"].tolist()) - {_ALLOCATION, _DEALLOCATION}
    if odd or (row["bytes"] < 0).any():
        raise SchemaError(
            f"{path}: {MEMORY_TABLE}: expected allocations (0) and deallocations (1) of 0 bytes or "
            f"more; got {', '.join(map(str, sorted(odd))) or 'negative sizes'}; export the "
            f"report again"
        )
    kind = row["memKind"]
    known = np.isin(kind, list(MEMORY_KINDS))
    return MemoryEvents(
        start_ns=row["start"],
        process=row["globalPid"],
        device=row["deviceId"].astype(np.int32),
        kind=np.where(known, kind, _UNKNOWN).astype(np.int32),
        address=row["address"],
        bytes=row["bytes"],
        frees=row["memoryOperationType"] == _DEALLOCATION,
    )


METRICS_TABLE: Final = "GPU_METRICS"
METRICS_NAMES: Final = "TARGET_INFO_GPU_METRICS"
_GPU_BITS: Final = 0xFF
"""The last byte of a typeId is the GPU (Nsight Systems' own recipe gpu_metric_util_map)."""


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """One counter of one GPU over time.

    Attributes
    ----------
    gpu : int
    name : str
        As Nsight Systems writes it, such as 'SMs Active [Throughput %]'.
    time_ns, value : int64, shape (n,)
    """

    gpu: int
    name: str
    time_ns: Int64
    value: Int64

    @property
    def mean(self) -> float:
        """Mean of the samples."""
        return float(self.value.mean())


def read_metrics(path: Path) -> tuple[GpuMetric, ...]:
    """Read the sampled counters of a report; nothing if none were sampled.

    Raises
    ------
    ReportError
        If the file cannot be read whole.
    SchemaError
        If a column is missing or holds what it should not.
    """
    with opened(path) as file, Database(file, shown=path) as db:
        if METRICS_TABLE not in db.tables or METRICS_NAMES not in db.tables:
            return ()
        columns = db.columns(METRICS_TABLE)
        time = next((c for c in ("timestamp", "rawTimestamp") if c in columns), None)
        if time is None or not {"typeId", "metricId", "value"} <= set(columns):
            raise SchemaError(
                f"{path}: expected timestamp, typeId, metricId and value in {METRICS_TABLE}; got "
                f"{', '.join(sorted(columns))}; export the report again"
            )
        found = db.read(METRICS_TABLE, [time, "typeId", "metricId", "value"])
        named = {
            (kind, metric): str(name)
            for kind, metric, name in db.rows(METRICS_NAMES, ["typeId", "metricId", "metricName"])
        }
    metrics = []
    for kind, metric in sorted(named):
        mine = (found["typeId"] == kind) & (found["metricId"] == metric)
        mine &= (found["value"] != NULL) & (found[time] != NULL)
        if mine.any():
            times, values = found[time][mine], found["value"][mine]
            order = np.argsort(times, kind="stable")
            gpu = int(kind) & _GPU_BITS
            metrics.append(GpuMetric(gpu, named[kind, metric], times[order], values[order]))
    return tuple(metrics)
