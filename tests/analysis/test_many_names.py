"""Reports with many distinct names of ranges: time by name, and what a reader sees of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.render import summary, tables
from support.reports import ReportBuilder

NAMES = 20_000
MOST_S = 100e-6
"""CPU time of a name, some five times what it takes; arrays for every name took 300 µs."""
GOLDEN = """\
Where a median batch goes (1 batch, 1 rank)
Range       Host  GPU proj  GPU busy  Share  Moved
──────────────────────────────────────────────────
step     21.0 ms         –         –  100 %      –
  r 7     100 µs         –         –    0 %      –
    in 7   50 µs         –         –    0 %      –
  r 9     200 µs         –         –    1 %      –
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


def test_a_name_takes_microseconds(tmp_path: Path) -> None:
    path = flat(tmp_path / "names.sqlite", NAMES)
    start = time.process_time()
    analysis = analyze_reports([path], Options({}))
    shown = summary.result(analysis).render(width=100)
    assert time.process_time() - start < NAMES * MOST_S
    assert len(analysis.fitted.ranges) == NAMES + 2
    assert len(shown.splitlines()) < tables.SHOWN_RANGES + 30
    written = json.loads(summary.result(analysis).render("json"))["ranges"]
    assert {row["path"] for row in written} >= {"step/r 0", "step/r 7/in 7", f"step/r {NAMES - 1}"}


def test_the_longest_ranges_are_shown_with_those_around_them(tmp_path: Path) -> None:
    run = analyze_reports([flat(tmp_path / "few.sqlite", 100)], Options({})).fitted
    assert tables.longest(run.ranges, 102) is run.ranges
    shown = [row.path for row in tables.longest(run.ranges, 4)]
    assert shown == [("step",), ("step", "r 7"), ("step", "r 7", "in 7"), ("step", "r 9")]
    assert [row.path for row in tables.longest(run.ranges, 1)] == [("step",)]
