"""Collects profiles of the ladder's rungs, several launches of each, for `perfmodel compare`.

    python -m profiles.collect_ladder OUT --ranks 2 --rungs document pinned --launches 3

The rungs are those of benchmarks.ladder. Launches take turns, so that what drifts on the machine
drifts for all alike. Reports are exported, trimmed and compressed as by collect.py, to
OUT/RUNG_LAUNCH.sqlite.xz, or OUT/MACHINE_RUNG_LAUNCH.sqlite.xz unless there are two ranks, with
OUT/index.json. A report that is collected again takes the place of the one before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.ladder.configurations import RUNGS
from profiles.collect import IMAGES, TRACE, keep, profile, versions

SWITCHES = ("overlap", "graph")


def flags(settings: dict[str, Any]) -> list[str]:
    """Return the trainer's flags for a rung's settings."""
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if name in SWITCHES:
            words += [flag] if value else []
        else:
            words += [flag, str(value)]
    return words


def collect(c: argparse.Namespace, settings: dict[str, Any], raw: Path) -> str:
    """Profile one launch into `raw`.nsys-rep; return the command."""
    epochs = math.ceil(c.batches / math.ceil(IMAGES / c.batch))
    program = [
        "mpirun", "--bind-to", "none", "-n", str(c.ranks), sys.executable, "-m", "trainer",
        "--data", "synthetic", "--hidden-size", str(c.hidden), "--batch-size", str(c.batch),
        "--epochs", str(epochs), "--backend", "cupy", "--evaluate-every", "0", *flags(settings),
    ]  # fmt: skip
    return profile([*TRACE, "--cuda-graph-trace=node"], program, raw, timeout_s=120)


def file_name(rung: str, launch: int, ranks: int, machine: str) -> str:
    """Return the name of a report's file; the first ones were of two ranks and say nothing else."""
    prefix = "" if ranks == 2 else f"{machine}_"
    return f"{prefix}{rung.replace(' ', '-')}_{launch}.sqlite.xz"


def replaced(index: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the index with an entry in the place of the one of the same file, or at the end."""
    files = [old["file"] for old in index]
    at = files.index(entry["file"]) if entry["file"] in files else len(index)
    return [*index[:at], entry, *index[at + 1 :]]


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path)
    add("--machine", default="h200x2")
    add("--ranks", type=int, default=2)
    add("--hidden", type=int, default=512)
    add("--batch", type=int, default=3000)
    add("--batches", type=int, default=60, help="per launch, warm-up included")
    add("--rungs", nargs="+", choices=[rung.name for rung in RUNGS], required=True, metavar="RUNG")
    add("--launches", type=int, default=3)
    add("--budget", type=float, default=math.inf, help="seconds after which no launch begins")
    return parser.parse_args()


def main() -> None:
    """Collect the rungs."""
    c = options()
    c.out.mkdir(parents=True, exist_ok=True)
    index_file = c.out / "index.json"
    index = json.loads(index_file.read_text()) if index_file.exists() else []
    chosen = {rung.name: rung for rung in RUNGS if rung.name in c.rungs}
    begin = time.perf_counter()
    for launch in range(1, c.launches + 1):
        for name, rung in chosen.items():
            if time.perf_counter() - begin > c.budget:
                return
            target = c.out / file_name(name, launch, c.ranks, c.machine)
            with tempfile.TemporaryDirectory() as scratch:
                raw = Path(scratch) / "report"
                command = collect(c, rung.settings, raw)
                keep(raw, target)
            entry = {
                "file": target.name,
                "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
                "rung": name,
                "launch": launch,
                "machine": c.machine,
                "collected": datetime.now(UTC).date().isoformat(),
                "versions": versions(),
                "command": command,
                "settings": rung.settings,
            }
            index = replaced(index, entry)
            index_file.write_text(json.dumps(index, indent=1) + "\n")
            took = time.perf_counter() - begin
            print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
