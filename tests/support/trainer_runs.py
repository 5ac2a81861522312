"""What the trainer's tests share: small runs, ranks under mpirun, and where MNIST is."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from benchmarks.common.folders import ROOT, TESTS
from trainer.__main__ import main
from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.stop import SIGNALS, StopRequest
from trainer.train import Session

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
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
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
    """Run ``python -m trainer`` on so many ranks; return the finished process.

    Ranks that fail end by themselves: mpirun need not wait a second before it ends them.
    """
    env = {"OMPI_MCA_odls_base_sigkill_timeout": "0", **env}
    return subprocess.run(
        mpirun_command(ranks, "-m", "trainer", *arguments),
        capture_output=True, text=True, timeout=timeout, env=environment(**env), check=False,
    )  # fmt: skip


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m trainer`` as a lone rank, within this process."""

    def abort(_: Communicator, code: int) -> NoReturn:
        raise SystemExit(code)

    name = Path("/proc/self/comm").read_text()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    out, errors = io.StringIO(), io.StringIO()
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
            patch.setattr(Communicator, "abort", abort)  # which ends a process at once
            code = main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        Path("/proc/self/comm").write_text(name)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def run_script(ranks: int, asked: list[dict], timeout: float = 120) -> list[dict]:
    """Train so on so many ranks (trainer_on_ranks.py); return what is to be said of each."""
    done = subprocess.run(
        mpirun_command(ranks, "-m", "support.trainer_on_ranks", json.dumps(asked)),
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


class StopAt:
    """An observer that asks to stop after so many batches."""

    def __init__(self, stop: StopRequest, after: int):
        self.stop, self.left = stop, after

    def on_batch(self, epoch, batch):
        self.left -= 1
        if self.left == 0:
            self.stop._note(signal.SIGTERM, None)

    def on_epoch(self, record):
        pass


class Recorder(dict):
    """Ranges that write down which opened inside which."""

    def __init__(self):
        self.stack, self.seen, self.order = [], set(), []

    def __missing__(self, name):
        recorder = self

        class One:
            def __enter__(self):
                recorder.seen.add((name, recorder.stack[-1] if recorder.stack else None))
                recorder.order.append(name)
                recorder.stack.append(name)

            def __exit__(self, *_):
                assert recorder.stack.pop() == name

        return One()
