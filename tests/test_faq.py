"""The FAQ quotes what is really printed: every message of perfmodel on it is provoked here."""

from __future__ import annotations

import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES, ROOT
from support.build_queued import QueuedTraining, queued_report
from support.build_report import ReportBuilder
from support.build_training import Training, training_report
from support.cli import perfmodel

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"^(perfmodel: .*)$", FAQ, re.MULTILINE))
BASE = "h200x2_2ranks_base_nsys2025.3.1.sqlite"


def _no_ranges() -> tuple[object, ...]:
    report = ReportBuilder()
    report.thread(rank=0)
    report.diagnostic("No NVTX events collected. Does the process use NVTX?")
    report.write(Path("report.sqlite"))
    return "analyze", "--section", "all", "report.sqlite"


def _raw() -> tuple[object, ...]:
    Path("report.nsys-rep").write_bytes(b"not an export")
    return "analyze", "--section", "all", "report.nsys-rep"


def _cut_short() -> tuple[object, ...]:
    whole = (PROFILES / BASE).read_bytes()
    Path("report.sqlite").write_bytes(whole[: len(whole) // 2])
    return "analyze", "--section", "all", "report.sqlite"


def _still_running() -> tuple[object, ...]:
    shutil.copy(PROFILES / BASE, "report.sqlite")
    Path("report.sqlite-journal").write_bytes(b"x" * 600)
    return "analyze", "--section", "all", "report.sqlite"


def _without_mpi() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(mpi=False, p=2))
    return "analyze", "--section", "all", "report.sqlite"


def _large_counts() -> tuple[object, ...]:
    report = ReportBuilder()
    for rank in range(2):
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.mpi("MPI_Init_thread", 0, 500, source="other")
        for start in range(1_000, 9_000, 1_000):
            thread.range("batch iteration", start, start + 900)
            thread.range("MPI_Allreduce", start + 100, start + 800)
    report.write(Path("report.sqlite"))
    return "analyze", "--section", "all", "report.sqlite"


def _on_a_cpu() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(gpu=False, p=2))
    return "stats", "report.sqlite", "--report", "cuda_gpu_kern_sum"


def _without_gpu() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(gpu=False, p=2))
    return "analyze", "--section", "all", "report.sqlite"


def _unknown() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(mpi=False, gpu=False, p=1))
    return "analyze", "--section", "all", "report.sqlite"


def _other_batch() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(p=2))
    return "analyze", "--section", "all", "report.sqlite", "--batch-range", "training step"


def _old() -> tuple[object, ...]:
    shutil.copy(ROOT / "tests" / "reports" / "cpu_2ranks_nsys2022.4.2.sqlite", "report.sqlite")
    return "analyze", "--section", "all", "report.sqlite"


def _graph() -> tuple[object, ...]:
    queued_report(Path("report.sqlite"), QueuedTraining(graph="whole"), version="2025.3.2")
    return "analyze", "--section", "all", "report.sqlite"


def _autograd() -> tuple[object, ...]:
    shutil.copy(PROFILES / "ddp" / "ddp_p2_H512_B3000.sqlite.xz", "report.sqlite.xz")
    return "analyze", "--section", "all", "report.sqlite.xz", "--attribute", "thread"


def _no_memory() -> tuple[object, ...]:
    training_report(Path("report.sqlite"), Training(p=2))
    return "memory", "report.sqlite", "-D", 784, "-H", 512, "-C", 10, "-B", 3000, "-p", 2


def _forbidden() -> tuple[object, ...]:
    Path("counters.csv").write_text(
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    )
    return "counters", "counters.csv"


def _no_kernels() -> tuple[object, ...]:
    Path("counters.csv").write_text("==WARNING== No kernels were profiled.\n")
    return "counters", "counters.csv"


def _no_nvml() -> tuple[object, ...]:
    return "utilization", "--", "true"


PROVOKED = (
    _no_ranges, _raw, _cut_short, _still_running, _without_mpi, _large_counts, _on_a_cpu,
    _without_gpu, _unknown, _other_batch, _old, _graph, _autograd, _no_memory, _forbidden,
    _no_kernels, _no_nvml,
)  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return what each command says on standard error, in a folder with nsys and NVML missing."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/dev/null/none")
        patch.setitem(sys.modules, "pynvml", None)
        for provoke in PROVOKED:
            folder = tmp_path_factory.mktemp("faq")
            patch.chdir(folder)
            said = perfmodel(*provoke()).stderr.replace(f"{folder}/", "")
            found[provoke.__name__] = set(said.splitlines())
    return found


@pytest.mark.parametrize("provoke", PROVOKED, ids=lambda provoke: provoke.__name__)
def test_each_failure_is_in_the_faq(
    provoke: Callable[[], object], said: dict[str, set[str]]
) -> None:
    assert said[provoke.__name__] & QUOTED, sorted(said[provoke.__name__])


def test_every_quoted_message_is_printed(said: dict[str, set[str]]) -> None:
    assert set.union(*said.values()) >= QUOTED


def test_what_the_trainer_says_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.ranges import profiler_warning

    deaf = type("DummyDomain", (), {})
    nvtx = types.SimpleNamespace(get_domain=lambda _: deaf())
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.2.16")
    assert f"\n{profiler_warning({'NSYS_PROFILING_SESSION_ID': '1'})}\n" in FAQ
    script = (ROOT / "nsys.sh").read_text(encoding="utf-8")
    quoted = re.findall(r"^nsys\.sh: expected CuPy and a GPU on \w+ (.*)$", FAQ, re.MULTILINE)
    assert quoted
    assert all(words in re.sub(r'" *\\\n *"', " ", script) for words in quoted)
