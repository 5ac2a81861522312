"""`perfmodel stats` of a million distinct range names: 600 MB in every format."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from support.build_report import ReportBuilder
from support.folders import ROOT

pytestmark = pytest.mark.slow

NAMES = 1_000_000
MOST_BYTES = 600_000_000
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
"""Runs a command and prints its peak: a child's includes what its parent held when it forked."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = ReportBuilder()
    builder.thread().range("first", 0, 1000)
    path = builder.write(tmp_path_factory.mktemp("names") / "names.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        texts = ((1000 + i, f"range number {i} of step {i // 10}") for i in range(NAMES - 1))
        db.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", texts)
        columns = [row[1] for row in db.execute("PRAGMA table_info(NVTX_EVENTS)")]
        first = dict(zip(columns, db.execute("SELECT * FROM NVTX_EVENTS").fetchone(), strict=True))
        rows = (
            first | {"start": 1000 * i, "end": 1000 * i + 900 + i % 7, "textId": 999 + i}
            for i in range(1, NAMES)
        )
        places = ", ".join(f":{name}" for name in columns)
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({places})", rows)
    return path


@pytest.mark.parametrize(
    "options",
    [[], ["--format", "csv"], ["--format", "json"], ["--format", "markdown"], ["-o", "folder"],
     ["-o", "out.jsonl"]],
    ids=" ".join,
)  # fmt: skip
def test_a_million_names_take_600_mb(report: Path, options: list[str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "perfmodel", "stats", str(report), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "said").open("wb") as said:
        done = subprocess.run([sys.executable, "-c", PEAK, *words], cwd=tmp_path, stdout=said,
                              stderr=subprocess.PIPE, env=env, check=True)  # fmt: skip
    assert int(done.stderr.split()[-1]) * 1024 < MOST_BYTES
    name = {"folder": "folder/nvtx_pushpop_sum.csv", "out.jsonl": "out.jsonl"}
    written = tmp_path / name.get(options[-1] if options else "", "said")
    if options[-1:] == ["json"]:
        assert len(json.loads(written.read_text())["rows"]) == NAMES
    elif options and options[-1] != "markdown":
        lines = written.read_text().splitlines()
        assert len(lines) == NAMES + (written.suffix != ".jsonl")
        assert sum("range number" in line for line in lines) == NAMES - 1
