"""How the trainer's modules depend on each other, and what adding a transport takes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.trainer_runs import ROOT

TRAINER = ROOT / "trainer"


def imported(path: Path) -> set[str]:
    """The modules of the trainer that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trainer":
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                known = ROOT.joinpath(*module.split(".")).with_suffix(".py").exists()
                names.add(module if known else str(node.module))
    return names


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


IMPORTS = {module_of(path): imported(path) for path in sorted(TRAINER.rglob("*.py"))}


def reached(module: str) -> set[str]:
    """All modules that a module needs."""
    seen: set[str] = set()
    left = [module]
    while left:
        new = IMPORTS.get(left.pop(), set()) - seen
        seen |= new
        left += new
    return seen


@pytest.mark.parametrize("module", IMPORTS)
def test_no_module_needs_itself(module: str) -> None:
    assert module not in reached(module)


@pytest.mark.parametrize("package", ["transports", "backends", "networks"])
def test_an_interface_knows_none_of_its_implementations(package: str) -> None:
    others = {module for module in IMPORTS if module.startswith(f"trainer.{package}.")}
    base = f"trainer.{package}.base"
    assert base in others
    assert len(others) > 1
    assert reached(base).isdisjoint(others)


PIGEON = """
from trainer.transports.base import Kind, register
from trainer.transports.none import NoTransport

register(Kind("pigeon", NoTransport, images_on="pinned", model_parallel_instead="host"))
"""


@pytest.mark.slow
def test_a_transport_is_one_file(tmp_path: Path) -> None:
    shutil.copytree(TRAINER, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "trainer" / "transports" / "pigeon.py").write_text(PIGEON)

    def train(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainer", "--data", "synthetic", "--train-size", "100",
             "--test-size", "10", "--batch-size", "50", "--hidden-size", "4", "--backend", "numpy",
             "--transport", "pigeon", *flags],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip

    done = train("--record", "run.json")
    assert done.returncode == 0, done.stderr
    assert '"transport": "pigeon"' in (tmp_path / "run.json").read_text()
    assert "pigeon" in train("--help").stdout
    assert "got pigeon; leave out --overlap" in train("--overlap").stderr
    assert "use --transport host" in train("--parallel", "model").stderr
