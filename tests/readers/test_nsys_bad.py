"""Whatever a file holds: a whole report is read right, anything else is refused in one line."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.robustness.reading import numbers
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError
from perfmodel.readers import read
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing.nsys_stats.collect import REPORTS, compute
from support.damaged_reports import EVENTS, KERNELS, refusal, sql

PAGE = 4096


@pytest.fixture
def report(original: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    path.write_bytes(original)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"x", "got something else"),
        (b"Time (%),Total Time (ns)\n1.0,5\n", "got something else"),
        (b'{"schemaVersion": "3.11.7"}', "got JSON"),
        (b'  [{"name": 1}]', "got JSON"),
        (b"\x1f\x8b\x08rest", "name it .sqlite.gz"),
        (b"\xfd7zXZ\x00", "name it .sqlite.xz"),
        (b"\x28\xb5\x2f\xfd", "zstd -d"),
        (b"PAR1", "got a Parquet file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"QdstrmVersion 1", "QdstrmImporter"),
        (b"NVIDIA Tegra Profiler Report 2024@2", "name it .nsys-rep"),
        (b"\0" * 9000, "got something else"),
        (b"SQLite format 3", "got something else"),
        (b"SQLite format 3\0", "truncated"),
        (b"SQLite format 3\0" + bytes(4080), "damaged or half-written"),
        (b"SQLite format 3\0\x10\x00" + bytes(10_000), "truncated"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "truncated"),
    ],
)
def test_other_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    error = refusal(path)
    assert isinstance(error, ReportError)
    assert message in str(error) or "damaged" in str(error)


def test_missing_files_folders_and_pipes(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    assert "No such file" in str(refusal(path))
    assert "check the path" in str(refusal(tmp_path / "no" / "folder.sqlite"))
    assert "got a folder" in str(refusal(tmp_path))
    assert "cannot be read" in str(refusal(path / "inside a file"))
    path.symlink_to(path.name)
    assert "cannot be read" in str(refusal(path))
    with pytest.raises(ReportError, match=r"null|embedded"):
        read(tmp_path / "nul\0byte.sqlite")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "got a pipe" in str(refusal(tmp_path / "pipe"))
        assert "got a pipe" in str(refusal(Path(os.devnull)))


CUTS = [
    1,
    15,
    16,
    99,
    100,
    101,
    511,
    512,
    PAGE - 1,
    PAGE,
    PAGE + 1,
    0.1,
    0.3,
    0.5,
    0.7,
    0.9,
    -PAGE,
    -1,
]
"""Bytes from the start, shares of the whole, or bytes from the end."""


@pytest.mark.parametrize("cut", CUTS)
def test_truncated_files(cut: float, report: Path, original: bytes) -> None:
    size = len(original)
    length = int(cut * size) if isinstance(cut, float) else cut % size
    report.write_bytes(original[:length])
    error = refusal(report)
    assert isinstance(error, ReportError)
    if length >= 100:
        assert f"truncated: expected {size} bytes; got {length}" in str(error)


@pytest.mark.parametrize("fast", [True, False])
def test_files_with_more_behind_them(
    fast: bool, report: Path, original: bytes, truth: list[Any]
) -> None:
    """Such as a copy into a larger file; the header says where the report ends."""
    for more in (1, PAGE, 10_000):
        report.write_bytes(original + b"\xff" * more)
        assert numbers(read_sqlite(report, fast=fast)) == truth


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_zeroed_pages(fast: bool, report: Path, original: bytes, truth: list[Any]) -> None:
    """One page at a time: an error, or the page held nothing that is read."""
    refused = 0
    for at in range(0, len(original), PAGE):
        report.write_bytes(original[:at] + bytes(PAGE) + original[at + PAGE :])
        try:
            assert numbers(read_sqlite(report, fast=fast)) == truth, at
        except PerfmodelError:
            refusal(report, fast=fast)
            refused += 1
    assert refused > len(original) // PAGE // 2


@pytest.mark.slow
def test_flipped_bytes(report: Path, original: bytes) -> None:
    """No value is safe from these, but nothing other than our errors may come of them."""
    draw = random.Random(20240203)
    outcomes, messages = set(), []
    for _ in range(150):
        data = bytearray(original)
        for _ in range(draw.choice([1, 2, 8])):
            page = draw.randrange(len(data) // PAGE) * PAGE
            data[page + draw.choice([draw.randrange(PAGE), draw.randrange(110)])] ^= draw.randrange(
                1, 256
            )
        report.write_bytes(data)
        try:
            numbers(read(report))
            outcomes.add("read")
        except PerfmodelError as error:
            outcomes.add(type(error).__name__)
            messages.append(str(error))
    assert {"read", "ReportError"} <= outcomes <= {"read", "ReportError", "SchemaError"}
    assert not [message for message in messages if "\n" in message]


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_reports_that_are_being_written(suffix: str, report: Path) -> None:
    Path(f"{report}{suffix}").write_bytes(b"x")
    error = refusal(report)
    assert isinstance(error, ReportError)
    assert f"report.sqlite{suffix}" in str(error)
    assert "wait for it" in str(error)


def test_a_report_with_a_writer_at_work(report: Path, truth: list[Any]) -> None:
    with closing(sqlite3.connect(report)) as db:
        db.execute("PRAGMA journal_mode = wal").fetchall()
        db.execute(f"DELETE FROM {KERNELS}")
        db.commit()
        assert "unfinished transaction" in str(refusal(report))
    assert numbers(read(report)) != truth


def test_half_written_reports(report: Path, original: bytes) -> None:
    sql(report, "DROP TABLE StringIds")
    error = refusal(report)
    assert isinstance(error, SchemaError)
    assert "expected an Nsight Systems export (tables StringIds" in str(error)

    report.write_bytes(original)
    for table in (*EVENTS, "MPI_OTHER_EVENTS"):
        sql(report, f"DROP TABLE {table}")
    trace = read(report)  # tables are made lazily: what is absent did not happen
    assert len(trace.ranges) == len(trace.ops) == len(trace.api) == 0
    for name in REPORTS:
        with pytest.raises(SchemaError, match="--trace="):
            compute(name, trace)


def test_databases_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    sql(path, "CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
    assert "got an SQLite file with moz_places" in str(refusal(path))
    sql(path, "DROP TABLE moz_places", "VACUUM")
    assert "got an SQLite file with no table" in str(refusal(path))
    sql(path, "CREATE VIEW StringIds AS SELECT 1 AS id", "CREATE VIEW NVTX_EVENTS AS SELECT 2")
    assert isinstance(refusal(path), SchemaError)
