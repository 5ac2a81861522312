"""Reports with many distinct names of ranges: time by name, and what a reader sees of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import Analysis
from perfmodel.base.table import render
from perfmodel.programs.program import Options
from perfmodel.render import summary, tables
from support.build_report import ReportBuilder

NAMES = 5_000
MOST_S = 100e-6
"""CPU time of a name, four times what it takes; with arrays for every name it took 190 µs."""
GOLDEN = """\
Time per range, median step (1 step, 1 rank)
Range        Host  GPU proj  GPU busy  Share  Moved
───────────────────────────────────────────────────
step      5.30 ms         –         –  100 %      –
  r 7      100 µs         –         –    2 %      –
    in 7  50.0 µs         –         –    1 %      –
  r 9      200 µs         –         –    4 %      –
note: the 4 longest ranges; 4,998 more rows are left out: perfmodel analyze --out or --json has all
"""


def flat(path: Path, names: int) -> Path:
    """Write a report of ranges of 1 µs, each of its own name, but two that are longer."""
    report = ReportBuilder()
    thread = report.thread(rank=0)
    at = 0
    for i in range(names):
        length = {7: 100_000, 9: 200_000}.get(i, 1_000 - i % 2)
        thread.range(f"r {i}", at, at + length)
        if i == 7:
            thread.range("in 7", at + 10, at + 50_010)
        at += length
    return report.write(path)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flat(tmp_path_factory.mktemp("names") / "names.sqlite", NAMES)


@pytest.fixture(scope="module")
def analysis(report: Path) -> Analysis:
    return analyze_reports([report], Options({}))


def test_a_name_takes_microseconds(report: Path) -> None:
    start = time.process_time()
    shown = summary.result(analyze_reports([report], Options({}))).render(width=100)
    assert time.process_time() - start < NAMES * MOST_S
    assert len(shown.splitlines()) < tables.SHOWN_RANGES + 30


def test_the_longest_ranges_are_shown_with_those_around_them(analysis: Analysis) -> None:
    assert render(tables.ranges_text(analysis.fitted, 4), width=100) == GOLDEN
    rows = analysis.fitted.ranges
    assert tables.longest(rows, len(rows)) is rows
    assert [row.path for row in tables.longest(rows, 1)] == [("step",)]


def test_files_have_all_ranges(analysis: Analysis) -> None:
    rows = json.loads(summary.result(analysis).render("json"))["ranges"]
    assert [row["path"] for row in rows[:3]] == ["step", "step/r 0", "step/r 1"]
    assert len(rows) == len(tables.ranges(analysis.fitted).rows) == NAMES + 2
