"""The size of the tool: what commands import, what is installed, what the page shows of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from benchmarks.common.pages import section
from benchmarks.scale import size
from support.build_training import training_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_report(tmp_path_factory.mktemp("size") / "run.sqlite")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["analyze", "--help"]])
def test_asking_what_there_is_imports_nothing_heavy(arguments: list[str]) -> None:
    assert size.imported(*arguments)["heavy"] == []


@pytest.mark.parametrize("command", ["stats", "analyze", "memory", "study splits"])
def test_the_main_path_needs_neither_pandas_nor_sympy_nor_matplotlib(
    command: str, report: Path
) -> None:
    heavy = set(size.imported(*command.split(), str(report))["heavy"])
    assert "numpy" in heavy or command == "memory"
    assert not heavy & {"pandas", "sympy", "matplotlib", "sqlite_utils"}


def test_version_imports_no_command() -> None:
    words = "import perfmodel.cli, sys; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=ROOT)
    loaded = {name for name in said.stdout.split() if name.startswith("perfmodel.commands.")}
    assert loaded == {"perfmodel.commands._options", "perfmodel.commands._output"}


def test_dependencies_are_counted_with_what_they_need() -> None:
    found = size.dependencies()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found["direct"] == len(project["dependencies"])
    assert {"numpy", "pandas", "mpmath", "click"} <= set(found["bytes_of"])
    assert found["bytes"] == sum(found["bytes_of"].values()) > 50e6


def test_the_page_shows_the_results() -> None:
    found = json.loads(size.RESULTS.read_text(encoding="utf-8"))
    assert section(size.PAGE, "benchmarks.scale.size") == size.tables(found).strip()
    assert found["wheel_bytes"] < 1_000_000
    times = {name: said["median_s"] for name, said in found["processor"].items()}
    assert times["perfmodel --version"] < times["perfmodel --help"] < times["perfmodel analyze"]
