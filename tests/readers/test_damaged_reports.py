"""Reports that are damaged, or change while they are read: an error, or the whole report's numbers.

Never a killed process, an endless scan, or a table with rows lost or read twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.robustness.reading import numbers
from benchmarks.vecadd.unified import read_unified
from perfmodel.base.errors import PerfmodelError, ReportError
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.sqlite import Database
from support.btrees import endless, root_of
from support.damaged_reports import CALLS, KERNELS, refusal, sql

PAGE = 4096


@pytest.fixture
def report(original: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    path.write_bytes(original)
    return path


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("table", [None, "StringIds", "NVTX_EVENTS", "MPI_RANKS"])
def test_tables_without_end(table: str | None, fast: bool, report: Path, original: bytes) -> None:
    """Of None, the schema."""
    report.write_bytes(endless(original, 1 if table is None else root_of(report, table)))
    assert isinstance(refusal(report, fast=fast), ReportError)


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "StringIds"])
def test_a_report_cut_while_it_is_read(table: str, report: Path, original: bytes) -> None:
    """A mapped file would kill the process here."""

    def read() -> None:
        with Database(report) as db:
            with report.open("r+b") as file:
                file.truncate(len(original) // 4)
            list(db.rows(table, ["start"]))
            db.read(table, ["start", "id"])

    with pytest.raises(ReportError, match="changed while it was read"):
        read()


def _appended(report: Path) -> None:
    with report.open("ab") as file:
        file.write(bytes(PAGE))


def _rewritten(report: Path) -> None:
    sql(report, f"DELETE FROM {KERNELS} WHERE rowid % 2")


def _replaced(report: Path) -> None:
    other = report.with_name("new")
    other.write_bytes(report.read_bytes())
    other.rename(report)


@pytest.mark.parametrize("change", [_appended, _rewritten, _replaced, Path.unlink])
def test_a_report_that_changes_while_it_is_read(
    change: Callable[[Path], None], report: Path
) -> None:

    def read() -> None:
        with Database(report) as db:
            assert len(db.read(KERNELS, ["start"])["start"])
            change(report)

    with pytest.raises(ReportError) as caught:
        read()
    assert str(caught.value).startswith(f"{report}: the file changed while it was read")


@pytest.mark.parametrize("fast", [True, False])
def test_pages_that_stand_twice_or_in_another_order(
    fast: bool, report: Path, original: bytes, truth: list[Any]
) -> None:
    """As a torn copy leaves them; SQLite itself reads such rows without a word."""
    draw = random.Random(7)
    leaves = [at for at in range(PAGE, len(original), PAGE) if original[at] == 13]
    refused = 0
    for _ in range(20):
        one, other = draw.sample(leaves, 2)
        data = bytearray(original)
        data[one : one + PAGE] = original[other : other + PAGE]
        if draw.random() < 0.5:
            data[other : other + PAGE] = original[one : one + PAGE]
        report.write_bytes(data)
        try:
            assert numbers(read_sqlite(report, fast=fast)) == truth, (one, other)
        except PerfmodelError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("fast", [True, False])
def test_zeroed_sectors(fast: bool, report: Path, original: bytes, truth: list[Any]) -> None:
    draw = random.Random(3)
    refused = 0
    for _ in range(15):
        at = draw.randrange(len(original) // 512) * 512
        report.write_bytes(original[:at] + bytes(512) + original[at + 512 :])
        try:
            assert numbers(read_sqlite(report, fast=fast)) == truth, at
        except PerfmodelError:
            refused += 1
    assert refused > 5


def test_a_damaged_table_of_another_reader(report: Path) -> None:
    report.write_bytes(endless(report.read_bytes(), root_of(report, CALLS)))
    read_unified(report)  # it does not read that table
    report.write_bytes(endless(report.read_bytes(), root_of(report, "CUPTI_ACTIVITY_KIND_MEMCPY")))
    with pytest.raises(ReportError):
        read_unified(report)
