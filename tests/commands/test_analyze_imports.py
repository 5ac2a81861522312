"""What `perfmodel analyze` without pictures leaves unimported: time that every report would pay."""

from __future__ import annotations

import subprocess
import sys

from support.folders import ROOT

REPORT = ROOT / "profiles" / "h200x2_2ranks_base_nsys2025.3.1.sqlite"

HEAVY = {"fontTools", "jinja2", "matplotlib", "pandas", "rich", "scipy", "sympy"}

OF_OTHERS = {
    "perfmodel.analysis.operators", "perfmodel.machines.measure", "perfmodel.models.terms",
    "perfmodel.programs.jax", "perfmodel.programs.own", "perfmodel.programs.pytorch.program",
    "perfmodel.render.html", "perfmodel.render.plot", "perfmodel.workloads.formulas",
}  # fmt: skip
"""Modules of other programs, other commands and pictures."""


def test_a_report_of_the_trainer_needs_little() -> None:
    code = (
        "import sys; from perfmodel.cli import main\n"
        f"try: main(['analyze', {str(REPORT)!r}, '--no-plots'])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    loaded = set(done.stderr.split())
    assert "What decides a step" in done.stdout
    assert "perfmodel.timing.critical_path" in loaded
    assert sorted(loaded & (HEAVY | OF_OTHERS)) == []
