"""What the schema of an SQLite report says of its ordinary tables."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Final

from perfmodel.readers.records import COUNT_BYTES

_REAL: Final = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stored:
    """An ordinary table: root page (0: read it with SQL), columns, rowid alias, REAL columns.

    `header_bytes` are the least and the most that the header of a row's record can have.
    """

    root: int
    columns: list[str]
    alias: int | None
    real: set[str]
    header_bytes: tuple[int, int]


def read_schema(connection: sqlite3.Connection) -> dict[str, Stored]:
    """Return the ordinary tables by name; views and virtual tables are none of them.

    Raises
    ------
    sqlite3.Error
        If SQLite cannot read the schema.
    """
    schema: dict[str, Stored] = {}
    statement = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
    for name, root in connection.execute(statement).fetchall():
        if not isinstance(name, str) or not isinstance(root, int) or root <= 0:
            continue  # virtual tables have no root page
        info = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        stored = [column for _, column, _, _, _, _, hidden in info if not hidden]
        indexes = connection.execute(f"PRAGMA index_list({quoted(name)})").fetchall()
        keys = [i for i, row in enumerate(info) if row[5]]
        alias = keys[0] if len(keys) == 1 and not any(i[3] == "pk" for i in indexes) else None
        if alias is not None and str(info[alias][2]).upper() != "INTEGER":
            alias = None
        generated = any(row[6] for row in info)
        real = {column for _, column, kind, *_ in info if _REAL.search(str(kind))}
        whole = sum(str(row[2]).upper() in ("INTEGER", "INT") for row in info)
        long = COUNT_BYTES * (len(info) - whole)  # the type of a whole number takes one byte
        header = (1 + len(stored), 2 + whole + long)
        schema[name] = Stored(0 if generated else root, stored, alias, real, header)
    return schema


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
