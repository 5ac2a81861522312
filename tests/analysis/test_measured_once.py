"""Every command measures the ranges of every report once."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.common.folders import PROFILES
from perfmodel.cli import main
from perfmodel.timing import run as timing_run

REPORTS = {
    "a": "ladder/document_1",
    "b": "ladder/pinned_1",
    "one": "campaign/h200x4_p1_host_float32_H512_B3000",
    "two": "campaign/h200x4_p2_host_float32_H512_B3000",
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the ranges of each report were measured, by file name."""
    found: Counter[str] = Counter()
    time_ranges = timing_run.time_ranges

    def counting(trace: Any, *args: Any, **options: Any) -> Any:
        found[trace.source.name] += 1
        return time_ranges(trace, *args, **options)

    monkeypatch.setattr(timing_run, "time_ranges", counting)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "analyze a.sqlite.xz --no-plots -q -o out",
        "analyze a.sqlite.xz b.sqlite.xz --no-plots -q -o out",
        "analyze a.sqlite.xz --json",
        "report a.sqlite.xz -o out.html -q",
        "whatif a.sqlite.xz",
        "compare a.sqlite.xz b.sqlite.xz",
        "utilization --report a.sqlite.xz",
        "timeline a.sqlite.xz -o out.svg",
        "study scaling one.sqlite.xz two.sqlite.xz",
        "study splits a.sqlite.xz",
        "study calibrate a.sqlite.xz b.sqlite.xz -o model.json",
    ],
)
def test_ranges_of_a_report_are_measured_once(
    command: str, measured: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in REPORTS.items():
        shutil.copy(PROFILES / f"{source}.sqlite.xz", tmp_path / f"{name}.sqlite.xz")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 0, done.output
    assert measured == Counter(name for name in command.split() if name.endswith(".sqlite.xz"))
