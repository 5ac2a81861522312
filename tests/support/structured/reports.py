"""Writes generated programs as exports of Nsight Systems, or as traces of torch.profiler."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from support.build_kineto import document, write
from support.build_report import ReportBuilder
from support.build_thread import MPI_TABLES, Thread

from .program import Program
from .traces import (
    ALL_REDUCE,
    BEGIN_NS,
    DEVICE,
    DRIVER_LAUNCH,
    WAIT,
    correlations,
    launch_calls,
    memory,
    pid_of,
    to_trace,
)
from .tree import KERNEL, MEMCPY, MEMSET, MPI


def to_report(program: Program, path: Path) -> Path:
    """Write a program as a report; of several processes, a trace of torch.profiler has the first.

    Rows of operations and calls are inserted in bulk.
    """
    if ".json" in path.suffixes:
        return write(path, document(to_trace(program)))
    operations = program.operations
    builder = ReportBuilder(all_tables=True)
    threads: list[Thread] = []
    for p in range(operations.processes):
        if operations.uses_gpu:
            builder.gpu(p)
            used = {*operations.thread[operations.process == p].tolist(), 0}
            made = [builder.thread(pid_of(p), pid_of(p) + t) for t in sorted(used)]
            threads.append(made[0])
        else:
            threads.append(builder.thread(pid_of(p), rank=p))
    for one in program.ranges:
        threads[one.process].range(one.name, one.start_ns + BEGIN_NS, one.end_ns + BEGIN_NS)
    rows = (_gpu_rows if operations.uses_gpu else _mpi_rows)(program, builder, threads)
    builder.write(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for table, (columns, constants, values) in rows.items():
            _insert(db, table, columns, constants, values)
        stop = BEGIN_NS + int(max(operations.end_ns.max(), operations.wait_ns.max()))
        db.execute("UPDATE ANALYSIS_DETAILS SET duration = ?, stopTime = ?", (stop, stop))
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None:
                db.execute(f"DROP TABLE {table}")
        db.execute("COMMIT")
    return path


_Rows = dict[str, tuple[Sequence[str], dict[str, int], Iterable[Sequence[int]]]]
"""By table: columns, columns of one value, and the rows."""


def _insert(
    db: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    constants: dict[str, int],
    values: Iterable[Sequence[int]],
) -> None:
    info = db.execute(f"PRAGMA table_info({table})")
    zeros = {name: 0 for _, name, _, not_null, *_ in info if not_null and name not in columns}
    fixed = zeros | constants
    names = ", ".join([*columns, *fixed])
    marks = ", ".join(["?"] * len(columns) + [str(value) for value in fixed.values()])
    db.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)


def _by_start(columns: Sequence[Any]) -> Iterable[Sequence[int]]:
    """Return rows of columns, the first of which is the begin, in its order."""
    order = np.argsort(columns[0], kind="stable")
    return zip(*(column[order].tolist() for column in columns), strict=True)


def _gpu_rows(program: Program, builder: ReportBuilder, threads: list[Thread]) -> _Rows:
    operations = program.operations
    strings = np.array([builder.string(name) for name in operations.names])[operations.code]
    pid = np.array([thread.global_pid for thread in threads])[operations.process]
    tid = np.array([thread.global_tid for thread in threads])[operations.process]
    tid = tid + operations.thread
    waited = operations.wait_ns[:, 0] >= 0
    correlation = correlations(operations)
    start, end = operations.start_ns + BEGIN_NS, operations.end_ns + BEGIN_NS
    common = [start, end, operations.process, operations.stream, correlation, pid]
    names = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
    source, target = memory(operations)

    def of(kind: int, *more: Any) -> Iterable[Sequence[int]]:
        mask = operations.kind == kind
        return _by_start([column[mask] for column in (*common, *more)])

    launch = np.array([builder.string(name) for name in launch_calls(operations)])
    wait_ns = operations.wait_ns[waited] + BEGIN_NS
    calls = [
        np.concatenate(pair)
        for pair in (
            (operations.launch_ns + BEGIN_NS, wait_ns[:, 0]),
            (operations.launched_ns + BEGIN_NS, wait_ns[:, 1]),
            (tid, tid[waited]),
            (correlation, correlation[waited] + 1),
            (launch, np.full(waited.sum(), builder.string(WAIT))),
            (launch == builder.string(DRIVER_LAUNCH), np.zeros(waited.sum(), np.bool_)),
        )
    ]
    waits = [
        wait_ns[:, 0], wait_ns[:, 1], operations.process[waited], operations.stream[waited],
        correlation[waited] + 1, pid[waited],
    ]  # fmt: skip
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            [*names, "demangledName", "shortName", "gridX"],
            {"contextId": 1, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1},
            of(KERNEL, strings, strings, operations.grid),
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            [*names, "bytes", "copyKind", "srcKind", "dstKind"],
            {"contextId": 1},
            of(MEMCPY, operations.bytes, operations.copy_kind, source, target),
        ),
        "CUPTI_ACTIVITY_KIND_MEMSET": (
            [*names, "bytes"],
            {"contextId": 1, "memKind": DEVICE},
            of(MEMSET, operations.bytes),
        ),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            names, {"contextId": 1, "syncType": 3}, _by_start(waits)
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            ["start", "end", "globalTid", "correlationId", "nameId", "eventClass"],
            {},
            _by_start(calls),
        ),
    }  # fmt: skip


def _mpi_rows(program: Program, builder: ReportBuilder, threads: list[Thread]) -> _Rows:
    operations = program.operations
    strings = np.array([builder.string(name) for name in operations.names])[operations.code]
    sums = strings == builder.string(ALL_REDUCE)  # recorded with the buffer's size for each peer
    size = np.where(sums, operations.bytes * (operations.processes - 1), operations.bytes)
    columns = {
        "start": operations.start_ns + BEGIN_NS,
        "end": operations.end_ns + BEGIN_NS,
        "globalTid": np.array([thread.global_tid for thread in threads])[operations.process],
        "textId": strings,
        "commHandle": np.array([thread.world for thread in threads])[operations.process],
        "remoteRank": operations.stream,
        "size": size,
        "recvSize": size,
    }
    rows: _Rows = {}
    for source, table in enumerate(MPI_TABLES.values()):
        mask = (operations.kind == MPI) & (operations.copy_kind == source)
        names = [name for name in columns if name in builder.tables[table]]
        rows[table] = names, {}, _by_start([columns[name][mask] for name in names])
    return rows
