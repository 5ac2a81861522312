"""Four summary reports of a grown real export: `nsys stats` against `perfmodel stats`.

Grows a real report to the wanted rows and ranks (grow.py), then runs both whole
commands in turn, A B A B ..., and writes medians, ratios pair by pair, CPU seconds and peak memory
to benchmarks/results/read.json. The CSVs are compared byte for byte.

    python -m benchmarks.scale.read --nsys /path/to/nsys
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import perfmodel
from benchmarks.common import folders
from benchmarks.scale.grow import grow

SOURCE = folders.PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
REPORTS = ("nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "mpi_event_sum")
CASES = ((1_000_000, 2, 9), (1_000_000, 8, 5), (1_000_000, 64, 1), (10_000_000, 8, 2))
"""Event rows, ranks and timed pairs."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Installed packages are byte-compiled, so an editable one may be as well."""


def run(command: list[str]) -> tuple[dict[str, float], bytes]:
    """Run a command to its end; wall and CPU seconds, peak memory in MB, and its output."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
        out.seek(0)
        spent = {
            "wall_s": wall,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        }
        return spent, out.read()


def measure(nsys: str, report: Path, pairs: int) -> dict[str, Any]:
    """Time both commands in turn on one report, after one warm-up each."""
    wanted = [word for name in REPORTS for word in ("--report", name)]
    theirs = [nsys, "stats", "-q", "--format", "csv", *wanted, str(report)]
    ours = [sys.executable, "-m", "perfmodel", "stats", str(report), *wanted, "--format", "csv"]
    _, our_csv = run(ours)
    _, their_csv = run(theirs)
    equal = their_csv == our_csv + b"\n"
    results: dict[str, list[dict[str, float]]] = {"nsys": [], "perfmodel": []}
    for _ in range(pairs):
        results["nsys"].append(run(theirs)[0])
        results["perfmodel"].append(run(ours)[0])
    row: dict[str, Any] = {"csv_equal": equal, "pairs": pairs}
    for name, runs in results.items():
        for figure in ("wall_s", "cpu_s", "peak_mb"):
            row[f"{name}_{figure}"] = round(statistics.median(r[figure] for r in runs), 4)
    for figure in ("wall_s", "cpu_s"):
        ratios = [
            a[figure] / b[figure]
            for a, b in zip(results["nsys"], results["perfmodel"], strict=True)
        ]
        row[f"ratio_{figure}"] = {
            "median": round(statistics.median(ratios), 2),
            "min": round(min(ratios), 2),
            "max": round(max(ratios), 2),
        }
    return row


def startup(repeats: int = 15) -> dict[str, float]:
    """CPU and wall seconds of `perfmodel --help`."""
    runs = [run([sys.executable, "-m", "perfmodel", "--help"])[0] for _ in range(repeats)]
    return {k: round(statistics.median(r[k] for r in runs), 4) for k in ("wall_s", "cpu_s")}


def about(**versions: str) -> dict[str, Any]:
    """Return when, where and with which versions a benchmark ran."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {
            "perfmodel": perfmodel.__version__,
            "python": platform.python_version(),
            "numpy": __import__("numpy").__version__,
            **versions,
        },
    }


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="the nsys to compare with")
    parser.add_argument("--rows", type=int, help="only cases of this size")
    parser.add_argument("--folder", type=Path, help="keep grown reports here")
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "read.json")
    args = parser.parse_args()
    if args.nsys is None:
        raise SystemExit("nsys is not on the PATH: give --nsys /path/to/nsys")
    version = subprocess.run([args.nsys, "--version"], capture_output=True, text=True).stdout
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        for size, ranks, pairs in CASES:
            if args.rows not in (None, size):
                continue
            report = folder / f"grown_{size}_{ranks}.sqlite"
            events = grow(SOURCE, report, size, ranks)
            row = {"event_rows": events, "ranks": ranks, "file_mb": report.stat().st_size / 1e6}
            row |= measure(args.nsys, report, pairs)
            print(json.dumps(row))
            rows.append(row)
            report.unlink()
    result = {
        "command": "python -m benchmarks.scale.read --nsys NSYS",
        **about(nsys=version.strip().rpartition(" ")[2]),
        "startup_help": startup(),
        "rows": rows,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
