"""Grows a real Nsight Systems export: more batches, more ranks, the same schema."""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

EVENT_TABLES = (
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "MPI_COLLECTIVES_EVENTS",
)
TIMES = ("start", "end")
IDS = ("globalTid", "globalPid", "endGlobalTid")


def count_events(connection: sqlite3.Connection) -> int:
    """Rows of all event tables together."""
    have = _tables(connection)
    return sum(
        connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
        for t in EVENT_TABLES
        if t in have
    )


def grow(source: Path, target: Path, rows: int, ranks: int) -> int:
    """Copy `source`, repeat its ranks `ranks` / (its own) times and its timeline until `rows`.

    Every repetition in time is shifted behind the one before it, with correlation ids of its own;
    every repetition of the ranks has process ids of its own. Returns the number of event rows.
    """
    target.unlink(missing_ok=True)
    with sqlite3.connect(f"file:{source}?immutable=1", uri=True) as original:
        connection = sqlite3.connect(target)
        original.backup(connection)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    have = [t for t in EVENT_TABLES if t in _tables(connection)]
    own = connection.execute("SELECT count(*) FROM MPI_RANKS").fetchone()[0]
    copies = max(1, ranks // own)
    per_repetition = count_events(connection) * copies
    repeats = max(1, round(rows / per_repetition))
    low, high = connection.execute(
        "SELECT min(start), max(coalesce(end, start)) FROM NVTX_EVENTS"
    ).fetchone()
    top = connection.execute(
        "SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ).fetchone()[0]
    span = high - low + 1_000_000
    for table in have:
        connection.execute(f"CREATE TEMP TABLE original AS SELECT * FROM {table}")
        connection.execute(f"DELETE FROM {table}")
        columns = [r[1] for r in connection.execute(f"PRAGMA table_info({table})")]
        for repeat in range(repeats):
            for copy in range(copies):
                chosen = ", ".join(_shifted(c, repeat * span, copy, repeat * top) for c in columns)
                where = "" if repeat == 0 or table != "NVTX_EVENTS" else "WHERE eventType = 59"
                connection.execute(
                    f"INSERT INTO {table} SELECT {chosen} FROM original {where} ORDER BY start"
                )
        connection.execute("DROP TABLE original")
    for copy in range(1, copies):
        connection.execute(
            "INSERT INTO MPI_RANKS SELECT globalTid + ?, rank + ? FROM MPI_RANKS WHERE rank < ?",
            [copy * _step(own), copy * own, own],
        )
    connection.execute("UPDATE MPI_COMMUNICATORS SET size = ?", [own * copies])
    connection.commit()
    total = count_events(connection)
    connection.close()
    return total


def _step(own: int) -> int:
    """Distance of the process ids of one copy of the ranks from the next, serialized."""
    return (own + 8) << 24


def _shifted(column: str, time: int, copy: int, correlation: int) -> str:
    if column in TIMES:
        return f'"{column}" + {time}'
    if column in IDS:
        return f'"{column}" + {copy * _step(2)}'
    if column == "correlationId":
        return f'"{column}" + {correlation}'
    return f'"{column}"'


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    print(grow(args.source, args.target, args.rows, args.ranks), "event rows")
