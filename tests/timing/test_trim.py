"""Trimming a report drops what no analysis reads, and changes nothing that is shown."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from benchmarks.robustness.reading import numbers
from perfmodel.readers import read
from profiles.trim import trim
from support.build_report import VERSIONS
from support.damaged_reports import sql
from support.document_report import document_report
from support.foreign_reports import SHIPPED

REPORTS = [*SHIPPED, *sorted(ROOT.glob("tests/reports/*.sqlite"))]
LARGE = (
    "CREATE TABLE OSRT_API (start INTEGER, nameId INTEGER, note TEXT)",
    "CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER)",
    "CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER)",
    "CREATE TABLE ANALYSIS_FILE (id INTEGER, filename TEXT, content BLOB)",
    "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)",
    "INSERT INTO ANALYSIS_FILE VALUES (1, 'log', zeroblob(300000))",
    "INSERT INTO META_DATA_CAPTURE VALUES ('CAPTURE_USER_NAME', 'somebody')",
    "INSERT INTO StringIds VALUES (4000, 'somebody''s function')",
    "INSERT INTO OSRT_API VALUES (5, 4000, 'x')",
)


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_built_report(version: str, tmp_path: Path) -> None:
    report = sql(document_report(tmp_path / "whole.sqlite", version), *LARGE)
    before = report.read_bytes()
    small = tmp_path / "small.sqlite"
    trim(report, small)
    assert report.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [small, report]
    assert numbers(read(small)) == numbers(read(report))
    assert tables(small) == tables(report) - {
        "OSRT_API", "SCHED_EVENTS", "SAMPLING_CALLCHAINS", "ANALYSIS_FILE", "META_DATA_CAPTURE",
        "PROCESSES", "ThreadNames",
    }  # fmt: skip
    assert small.stat().st_size < len(before) - 300_000
    assert b"CAPTURE_USER_NAME" not in small.read_bytes()


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_shipped_reports_are_trimmed(report: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.sqlite"
    trim(report, again)
    assert tables(again) == tables(report)
    assert numbers(read(again)) == numbers(read(report))


def test_the_command(tmp_path: Path) -> None:
    report = sql(document_report(tmp_path / "whole.sqlite"), *LARGE)
    small = tmp_path / "small.sqlite"
    command = [sys.executable, "-m", "profiles.trim", str(report), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"{small}: {small.stat().st_size:,} bytes, ")
    assert numbers(read(small)) == numbers(read(report))


def test_what_is_no_report_leaves_no_target(tmp_path: Path) -> None:
    source, target = tmp_path / "text.sqlite", tmp_path / "small.sqlite"
    source.write_text("no report")
    with pytest.raises(sqlite3.DatabaseError):
        trim(source, target)
    assert not target.exists()
