"""Copies a report without what is private in it, and without what no analysis reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from perfmodel.base.cache import secret
from perfmodel.readers import opened
from perfmodel.readers.nsys import (
    CAPTURE,
    HOST_NAME,
    META_TABLES,
    host_name,
    says_rank,
    without_places,
)
from perfmodel.readers.nvtx import PAYLOAD_COMMUNICATOR
from perfmodel.readers.pages import as_text
from perfmodel.readers.sqlite import Database
from perfmodel.readers.write_sqlite import SqliteWriter, written

_GPU_WORK: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_MPI: Final = (
    "start", "end", "globalTid", "textId", "size", "recvSize", "commHandle", "remoteRank", "tag",
    "requestHandle",
)  # fmt: skip
_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_GPU_WORK, "demangledName", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *_GPU_WORK, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_GPU_WORK, "bytes", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _GPU_WORK,
    "MPI_P2P_EVENTS": _MPI,
    "MPI_START_WAIT_EVENTS": _MPI,
    "MPI_OTHER_EVENTS": _MPI,
    "MPI_COLLECTIVES_EVENTS": _MPI,
    "NVTX_EVENTS": (
        "start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId",
        "jsonTextId", "begun", "text", "jsonText",
    ),
}  # fmt: skip
"""Tables of events; calls come before the GPU work that they launch."""
_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "CUDA_GRAPH_NODE_EVENTS": ("start", "globalTid", "graphNodeId", "originalGraphNodeId"),
    "MPI_RANKS": ("globalTid", "rank"),
    "MPI_COMMUNICATORS": (
        "rank", "commHandle", "size", "localRank", "groupRoot", "groupRootUid", "timestamp",
    ),
    "TARGET_INFO_GPU": (
        "id", "name", "smCount", "clockRate", "memoryBandwidth", "l2CacheSize", "totalMemory",
        "computeMajor", "computeMinor", "uuid",
    ),
    "TARGET_INFO_CUDA_DEVICE": ("pid", "cudaId", "gpuId"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType",
    ),
    "GPU_METRICS": ("timestamp", "rawTimestamp", "typeId", "metricId", "value"),
    "TARGET_INFO_GPU_METRICS": ("typeId", "metricId", "metricName"),
}  # fmt: skip
_STRINGS: Final = ("textId", "nameId", "demangledName", "jsonTextId")
"""Columns that are ids of the table StringIds."""
_TEXTS: Final = frozenset({"name", "value", "text", "jsonText", "uuid", "metricName"})
_VERSIONS: Final = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_THREAD_NAME: Final = 39
_RANK: Final = "MPI Rank "

Window = tuple[int, int]


def share(path: Path, target: Path, window: Window | None = None) -> None:
    """Write a copy of a report as SQLite that can be given to others.

    What is copied is listed in this file: events, the strings that they use, GPUs, ranks and
    versions. Environment variables but torchrun's rank, command lines, names of users, programs
    and threads, files and the export's settings are not copied; paths in messages of Nsight
    Systems become their last part, and the host's name a digest that is keyed with a secret of
    this user: equal hosts stay equal, and nobody can look up the name.

    Parameters
    ----------
    path : Path
        Any report that `perfmodel.readers.read` opens.
    target : Path
    window : (int, int), optional
        First nanosecond and the one behind the last: what begins in it or goes on all the time
        stays, and GPU work that such a call launched.

    Raises
    ------
    ReportError
        If the report cannot be read, or the copy not be written.
    """
    with (
        opened(path) as file,
        Database(file, shown=path) as db,
        written(target, path) as out,
    ):
        payloads = _payloads(db)
        used: set[int] = set()
        launched: set[int] = set()
        for table, columns in _EVENTS.items():
            events = _in_window(db, table, columns, window, launched)
            _copy(db, out, table, columns, _noted(events, columns, payloads, used))
        for table, columns in _OTHERS.items():
            _copy(db, out, table, columns, db.rows(table, columns))
        _copy(db, out, "StringIds", ("id", "value"), (
            row for row in db.rows("StringIds", ["id", "value"]) if row[0] in used
        ))  # fmt: skip
        for table in META_TABLES:
            facts = (row for row in db.rows(table, ["name", "value"]) if row[0] in _VERSIONS)
            _copy(db, out, table, ("name", "value"), facts)
        ranks = (row for row in db.rows(CAPTURE, ["name", "value"]) if says_rank(*row))
        _copy(db, out, CAPTURE, ("name", "value"), ranks)
        host = host_name(db)
        said = db.rows("DIAGNOSTIC_EVENT", ["timestamp", "severity", "text"])
        _copy(db, out, "DIAGNOSTIC_EVENT", ("timestamp", "severity", "text"), (
            (at, severity, without_places(as_text(text) or "", host)) for at, severity, text in said
        ))  # fmt: skip
        system = db.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
        _copy(db, out, "TARGET_INFO_SYSTEM_ENV", ("name", "value"), (
            (name, _pseudonym(value)) for name, value in system if as_text(name) == HOST_NAME
        ))  # fmt: skip


def _copy(
    db: Database,
    out: SqliteWriter,
    table: str,
    columns: tuple[str, ...],
    rows: Iterator[tuple[Any, ...]],
) -> None:
    """Copy the columns that a table has; none where there is no such table."""
    have = db.columns(table)
    kept = [at for at, name in enumerate(columns) if name in have]
    if not kept:
        return
    out.create(table, {columns[at]: "TEXT" if columns[at] in _TEXTS else "INTEGER" for at in kept})
    out.add(table, len(kept), ([row[at] for at in kept] for row in rows))


def _payloads(db: Database) -> set[int]:
    """Ids of the strings that are payloads of NCCL; others may say anything."""
    if "jsonTextId" not in db.columns("NVTX_EVENTS"):
        return set()
    rows = db.rows("StringIds", ["id", "value"])
    return {i for i, text in rows if PAYLOAD_COMMUNICATOR in (as_text(text) or "")}


def _in_window(
    db: Database, table: str, columns: tuple[str, ...], window: Window | None, launched: set[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that a window shows; calls in it are added to `launched`."""
    found = db.rows(table, columns)
    if window is None:
        yield from found
        return
    first, behind = window
    correlation = columns.index("correlationId") if "correlationId" in columns else None
    for row in found:
        start, end = row[:2]
        around = start is not None and end is not None and start < first and end >= behind
        inside = start is None or first <= start < behind or around
        if table == "NVTX_EVENTS" and end is None:
            inside = True  # names of domains and threads, marks, ranges that are still open
        if correlation is not None and table == _CALLS and inside:
            launched.add(row[correlation])
        elif correlation is not None:
            inside |= row[correlation] in launched
        if inside:
            yield row


def _noted(
    rows: Iterator[tuple[Any, ...]], columns: tuple[str, ...], payloads: set[int], used: set[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of events without other payloads and names of threads; note ids of strings."""
    strings = [at for at, name in enumerate(columns) if name in _STRINGS]
    nvtx = "jsonText" in columns
    for row in rows:
        if nvtx:
            event = dict(zip(columns, row, strict=True))
            if event["eventType"] == _THREAD_NAME and not (
                as_text(event["text"]) or _RANK
            ).startswith(_RANK):
                continue
            if PAYLOAD_COMMUNICATOR not in (as_text(event["jsonText"]) or ""):
                event["jsonText"] = None
            if event["jsonTextId"] not in payloads:
                event["jsonTextId"] = None
            row = tuple(event.values())
        used.update(row[at] for at in strings if row[at] is not None)
        yield row


def _pseudonym(value: Any) -> str:
    name = (as_text(value) or "").encode(errors="replace")
    return hashlib.blake2b(name, key=secret(), digest_size=8).hexdigest()
