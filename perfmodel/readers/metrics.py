"""Reads sampled GPU counters: GPU_METRICS of an export, named by TARGET_INFO_GPU_METRICS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers.rep import as_sqlite
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NULL

TABLE: Final = "GPU_METRICS"
NAMES: Final = "TARGET_INFO_GPU_METRICS"
COLLECT: Final = "nsys profile --gpu-metrics-devices=all"
"""What makes Nsight Systems sample them; the driver must allow it (ERR_NVGPUCTRPERM)."""

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
    with as_sqlite(path) as file, Database(file, shown=path) as db:
        if TABLE not in db.tables or NAMES not in db.tables:
            return ()
        columns = db.columns(TABLE)
        time = next((c for c in ("timestamp", "rawTimestamp") if c in columns), None)
        if time is None or not {"typeId", "metricId", "value"} <= set(columns):
            raise SchemaError(
                f"{path}: {TABLE} lacks one of timestamp, typeId, metricId, value; export the "
                f"report again"
            )
        found = db.read(TABLE, [time, "typeId", "metricId", "value"])
        named = {
            (kind, metric): str(name)
            for kind, metric, name in db.rows(NAMES, ["typeId", "metricId", "metricName"])
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
