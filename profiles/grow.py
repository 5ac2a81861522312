"""Grows a real Nsight Systems export of some ranks: more batches and ranks, or a report per rank.

    python -m profiles.grow SOURCE TARGET.sqlite --rows 1000000 --ranks 8
    python -m profiles.grow SOURCE FOLDER --ranks 64
    python -m profiles.grow SOURCE FOLDER --ranks 64 --ddp

As reports of a large job, one per rank, every rank is a copy of one of the two, with a process, a
start and a clock of its own. Ranks sit eight to a host, and the hosts' clocks disagree by
milliseconds. Ranks come late to collectives by chance, one in sixteen of them (the stragglers) by
more; nobody leaves one before the last is there.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
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
MORE_TABLES = ("MPI_RANKS", "MPI_OTHER_EVENTS", "CUPTI_ACTIVITY_KIND_CUDA_EVENT")
PER_HOST = 8
CLOCK_ERROR_NS = 5_000_000
STRAGGLERS = 16
PID = ((1 << 24) - 1) << 24
NUMBERS = re.compile(r"(?<=seq = )\d+|(?<=op_id = )\d+|(?<=\()\d+(?=,\d+\))")
"""In the texts of PyTorch's ranges: of an operator, and of those that made its arguments."""


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

    Every repetition in time is shifted behind the one before it, with correlation ids and numbers
    of PyTorch's operators of its own;
    every repetition of the ranks has process ids of its own. Ranks are those of MPI, else the
    processes that launch kernels. Returns the number of event rows.
    """
    target.unlink(missing_ok=True)
    if source.suffix == ".xz":
        target.write_bytes(lzma.decompress(source.read_bytes()))
    else:
        shutil.copy(source, target)
    target.chmod(0o644)
    connection = sqlite3.connect(target)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    have = [t for t in EVENT_TABLES if t in _tables(connection)]
    mpi = "MPI_RANKS" in _tables(connection)
    ranked = "MPI_RANKS" if mpi else "(SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    own = connection.execute(f"SELECT count(*) FROM {ranked}").fetchone()[0]
    connection.create_function("renumbered", 2, _renumbered, deterministic=True)
    copies = max(1, ranks // own)
    per_repetition = count_events(connection) * copies
    repeats = max(1, round(rows / per_repetition))
    low, high = connection.execute(
        "SELECT min(start), max(coalesce(end, start)) FROM NVTX_EVENTS WHERE eventType = 59"
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
    for copy in range(1, copies if mpi else 1):
        connection.execute(
            "INSERT INTO MPI_RANKS SELECT globalTid + ?, rank + ? FROM MPI_RANKS WHERE rank < ?",
            [copy * _step(own), copy * own, own],
        )
    if mpi:
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
    if column == "text" and correlation:
        return f'renumbered("{column}", {correlation})'
    return f'"{column}"'


def _renumbered(text: str | None, more: int) -> str | None:
    """Return the text of a range with other numbers of operators."""
    if text is None or "op_id = " not in text:
        return text
    return NUMBERS.sub(lambda number: str(int(number[0]) + more), text)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


def usual_lateness(rank: int) -> float:
    """Part of a collective's time that a rank comes late by, at most."""
    return 0.6 if is_straggler(rank) else 0.2


def grow_ranks(
    source: Path,
    folder: Path,
    ranks: int,
    lateness: Callable[[int], float] = usual_lateness,
) -> list[Path]:
    """Write the reports of `ranks` ranks into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(9)
    alone = [_one_rank(source, folder / f"only{i}.part", i) for i in (0, 1)]
    errors = [rng.randrange(-CLOCK_ERROR_NS, CLOCK_ERROR_NS) for _ in range(0, ranks, PER_HOST)]
    paths = []
    for rank in range(ranks):
        path = folder / f"rank{rank:04d}.sqlite"
        shutil.copy(alone[rank % 2], path)
        _become(path, rank, ranks, rng.randrange(130_000_000), errors[rank // PER_HOST],
                random.Random(rng.random()), lateness(rank))  # fmt: skip
        paths.append(path)
    for path in alone:
        path.unlink()
    return paths


def is_straggler(rank: int) -> bool:
    """Whether a rank comes later to collectives than others."""
    return rank % STRAGGLERS == STRAGGLERS // 2


def _one_rank(source: Path, target: Path, rank: int) -> Path:
    """Copy a report without the other ranks' events."""
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as db:
        (tid,) = db.execute("SELECT globalTid FROM MPI_RANKS WHERE rank = ?", [rank]).fetchone()
        for table, columns in _tables_of_ranks(db):
            column = next(c for c in ("globalTid", "globalPid") if c in columns)
            db.execute(f"DELETE FROM {table} WHERE {column} & {PID} != ?", [tid & PID])
        db.execute("DELETE FROM MPI_COMMUNICATORS WHERE rank != ?", [rank])
        db.commit()
        db.execute("VACUUM")
    return target


def _become(
    path: Path, rank: int, ranks: int, began_ns: int, error_ns: int, rng: random.Random, late: float
) -> None:
    """Give a copy a rank, a process, a start and a clock of its own, and make it late."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.create_function("late", 0, lambda: late * rng.random())
        (tid,) = db.execute("SELECT globalTid FROM MPI_RANKS").fetchone()
        process = (1000 + rank - ((tid >> 24) & 0xFFFFFF)) << 24
        db.execute("UPDATE MPI_COLLECTIVES_EVENTS SET start = start + "
                   "CAST((end - start) * late() AS INTEGER)")  # fmt: skip
        for table, columns in _tables_of_ranks(db):
            changed = [f"{c} = {c} - {began_ns}" for c in TIMES if c in columns]
            changed += [f"{c} = {c} + {process}" for c in IDS if c in columns]
            db.execute(f"UPDATE {table} SET {', '.join(changed)}")
        db.execute("UPDATE MPI_RANKS SET rank = ?", [rank])
        db.execute("UPDATE MPI_COMMUNICATORS SET rank = ?, size = ?", [rank, ranks])
        db.execute("UPDATE MPI_COLLECTIVES_EVENTS SET size = size * ?, recvSize = recvSize * ?",
                   [ranks - 1, ranks - 1])  # fmt: skip
        _start_on_host(db, rank, began_ns, error_ns)
        db.commit()


def _start_on_host(db: sqlite3.Connection, rank: int, began_ns: int, error_ns: int) -> None:
    """Give a report the start and the clock of its host, and its name."""
    db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?",
               [began_ns + error_ns])  # fmt: skip
    db.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")
    db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
    db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('Hostname', ?)",
               [f"node{rank // PER_HOST:03d}"])  # fmt: skip


def grow_ddp(source: Path, folder: Path, ranks: int) -> list[Path]:
    """Write a report for each of `ranks` ranks of a DDP run on one communicator into `folder`.

    The source holds several processes on GPUs of one host, with NCCL's payloads. Ranks come late
    to NCCL's collectives as those of `grow_ranks` do to MPI's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(9)
    with closing(sqlite3.connect(f"file:{source}?immutable=1", uri=True)) as db:
        pids = [p for (p,) in db.execute(f"SELECT DISTINCT globalPid & {PID} >> 24 FROM "
                                         "CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1")]  # fmt: skip
    alone = [_one_process(source, folder / f"only{i}.part", p) for i, p in enumerate(pids)]
    errors = [rng.randrange(-CLOCK_ERROR_NS, CLOCK_ERROR_NS) for _ in range(0, ranks, PER_HOST)]
    paths = []
    for rank in range(ranks):
        path = folder / f"ddp{rank:04d}.sqlite"
        shutil.copy(alone[rank % len(pids)], path)
        _become_ddp(path, pids[rank % len(pids)], rank, rng.randrange(130_000_000),
                    errors[rank // PER_HOST], random.Random(rng.random()),
                    usual_lateness(rank))  # fmt: skip
        paths.append(path)
    for path in alone:
        path.unlink()
    return paths


def _one_process(source: Path, target: Path, pid: int) -> Path:
    """Copy a report without the other processes' events."""
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as db:
        for table, columns in _tables_of_ranks(db):
            column = next(c for c in ("globalTid", "globalPid") if c in columns)
            db.execute(f"DELETE FROM {table} WHERE {column} & {PID} != ?", [pid << 24])
        db.execute("DELETE FROM TARGET_INFO_CUDA_DEVICE WHERE pid != ?", [pid])
        db.commit()
        db.execute("VACUUM")
    return target


def _become_ddp(
    path: Path, pid: int, rank: int, began_ns: int, error_ns: int, rng: random.Random, late: float
) -> None:
    """Give a copy a process, a start and a clock of its own, and make its NCCL kernels late."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.create_function("late", 0, lambda: late * rng.random())
        process = 1000 + rank - pid
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + "
                   "CAST((end - start) * late() AS INTEGER) WHERE demangledName IN "
                   "(SELECT id FROM StringIds WHERE value LIKE 'nccl%')")  # fmt: skip
        for table, columns in _tables_of_ranks(db):
            changed = [f"{c} = {c} - {began_ns}" for c in TIMES if c in columns]
            changed += [f"{c} = {c} + {process << 24}" for c in IDS if c in columns]
            db.execute(f"UPDATE {table} SET {', '.join(changed)}")
        db.execute("UPDATE TARGET_INFO_CUDA_DEVICE SET pid = pid + ?", [process])
        _start_on_host(db, rank, began_ns, error_ns)
        db.commit()


def _tables_of_ranks(db: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    """Return the tables with events or ranks, and their columns."""
    chosen = [t for t in (*EVENT_TABLES, *MORE_TABLES) if t in _tables(db)]
    return [(t, [r[1] for r in db.execute(f"PRAGMA table_info({t})")]) for t in chosen]


def main() -> None:
    """Grow one report, or a folder of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, help="a report (.sqlite), else a folder")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of one report")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ddp", action="store_true", help="SOURCE is of DDP with NCCL's payloads")
    args = parser.parse_args()
    if args.target.suffix == ".sqlite":
        print(grow(args.source, args.target, args.rows, args.ranks), "event rows")
    else:
        grown = grow_ddp if args.ddp else grow_ranks
        print(len(grown(args.source, args.target, args.ranks)), "reports")


if __name__ == "__main__":
    main()
