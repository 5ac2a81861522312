"""No input makes a command wait forever or fill the memory: FIFOs, devices, sparse files."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.build_operators import operators_report
from support.cli import perfmodel

SPARSE_BYTES: Final = 3_000_000_000
MEMORY_BYTES: Final = 1_500_000_000
"""Beside what the process holds before; half of a sparse file."""

SIZES: Final = ("-D", "784", "-H", "512", "-C", "10", "-B", "3000")
COMMANDS: Final = {
    "record": ("study", "tta", "FILE.json"),
    "record_of_scaling": ("study", "scaling", "FILE.json"),
    "counters": ("counters", "FILE.csv"),
    "counters_xz": ("counters", "FILE.csv.xz"),
    "series": ("utilization", "FILE.csv"),
    "index": ("study", "calibrate", "REPORT", "--index", "FILE.json"),
    "model": ("study", "predict", "--model", "FILE.json", *SIZES),
    "model_of_whatif": ("whatif", "REPORT", "--model", "FILE.json"),
    "workload": ("study", "formulas", "--workload", "FILE.toml"),
    "workload_of_report": ("analyze", "REPORT", "--workload", "FILE.toml"),
    "machine": ("study", "layers", "gpt2", "--batch-size", "1", "--machine", "FILE.toml"),
    "onnx": ("study", "layers", "FILE.onnx", "--batch-size", "1"),
    "config": ("study", "layers", "FILE.json", "--batch-size", "1"),
    "sqlite": ("analyze", "FILE.sqlite"),
    "packed": ("analyze", "FILE.sqlite.gz"),
    "packed_zstd": ("stats", "FILE.sqlite.zst"),
    "trace": ("analyze", "FILE.json"),
    "trace_xz": ("timeline", "FILE.json.xz"),
    "shapes": ("analyze", "REPORT", "--shapes", "FILE.sqlite"),
    "counters_of_report": ("analyze", "REPORT", "--counters", "FILE.csv"),
    "database": ("analyze", "REPORT", "--db", "FILE.db"),
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return operators_report(tmp_path_factory.mktemp("report") / "operators.sqlite")


@pytest.fixture
def bounded() -> Iterator[None]:
    """Give this process a limit of memory, and end a call that waits forever."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES

    def waits(*_: object) -> None:
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(120)
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["fifo", "device", pytest.param("sparse", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.usefixtures("bounded")
def test_special_files_are_refused(case: str, kind: str, report: Path, tmp_path: Path) -> None:
    words = [str(report) if word == "REPORT" else word for word in COMMANDS[case]]
    named = {word for word in words if word.startswith("FILE")}
    for word in named:
        file = tmp_path / word
        if kind == "fifo":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        else:
            with file.open("wb") as stream:
                stream.truncate(SPARSE_BYTES)
    done = perfmodel(*(str(tmp_path / word) if word in named else word for word in words))
    assert 1 <= done.exit_code <= 6, done.output
    assert "memory" not in done.stderr
    if kind != "sparse":
        assert "pipe or device" in done.stderr
