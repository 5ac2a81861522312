"""Reads columns that a table must have, full of numbers, in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers.checks import EXPORT
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NULL


def needed_columns(
    db: Database, path: Path, table: str, needed: Sequence[str], more: Sequence[str] = ()
) -> dict[str, Int64]:
    """Return columns of a table by its column `start`; empty ones if the table is absent.

    Parameters
    ----------
    path : Path
        What errors call the report.
    needed : sequence of str
        Columns that must be there, without NULL; `start` is one of them.
    more : sequence of str
        Columns that may be absent or NULL, which is `perfmodel.readers.trace.NULL`.

    Raises
    ------
    SchemaError
        If a needed column is absent or holds NULL.
    """
    absent = sorted(set(needed).difference(db.columns(table)))
    if table in db.tables and absent:
        raise SchemaError(
            f"{path}: {table} has no column {', '.join(absent)}; make the export again, with "
            f"Nsight Systems 2023 or later: {EXPORT}"
        )
    found = db.read(table, [*needed, *more])
    for name in needed:
        if (found[name] == NULL).any():
            raise SchemaError(
                f"{path}: {table}.{name}: wanted numbers, found NULL; make the export again with: "
                f"{EXPORT}"
            )
    order = np.argsort(found["start"], kind="stable")
    return {name: column[order] for name, column in found.items()}
