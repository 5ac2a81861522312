"""Whatever tables hold: what is understood is read right, anything else is refused in one line."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.robustness.reading import numbers
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError
from perfmodel.readers import read
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.sqlite import Database
from perfmodel.timing.nsys_stats.collect import compute
from perfmodel.timing.nsys_stats.tables import to_csv
from support.build_report import ReportBuilder
from support.damaged_reports import CALLS, COPIES, EVENTS, KERNELS, refusal, replaced, sql

MAY_NEVER_END = ("NVTX_EVENTS", "MPI_COLLECTIVES_EVENTS")


@pytest.fixture
def report(original: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    path.write_bytes(original)
    return path


@pytest.mark.parametrize("table", EVENTS)
@pytest.mark.parametrize("fast", [True, False])
def test_missing_columns(table: str, fast: bool, report: Path, original: bytes) -> None:
    for column in ("start", "end"):
        report.write_bytes(original)
        sql(report, f'ALTER TABLE {table} DROP COLUMN "{column}"')
        error = refusal(report, fast=fast)
        assert isinstance(error, SchemaError)
        assert f"{table} has no column {column}" in str(error)


@pytest.mark.parametrize(
    ("table", "column"),
    [("NVTX_EVENTS", "eventType"), (CALLS, "globalTid"), (CALLS, "correlationId"),
     ("MPI_COLLECTIVES_EVENTS", "globalTid")],
)  # fmt: skip
def test_missing_keys(table: str, column: str, report: Path) -> None:
    sql(report, f'ALTER TABLE {table} DROP COLUMN "{column}"')
    assert f"{table} has no column {column}" in str(refusal(report))


NO_INTEGERS = {
    "'7 ms'": "str '7 ms'",
    "1.5": "float 1.5",
    "9e99": "float 9e+99",
    "x'0102'": "bytes b'\\x01\\x02'",
    "'a' || char(10)": "str 'a\\n'",
}
INTEGERS = (
    ("NVTX_EVENTS", "textId"),
    ("NVTX_EVENTS", "start"),
    (KERNELS, "end"),
    (COPIES, "bytes"),
    (CALLS, "correlationId"),
    ("MPI_COLLECTIVES_EVENTS", "size"),
)


@pytest.mark.parametrize(
    ("table", "column", "value", "shown"),
    [
        (*place, value, shown)
        for place in INTEGERS
        for value, shown in NO_INTEGERS.items()
        if place == INTEGERS[0] or value in ("'7 ms'", "1.5")
    ],
)
def test_values_that_are_no_integers(
    table: str, column: str, value: str, shown: str, report: Path
) -> None:
    replaced(report, table, column, value)
    for fast in (True, False):
        error = refusal(report, fast=fast)
        assert isinstance(error, SchemaError)
        assert f"{table}: expected integers; got {shown}" in str(error)


def test_rows_left_in_the_middle_end_in_silence(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a table whose first values are refused, when the file is closed before them."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with Database(report) as db:
        rows = db.rows(CALLS, ["start"])
        assert len(next(rows)) == 1
    del rows
    assert not said


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ("NULL", "start"), ("NULL", "end"), ("9223372036854775807", "end"),
        ("-9223372036854775807", "start"), ("1 << 62", "end"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("table", EVENTS)
def test_times_that_are_none(table: str, column: str, value: str, report: Path) -> None:
    replaced(report, table, column, value)
    for fast in (True, False):
        if (value, column) == ("NULL", "end") and table in MAY_NEVER_END:
            numbers(read_sqlite(report, fast=fast))
            continue
        error = refusal(report, fast=fast)
        assert isinstance(error, SchemaError)
        assert f"{table}.{column}: expected times in ns; got" in str(error)
        assert "in 1 of " in str(error)


def test_sizes_that_are_missing(report: Path) -> None:
    trace = read(replaced(report, COPIES, "bytes", "NULL"))
    with pytest.raises(SchemaError, match="expected sizes of copies"):
        compute("cuda_gpu_mem_size_sum", trace)
    assert "[CUDA memcpy" in to_csv(compute("cuda_gpu_mem_time_sum", trace))


@pytest.mark.parametrize("fast", [True, False])
def test_views_virtual_tables_and_triggers_are_left_alone(
    fast: bool, report: Path, truth: list[Any]
) -> None:
    """Nothing that runs code when it is read is ever read, whatever its name."""
    endless = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"
    name = "MPI_START_WAIT_EVENTS"
    virtual = f"CREATE VIRTUAL TABLE {name} USING any_module(start, end, globalTid, textId)"
    columns = "start, start AS 'end', 1 AS globalTid, 1 AS textId, 1 AS commHandle, 1 AS size"
    sql(
        report,
        f"CREATE VIEW MPI_P2P_EVENTS AS {endless} SELECT {columns} FROM n",
        f"INSERT INTO sqlite_master VALUES ('table', '{name}', '{name}', 0, '{virtual}')",
        f"CREATE TRIGGER NVTX_TRIGGER AFTER INSERT ON {KERNELS} BEGIN DELETE FROM {KERNELS}; END",
        f"CREATE INDEX backwards ON {KERNELS} (start DESC)",
        'CREATE INDEX covering ON NVTX_EVENTS ("end", start, eventType, globalTid, text)',
        writable_schema=1,
    )
    trace = read_sqlite(report, fast=fast)
    assert not {"MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS"} & trace.tables
    assert numbers(trace) == truth


@pytest.mark.parametrize("fast", [True, False])
def test_other_layouts_of_the_same_tables(fast: bool, report: Path, truth: list[Any]) -> None:
    """Other page sizes, encodings, REAL columns, generated columns, tables without rowid."""
    replaced(report, KERNELS, "start", "start")
    sql(
        report,
        "CREATE TABLE ids (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID",
        "INSERT INTO ids SELECT id, value FROM StringIds",
        "DROP TABLE StringIds",
        "ALTER TABLE ids RENAME TO StringIds",
        f'ALTER TABLE {KERNELS} ADD COLUMN took AS ("end" - start)',
        "ALTER TABLE NVTX_EVENTS ADD COLUMN r REAL",
    )
    assert numbers(read_sqlite(report, fast=fast)) == truth
    for size in (512, 65_536):
        with closing(sqlite3.connect(report)) as db:
            db.execute(f"PRAGMA page_size = {size}")
            db.execute("VACUUM")
        assert numbers(read_sqlite(report, fast=fast)) == truth


def test_a_database_in_utf_16(report: Path, truth: list[Any]) -> None:
    other = report.with_name("utf16.sqlite")
    with closing(sqlite3.connect(other)) as db, closing(sqlite3.connect(report)) as old:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        for name, create in old.execute("SELECT name, sql FROM sqlite_master").fetchall():
            db.execute(create)
            for row in old.execute(f"SELECT * FROM {name}"):
                db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        db.commit()
    assert numbers(read(other)) == truth


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Lone surrogates, bad UTF-8, NULs and blobs become names, not errors; NULL is no name."""
    build = ReportBuilder()
    thread = build.thread()
    for i in range(6):
        thread.range(f"r{i}", 10 * i, 10 * i + 9 - i)
    thread.range("inline", 100, 101, registered=False)
    path = build.write(tmp_path / "names.sqlite")
    blobs = {"r0": "eda080", "r1": "61ff62", "r2": "610062", "r3": "f09f9a80"}
    sql(
        replaced(path, "StringIds", "id", "id"),
        *(
            f"UPDATE StringIds SET value = CAST(x'{blob}' AS TEXT) WHERE value = '{name}'"
            for name, blob in blobs.items()
        ),
        "UPDATE StringIds SET value = x'626c6f62ff' WHERE value = 'r4'",
        "UPDATE StringIds SET value = NULL WHERE value = 'r5'",
        "UPDATE NVTX_EVENTS SET text = CAST(x'c3' AS TEXT) WHERE text = 'inline'",
    )
    for fast in (True, False):
        trace = read_sqlite(path, fast=fast)
        names = [trace.range_names[n] if n >= 0 else None for n in trace.ranges.name]
        assert names == [
            "\ufffd\ufffd\ufffd", "a\ufffdb", "a\0b", "\U0001f680", "blob\ufffd", None, "\ufffd",
        ]  # fmt: skip
        to_csv(compute("nvtx_pushpop_sum", trace)).encode()


def broken_name(data: bytes) -> bytes:
    """Put a NUL and a line break into a table's name, in the schema's row and statement."""
    return data.replace(b"ThreadNames", b"Thread\0\nmes")


@pytest.mark.parametrize(
    "damage",
    [
        broken_name,
        lambda data: data.replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE TABLE NVTX_\nVENTS"),
        lambda data: data.replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE TABLE 'VTX_\nVENTS"),
        lambda data: data.replace(b"eventType INTEGER", b"eventType INT\xff\xff\xff\xff"),
    ],
)
def test_a_damaged_schema(
    damage: Callable[[bytes], bytes], report: Path, original: bytes, truth: list[Any]
) -> None:
    report.write_bytes(damage(original))
    try:
        assert numbers(read(report)) == truth
    except PerfmodelError:
        assert isinstance(refusal(report), (ReportError, SchemaError))
