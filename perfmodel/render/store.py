"""The results database: one SQLite file that collects analyses, idempotent by report hash."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import perfmodel
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.table import Table
from perfmodel.render import tables

_BLOCK = 1 << 20
_BUSY_SECONDS = 60
_PARTS: Mapping[str, Callable[[RunAnalysis], Table]] = {
    "ranges": tables.ranges,
    "rates": tables.rates,
    "copies": tables.copies,
    "collectives": tables.collectives,
    "ranks": tables.ranks,
    "findings": tables.findings,
    "points": lambda run: tables.points(Analysis((run,))),
}
_OURS = {"runs", *_PARTS}


def append(analysis: Analysis, path: Path) -> int:
    """Add every run's rows to the results database; a run that is there already is replaced.

    Runs are known by the SHA-256 of their reports, so analyzing a report again, with whatever
    options, leaves one set of rows. All rows of one call appear together or not at all.

    Returns
    -------
    int
        Number of runs written.

    Raises
    ------
    PerfmodelError
        If the file is no results database, cannot be written, or stays locked for a minute.
    """
    import sqlite_utils

    keys = [_hash(run) for run in analysis.runs]
    try:
        connection = sqlite3.connect(
            path.absolute(),  # ':memory:' is a name like others
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            factory=_OneTransaction,
        )
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    try:
        database = sqlite_utils.Database(connection)
        connection.execute("BEGIN IMMEDIATE")
        if "StringIds" in database.table_names():
            raise PerfmodelError(
                f"{path}: expected a results database; got an Nsight Systems report; name another "
                f"file with --db"
            )
        if taken := _OURS & {*database.view_names()}:
            raise PerfmodelError(
                f"{path}: expected a results database; got a view {min(taken)!r} in a table's "
                f"place; name another file with --db"
            )
        for key, run in zip(keys, analysis.runs, strict=True):
            _write(database, run, key)
        connection.commit()
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    finally:
        connection.close()  # rolls back what was not committed
    return len(analysis.runs)


class _OneTransaction(sqlite3.Connection):
    """A connection whose `with` blocks, of which sqlite-utils has many, commit nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        return False


def _failed(path: Path, error: sqlite3.Error) -> PerfmodelError:
    full = "disk is full" in str(error) or "disk I/O error" in str(error)
    advice = "free some space" if full else "wait until nobody else writes it"
    return PerfmodelError(
        f"{path}: the results database cannot be written ({error}); name another file with --db, "
        f"or {advice}"
    )


def _write(database: Any, run: RunAnalysis, key: str) -> None:
    row = {
        "run_hash": key,
        "label": run.label,
        "analyzed_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "perfmodel_version": perfmodel.__version__,
        "reports": json.dumps([str(t.source.resolve()) for t in run.traces]),
        "nsys_version": run.traces[0].product_version,
        "gpu": run.machine.name if run.machine else None,
        "ranks": len(run.ranks),
        "workload": run.workload.name,
        "counting": run.workload.counting,
        "symbols": json.dumps(dict(run.identity.values)),
        "batches": run.batch.count,
        "warmup": run.batch.warmup,
        "batch_median_s": run.batch.median.value,
        "batch_low_s": run.batch.median.low,
        "batch_high_s": run.batch.median.high,
    }
    row = {name: _storable(value) for name, value in row.items()}
    database["runs"].upsert(row, pk="run_hash", alter=True)
    for name, part in _PARTS.items():
        keys, rows = part(run).records()
        if name in database.table_names():
            database.conn.execute(f'DELETE FROM "{name}" WHERE run_hash = ?', [key])
        records = [
            {"run_hash": key, "row": i, **dict(zip(keys, map(_storable, values), strict=True))}
            for i, values in enumerate(rows)
        ]
        if records:
            database[name].insert_all(records, pk=("run_hash", "row"), alter=True)


def _storable(value: Any) -> Any:
    """A text that UTF-8 cannot hold (a file name that is no UTF-8) with escapes instead."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _hash(run: RunAnalysis) -> str:
    """SHA-256 over the sorted SHA-256 of the run's reports."""
    digests = []
    for trace in run.traces:
        digest = hashlib.sha256()
        try:
            with trace.source.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise PerfmodelError(
                f"{trace.source}: expected its hash for the results database; it cannot be read "
                f"any more ({error.strerror or error}); keep the report where it is"
            ) from error
        digests.append(digest.hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
