"""Writes an SQLite file of Nsight Systems' schema: what inputs of other formats become."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ReportError
from perfmodel.readers.sqlite import quoted


class SqliteWriter:
    """Tables of one file, written in one go."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create(self, table: str, columns: Mapping[str, str]) -> None:
        """Make an empty table of columns of these SQL types."""
        described = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self._connection.execute(f"CREATE TABLE {quoted(table)} ({described})")

    def add(self, table: str, width: int, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows of so many columns.

        Raises
        ------
        OverflowError
            If a number has more than 64 bits.
        """
        places = ", ".join("?" * width)
        self._connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({places})", rows)

    def add_to(self, table: str, columns: Sequence[str], amount: int) -> None:
        """Add a number to columns of all rows."""
        sums = ", ".join(f"{quoted(c)} = {quoted(c)} + {amount:d}" for c in columns)
        self._connection.execute(f"UPDATE {quoted(table)} SET {sums}")

    def add_from(self, table: str, source: str, values: Sequence[str]) -> None:
        """Add a row for each row of another table, of expressions over its columns."""
        self._connection.execute(
            f"INSERT INTO {quoted(table)} SELECT {', '.join(values)} FROM {quoted(source)}"
        )

    def change(self, table: str, column: str, value: str) -> None:
        """Set a column of all rows to an expression over the others."""
        self._connection.execute(f"UPDATE {quoted(table)} SET {quoted(column)} = {value}")


@contextmanager
def written(target: Path, source: Path) -> Iterator[SqliteWriter]:
    """Yield a writer of the file `target`; errors are of the report `source`.

    Raises
    ------
    ReportError
        If the file cannot be written, or a name or value is none of SQLite's.
    """
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "page_size = 16384"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        yield SqliteWriter(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        full = "disk" in str(error)
        raise ReportError(
            f"{source}: cannot be converted in {target.parent.parent} ({error}): "
            + (
                "free some space, or set TMPDIR to a folder on another disk"
                if full
                else "it is damaged; make it again"
            )
        ) from error
    finally:
        connection.close()
