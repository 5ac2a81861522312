"""Hundreds of per-rank reports: `perfmodel analyze` in one process, in two, and on Dask.

Grows a real export of two ranks into the reports of 64 and 512 (grow_ranks.py), runs the
whole command in turn, A B C A B C ..., and writes medians to benchmarks/results/many.json: seconds,
CPU seconds, the peak memory of the parent and of its largest worker, per report where that makes
sense. What the commands print is compared byte for byte.

    python -m benchmarks.scale.many
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.scale.grow_ranks import grow_ranks
from benchmarks.scale.read import ENVIRONMENT, SOURCE, about

POLL_S = 0.02


def peaks(pid: int) -> dict[int, float]:
    """Peak memory in MB of a process and its children, as far as they are there."""
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


def run(command: list[str]) -> tuple[dict[str, float], bytes]:
    """Run a command; wall and CPU seconds of it and its workers, and their peaks of memory."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        seen: dict[int, float] = {}
        while True:
            for pid, size in peaks(process.pid).items():
                seen[pid] = max(size, seen.get(pid, 0.0))
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            time.sleep(POLL_S)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command[:6])} ... failed with {process.returncode}")
        out.seek(0)
        spent = {
            "wall_s": wall,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "parent_mb": seen.pop(process.pid, 0.0),
            "worker_mb": max(seen.values(), default=0.0),
        }
        return spent, out.read()


@contextmanager
def cluster(workers: int) -> Iterator[str | None]:
    """A Dask scheduler with workers of its own processes; None where Dask is missing."""
    try:
        from distributed import LocalCluster
    except ImportError:
        yield None
        return
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as dask:
        yield dask.scheduler_address


def measure(paths: list[Path], scheduler: str | None, repeats: int) -> dict[str, Any]:
    """Time the ways in turn; the reports are in the system's cache from being written."""
    command = [sys.executable, "-m", "perfmodel", "analyze", *map(str, paths), "--json"]
    ways = {"one": ["--jobs", "1"], "two": ["--jobs", "2"]}
    if scheduler is not None:
        ways["dask"] = ["--scheduler", scheduler]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    said = {}
    for _ in range(repeats):
        for way, flags in ways.items():
            spent, said[way] = run([*command, *flags])
            runs[way].append(spent)
    row: dict[str, Any] = {"equal": len({*said.values()}) == 1, "repeats": repeats}
    for way, figures in runs.items():
        row[way] = {k: round(statistics.median(f[k] for f in figures), 4) for k in figures[0]}
        row[way]["wall_ms_per_report"] = round(1e3 * row[way]["wall_s"] / len(paths), 2)
    row["one_over_two_wall"] = round(row["one"]["wall_s"] / row["two"]["wall_s"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "many.json")
    args = parser.parse_args()
    rows = []
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder, cluster(2) as scheduler:
            paths = grow_ranks(SOURCE, Path(folder), ranks)
            size = sum(path.stat().st_size for path in paths) / 1e6
            row = {"ranks": ranks, "file_mb": round(size, 1)}
            row |= measure(paths, scheduler, args.repeats)
            print(json.dumps(row), flush=True)
            rows.append(row)
    result = {
        "command": "python -m benchmarks.scale.many",
        **about(),
        "rows": rows,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
