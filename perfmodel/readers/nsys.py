"""Reads an Nsight Systems SQLite export, of any schema since 2022.4.

`read_sqlite` reads it whole, into a `Trace`; `EventStream` yields its large tables, API calls and
GPU operations, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np

from perfmodel.base.arrays import Int8, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.base.gpu import Gpu
from perfmodel.readers import mpi as mpi_tables
from perfmodel.readers.codes import Ids, factorize
from perfmodel.readers.nvtx import PROCESS_BITS, Nvtx, Payloads, read_nvtx
from perfmodel.readers.pages import as_text
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_NAME,
    NULL,
    ApiCalls,
    Diagnostic,
    GpuOps,
    NcclRanges,
    Ranges,
    Trace,
)

ALL_PARTS: Final = frozenset({"nvtx", "ops", "op_details", "api", "api_names", "mpi"})
"""Parts of a report. 'op_details' are sizes, kinds and places of GPU operations, 'api_names' the
names of API calls; both cost reading time that some questions can save."""

OP_TABLES = (
    (KERNEL, "CUPTI_ACTIVITY_KIND_KERNEL"),
    (MEMCPY, "CUPTI_ACTIVITY_KIND_MEMCPY"),
    (MEMSET, "CUPTI_ACTIVITY_KIND_MEMSET"),
    (GRAPH, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
)
API_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_SEVERITY = {0: "unknown", 1: "info", 2: "warning", 3: "error", 4: "verbose"}


def read_sqlite(
    path: Path,
    *,
    parts: Iterable[str] = ALL_PARTS,
    fast: bool = True,
    source: Path | None = None,
) -> Trace:
    """Read one SQLite export.

    Parameters
    ----------
    path : Path
    parts : iterable of str
        Event tables and columns to read, of `ALL_PARTS`; the others come back empty or missing.
    fast : bool
        Parse leaf pages directly where possible; both ways give the same trace.
    source : Path, optional
        What the trace and errors name as the report, where `path` is a temporary file.

    Raises
    ------
    ReportError
        If the file cannot be read as a whole SQLite file.
    SchemaError
        If it is no Nsight Systems export, or its columns hold what they should not.
    """
    expected = frozenset(parts)
    with Database(path, fast=fast, shown=source) as db:
        check_export(db)
        ids, strings = read_strings(db)
        nvtx = read_nvtx(db, strings, ids) if "nvtx" in expected else None
        ops = _read_ops(db if "ops" in expected else None, ids, details="op_details" in expected)
        api = _read_api(db if "api" in expected else None, ids, names="api_names" in expected)
        mpi = mpi_tables.read_mpi(db if "mpi" in expected else None, ids, strings)
        return _assemble(db, strings, nvtx, ops, api, mpi)


def check_export(db: Database) -> None:
    """Refuse an SQLite file that is no Nsight Systems export with a `SchemaError`."""
    known = {*_META, "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME"}
    if "StringIds" not in db.tables or not (known | {"NVTX_EVENTS"}) & db.tables:
        found = ", ".join(sorted(db.tables)[:5]) or "no table"
        raise SchemaError(
            f"{db.path}: expected an Nsight Systems export (tables StringIds, META_DATA_EXPORT, "
            f"NVTX_EVENTS, ...); got an SQLite file with {found}; make one with: "
            f"nsys export -q true -t sqlite REPORT.nsys-rep"
        )


def read_strings(db: Database) -> tuple[Ids, tuple[str, ...]]:
    """Read all strings; their codes are positions in the tuple."""
    rows = ((i, as_text(text)) for i, text in db.rows("StringIds", ["id", "value"]))
    known = {i: text for i, text in rows if isinstance(i, int) and text is not None}
    return Ids(np.array([*known], np.int64)), tuple(known.values())


def _read_ops(db: Database | None, ids: Ids, *, details: bool) -> dict[str, Any]:
    """Columns of all GPU operations, processes still as serialized ids."""
    columns = ["correlationId", "globalPid", "demangledName"]
    more = ["deviceId", "streamId", "bytes", "copyKind", "srcKind", "dstKind"]
    parts: dict[str, list[Any]] = {c: [] for c in ["start", "end", *columns, *more, "kind"]}
    for kind, table in OP_TABLES:
        have = db.columns(table) if db else ()
        expected = [c for c in (columns + more if details else columns) if c in have]
        rows = db.read_events(table, expected, open_ends=False) if db else {}
        count = len(rows["start"]) if rows else 0
        parts["kind"].append(np.full(count, kind, np.int8))
        for c in ("start", "end", "correlationId", "globalPid", "bytes"):
            parts[c].append(rows.get(c, np.full(count, NULL)))
        for c in ("deviceId", "streamId"):
            parts[c].append(narrow(rows.get(c), count, np.int32))
        for c in ("copyKind", "srcKind", "dstKind"):
            parts[c].append(narrow(rows.get(c), count, np.int8))
        names = rows.get("demangledName")
        parts["demangledName"].append(
            np.full(count, NO_NAME, np.int32) if names is None else ids.codes(names)
        )
    return {c: np.concatenate(arrays) for c, arrays in parts.items()}


def _read_api(db: Database | None, ids: Ids, *, names: bool) -> dict[str, Any]:
    needed = ["globalTid", "correlationId"]
    columns = [*needed, "nameId"] if names else needed
    rows: dict[str, Any] = dict.fromkeys(["start", "end", *columns], np.empty(0, np.int64))
    if db is not None:
        rows = db.read_events(API_TABLE, columns, needed=needed, open_ends=False)
    unnamed = np.full(len(rows["start"]), NO_NAME, np.int32)
    return rows | {"nameId": ids.codes(rows["nameId"]) if names else unnamed}


def narrow(values: Int64 | None, count: int, kind: Any) -> Any:
    """Shrink a column of small numbers; what does not fit (or is NULL) becomes -1."""
    if values is None:
        return np.full(count, -1, kind)
    limits = np.iinfo(kind)
    return np.where((values >= 0) & (values <= limits.max), values, -1).astype(kind)


@dataclass(frozen=True, slots=True)
class _Axis:
    """All threads and processes of the report, and the codes of every table's threads."""

    threads: Int64
    processes: Int64

    def thread_codes(self, coded: tuple[Int32, Int64]) -> Int32:
        codes, distinct = coded
        return np.searchsorted(self.threads, distinct).astype(np.int32)[codes]

    def process_codes(self, coded: tuple[Int32, Int64]) -> Int32:
        codes, distinct = coded
        at = np.searchsorted(self.processes, distinct).astype(np.int32)
        return np.where(distinct == NULL, np.int32(-1), at)[codes]


def _assemble(
    db: Database,
    strings: tuple[str, ...],
    nvtx: Nvtx | None,
    ops: dict[str, Any],
    api: dict[str, Any],
    mpi: mpi_tables.Mpi,
) -> Trace:
    empty = np.empty(0, np.int64)
    range_tids = factorize(nvtx.tid if nvtx else empty)
    api_tids = factorize(api.pop("globalTid"))
    if nvtx and not any(t in db.tables for t in mpi_tables.TABLES):
        mpi, strings = mpi_tables.from_nvtx(nvtx, mpi, strings)
    op_pids = factorize(ops.pop("globalPid"))
    ranks = {**(nvtx.ranks if nvtx else {}), **mpi.ranks}
    marks = nvtx.marks if nvtx else ()
    marking = np.array([tid for _, tid, _ in marks], np.int64)
    threads = np.unique(np.concatenate([range_tids[1], api_tids[1], mpi.tids[1], marking]))
    ranked = np.array([*ranks], np.int64)
    processes = np.unique(
        np.concatenate([threads & PROCESS_BITS, op_pids[1][op_pids[1] != NULL], ranked])
    )
    axis = _Axis(threads, processes)
    meta = {str(n): str(v) for t in _META for n, v in db.rows(t, ["name", "value"])}
    return Trace(
        source=db.path,
        product_version=meta.get("EXPORT_PRODUCT_VERSION", "unknown"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION", "unknown"),
        tables=db.tables,
        strings=strings,
        range_names=nvtx.names if nvtx else (),
        range_labels=nvtx.labels if nvtx else (),
        range_domains=nvtx.domains if nvtx else (),
        threads=threads,
        processes=processes,
        thread_process=np.searchsorted(processes, threads & PROCESS_BITS).astype(np.int32),
        ranges=_ranges(nvtx, axis.thread_codes(range_tids)),
        ops=_gpu_ops(ops, axis.process_codes(op_pids)),
        api=ApiCalls(
            api["start"],
            api["end"],
            axis.thread_codes(api_tids),
            api["correlationId"],
            api["nameId"],
        ),
        mpi=mpi.calls(axis.thread_codes(mpi.tids)),
        nccl=_nccl(nvtx, axis),
        marks=tuple((t, int(np.searchsorted(threads, tid)), text) for t, tid, text in marks),
        gpus=tuple(_gpus(db)),
        cuda_devices=_cuda_devices(db),
        diagnostics=tuple(_diagnostics(db)),
        ranks={int(np.searchsorted(processes, pid)): rank for pid, rank in ranks.items()},
        world_size=mpi.world_size,
        nvtx_last_ns=nvtx.last_ns if nvtx else None,
        utc_start_ns=_utc_start(db),
        mpi_from_nvtx=mpi.from_nvtx,
    )


def _ranges(nvtx: Nvtx | None, thread: Int32) -> Ranges:
    if nvtx is None:
        empty = np.empty(0, np.int64)
        small = np.empty(0, np.int32)
        return Ranges(empty, empty, small, small, small.astype(np.int8), small.astype(np.bool_))
    return Ranges(nvtx.start_ns, nvtx.end_ns, thread, nvtx.name, nvtx.style, nvtx.other_thread)


def _nccl(nvtx: Nvtx | None, axis: _Axis) -> NcclRanges:
    none = np.empty(0, np.int64)
    found = nvtx.payloads if nvtx else Payloads(none, none, none, none)
    return found.ranges(np.searchsorted(axis.threads, found.tid).astype(np.int32))


def _gpu_ops(ops: dict[str, Any], process: Int32) -> GpuOps:
    return GpuOps(
        kind=ops["kind"],
        start_ns=ops["start"],
        end_ns=ops["end"],
        device=ops["deviceId"],
        stream=ops["streamId"],
        process=process,
        correlation=ops["correlationId"],
        name=ops["demangledName"],
        bytes=ops["bytes"],
        copy_kind=ops["copyKind"],
        src_kind=ops["srcKind"],
        dst_kind=ops["dstKind"],
    )


def _gpus(db: Database) -> Iterable[Gpu]:
    columns = [
        "id", "name", "smCount", "clockRate", "memoryBandwidth", "l2CacheSize", "totalMemory",
        "computeMajor", "computeMinor", "uuid",
    ]  # fmt: skip
    for row in db.rows("TARGET_INFO_GPU", columns):
        numbers = [v if isinstance(v, int) and v > 0 else None for v in row[2:7]]
        major, minor = row[7], row[8]
        yield Gpu(
            id=row[0] if isinstance(row[0], int) else -1,
            name=str(row[1]) if row[1] is not None else "unnamed GPU",
            sm_count=numbers[0],
            clock_hz=numbers[1],
            memory_bandwidth_bytes_per_s=numbers[2],
            l2_bytes=numbers[3],
            memory_bytes=numbers[4],
            compute_capability=(major, minor)
            if isinstance(major, int) and isinstance(minor, int)
            else None,
            uuid=str(row[9]) if row[9] is not None else None,
        )


def _cuda_devices(db: Database) -> dict[tuple[int, int], int]:
    """GPU id by (process id, CUDA ordinal): 2025 exports have it."""
    rows = db.rows("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"])
    return {
        (pid, cuda): gpu
        for pid, cuda, gpu in rows
        if all(isinstance(v, int) for v in (pid, cuda, gpu))
    }


def _diagnostics(db: Database) -> Iterable[Diagnostic]:
    for severity, text in db.rows("DIAGNOSTIC_EVENT", ["severity", "text"]):
        yield Diagnostic(_SEVERITY.get(severity, "unknown"), (as_text(text) or "").strip())


def _utc_start(db: Database) -> int | None:
    for (start,) in db.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"]):
        return start if isinstance(start, int) else None
    return None


Progress = Callable[[int], object]
"""Called with the bytes of the file that were read since the call before."""


class Calls(NamedTuple):
    """Some API calls, as in `perfmodel.readers.trace.ApiCalls`, with serialized thread ids."""

    start_ns: Int64
    end_ns: Int64
    tid: Int64
    correlation: Int64
    name: Int32


class Ops(NamedTuple):
    """Some GPU operations of one kind, as in `readers.trace.GpuOps`; `pid` is serialized."""

    kind: int
    start_ns: Int64
    end_ns: Int64
    pid: Int64
    correlation: Int64
    name: Int32
    bytes: Int64
    copy_kind: Int8


class EventStream:
    """An export whose large tables are read some rows at a time.

    Parameters
    ----------
    path : Path
        The SQLite file.
    source : Path
        What errors call it.
    fast : bool
        Parse leaf pages directly. What the page reader cannot read, it may find out late: it then
        raises `perfmodel.readers.pages.Unsupported`.
    progress : callable

    Raises
    ------
    ReportError, SchemaError
        As `read_sqlite`.
    """

    def __init__(self, path: Path, source: Path, *, fast: bool, progress: Progress) -> None:
        self._db = Database(path, fast=fast, shown=source)
        self._progress = progress
        try:
            check_export(self._db)
            self._ids, self.strings = read_strings(self._db)
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def calls(self, *, names: bool, joins: bool) -> Iterator[Calls]:
        """Yield all API calls in row order, with their names or with what joins them to GPU work.

        What is not asked for is missing (`NO_NAME`, `NULL`), which costs no memory.
        """
        needed = ["globalTid", "correlationId"]
        columns = [*(needed if joins else ()), *(["nameId"] if names else ())]
        read = self._db.event_chunks(API_TABLE, columns, needed=needed, open_ends=False)
        for rows, size in read:
            shape = rows["start"].shape
            yield Calls(
                rows["start"],
                rows["end"],
                rows["globalTid"] if joins else _missing(shape),
                rows["correlationId"] if joins else _missing(shape),
                self._ids.codes(rows["nameId"]) if names else _unnamed(shape),
            )
            self._progress(size)

    def ops(self, *, details: bool, joins: bool) -> Iterator[Ops]:
        """Yield all GPU operations kind by kind, with sizes and directions if `details`."""
        columns = ["demangledName", *(["correlationId", "globalPid"] if joins else [])]
        columns += ["bytes", "copyKind"] if details else []
        for kind, table in OP_TABLES:
            have = self._db.columns(table)
            expected = [c for c in columns if c in have]
            for rows, size in self._db.event_chunks(table, expected, open_ends=False):
                shape = rows["start"].shape
                names = rows.get("demangledName")
                directions = rows.get("copyKind")
                yield Ops(
                    kind,
                    rows["start"],
                    rows["end"],
                    rows.get("globalPid", _missing(shape)),
                    rows.get("correlationId", _missing(shape)),
                    _unnamed(shape) if names is None else self._ids.codes(names),
                    rows.get("bytes", _missing(shape)),
                    narrow(directions, shape[0], np.int8),
                )
                self._progress(size)


def _missing(shape: tuple[int, ...]) -> Int64:
    return np.broadcast_to(np.int64(NULL), shape)


def _unnamed(shape: tuple[int, ...]) -> Int32:
    return np.broadcast_to(np.int32(NO_NAME), shape)
