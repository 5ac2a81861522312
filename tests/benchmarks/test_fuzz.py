"""What fuzzing found stays fixed; a brief round of it, with atheris where that is installed."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from support.fuzz import mutated
from support.fuzz_targets import TARGETS, run, seeds

pytestmark = pytest.mark.slow

FOUND = sorted((ROOT / "tests" / "fuzz").glob("*-*"))
ROUNDS = {"cells": 8, "sqlite_bytes": 12, "ncu_csv": 15, "operator_prediction": 20}


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_inputs_that_once_broke_something(path: Path) -> None:
    if path.name.startswith("columnar"):
        pytest.importorskip("pyarrow", exc_type=ImportError)
    run(path.name.partition("-")[0], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_seeds(name: str) -> None:
    if name.startswith("columnar"):
        pytest.importorskip("pyarrow", exc_type=ImportError)
    draw, pool = random.Random(11), seeds(name)
    for data in pool if name not in ROUNDS else pool[:1]:
        run(name, data)
    for _ in range(ROUNDS.get(name, 60)):
        run(name, mutated(draw.choice(pool), draw))


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris")
@pytest.mark.parametrize("name", ["formula"])  # each takes as long to start
def test_atheris(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "support.fuzz", "--target", name]
    command += ["--seconds", "3", "--corpus", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "'executions': 0," not in done.stdout
