"""Packing a report changes nothing that is shown of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, unpacked
from benchmarks.robustness.reading import numbers
from perfmodel.readers import read
from profiles.pack import CALLS, CUPTI, FIRST, compressed, pack
from support.build_report import VERSIONS
from support.document_report import document_report


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_built_report(version: str, tmp_path: Path) -> None:
    report = document_report(tmp_path / "whole.sqlite", version)
    packed = pack(report, tmp_path / "small.sqlite.xz")
    assert numbers(read(packed)) == numbers(read(report))


@pytest.mark.slow
def test_rows_of_equal_length_lie_together_in_the_order_of_time(tmp_path: Path) -> None:
    packed = pack(BASE, tmp_path / "small.sqlite.xz")
    assert numbers(read(packed)) == numbers(read(BASE))
    assert packed.stat().st_size < 0.6 * len(compressed(BASE.read_bytes()))
    asked = f"SELECT globalPid, start, correlationId FROM {CUPTI}KERNEL"
    with closing(sqlite3.connect(unpacked(packed, tmp_path))) as db:
        found = db.execute(f"{asked} ORDER BY rowid").fetchall()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        calls = {call for (call,) in db.execute(f"SELECT correlationId FROM {CALLS}")}
    turns = sum(after < before for before, after in pairwise(found))
    assert turns < len(found) / 20
    assert calls == {*range(FIRST, FIRST + len(calls))}
    assert {call for *_, call in found} <= calls
    assert not any(name.startswith("ENUM_") for name in tables)
    with closing(sqlite3.connect(BASE)) as db:
        assert sorted(row[:2] for row in found) == sorted(
            row[:2] for row in db.execute(asked).fetchall()
        )


@pytest.mark.slow
def test_a_packed_report_can_be_packed_again(tmp_path: Path) -> None:
    packed = pack(BASE, tmp_path / "small.sqlite.xz")
    again = pack(unpacked(packed, tmp_path), tmp_path / "again.sqlite.xz")
    assert numbers(read(again)) == numbers(read(packed))
    assert again.stat().st_size < 1.02 * packed.stat().st_size
