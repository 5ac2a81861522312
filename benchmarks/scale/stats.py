"""Summaries of grown reports: `nsys stats` against `perfmodel stats`, up to 50 million events.

    python -m benchmarks.scale.stats --nsys /path/to/nsys
    python -m benchmarks.scale.stats --nsys NSYS --recipe-python VENV/bin/python --large

Grows a real report (profiles.grow), runs both commands in turn, compares CSVs byte for byte.
Writes seconds, CPU seconds, peak memory and ratios to benchmarks/results/read.json, with those of
`perfmodel --help`. With --large, more events and benchmarks/results/large.json, beside the cases
that are there already; with --recipe-python, a Python with pandas, pyarrow and psutil, also the
recipes of Nsight Systems that run on a grown report (recipes.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.processes import ENVIRONMENT, in_turn, medians, timed, version_of
from benchmarks.scale.recipes import RECIPES
from profiles.grow import grow

REPORTS = ("nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "mpi_event_sum")
LARGE_REPORTS = ("nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_api_sum")
CASES = ((1_000_000, 2, 9), (1_000_000, 8, 5), (1_000_000, 64, 1), (10_000_000, 8, 2))
LARGE_CASES = ((1_000_000, 2, 5), (1_000_000, 8, 5), (10_000_000, 8, 2), (50_000_000, 8, 1))
"""Event rows, ranks and timed rounds."""

Runs = dict[str, list[tuple[dict[str, float], bytes]]]


def commands(report: Path, nsys: str | None, reports: tuple[str, ...]) -> dict[str, list[str]]:
    """Return whole commands that print the same, but for a blank line of nsys."""
    wanted = [word for name in reports for word in ("--report", name)]
    ours = [sys.executable, "-m", "perfmodel", "stats", str(report), "--format", "csv"]
    theirs = [str(nsys), "stats", "-q", "--format", "csv", *wanted, str(report)]
    return {**({"nsys": theirs} if nsys else {}), "perfmodel": [*ours, *wanted]}


def run(todo: dict[str, list[str]], rounds: int) -> tuple[Runs, bool]:
    """Time commands in turn, after one untimed round; whether both printed the same CSVs."""
    runs = in_turn({name: lambda c=c: timed(c) for name, c in todo.items()}, rounds, untimed=1)
    equal = "nsys" not in runs or runs["nsys"][0][1] == runs["perfmodel"][0][1] + b"\n"
    return runs, equal


def ratios(spent: dict[str, list[dict[str, float]]], figure: str) -> list[float]:
    """Return nsys / perfmodel of one figure, round by round."""
    return [a[figure] / b[figure] for a, b in zip(spent["nsys"], spent["perfmodel"], strict=True)]


def measured(report: Path, nsys: str, rounds: int) -> dict[str, Any]:
    """Return one row of read.json: medians, and ratios pair by pair."""
    runs, equal = run(commands(report, nsys, REPORTS), rounds)
    spent = {name: [figures for figures, _ in found] for name, found in runs.items()}
    row: dict[str, Any] = {"csv_equal": equal, "pairs": rounds}
    for name, figures in spent.items():
        row |= {f"{name}_{figure}": value for figure, value in medians(figures).items()}
    for figure in ("wall_s", "cpu_s"):
        found = ratios(spent, figure)
        row[f"ratio_{figure}"] = {
            name: round(of(found), 2)
            for name, of in (("median", statistics.median), ("min", min), ("max", max))
        }
    return row


def measured_large(report: Path, nsys: str | None, rounds: int) -> dict[str, Any]:
    """Return one row of large.json; also of the two summaries that recipes answer."""
    todo = commands(report, nsys, LARGE_REPORTS)
    todo["perfmodel_two"] = commands(report, None, tuple(RECIPES.values()))["perfmodel"]
    runs, equal = run(todo, rounds)
    spent = {name: [figures for figures, _ in found] for name, found in runs.items()}
    row: dict[str, Any] = {"rounds": rounds}
    row |= {name: medians(figures) for name, figures in spent.items()}
    if nsys:
        row["csv_equal"] = equal
        row["nsys_over_perfmodel"] = {
            figure: round(statistics.median(ratios(spent, figure)), 2)
            for figure in ("wall_s", "cpu_s")
        }
    return row


def measured_recipes(report: Path, folder: Path, nsys: str, python: str) -> dict[str, Any]:
    """Time the recipes once each: from Parquet files that are there already."""
    maker = [python, "-m", "benchmarks.scale.recipes", str(report), str(folder), nsys]
    subprocess.run(maker, cwd=folders.ROOT, check=True)
    home, found = folder / "recipes", {}
    environment = {**ENVIRONMENT, "PYTHONPATH": str(home / "packages"), "NSYS_DIR": str(home)}
    for name in RECIPES:
        command = [python, "-m", "nsys_recipe", name, "--force-overwrite", "--mode", "none"]
        command += ["--input", str(folder / "recipe.nsys-rep"), "--output", str(folder / name)]
        found[name] = medians([timed(command, environment=environment)[0]])
        if not (folder / name).exists():
            raise SystemExit(f"nsys recipe {name} wrote nothing")
    for made in ("recipes", "recipe_pqtdir", *RECIPES):
        shutil.rmtree(folder / made, ignore_errors=True)
    return found


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nsys", default=shutil.which("nsys"), help="the nsys to compare with")
    add("--large", action="store_true", help="up to 50 million events")
    add("--recipe-python", help="a Python with pandas, pyarrow and psutil")
    add("--rows", type=int, nargs="+", help="only cases of these sizes")
    add("--rounds", type=int, help="timed rounds, instead of each case's own")
    add("--nsys-up-to", type=int, default=10_000_000, help="rows")
    add("--folder", type=Path, help="for the grown reports, 5 GB at 50 million")
    add("--output", type=Path)
    args = parser.parse_args()
    if args.nsys is None:
        raise SystemExit("nsys is not on the PATH: give --nsys /path/to/nsys")
    return args


def main() -> None:
    args = options()
    output = args.output or folders.RESULTS / ("large.json" if args.large else "read.json")
    kept = results.read(output).get("rows", []) if args.large else []
    rows = {(row["size"], row["ranks"]): row for row in kept}
    for size, ranks, rounds in LARGE_CASES if args.large else CASES:
        if args.rows and size not in args.rows:
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            report = Path(scratch) / "grown.sqlite"
            row: dict[str, Any] = {"size": size} if args.large else {}
            row |= {"event_rows": grow(folders.BASE, report, size, ranks), "ranks": ranks}
            row["file_mb"] = round(report.stat().st_size / 1e6, 1)
            nsys = args.nsys if size <= args.nsys_up_to else None
            measure = measured_large if args.large else measured
            row |= measure(report, nsys, args.rounds or rounds)
            if args.large and args.recipe_python and nsys:
                row["recipes"] = measured_recipes(report, Path(scratch), nsys, args.recipe_python)
                spent = sum(found["cpu_s"] for found in row["recipes"].values())
                ours_s = row["perfmodel_two"]["cpu_s"]
                row["recipes_over_perfmodel_cpu_s"] = round(spent / ours_s, 2)
        print(json.dumps(row), flush=True)
        rows[size, ranks] = row
    command = "scale.stats --large --recipe-python PYTHON" if args.large else "scale.stats"
    command = f"{results.command(command)} --nsys NSYS"
    result = {"command": command, **results.about(nsys=version_of(args.nsys))}
    if args.large:
        result["reports"] = LARGE_REPORTS
    else:
        starts = [timed([sys.executable, "-m", "perfmodel", "--help"])[0] for _ in range(15)]
        result["startup_help"] = {k: v for k, v in medians(starts).items() if k != "peak_mb"}
    results.write(output, {**result, "rows": [rows[key] for key in sorted(rows)]})


if __name__ == "__main__":
    main()
