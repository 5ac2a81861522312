"""Exports of Nsight Systems of 2025.5 to 2026.2, recorded by others, are read as older ones are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from readers.test_rewritten import rewritten, said_of

from benchmarks.common.folders import unpacked
from perfmodel.readers import read
from perfmodel.readers.trace import GRAPH, KERNEL, MEMCPY, MEMSET
from perfmodel.timing.nsys_stats.collect import compute
from support.build_operators import operators_report
from support.public_recordings import small

FOUND = {
    "smoke_nsys2025.5.2": ("2025.5.2.266", "3.24.0", 0, 33, (3, 1, 0, 2)),
    "smoke_nsys2026.1.1": ("2026.1.1.204", "3.24.14", 0, 9, (2, 1, 0, 0)),
    "ddp_nsys2026.2.1": ("2026.2.1.210", "3.25.0", 17113, 6682, (3587, 904, 242, 0)),
}
"""Product, schema; ranges, calls, and kernels, copies, sets and graphs."""


@pytest.fixture(params=FOUND)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def report(name: str, tmp_path: Path) -> Path:
    return unpacked(small(f"{name}.sqlite.xz"), tmp_path / "report_1.sqlite")


def test_all_events_are_read(name: str, report: Path) -> None:
    product, schema, ranges, calls, operations = FOUND[name]
    trace = read(report)
    assert (trace.product_version, trace.schema_version) == (product, schema)
    assert (len(trace.ranges), len(trace.api)) == (ranges, calls)
    counts = [int((trace.ops.kind == k).sum()) for k in (KERNEL, MEMCPY, MEMSET, GRAPH)]
    assert tuple(counts) == operations
    assert trace.utc_start_ns is not None
    assert compute("cuda_gpu_kern_sum", trace).rows


@pytest.mark.parametrize("name", ["", "ddp_nsys2026.2.1.sqlite.xz"], ids=["built", "recorded"])
def test_rows_of_2026_are_in_no_order(name: str, tmp_path: Path) -> None:
    """Nsight Systems says so in EXPORT_PARAM_USE_SHUFFLE; a trace is in order."""
    report = tmp_path / "report.sqlite"
    if name:
        unpacked(small(name), report)
    else:
        rewritten(operators_report(tmp_path / "in_order.sqlite"), report, rows=True)
    with closing(sqlite3.connect(report)) as db:
        rows = db.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchall()
    stored = [start for (start,) in rows]
    assert stored != sorted(stored)
    assert read(report).api.start_ns.tolist() == sorted(stored)


@pytest.mark.slow
def test_the_order_of_rows_makes_no_difference(report: Path, tmp_path: Path) -> None:
    other = rewritten(report, tmp_path / "report_2.sqlite", rows=True, columns=True)
    assert said_of(other) == said_of(report)


CHANGES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "a column of 2026.1": lambda db: db.executescript(
        "CREATE TABLE IF NOT EXISTS TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);"
        "ALTER TABLE TARGET_INFO_SESSION_START_TIME ADD COLUMN systemClockNs INTEGER;"
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN sharedMemoryRequestedPercentage INTEGER;"
    ),
    "a column of 2026.2": lambda db: db.execute(
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN tensorSizeMinusOneElements INTEGER"
    ),
    "schemas of payloads": lambda db: db.executescript(
        "CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT);"
        "INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1, 2, 'AllReduce');"
    ),
    "overhead by type": lambda db: db.executescript(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD (start INTEGER, overheadType INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (1, 2);"
    ),
    "a table of the future": lambda db: db.executescript(
        "CREATE TABLE NCCL_EVENTS (start INTEGER, end INTEGER, bytes INTEGER);"
        "INSERT INTO NCCL_EVENTS VALUES (1, 2, 3);"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_new_changes_nothing(change: str, tmp_path: Path) -> None:
    source = operators_report(tmp_path / "report_1.sqlite")
    other = rewritten(source, tmp_path / "report_2.sqlite")
    with closing(sqlite3.connect(other)) as db:
        CHANGES[change](db)
        db.commit()
    assert said_of(other) == said_of(source)
