"""Collects profiles of the trainer over a grid: one Nsight Systems report per configuration.

    python -m profiles.collect OUT --ranks 2 --hidden 512 2048 --batch 3000 12000 --transport host

For every configuration it profiles `mpirun -n P python -m trainer` on synthetic data, then exports,
trims (profiles/trim.py) and packs (profiles/pack.py) the reports to OUT/NAME.sqlite.xz, which
perfmodel opens as they are, and adds them to OUT/index.json. A configuration that is there
already is skipped. With --bare it also runs every configuration without Nsight Systems and notes
the median batch as the trainer timed it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiles.pack import pack
from profiles.trim import trim

ROOT = Path(__file__).resolve().parent.parent
IMAGES = 60_000
TRACE = ("--trace=nvtx,cuda,mpi", "--sample=none", "--cpuctxsw=none", "--mpi-impl=openmpi")


def name_of(c: argparse.Namespace, hidden: int, batch: int) -> str:
    """File name of a configuration."""
    sync = "_sync" if c.sync_ranges else ""
    return f"{c.machine}_p{c.ranks}_{c.transport}_{c.dtype}_H{hidden}_B{batch}{sync}"


def train_command(c: argparse.Namespace, hidden: int, batch: int) -> list[str]:
    """Trainer command: at least `--batches` batches, evaluation only behind them."""
    epochs = math.ceil(c.batches / math.ceil(IMAGES / batch))
    flags = {
        "data": "synthetic",
        "hidden-size": hidden,
        "batch-size": batch,
        "epochs": epochs,
        "dtype": c.dtype,
        "transport": c.transport,
        "backend": c.backend,
        "evaluate-every": 0,
        "learning-rate": 0.01,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    sync = ["--sync-ranges"] if c.sync_ranges else []
    return [sys.executable, "-m", "trainer", *words, *sync]


def profile(
    flags: Sequence[str], program: Sequence[str], raw: Path, *, timeout_s: float = 180.0,
    attempts: int = 2,
) -> str:  # fmt: skip
    """Profile a program into `raw`.nsys-rep, once more if it fails; return the command.

    Raises
    ------
    SystemExit
        If it fails every time.
    """
    words = ["nsys", "profile", *flags]
    command = [*words, "-f", "true", "-o", str(raw), *program]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    for attempt in range(1, attempts + 1):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode == 0:
            shown = ("python3" if word == sys.executable else word for word in program)
            return " ".join([*words, *(Path(w).name if w.startswith("/") else w for w in shown)])
        said = (done.stdout + done.stderr)[-2000:]
        print(f"attempt {attempt} failed:\n{said}", file=sys.stderr)
    raise SystemExit(f"cannot profile: {' '.join(command)}\n{said}")


def keep(raw: Path, target: Path) -> None:
    """Export, trim and compress one report."""
    exported, trimmed = raw.with_suffix(".full.sqlite"), raw.with_suffix(".sqlite")
    export = ["nsys", "export", "-q", "true", "-t", "sqlite", "-f", "true", "-o", str(exported)]
    subprocess.run([*export, str(raw.with_suffix(".nsys-rep"))], check=True, capture_output=True)
    trim(exported, trimmed)
    pack(trimmed, target)


def versions() -> dict[str, Any]:
    """Versions of what ran."""
    nsys = subprocess.run(["nsys", "--version"], capture_output=True, text=True).stdout.split()
    found = {"nsys": nsys[-1] if nsys else "unknown", "python": platform.python_version()}
    wanted = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "mpi4py", "nvtx")
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    return found | {name: installed[name] for name in wanted if name in installed}


def bare_batch_s(c: argparse.Namespace, hidden: int, batch: int, record: Path) -> float:
    """Median batch in seconds without Nsight Systems, as rank 0 timed it."""
    train = [*train_command(c, hidden, batch), "--record", str(record)]
    launch = ["mpirun", "--bind-to", "none", "-n", str(c.ranks), *train]
    subprocess.run(launch, cwd=ROOT, check=True, capture_output=True, timeout=180)
    seconds: float = json.loads(record.read_text())["timings"]["batch_median"]
    return seconds


def main() -> None:
    """Collect the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--machine", default="h200x2", help="first part of the names")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512])
    parser.add_argument("--batch", type=int, nargs="+", default=[3000])
    parser.add_argument("--transport", default="host")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--batches", type=int, default=60, help="per run, warm-up included")
    parser.add_argument("--sync-ranges", action="store_true")
    parser.add_argument("--bare", action="store_true", help="also time without nsys")
    c = parser.parse_args()
    c.out.mkdir(parents=True, exist_ok=True)
    index_file = c.out / "index.json"
    index = json.loads(index_file.read_text()) if index_file.exists() else []
    done = {entry["file"] for entry in index}
    with tempfile.TemporaryDirectory() as scratch:
        for hidden, batch in itertools.product(c.hidden, c.batch):
            name = name_of(c, hidden, batch)
            target = c.out / f"{name}.sqlite.xz"
            if target.name in done:
                continue
            begin = time.perf_counter()
            raw = Path(scratch) / name
            launch = ["mpirun", "--bind-to", "none", "-n", str(c.ranks)]
            command = profile(TRACE, [*launch, *train_command(c, hidden, batch)], raw)
            keep(raw, target)
            index.append(
                {
                    "file": target.name,
                    "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
                    "machine": c.machine,
                    "collected": datetime.now(UTC).date().isoformat(),
                    "versions": versions(),
                    "command": command,
                    "config": {
                        "hidden_size": hidden,
                        "batch_size": batch,
                        "ranks": c.ranks,
                        "transport": c.transport,
                        "dtype": c.dtype,
                        "backend": c.backend,
                        "sync_ranges": c.sync_ranges,
                    },
                }
            )
            if c.bare:
                seconds = bare_batch_s(c, hidden, batch, Path(scratch) / "run.json")
                index[-1]["batch_median_s_without_nsys"] = seconds
            index_file.write_text(json.dumps(index, indent=1) + "\n")
            for file in Path(scratch).iterdir():
                file.unlink() if file.is_file() else shutil.rmtree(file)
            size = target.stat().st_size / 1e3
            print(f"{name}: {size:.0f} kB, {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
