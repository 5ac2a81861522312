"""Reads what unified memory did: migrations and page faults of a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.rep import as_sqlite
from perfmodel.readers.sqlite import Database, needed_columns

COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
CPU_FAULTS: Final = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
GPU_FAULTS: Final = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
COLLECT: Final = "nsys profile --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true"
"""What makes Nsight Systems record migrations and both tables of page faults."""

TO_DEVICE: Final = 11
TO_HOST: Final = 12
BETWEEN_DEVICES: Final = 13
"""Keys of `perfmodel.readers.trace.COPY_KINDS`: copies that the driver made of its own."""

CAUSES: Final = {
    0: "unknown", 1: "asked for", 2: "coherence", 3: "prefetch by the driver", 4: "eviction",
    5: "access counters",
}  # fmt: skip
"""CUPTI's `CUpti_ActivityUnifiedMemoryMigrationCause`."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """Pages that moved, one row for each copy, by start.

    Attributes
    ----------
    start_ns, end_ns : int64, shape (n,)
    bytes : int64, shape (n,)
    kind : int64, shape (n,)
        `TO_DEVICE`, `TO_HOST` or `BETWEEN_DEVICES`.
    cause : int64, shape (n,)
        Key of `CAUSES`; `perfmodel.readers.trace.NULL` where the report does not say.
    """

    start_ns: Int64
    end_ns: Int64
    bytes: Int64
    kind: Int64
    cause: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Faults:
    """Page faults, by start: `count` of them in each row, which for a CPU is one.

    Attributes
    ----------
    start_ns : int64, shape (n,)
    count : int64, shape (n,)
    """

    start_ns: Int64
    count: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


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
    with as_sqlite(path) as file, Database(file, shown=path) as db:
        copies = needed_columns(
            db, path, COPIES, ("start", "end", "bytes", "copyKind"), ("migrationCause",)
        )
        cpu = needed_columns(db, path, CPU_FAULTS, ("start",)) if CPU_FAULTS in db.tables else None
        gpu = (
            needed_columns(db, path, GPU_FAULTS, ("start", "numberOfPageFaults"))
            if GPU_FAULTS in db.tables
            else None
        )
    mine = np.isin(copies["copyKind"], (TO_DEVICE, TO_HOST, BETWEEN_DEVICES))
    moved = {name: column[mine] for name, column in copies.items()}
    return UnifiedMemory(
        migrations=Migrations(
            moved["start"], moved["end"], moved["bytes"], moved["copyKind"], moved["migrationCause"]
        ),
        cpu_faults=Faults(cpu["start"], np.ones_like(cpu["start"])) if cpu else None,
        gpu_faults=Faults(gpu["start"], gpu["numberOfPageFaults"]) if gpu else None,
    )
