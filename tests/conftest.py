"""Shared fixtures: the real Nsight Systems CLI, where there is one, and built reports."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from benchmarks.robustness.reading import numbers
from perfmodel.readers import read
from support.build_training import Training, training_report
from support.cuda_on_cpu import compiler
from support.document_report import document_report
from support.once import share_recordings

NSYS_VERSION = "2024.2.3"

# The same examples in every run; a busy machine is no failure.
settings.register_profile("all", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("quick", parent=settings.get_profile("all"), max_examples=10)  # make test
settings.load_profile("all")
share_recordings()
gc.set_threshold(50_000, 20, 100)  # most objects go without a collection


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay to the end, out of every collection of garbage."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Leave out what is shared, too, since pytest collects several times when it ends."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what perfmodel remembers of its user in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def gxx() -> str:
    """Path of the compiler that runs CUDA kernels on the CPU; skips where it is missing."""
    found = compiler()
    if found is None:
        pytest.skip("no g++ to compile kernels for the CPU: apt install g++")
    return found


@pytest.fixture(scope="session")
def nsys() -> str:
    """Path of the CLI whose output the golden files hold; skips where it is missing."""
    found = os.environ.get("PERFMODEL_NSYS") or shutil.which("nsys")
    if found is None:
        pytest.skip("no Nsight Systems: set PERFMODEL_NSYS, or put nsys on the PATH")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip()
    if NSYS_VERSION not in version:
        pytest.skip(f"wanted Nsight Systems {NSYS_VERSION}, found {found}: {version}")
    return found


@pytest.fixture
def one_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no other test profile: of sessions that run at once, some lose nsys's agent."""
    shared = tmp_path_factory.getbasetemp().parent  # of all processes that pytest-xdist runs
    with (shared / "nsys.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def nsys_stats(nsys: str) -> Callable[[Path, str], str]:
    """Run `nsys stats` on a report; the CSV is '' where it has nothing to say."""

    def stats(report: Path, statistic: str) -> str:
        command = [nsys, "stats", "-q", "--format", "csv", "--report", statistic, str(report)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=120)
        text = done.stdout.decode()
        return text[:-1] if text.endswith("\n\n") else text

    return stats


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle signals as in the foreground: what a shell or nohup started ignores some of them."""
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, hung_up)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain training run; modules that need another report name their own so."""
    return training_report(tmp_path_factory.mktemp("report") / "r.sqlite")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of nothing that anybody knows."""
    training = Training(gpu=False, mpi=False, p=1)
    return training_report(tmp_path_factory.mktemp("report") / "bare.sqlite", training)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of the document's report, to be damaged."""
    path = tmp_path_factory.mktemp("original") / "document.sqlite"
    return document_report(path).read_bytes()


@pytest.fixture(scope="module")
def truth(original: bytes, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the document's report says undamaged."""
    path = tmp_path_factory.mktemp("truth") / "document.sqlite"
    path.write_bytes(original)
    return numbers(read(path))
