"""`perfmodel analyze` at its limits: a thousand reports at once, ten million events in one.

    python -m benchmarks.scale.thousand

Grows real exports (profiles.grow) into the reports of 512 ranks of MPI, of which three are left
out, and of 512 of DDP with NCCL, and into one of ten million events. Writes seconds, CPU seconds
and peak memory to benchmarks/results/thousand.json: read by two processes, again with the results
that were kept, and with one report more.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.processes import timed
from benchmarks.scale.stats import SOURCE
from profiles.grow import grow, grow_ddp, grow_ranks

DDP: Final = folders.PROFILES / "programs" / "gpt_ddp8.sqlite.xz"
MISSING: Final = (5, 17, 500)
EVENTS: Final = (1_000_000, 10_000_000)


def analyze(paths: list[Path], *options: str) -> tuple[dict[str, float], bytes]:
    """Run the command; return its figures and its output."""
    command = [sys.executable, "-m", "perfmodel", "analyze", *map(str, paths), "--json", *options]
    return timed(command, workers=True)


def thousand(folder: Path, ranks: int) -> dict[str, Any]:
    """Time the reports of so many ranks, half of them of MPI and half of DDP."""
    plain = folder / "source.part"
    plain.write_bytes(lzma.decompress(DDP.read_bytes()))
    every = [*grow_ranks(SOURCE, folder, ranks // 2), *grow_ddp(plain, folder, ranks // 2)]
    last = every[MISSING[-1]]
    some = [path for i, path in enumerate(every) if i not in MISSING]
    kept = ["--cache", str(folder / "kept")]
    found = {
        "two": analyze(some, "--jobs", "2", *kept),
        "kept": analyze(some, "--jobs", "2", *kept),
        "one_more": analyze([*some, last], "--jobs", "2", *kept),
    }
    runs = json.loads(found["two"][1])["runs"]
    return {
        "reports": len(some),
        "ranks": [len(run["ranks"]) for run in runs],
        "outliers": [len(run["outliers"]) for run in runs],
        "file_mb": round(sum(path.stat().st_size for path in some) / 1e6, 1),
        "equal": found["two"][1] == found["kept"][1],
        **{way: _rounded(figures) for way, (figures, _) in found.items()},
    }


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in figures.items()}


def large(folder: Path, events: int) -> dict[str, Any]:
    """Time one report of so many events of eight ranks."""
    report = folder / "large.sqlite"
    rows = grow(SOURCE, report, events, 8)
    figures, _ = analyze([report])
    return {"event_rows": rows, "ranks": 8, **_rounded(figures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "thousand.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many = thousand(Path(folder), args.ranks)
        print(json.dumps(many), flush=True)
        rows = [large(Path(folder), events) for events in EVENTS]
    about = {"command": results.command("scale.thousand"), **results.about()}
    results.write(args.output, {**about, "many": many, "large": rows})


if __name__ == "__main__":
    main()
