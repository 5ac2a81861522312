"""A thousand reports at once, in every way that `perfmodel analyze` reads them.

    python -m benchmarks.scale.thousand

Grows real exports (profiles.grow) into the reports of 512 ranks of MPI, of which three are left
out, and of 512 of DDP with NCCL. Writes seconds, CPU seconds and peak memory to
benchmarks/results/thousand.json: read by two processes, again with the results that were kept, with
one report more, as a page, and by one and two workers of Dask.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.arguments import require_module
from benchmarks.common.processes import timed
from profiles.grow import grow_ddp, grow_ranks

DDP: Final = folders.PROGRAMS / "gpt_ddp8.sqlite.xz"
MISSING: Final = (5, 17, 500)


def perfmodel(name: str, paths: list[Path], *options: str) -> tuple[dict[str, float], bytes]:
    """Run a command; return its figures and its output."""
    command = [sys.executable, "-m", "perfmodel", name, *map(str, paths), *options]
    return timed(command, workers=True)


def analyze(paths: list[Path], *options: str) -> tuple[dict[str, float], bytes]:
    """Run `perfmodel analyze`; return its figures and its output."""
    return perfmodel("analyze", paths, "--json", *options)


def on_dask(paths: list[Path], workers: int) -> tuple[dict[str, float], bytes]:
    """Run it on so many workers of Dask, whose processor time is counted, too."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as dask:
        processes = [nanny.pid for nanny in dask.workers.values()]
        before = sum(map(cpu_seconds, processes))
        figures, output = analyze(paths, "--scheduler", dask.scheduler_address)
        figures["workers_cpu_s"] = sum(map(cpu_seconds, processes)) - before
    return figures, output


def cpu_seconds(process: int) -> float:
    """Processor time of a process until now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thousand(folder: Path, ranks: int) -> dict[str, Any]:
    """Time the reports of so many ranks, half of them of MPI and half of DDP."""
    plain = folder / "source.part"
    folders.unpacked(DDP, plain)
    every = [*grow_ranks(folders.BASE, folder, ranks // 2), *grow_ddp(plain, folder, ranks // 2)]
    missing = [i for i in MISSING if i < ranks // 2]
    last = every[missing[-1]]
    some = [path for i, path in enumerate(every) if i not in missing]
    kept = ["--cache", str(folder / "kept")]
    found = {
        "two": analyze(some, "--jobs", "2", *kept),
        "kept": analyze(some, "--jobs", "2", *kept),
        "one_more": analyze([*some, last], "--jobs", "2", *kept),
    }
    page = folder / "report.html"
    found["page"] = perfmodel("report", some, "-o", str(page), "--jobs", "2", *kept)
    found |= {f"dask_{workers}": on_dask(some, workers) for workers in (1, 2)}
    runs = json.loads(found["two"][1])["runs"]
    return {
        "reports": len(some),
        "ranks": [len(run["ranks"]) for run in runs],
        "file_mb": round(sum(path.stat().st_size for path in some) / 1e6, 1),
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "kept_mb": round(sum(p.stat().st_size for p in (folder / "kept").iterdir()) / 1e6, 1),
        "equal": len({found[way][1] for way in ("two", "kept", "dask_1", "dask_2")}) == 1,
        **{way: _rounded(figures) for way, (figures, _) in found.items()},
    }


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "thousand.json")
    args = parser.parse_args()
    require_module("distributed", "'perfmodel[dask]'")
    with tempfile.TemporaryDirectory() as folder:
        many = thousand(Path(folder), args.ranks)
        print(json.dumps(many), flush=True)
    about = {"command": results.command("scale.thousand"), **results.about()}
    results.write(args.output, {**about, "many": many})


if __name__ == "__main__":
    main()
