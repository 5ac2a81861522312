"""The benchmark of docs/tta.md: it trains, perfmodel reads what it wrote, the page shows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.common import pages as made
from benchmarks.tta import __main__ as tta
from benchmarks.tta import report as tta_report
from perfmodel.studies.analysis.tta import side

pytestmark = pytest.mark.slow

RESULTS = sorted(
    path for name in ("tta", "tta_cupy") for path in (tta_report.RESULTS / name).glob("*.json")
)


def test_it_trains_every_configuration_with_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--seeds 2 --epochs 2 --data synthetic --images 900 --configurations base"
    monkeypatch.setattr(sys, "argv", ["tta.py", *words.split(), "--out", str(tmp_path)])
    tta.main()
    assert "base      seed 2" in capsys.readouterr().out
    found = side([tmp_path / "base.json"], 0.5)
    assert [run.training.seed for run in found.runs] == [1, 2]
    assert [len(run.training.epochs) for run in found.runs] == [2, 2]
    said = json.loads((tmp_path / "base.json").read_text())
    assert said["device"].startswith("CPU, ")
    assert str(tmp_path) not in said["command"]
    assert said["command"].endswith("--configurations base")
    assert "host" not in said["runs"][0]["machine"]


def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = {"batch_size": 300, "learning_rate": 1e38, "regularization": 0.0}
    monkeypatch.setitem(tta.CONFIGURATIONS, "large", hot)
    words = "--seeds 1 --epochs 2 --data synthetic --images 900 --configurations large base"
    monkeypatch.setattr(sys, "argv", ["tta.py", *words.split(), "--out", str(tmp_path)])
    tta.main()
    assert "large     seed 1: the loss became" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["base.json"]


def test_no_run_begins_when_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"--budget 0 --data synthetic --images 900 --configurations base --out {tmp_path}"
    monkeypatch.setattr(sys, "argv", ["tta.py", *words.split()])
    tta.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_are_repetitions_of_the_configuration(path: Path) -> None:
    found = side([path], tta_report.TARGET)
    wanted = tta.CONFIGURATIONS[path.stem]
    assert {name: found.runs[0].training.settings[name] for name in wanted} == wanted
    assert [run.training.seed for run in found.runs] == list(range(1, len(found.runs) + 1))
    assert len(found.runs) >= 5


def test_the_page_is_of_the_results_that_are_there() -> None:
    shown = made.section(tta_report.PAGE, tta_report.SCRIPT)
    assert shown == tta_report.page().strip(), f"run {tta_report.SCRIPT}"


def test_the_time_in_words_is_that_of_the_table() -> None:
    """The page's text quotes `rule` against `base` on the H200, whose table is the last one."""
    text = tta_report.PAGE.read_text(encoding="utf-8")
    row = [line for line in text.splitlines() if line.startswith("| `rule` / `base`")][-1]
    value, limits = row.split("|")[3].split(";")[0].split(maxsplit=1)
    assert f"reaches 0.92 in {value} of the time of `base` {limits}," in text
