"""`perfmodel stats` of many distinct range names: 500 bytes and 15 µs a name in every format."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from support.build_report import ReportBuilder

pytestmark = pytest.mark.slow

NAMES = 200_000
MOST_BYTES = 70_000_000 + 500 * NAMES
MOST_S = 15e-6 * NAMES
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr)
"""
"""Runs a command; prints its peak and CPU seconds. A child's includes what its parent held."""


def written(path: Path, *, kernels: bool) -> Path:
    """A report of ranges of distinct names, with a kernel launched in each if asked for."""
    builder = ReportBuilder()
    thread = builder.thread()
    thread.range("first", 0, 1000)
    if kernels:
        thread.kernel("kernel", (100, 120), (300, 600))
    builder.write(path)
    with closing(sqlite3.connect(path)) as db, db:
        texts = ((1000 + i, f"range number {i} of step {i // 10}") for i in range(NAMES - 1))
        db.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", texts)
        for table, since, until, id_column in (
            ("NVTX_EVENTS", 0, 900, "textId"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", 100, 120, "correlationId"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", 300, 600, "correlationId"),
        )[: 3 if kernels else 1]:
            first_id = 999 if table == "NVTX_EVENTS" else 1
            repeat(db, table, [
                {"start": 1000 * i + since, "end": 1000 * i + until + i % 7,
                 id_column: first_id + i}
                for i in range(1, NAMES)
            ])  # fmt: skip
    return path


def repeat(db: sqlite3.Connection, table: str, changed: list[dict[str, int]]) -> None:
    """Add rows: a table's first one with other values."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    first = dict(zip(columns, db.execute(f"SELECT * FROM {table}").fetchone(), strict=True))
    places = ", ".join(f":{name}" for name in columns)
    db.executemany(f"INSERT INTO {table} VALUES ({places})", (first | other for other in changed))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("names") / "names.sqlite", kernels=False)


@pytest.fixture(scope="module")
def launching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("launching") / "launching.sqlite", kernels=True)


@pytest.mark.parametrize(
    "options",
    [[], ["--format", "csv"], ["--format", "json"], ["--format", "markdown"], ["-o", "folder"],
     ["-o", "out.jsonl"]],
    ids=" ".join,
)  # fmt: skip
def test_many_names_take_500_bytes_each(report: Path, options: list[str], tmp_path: Path) -> None:
    assert measured(report, options, tmp_path) < MOST_S
    name = {"folder": "folder/nvtx_pushpop_sum.csv", "out.jsonl": "out.jsonl"}
    found = tmp_path / name.get(options[-1] if options else "", "printed")
    if options[-1:] == ["json"]:
        assert len(json.loads(found.read_text())["rows"]) == NAMES
    elif options and options[-1] != "markdown":
        lines = found.read_text().splitlines()
        assert len(lines) == NAMES + (found.suffix != ".jsonl")
        assert sum("range number" in line for line in lines) == NAMES - 1


@pytest.mark.parametrize("options", [[], ["--format", "jsonl"], ["-o", "folder"]], ids=" ".join)
def test_so_do_ranges_that_launch_kernels(
    launching: Path, options: list[str], tmp_path: Path
) -> None:
    measured(launching, options, tmp_path)
    if options:
        of_jsonl = options[-1] == "jsonl"
        found = "printed" if of_jsonl else "folder/nvtx_gpu_proj_sum.csv"
        lines = (tmp_path / found).read_text().splitlines()
        assert sum("range number" in line for line in lines) == (1 + of_jsonl) * (NAMES - 1)


def measured(report: Path, options: list[str], folder: Path) -> float:
    """CPU seconds of the command, whose memory is asserted; what it prints is in `printed`."""
    words = [sys.executable, "-m", "perfmodel", "stats", str(report), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "printed").open("wb") as printed:
        done = subprocess.run([sys.executable, "-c", PEAK, *words], cwd=folder, stdout=printed,
                              stderr=subprocess.PIPE, env=env, check=True)  # fmt: skip
    kilobytes, seconds = done.stderr.split()[-2:]
    assert int(kilobytes) * 1024 < MOST_BYTES
    return float(seconds)
