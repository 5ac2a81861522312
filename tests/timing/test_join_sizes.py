"""Joins take memory in proportion to the rows, whatever the ids are."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perfmodel.base import kernels
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.timing.nesting import nest
from perfmodel.timing.projection import Irregular, Projector, join_launches, project
from support.build_report import ReportBuilder
from support.cli import fails, succeeds

CALLS = 1_200


def report(path: Path, correlation: Callable[[int], int]) -> Path:
    """Write ranges with a launch each, whose ids are given by its number."""
    builder = ReportBuilder()
    builder.gpu(0)
    thread = builder.thread(rank=0)
    for i in range(CALLS):
        at = 1_000 * i
        thread.range("step", at, at + 900)
        thread.kernel("kernel", (at + 10, at + 20), (at + 30, at + 500))
    builder.write(path)
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
            rows = db.execute(f"SELECT rowid, correlationId FROM {table}").fetchall()
            db.executemany(
                f"UPDATE {table} SET correlationId = ? WHERE rowid = ?",
                [(correlation(i), row) for i, (row, _) in enumerate(rows)],
            )
    return path


def joined(trace: Trace) -> tuple[int, bool]:
    op, _, repeated = join_launches(trace, trace.ops, trace.api)
    return len(op), repeated


@pytest.mark.parametrize(
    ("shared", "pairs"), [(1, CALLS), (2, 2 * CALLS), (15, 15 * CALLS), (20, 0), (CALLS, 0)]
)
def test_pairs_of_shared_ids_are_linear(shared: int, pairs: int, tmp_path: Path) -> None:
    trace = read(report(tmp_path / "report.sqlite", lambda i: i // shared))
    assert joined(trace) == (pairs, shared > 1)


def test_ids_of_31_bits_need_no_table_of_that_size(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", lambda i: i * (2**31 // CALLS))
    trace = read(path)
    assert joined(trace) == (CALLS, False)
    assert len(project(trace, nest(trace.ranges, len(trace.threads)), trace.ops).range) == CALLS
    projector = Projector(nest(trace.ranges, len(trace.threads)), trace.threads)
    calls = trace.api
    with pytest.raises(Irregular):
        projector.add_calls(
            calls.start_ns, calls.end_ns, trace.threads[calls.thread], calls.correlation
        )
    assert sum(ids.room for ids in projector._ids.values()) == 0
    succeeds("stats", path)


def test_a_name_is_read_once() -> None:
    names = [f"kernel_{i:x}<float, {i}>" for i in range(1 << 15)]
    before = kernels.kernel.cache_info().misses
    for _ in range(2):
        for name in names:
            kernels.kernel(name)
    assert kernels.kernel.cache_info().misses - before == len(names)


@pytest.mark.parametrize("suffix", [".json.gz", ".csv.gz"])
def test_a_packed_file_that_unpacks_to_far_more_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace{suffix}"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(40):
            file.write(b"[" + b" " * 1_000_000 + b"],")
        file.write(b"{}]}")
    assert "bytes for a packed one" in fails(3, "analyze", path)
