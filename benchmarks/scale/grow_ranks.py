"""Grows a real export of two ranks into the reports of a large job, one per rank.

Every rank is a copy of one of the two, with a process, a start and a clock of its own. Ranks sit
eight to a host, and the hosts' clocks disagree by milliseconds. Ranks come late to collectives by
chance, one in sixteen of them (the stragglers) by more; nobody leaves one before the last is there.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.scale.grow import EVENT_TABLES, IDS, TIMES

MORE_TABLES = ("MPI_RANKS", "MPI_OTHER_EVENTS", "CUPTI_ACTIVITY_KIND_CUDA_EVENT")
PER_HOST = 8
CLOCK_ERROR_NS = 5_000_000
STRAGGLERS = 16
PID = ((1 << 24) - 1) << 24


def grow_ranks(source: Path, folder: Path, ranks: int, seed: int = 9) -> list[Path]:
    """Write the reports of `ranks` ranks into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    alone = [_one_rank(source, folder / f"only{i}.part", i) for i in (0, 1)]
    errors = [rng.randrange(-CLOCK_ERROR_NS, CLOCK_ERROR_NS) for _ in range(0, ranks, PER_HOST)]
    paths = []
    for rank in range(ranks):
        path = folder / f"rank{rank:04d}.sqlite"
        shutil.copy(alone[rank % 2], path)
        late = 0.6 if is_straggler(rank) else 0.2
        _become(path, rank, ranks, rng.randrange(130_000_000), errors[rank // PER_HOST],
                random.Random(rng.random()), late)  # fmt: skip
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
        for table, columns in _tables(db):
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
        for table, columns in _tables(db):
            changed = [f"{c} = {c} - {began_ns}" for c in TIMES if c in columns]
            changed += [f"{c} = {c} + {process}" for c in IDS if c in columns]
            db.execute(f"UPDATE {table} SET {', '.join(changed)}")
        db.execute("UPDATE MPI_RANKS SET rank = ?", [rank])
        db.execute("UPDATE MPI_COMMUNICATORS SET rank = ?, size = ?", [rank, ranks])
        db.execute("UPDATE MPI_COLLECTIVES_EVENTS SET size = size * ?, recvSize = recvSize * ?",
                   [ranks - 1, ranks - 1])  # fmt: skip
        db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?",
                   [began_ns + error_ns])  # fmt: skip
        db.commit()


def _tables(db: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    names = {r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    chosen = [t for t in (*EVENT_TABLES, *MORE_TABLES) if t in names]
    return [(t, [r[1] for r in db.execute(f"PRAGMA table_info({t})")]) for t in chosen]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    args = parser.parse_args()
    print(len(grow_ranks(args.source, args.folder, args.ranks)), "reports")
