"""Reports that come, change, lock or go while `analyze` runs, by real processes beside it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, ROOT
from profiles.grow import grow_ranks

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
LEAVES_A_TRANSACTION = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN EXCLUSIVE")
db.execute("UPDATE NVTX_EVENTS SET start = start + 1")
print("writing", flush=True)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path) -> list[Path]:
    return grow_ranks(BASE, tmp_path / "job", 12)


def run(paths: list[Path], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfmodel", "analyze", *map(str, paths), "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


def ranks(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [rank["rank"] for rank in json.loads(done.stdout)["ranks"]]


def while_it_reads(paths: list[Path], act: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    """Run the command; call `act` when it has read its first report."""
    command = [sys.executable, "-c", SLOW, *map(str, paths)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stdin is not None
    assert process.stderr.readline() == "first is read\n"
    act()
    out, err = process.communicate("go on\n", timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


SLOW = """
import sys
from perfmodel.analysis import analyze as module
from perfmodel.cli import main
real = module.attempt_reports
def attempt(function, paths, engine, progress):
    def first(path):
        if path == paths[0]:
            print("first is read", file=sys.stderr, flush=True)
            sys.stdin.readline()
        progress(path)
    return real(function, paths, engine, first)
module.attempt_reports = attempt
sys.argv = ["perfmodel", "analyze", *sys.argv[1:], "--json", "--jobs", "1"]
main()
"""
"""The real command, which waits for a line when it has read its first report."""


@pytest.mark.slow
def test_reports_that_come_while_it_runs_are_named(job: list[Path]) -> None:
    """Another process writes them, one whole and one still being copied."""
    late = [job[0].parent / f"rank00{n}.sqlite" for n in (97, 98)]
    write = "import shutil, sys; [shutil.copy(sys.argv[1], t) for t in sys.argv[2:]]"

    def others() -> None:
        command = [sys.executable, "-c", write, str(job[0]), *map(str, late)]
        subprocess.run(command, check=True)
        os.truncate(late[1], 5000)

    done = while_it_reads(job, others)
    assert done.returncode == 0
    added = f"2 more reports added while this ran: {late[0]}, {late[1]}; analyze again"
    assert added in done.stderr
    assert ranks(done) == list(range(12))


@pytest.mark.slow
def test_reports_that_go_or_change_while_it_runs_are_named(job: list[Path]) -> None:
    def act() -> None:
        job[4].unlink()
        os.truncate(job[5], 40_000)
        job[6].write_bytes(b"")
        job[7].write_text("no report")

    done = while_it_reads(job, act)
    assert done.returncode == 3
    assert ranks(done) == [0, 1, 2, 3, 8, 9, 10, 11]
    for path, why in (
        (job[4], "cannot be read (No such file or directory)"),
        (job[5], "the file is truncated"),
        (job[6], "the file is empty"),
        (job[7], "expected an SQLite export of Nsight Systems; got something else"),
    ):
        assert f"{path}: {why}" in done.stderr
    assert "no report has ranks 4, 5, 6, 7; the others are analyzed" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_report_in_which_another_process_writes_is_named(
    job: list[Path], tmp_path: Path, mode: str, cached: bool
) -> None:
    options = ["--cache", str(tmp_path / "kept")] if cached else []
    run(job, *options)
    command = [sys.executable, "-c", LEAVES_A_TRANSACTION, str(job[3]), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        done = run(job, *options)
        writer.send_signal(signal.SIGKILL)
    assert done.returncode == 3
    assert f"{job[3]}: it has an unfinished transaction" in done.stderr
    assert ranks(done) == [rank for rank in range(12) if rank != 3]


@pytest.mark.slow
def test_a_lock_alone_keeps_nobody_from_reading(job: list[Path]) -> None:
    with closing(sqlite3.connect(job[3], isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        done = run(job)
    assert done.returncode == 0
    assert ranks(done) == list(range(12))


@pytest.mark.slow
def test_a_report_that_is_written_all_the_time_is_named_or_whole(job: list[Path]) -> None:
    """Whatever moment it is read at: never half of it."""
    whole, stop = job[3].read_bytes(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            job[3].write_bytes(whole[: len(whole) // 2])
            time.sleep(0.002)
            with suppress(OSError):
                job[3].write_bytes(whole)
            time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = run(job)
    finally:
        stop.set()
        writer.join()
    assert (done.returncode, 3 in ranks(done)) in ((0, True), (3, False))
    assert (done.returncode == 3) == (str(job[3]) in done.stderr)
