"""What the tests of bad files share: ways to damage a report, and all that is shown of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from perfmodel.base.errors import PerfmodelError
from perfmodel.readers.nsys import read_sqlite

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
EVENTS: Final = ("NVTX_EVENTS", KERNELS, COPIES, CALLS, "MPI_COLLECTIVES_EVENTS")


def refusal(path: Path, **options: Any) -> PerfmodelError:
    """The error that reading raises, which is one line and names the file."""
    with pytest.raises(PerfmodelError) as caught:
        read_sqlite(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message.removeprefix(str(path))
    assert message.isprintable() or not str(path).isprintable()
    return caught.value


def sql(path: Path, *statements: str, **pragmas: Any) -> Path:
    """Change a report as anyone could."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")  # a report that is lost is made again
        for name, value in pragmas.items():
            db.execute(f"PRAGMA {name} = {value}").fetchall()
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def replaced(path: Path, table: str, column: str, value: str) -> Path:
    """Store `value` in one row in the middle of a table whose columns take anything."""
    middle = f"(SELECT rowid FROM {table} LIMIT 1 OFFSET (SELECT count(*) FROM {table}) / 2)"
    return sql(
        path,
        f"CREATE TABLE copy AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE copy RENAME TO {table}",
        f'UPDATE {table} SET "{column}" = {value} WHERE rowid = {middle}',
    )
