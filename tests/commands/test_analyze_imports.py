"""What commands leave unimported: time that every report would pay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from support.build_training import Training, training_report
from support.cli import leaves

HEAVY = {"fontTools", "jinja2", "matplotlib", "pandas", "rich", "scipy", "sqlite_utils", "sympy"}
"""Packages that only pictures, pages, tables of notebooks and formulas need."""

OF_OTHERS = {
    "perfmodel.analysis.operators", "perfmodel.base.schema", "perfmodel.machines.measure",
    "perfmodel.studies", "perfmodel.render.documents",
    "perfmodel.programs.jax", "perfmodel.programs.own", "perfmodel.programs.pytorch.program",
    "perfmodel.render.html", "perfmodel.render.plot", "perfmodel.workloads.formulas",
}  # fmt: skip
"""Modules of other programs, other commands and pictures."""

ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
import perfmodel
steps = {"import": ["", [*sys.modules]]}
for name, command_lines in json.loads(sys.argv[1]).items():
    from perfmodel.cli import main
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for words in command_lines:
            try:
                main(words, prog_name="perfmodel")
            except SystemExit as stop:
                assert not stop.code
    steps[name] = [printed.getvalue(), [*sys.modules]]
print(json.dumps(steps))
"""

Steps = dict[str, tuple[str, set[str]]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """What one process prints and has imported: after each step it has what those before took."""
    folder = tmp_path_factory.mktemp("imports")
    report = str(training_report(folder / "r.sqlite", Training(pace=(1, 1, 1))))
    lines = {
        "help": [["--help"], *([*name.split(), "--help"] for name in leaves())],
        "analyze": [["analyze", report, "--no-plots", "-o", str(folder / "out")]],
        "report": [["report", report, "-o", "-"]],
        "timeline": [["timeline", report, "-o", str(folder / "step.png")]],
    }
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(lines)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "nonsense"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: (text, {*modules}) for name, (text, modules) in json.loads(done.stdout).items()}


def test_importing_perfmodel_is_cheap(steps: Steps) -> None:
    _, loaded = steps["import"]
    assert not loaded & {"numpy", "click", *HEAVY}


def test_help_imports_nothing_heavy(steps: Steps) -> None:
    printed, loaded = steps["help"]
    assert "--to REPORT..." in printed
    assert not loaded & {"numpy", "sqlite3", *HEAVY}


def test_a_report_of_the_trainer_needs_little(steps: Steps) -> None:
    printed, loaded = steps["analyze"]
    assert "VERDICT" in printed
    assert {"numpy", "perfmodel.timing.critical_path"} <= loaded
    assert sorted(loaded & (HEAVY | OF_OTHERS)) == []


def test_its_page_needs_neither_sympy_nor_other_pictures(steps: Steps) -> None:
    printed, loaded = steps["report"]
    assert "Arithmetic intensity = 2 · B&#39; · H" in printed
    assert {"jinja2", "matplotlib.backends.backend_svg"} <= loaded
    unneeded = {"fontTools.subset", "pandas", "rich", "scipy", "sympy"}
    assert sorted(loaded & unneeded) == []


def test_pictures_need_no_backend_of_the_environment(steps: Steps) -> None:
    """MPLBACKEND names one that does not exist; pyplot, which would look for it, is not there."""
    printed, loaded = steps["timeline"]
    picture = Path(printed.rpartition("Written: ")[2].strip())
    assert picture.stat().st_size > 10_000
    assert "matplotlib.backends.backend_agg" in loaded
    assert "matplotlib.pyplot" not in loaded
