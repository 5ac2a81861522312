"""Writes the folder that `nsys export` makes with ``--type arrowdir`` or ``parquetdir``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

UNSIGNED = ("globalTid", "globalPid", "endGlobalTid", "domainId")
"""Columns that Nsight Systems 2024.2 writes as uint64."""


def write_folder(report: Path, folder: Path, kind: str) -> Path:
    """Write every table as `kind`, 'arrow' or 'parquet', in several batches of rows."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    with closing(sqlite3.connect(report)) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            described = db.execute(f"PRAGMA table_info({name})").fetchall()
            rows = db.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall()
            columns = list(zip(*rows, strict=True)) or [()] * len(described)
            table = pa.table({
                said[1]: pa.array(_values(said[1], column), _type(pa, said[1], said[2]))
                for said, column in zip(described, columns, strict=True)
            })  # fmt: skip
            path = folder / f"{name}.{kind}"
            if kind == "parquet":
                parquet.write_table(table, path, row_group_size=1000)
            else:
                with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as s:
                    s.write_table(table, max_chunksize=1000)
    return folder


def _values(name: str, column: Iterable[Any]) -> list[Any]:
    """Write numbers below 0 as Nsight Systems does where the column has no sign."""
    if name not in UNSIGNED:
        return [*column]
    return [None if v is None else v % 2**64 for v in column]


def _type(pa: Any, name: str, declared: str) -> Any:
    if name in UNSIGNED:
        return pa.uint64()
    if name == "binaryData":  # declared as text
        return pa.binary()
    kinds = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64(), "BLOB": pa.binary()}
    return kinds[declared.upper()]
