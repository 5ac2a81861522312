"""Whole processes: commands timed in turns, with their processor time and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.common import folders

T = TypeVar("T")
POLL_S: Final = 0.02
ENVIRONMENT: Final = {
    **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPATH": f"{folders.ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
}
"""Of every process: it imports this checkout, and byte-compiles it as installed packages are."""


def in_turn(
    calls: Mapping[str, Callable[[], T]], rounds: int, untimed: int = 0
) -> dict[str, list[T]]:
    """Call all by name, round after round: what disturbs the machine disturbs all alike.

    What the first `untimed` rounds return is left out: they fill caches.
    """
    found: dict[str, list[T]] = {name: [] for name in calls}
    for number in range(untimed + rounds):
        for name, call in calls.items():
            got = call()
            if number >= untimed:
                found[name].append(got)
    return found


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every figure over runs, to four decimals."""
    return {k: round(statistics.median(run[k] for run in runs), 4) for k in runs[0]}


def timed(
    command: Sequence[str], *, workers: bool = False, environment: Mapping[str, str] = ENVIRONMENT
) -> tuple[dict[str, float], bytes]:
    """Run a command to its end in the repository.

    Returns
    -------
    dict
        `wall_s` and `cpu_s`; `peak_mb`, the largest of its processes, or with `workers` the peaks
        of the process (`parent_mb`) and of its largest child (`worker_mb`), as seen every 20 ms.
    bytes
        Its output.

    Raises
    ------
    SystemExit
        If it fails.
    """
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folders.ROOT, stdout=out, stderr=subprocess.DEVNULL, env=environment
        )
        seen: dict[int, float] = {}
        done = 0
        while not done:
            if workers:
                for pid, size in _peaks(process.pid).items():
                    seen[pid] = max(size, seen.get(pid, 0.0))
                time.sleep(POLL_S)
            done, status, usage = os.wait4(process.pid, os.WNOHANG if workers else 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)[:300]} failed with {process.returncode}")
        spent = {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime}
        if workers:
            spent["parent_mb"] = seen.pop(process.pid, 0.0)
            spent["worker_mb"] = max(seen.values(), default=0.0)
        else:
            spent["peak_mb"] = usage.ru_maxrss * 1024 / 1e6
        out.seek(0)
        return spent, out.read()


def _peaks(pid: int) -> dict[int, float]:
    """Return the peak memory in MB of a process and its children, as far as they are there."""
    found = {}
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        for each in (pid, *map(int, listed.read_text().split())):
            status = Path(f"/proc/{each}/status").read_text()
            line = next((ln for ln in status.splitlines() if ln.startswith("VmHWM")), "VmHWM: 0")
            found[each] = int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return found


def module(name: str, *words: object) -> list[str]:
    """Return the command line of a module of the benchmarks; run it in the repository."""
    return [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]


def version_of(program: str) -> str:
    """Return the last word of what ``PROGRAM --version`` prints."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return said.strip().rpartition(" ")[2]


def visible_gpus(count: int) -> list[int]:
    """Return NVML's numbers of the first so many GPUs that CUDA_VISIBLE_DEVICES leaves."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [int(word) for word in said.split(",") if word.strip().isdigit()]
    return (numbers or list(range(count)))[:count]
