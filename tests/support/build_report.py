"""Builds tiny Nsight Systems SQLite exports, in the schema of a real version, from timelines."""

from __future__ import annotations

import functools
import itertools
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common.folders import SUPPORT
from support.build_thread import NAME_THREAD, VM, Row, Thread

SCHEMAS: Final = SUPPORT / "schemas"
VERSIONS: Final = ("2022.4.2", "2023.4.4", "2024.2.3", "2025.3.2")

SEVERITIES: Final = ("unknown", "info", "warning", "error", "verbose")


class ReportBuilder:
    """Collects rows by table and writes them as one SQLite export.

    Parameters
    ----------
    version : str
        One of `VERSIONS`, the product version whose schema to use.
    all_tables : bool
        Keep empty tables, as `nsys export --lazy=false` does.
    utc_start_ns : int
        UTC time of the report's zero.
    world_size : int or None
        Size of MPI_COMM_WORLD, where it is not the number of ranks in this report.
    """

    def __init__(
        self,
        version: str = "2024.2.3",
        *,
        all_tables: bool = False,
        utc_start_ns: int = 1_700_000_000_000_000_000,
        world_size: int | None = None,
    ) -> None:
        self.version = version
        self.all_tables = all_tables
        self.world_size = world_size
        self.threads: list[Thread] = []
        self.strings: dict[str, int] = {}
        self.domains: dict[int, dict[str, int]] = {}
        self.rows: dict[str, list[Row]] = {}
        self._correlations: dict[int, int] = {}
        self._schema = _schema(version)
        self.tables = {name: table.columns for name, table in self._schema.items()}
        self.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_start_ns)

    def insert(self, table: str, **columns: Any) -> None:
        """Add one row as it is; a column not given is NULL, or 0 where NULL is not allowed."""
        unknown = columns.keys() - self.tables[table].keys()
        if unknown:
            raise ValueError(f"{table} of {self.version} has no column {', '.join(unknown)}")
        zeros = {name: 0 for name, not_null in self.tables[table].items() if not_null}
        self.rows.setdefault(table, []).append(zeros | columns)

    def string(self, text: str) -> int:
        """Return the id of a string in StringIds."""
        return self.strings.setdefault(text, len(self.strings))

    def correlation(self, pid: int) -> int:
        """Return the next correlation id of a process."""
        self._correlations[pid] = self._correlations.get(pid, 0) + 1
        return self._correlations[pid]

    def thread(self, pid: int = 100, tid: int | None = None, rank: int | None = None) -> Thread:
        """Add a thread, by default a process's main one; with a rank, an MPI rank's."""
        thread = Thread(self, pid, pid if tid is None else tid)
        if all(t.pid != pid for t in self.threads):
            self.insert("PROCESSES", globalPid=thread.global_pid, pid=pid, name="python")
        self.insert("ThreadNames", nameId=self.string("python"), globalTid=thread.global_tid)
        self.threads.append(thread)
        if rank is not None:
            thread.register_domain("MPI")
            thread.event(NAME_THREAD, 0, text=f"MPI Rank {rank}", domainId=0)
        if rank is not None and "MPI_RANKS" in self.tables:
            self.insert("MPI_RANKS", globalTid=thread.global_tid, rank=rank)
            self.insert("MPI_COMMUNICATORS", rank=rank, timestamp=0, commHandle=thread.world,
                        parentHandle=0, localRank=rank)  # fmt: skip
        return thread

    def gpu(self, id: int = 0, name: str = "NVIDIA H200", **columns: Any) -> None:  # noqa: A002
        """Describe a GPU, by default an H200."""
        h200 = {
            "smCount": 132, "clockRate": 1_980_000_000, "memoryBandwidth": 4_814_304_000_000,
            "l2CacheSize": 62_914_560, "totalMemory": 150_109_880_320, "computeMajor": 9,
            "computeMinor": 0, "chipName": "GH100", "uuid": f"00000000-0000-0000-0000-{id:012}",
        }  # fmt: skip
        row = {"vmId": VM, "id": id, "name": name, "cuDevice": id} | h200 | columns
        self.insert("TARGET_INFO_GPU", **row)

    def diagnostic(self, text: str, severity: str = "warning", at: int = 0) -> None:
        """Add a message about the collection; exports before 2024 hold none."""
        level = SEVERITIES.index(severity)
        self.insert("DIAGNOSTIC_EVENT", timestamp=at, source=3, severity=level, text=text)

    def write(self, path: Path, *, sort: bool = True) -> Path:
        """Write the export to `path`; events are sorted by start, as Nsight Systems does it."""
        rows_of = self.rows | self._summaries()
        with closing(sqlite3.connect(":memory:")) as db:
            for name, table in self._schema.items():
                rows = rows_of.get(name, [])
                if sort and "start" in table.columns:
                    rows = sorted(rows, key=lambda r: r["start"])
                if rows or table.rows or self.all_tables:
                    db.execute(table.statement)
                    _insert(db, name, [*table.rows, *rows])
            db.commit()
            db.execute("VACUUM")
            path.unlink(missing_ok=True)
            path.write_bytes(db.serialize())  # VACUUM INTO waits for the disk
        return path

    def _as_recorded(self, row: Row, ranks: int) -> Row:
        """Sizes of an all-reduce as Nsight Systems records them: ranks - 1 times the buffer."""
        sizes = {k: row[k] for k in ("size", "recvSize") if row.get(k) is not None}
        if row.get("textId") != self.strings.get("MPI_Allreduce", -1) or ranks == 2:
            return row
        return row | {k: v * (ranks - 1) if ranks > 1 else None for k, v in sizes.items()}

    def _summaries(self) -> dict[str, list[Row]]:
        """Tables that follow from all the others."""
        events = [row for rows in self.rows.values() for row in rows if "start" in row]
        stop = max((row.get("end") or row["start"] for row in events), default=0)
        worlds = self.rows.get("MPI_COMMUNICATORS", [])
        size = self.world_size or len(worlds)
        gpus = [row["id"] for row in self.rows.get("TARGET_INFO_GPU", [])]
        pids = sorted({thread.pid for thread in self.threads})
        summaries = {
            "StringIds": [{"id": i, "value": text} for text, i in self.strings.items()],
            "ANALYSIS_DETAILS": [
                {"globalVid": VM, "duration": stop, "startTime": 0, "stopTime": stop}
            ],
            "MPI_COMMUNICATORS": [row | {"size": size} for row in worlds],
            "MPI_COLLECTIVES_EVENTS": [
                self._as_recorded(row, size) for row in self.rows.get("MPI_COLLECTIVES_EVENTS", [])
            ],
            "TARGET_INFO_CUDA_DEVICE": [
                {"gpuId": gpu, "cudaId": gpu, "pid": pid} for pid in pids for gpu in gpus
            ],
        }
        return {table: rows for table, rows in summaries.items() if table in self.tables}


@dataclass(frozen=True, slots=True)
class _Table:
    """What makes a table, whether NULL is forbidden by column, and the rows that it always has."""

    statement: str
    columns: dict[str, bool]
    rows: list[Row]


@functools.cache
def _schema(version: str) -> dict[str, _Table]:
    """Return the tables of a version, by name."""
    found = {}
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript((SCHEMAS / f"{version}.sql").read_text(encoding="utf-8"))
        made = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        for name, statement in made:
            info = db.execute(f"PRAGMA table_info({name})").fetchall()
            columns = {column: bool(not_null) for _, column, _, not_null, *_ in info}
            rows = [
                dict(zip(columns, row, strict=True)) for row in db.execute(f"SELECT * FROM {name}")
            ]
            found[name] = _Table(statement, columns, rows)
    return found


def _insert(db: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    """Insert rows in their order, each with its own columns."""
    for columns, alike in itertools.groupby(rows, key=tuple):
        values = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"
        db.executemany(statement, (list(row.values()) for row in alike))
