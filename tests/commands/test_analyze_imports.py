"""What commands leave unimported: time that every report would pay."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.common.folders import BASE, ROOT

HEAVY = {"fontTools", "jinja2", "matplotlib", "pandas", "rich", "scipy", "sympy"}

OF_OTHERS = {
    "perfmodel.analysis.operators", "perfmodel.machines.measure", "perfmodel.models.terms",
    "perfmodel.programs.jax", "perfmodel.programs.own", "perfmodel.programs.pytorch.program",
    "perfmodel.render.html", "perfmodel.render.plot", "perfmodel.workloads.formulas",
}  # fmt: skip
"""Modules of other programs, other commands and pictures."""


def loaded_by(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it imports."""
    code = (
        "import sys; from perfmodel.cli import main\n"
        f"try: main({[*arguments]!r})\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    return done.stdout, set(done.stderr.split())


def test_a_report_of_the_trainer_needs_little() -> None:
    printed, loaded = loaded_by("analyze", str(BASE), "--no-plots")
    assert "VERDICT" in printed
    assert "perfmodel.timing.critical_path" in loaded
    assert sorted(loaded & (HEAVY | OF_OTHERS)) == []


def test_its_page_needs_neither_sympy_nor_other_pictures() -> None:
    printed, loaded = loaded_by("report", str(BASE), "-o", "-")
    assert "Arithmetic intensity = 2 · B&#39; · H" in printed
    assert {"jinja2", "matplotlib.backends.backend_svg"} <= loaded
    unneeded = {"fontTools.subset", "pandas", "rich", "scipy", "sympy"}
    assert sorted(loaded & unneeded) == []
