"""Large reports: four summaries of 1, 10 and 50 million events by `nsys stats` and perfmodel.

Grows a real report (grow.py) and runs both whole commands in turn; CSVs are compared
byte for byte. With `--recipe-python`, a Python with pandas, pyarrow and psutil, also the recipes of
Nsight Systems that run on a grown report (recipes.py). Writes seconds, CPU seconds, peak
memory and ratios to benchmarks/results/large.json, beside the cases that are there already.

    python -m benchmarks.scale.large --nsys /path/to/nsys --recipe-python /path/to/venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.scale import read
from benchmarks.scale.grow import grow
from benchmarks.scale.read import SOURCE, about
from benchmarks.scale.recipes import RECIPES

REPORTS = ("nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_api_sum")
CASES = ((1_000_000, 2, 5), (1_000_000, 8, 5), (10_000_000, 8, 2), (50_000_000, 8, 1))
"""Event rows, ranks and timed rounds."""


def commands(report: Path, nsys: str) -> dict[str, list[str]]:
    """Whole commands that print the same, but for a blank line of nsys."""
    wanted = [word for name in REPORTS for word in ("--report", name)]
    two = [word for name in RECIPES.values() for word in ("--report", name)]
    ours = [sys.executable, "-m", "perfmodel", "stats", str(report), "--format", "csv"]
    return {
        "nsys": [nsys, "stats", "-q", "--format", "csv", *wanted, str(report)],
        "perfmodel": [*ours, *wanted],
        "perfmodel_two": [*ours, *two],
    }


def measure(report: Path, nsys: str, rounds: int, *, without: set[str]) -> dict[str, Any]:
    """Time the commands in turn, after perfmodel has read the report once."""
    todo = {k: c for k, c in commands(report, nsys).items() if k not in without}
    _, our_csv = read.run(todo["perfmodel"])
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in todo}
    row: dict[str, Any] = {"rounds": rounds}
    for _ in range(rounds):
        for name, command in todo.items():
            figures, text = read.run(command)
            spent[name].append(figures)
            if name == "nsys":
                row["csv_equal"] = text == our_csv + b"\n"
    row |= {name: medians(runs) for name, runs in spent.items()}
    if "nsys" in spent:
        row["nsys_over_perfmodel"] = ratios(spent["nsys"], spent["perfmodel"])
    return row


def measure_recipes(report: Path, folder: Path, nsys: str, python: str) -> dict[str, Any]:
    """Time the recipes once each: from Parquet files that are there already."""
    maker = [python, "-m", "benchmarks.scale.recipes", str(report), str(folder), nsys]
    subprocess.run(maker, cwd=folders.ROOT, check=True)
    home = folder / "recipes"
    read.ENVIRONMENT |= {"PYTHONPATH": str(home / "packages"), "NSYS_DIR": str(home)}
    found = {}
    try:
        for name in RECIPES:
            command = [python, "-m", "nsys_recipe", name, "--force-overwrite", "--mode", "none"]
            command += ["--input", str(folder / "recipe.nsys-rep"), "--output", str(folder / name)]
            found[name] = medians([read.run(command)[0]])
            if not (folder / name).exists():
                raise SystemExit(f"nsys recipe {name} wrote nothing")
    finally:
        for key in ("PYTHONPATH", "NSYS_DIR"):
            read.ENVIRONMENT.pop(key)
        read.ENVIRONMENT |= {k: os.environ[k] for k in ("PYTHONPATH",) if k in os.environ}
        for made in ("recipes", "recipe_pqtdir", *RECIPES):
            shutil.rmtree(folder / made, ignore_errors=True)
    return found


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {k: round(statistics.median(r[k] for r in runs), 4) for k in runs[0]}


def ratios(theirs: list[dict[str, float]], ours: list[dict[str, float]]) -> dict[str, float]:
    """Median of the ratios round by round."""
    return {
        k: round(statistics.median(a[k] / b[k] for a, b in zip(theirs, ours, strict=True)), 2)
        for k in ("wall_s", "cpu_s")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="the nsys to compare with")
    parser.add_argument("--recipe-python", help="a Python with pandas, pyarrow and psutil")
    parser.add_argument("--rows", type=int, nargs="+", help="only cases of these sizes")
    parser.add_argument("--rounds", type=int, help="timed rounds, instead of 5, 5, 2 and 1")
    parser.add_argument("--nsys-up-to", type=int, default=10_000_000, help="rows")
    parser.add_argument("--folder", type=Path, help="for the grown reports, 5 GB at 50 million")
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "large.json")
    args = parser.parse_args()
    if args.nsys is None:
        raise SystemExit("nsys is not on the PATH: give --nsys /path/to/nsys")
    version = subprocess.run([args.nsys, "--version"], capture_output=True, text=True).stdout
    kept = json.loads(args.output.read_text())["rows"] if args.output.exists() else []
    rows = {(row["size"], row["ranks"]): row for row in kept}
    for size, ranks, rounds in CASES:
        if args.rows and size not in args.rows:
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            folder = Path(scratch)
            report = folder / "grown.sqlite"
            events = grow(SOURCE, report, size, ranks)
            row = {"size": size, "event_rows": events, "ranks": ranks}
            row["file_mb"] = round(report.stat().st_size / 1e6, 1)
            without = set() if size <= args.nsys_up_to else {"nsys"}
            row |= measure(report, args.nsys, args.rounds or rounds, without=without)
            if args.recipe_python and size <= args.nsys_up_to:
                row["recipes"] = measure_recipes(report, folder, args.nsys, args.recipe_python)
                spent = sum(r["cpu_s"] for r in row["recipes"].values())
                row["recipes_over_perfmodel_cpu_s"] = round(
                    spent / row["perfmodel_two"]["cpu_s"], 2
                )
        print(json.dumps(row), flush=True)
        rows[size, ranks] = row
    result = {
        "command": "python -m benchmarks.scale.large --nsys NSYS --recipe-python PYTHON",
        **about(nsys=version.strip().rpartition(" ")[2]),
        "reports": REPORTS,
        "rows": [rows[key] for key in sorted(rows)],
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
