"""Hundreds of per-rank reports: `perfmodel analyze` in one process, in two, and on Dask.

    python -m benchmarks.scale.many

Grows a real export of two ranks into the reports of 64 and 512 (profiles.grow), runs the command
in turn and writes medians to benchmarks/results/many.json: seconds, CPU seconds, the peak memory of
the parent and of its largest worker. What the commands print is compared byte for byte.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import folders, results
from benchmarks.common.processes import in_turn, medians, timed
from benchmarks.scale.stats import SOURCE
from profiles.grow import grow_ranks

if TYPE_CHECKING:
    from distributed import LocalCluster


@contextmanager
def cluster(workers: int) -> Iterator[LocalCluster | None]:
    """Start a Dask scheduler with workers of its own processes; None where Dask is missing."""
    try:
        from distributed import LocalCluster
    except ImportError:
        yield None
        return
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as dask:
        yield dask


def measured(paths: list[Path], scheduler: str | None, repeats: int) -> dict[str, Any]:
    """Time the ways in turn; the reports are in the system's cache from being written."""
    command = [sys.executable, "-m", "perfmodel", "analyze", *map(str, paths), "--json"]
    ways = {"one": ["--jobs", "1"], "two": ["--jobs", "2"]}
    if scheduler is not None:
        ways["dask"] = ["--scheduler", scheduler]
    calls = {
        way: lambda flags=flags: timed([*command, *flags], workers=True)
        for way, flags in ways.items()
    }
    runs = in_turn(calls, repeats)
    outputs = {output for found in runs.values() for _, output in found}
    row: dict[str, Any] = {"equal": len(outputs) == 1, "repeats": repeats}
    for way, found in runs.items():
        row[way] = medians([figures for figures, _ in found])
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
        with tempfile.TemporaryDirectory() as folder, cluster(2) as dask:
            scheduler = dask and dask.scheduler_address
            paths = grow_ranks(SOURCE, Path(folder), ranks)
            size = sum(path.stat().st_size for path in paths) / 1e6
            row = {"ranks": ranks, "file_mb": round(size, 1)}
            rows.append(row | measured(paths, scheduler, args.repeats))
            print(json.dumps(rows[-1]), flush=True)
    about = {"command": results.command("scale.many"), **results.about()}
    results.write(args.output, {**about, "rows": rows})


if __name__ == "__main__":
    main()
