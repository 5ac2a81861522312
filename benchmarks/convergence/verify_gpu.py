"""CuPy against the sequential NumPy run on one or more GPUs, and the precision on MNIST.

Runs `mpirun -n P python -m trainer --backend cupy --verify` for every number of ranks and data
type, one epoch of MNIST at learning rate 0.01, and once the document's training to a precision of
0.970 (H = 512, B = 3000, learning rate 0.2, 40 epochs). Adds rows to
benchmarks/results/verify_gpu.json.

    MNIST_DIR=... python -m benchmarks.convergence.verify_gpu --ranks 1 2 4
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import folders, gpus, results

DOCUMENT = ["--hidden-size", "512", "--batch-size", "3000", "--backend", "cupy"]


def train(ranks: int, *flags: str) -> dict[str, Any]:
    """Run the trainer on so many ranks and return its record."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.json"
        command = ["mpirun", "--bind-to", "none", "-n", str(ranks), sys.executable, "-m", "trainer"]
        command += [*DOCUMENT, *flags, "--record", str(record)]
        done = subprocess.run(
            command, cwd=folders.ROOT, capture_output=True, text=True, timeout=300
        )
        if not record.exists():
            raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        found: dict[str, Any] = json.loads(record.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=folders.RESULTS / "verify_gpu.json")
    args = parser.parse_args()
    gpus.require(max(args.ranks))
    rows = results.read(args.output).get("rows", [])
    record: dict[str, Any] = {}
    for ranks, dtype in itertools.product(args.ranks, ("float32", "float64")):
        record = train(ranks, "--dtype", dtype, "--learning-rate", "0.01", "--verify")
        kept = ("max_relative_error", "bound", "passed", "precision_test")
        setting = {"ranks": ranks, "dtype": dtype, "learning_rate": 0.01, "epochs": 1}
        rows.append({**setting, **{name: record["verify"][name] for name in kept}})
        print(json.dumps(rows[-1]), flush=True)
    long = train(args.ranks[-1], "--learning-rate", "0.2", "--epochs", "40")
    last = long["epochs"][-1]
    rows.append({
        "ranks": args.ranks[-1], "dtype": "float32", "learning_rate": 0.2, "epochs": 40,
        "precision_test": last["precision_test"], "precision_train": last["precision_train"],
        "train_s": long["timings"]["train"],
    })  # fmt: skip
    print(json.dumps(rows[-1]), flush=True)
    results.write(args.output, {
        "command": results.command("convergence.verify_gpu", ["--ranks", "..."]),
        "date": results.today(),
        "machine": {"gpu": record["versions"]["gpu"], "cores": os.cpu_count()},
        "versions": record["versions"], "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
