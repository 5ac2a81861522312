"""Changes of a report that must not change results: a few cases, and that a difference is seen."""

from __future__ import annotations

import lzma
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import PROGRAMS
from benchmarks.robustness.metamorphic import (
    CHANGES,
    cases,
    orders_differ,
    said_of,
    slower,
    tables_of,
    unequal,
    unequal_scaled,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metamorphic") / "gpt_modules_timing.sqlite"
    path.write_bytes(lzma.decompress((PROGRAMS / f"{path.name}.xz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def truth(report: Path) -> dict[str, Any]:
    return said_of(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_the_file_alone(
    name: str, report: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / report.name
    copy.write_bytes(report.read_bytes())
    with closing(sqlite3.connect(copy)) as db, db:
        before = [*db.iterdump()]
        CHANGES[name](db, tables_of(db), random.Random(2))
        assert [*db.iterdump()] != before
    assert [*unequal(truth, said_of(copy))] == []


def test_one_kernel_that_takes_longer_is_seen(
    report: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / report.name
    copy.write_bytes(report.read_bytes())
    with closing(sqlite3.connect(copy)) as db, db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 900 WHERE rowid % 3 = 1")
    assert [*unequal(truth, said_of(copy))]


def test_everything_twice_as_slow_takes_twice_as_long(
    report: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / report.name
    copy.write_bytes(report.read_bytes())
    with closing(sqlite3.connect(copy)) as db, db:
        slower(db, tables_of(db), 2)
    said = said_of(copy)
    assert [*unequal_scaled(truth, said, 2)] == []
    assert [*unequal_scaled(truth, said, 3)]


def test_savings_that_depend_on_the_order_are_seen() -> None:
    savings = {"a": 1.0, "b": -0.5, "a,b": 1.0, "b,a": 1.2}
    assert len([*orders_differ(savings)]) == 3
    assert not [*orders_differ({"a": 1.0, "a,b": 1.0, "b,a": 1.0 + 1e-12})]


@pytest.mark.slow
def test_a_short_campaign(report: Path, tmp_path: Path) -> None:
    found = [*cases(report, 10, 5, tmp_path)]
    assert len(found) == 14
    assert [differs for _, differs in found if differs] == []
