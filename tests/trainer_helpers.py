"""What the trainer's tests share: small runs, ranks under mpirun, and where MNIST is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from trainer.backends.numpy import NumpyBackend  # noqa: E402
from trainer.config import Config  # noqa: E402
from trainer.data import synthetic  # noqa: E402
from trainer.mpi import Communicator  # noqa: E402
from trainer.train import Session  # noqa: E402

SMALL = {
    "input_size": 12, "hidden_size": 8, "num_classes": 4, "batch_size": 30, "epochs": 2,
    "data": "synthetic", "train_size": 100, "test_size": 40, "pixels": "unit", "backend": "numpy",
}  # fmt: skip


def small(**changes) -> Config:
    return Config(**{**SMALL, **changes})


def flags(config: Config) -> list[str]:
    """Return the command line that makes `config`."""
    made = []
    for name, value in config.as_dict().items():
        flag = "--" + name.replace("_", "-")
        if name == "checksum":
            made += [] if value else ["--no-checksum"]
        elif isinstance(value, bool):
            made += [flag] if value else []
        elif value is not None:
            made += [flag, str(value)]
    return made


def session(config: Config, **options) -> Session:
    return Session(config, Communicator(), synthetic(config), NumpyBackend(), **options)


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:2]]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


def need_mpi() -> str:
    """Return mpirun's path; skip the test, with the reason, where ranks cannot be started."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not on the PATH (Debian: openmpi-bin)")
    return mpirun


def mpirun_command(ranks: int, *command: str) -> list[str]:
    # Debian's mpirun puts /usr/bin first in the PATH of ranks: name this python absolutely
    extra = ["--oversubscribe", "--bind-to", "none"]
    return [need_mpi(), *extra, "-n", str(ranks), sys.executable, *command]


def run_ranks(ranks: int, *arguments: str, timeout: float = 120, **env: str):
    """Run ``python -m trainer`` on so many ranks; return the finished process."""
    return subprocess.run(
        mpirun_command(ranks, "-m", "trainer", *arguments),
        capture_output=True, text=True, timeout=timeout, env=environment(**env), check=False,
    )  # fmt: skip


def run_alone(*arguments: str, timeout: float = 120, **env: str):
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        capture_output=True, text=True, timeout=timeout, env=environment(**env), check=False,
    )  # fmt: skip


def run_script(ranks: int, asked: list[dict], timeout: float = 120) -> list[dict]:
    """Train so on so many ranks (trainer_on_ranks.py); return what is to be said of each."""
    script = str(Path(__file__).with_name("trainer_on_ranks.py"))
    done = subprocess.run(
        mpirun_command(ranks, script, json.dumps(asked)),
        capture_output=True, text=True, timeout=timeout, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked), done.stdout
    return answers


def mnist_dir() -> Path:
    """Return $MNIST_DIR; skip the test where it is unset."""
    given = os.environ.get("MNIST_DIR")
    if not given:
        pytest.skip("MNIST_DIR is not set: no MNIST to train on")
    return Path(given)


def images(config: Config, count: int, seed: int = 0):
    """Return random x (count, D) in float64 and one-hot y (C, count)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, config.num_classes, count)
    x = rng.random((count, config.input_size))
    y = (np.arange(config.num_classes)[:, None] == labels).astype(float)
    return x, y, labels
