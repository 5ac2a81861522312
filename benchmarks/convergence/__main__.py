"""The run records of notebooks/01_convergence: sweeps of the trainer on MNIST, on CPUs and GPUs.

Each part is one command of sweeps.py that writes one CSV file; a part that fails is reported and
the others go on.

    MNIST_DIR=... python -m benchmarks.convergence --parts cpu     # half an hour on two busy cores
    MNIST_DIR=... python -m benchmarks.convergence --parts gpu     # ten minutes on H200s
    python -m benchmarks.convergence --rehearse --output /tmp/try  # all, tiny, without a GPU

Needs the packages of the extra "mpi", pooch or $MNIST_DIR, and CuPy for the parts of the GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import folders

RATES = ["--learning-rates", "0.1", "0.01", "0.03", "0.2", "0.5"]
SIZES = ["--hidden-sizes", "512", "64", "128", "256", "1024"]
LONG = ["--learning-rates", "0.2", "--hidden-sizes", "64", "512", "--batch-size", "3200", "--thin"]
"""The document's example of hyperparameters, Question 1.4, and the hidden size of its profile."""
SEEDS = ["--seeds", "1", "2", "3"]
GPU = ["--backend", "cupy"]

PARTS: dict[str, dict[str, tuple[int, list[str]]]] = {
    "cpu": {
        "discrepancy": (1, ["discrepancy", "--epochs", "5", "--hidden-sizes", "64",
                            "--learning-rates", "0.01", "0.03", "0.1", "0.2", "0.5"]),
        "parallel_numpy_2": (2, ["parallel", "--epochs", "5", *RATES, *SIZES]),
        "parallel_numpy_4": (4, ["parallel", "--epochs", "5", *RATES,
                                 "--hidden-sizes", "512", "64", "256"]),
    },
    "gpu": {
        "learning_rates": (1, ["convergence", "--epochs", "20", "--learning-rates", "0.001",
                               "0.003", "0.01", "0.03", "0.1", "0.2", "0.5", "1", *SEEDS, *GPU]),
        "hidden_sizes": (1, ["convergence", "--epochs", "100", "--thin", "--learning-rates",
                             "0.2", "0.05", "0.01", "--hidden-sizes", "16", "32", "64", "128",
                             "256", "512", "1024", "2048", "4096", *SEEDS, *GPU]),
        # seed 3: to epoch 1000 so far
        "long": (1, ["convergence", "--epochs", "3000", *LONG, *SEEDS, *GPU]),
        "parallel_cupy_1": (1, ["parallel", "--epochs", "5", *GPU, *RATES, *SIZES]),
        "parallel_cupy_2": (2, ["parallel", "--epochs", "5", *GPU, *RATES, *SIZES]),
    },
}  # fmt: skip
"""Name of the file: ranks, and the arguments."""

TINY = ["--data", "synthetic", "--train-size", "300", "--batch-size", "100", "--epochs", "2",
        "--hidden-sizes", "8", "16", "--backend", "numpy"]  # fmt: skip


def command(name: str, ranks: int, flags: list[str], out: Path, rehearse: bool) -> list[str]:
    """Return the command line of a part."""
    study, rest = flags[0], flags[1:]
    program = [sys.executable, "-m", "benchmarks.convergence.sweeps"]
    line = [*program, study, str(out / f"{name}.csv"), *rest]
    if rehearse:
        line += TINY
    if ranks == 1 and study != "parallel":
        return line
    return ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(ranks), *line]


def run(name: str, line: list[str], limit_s: float) -> bool:
    """Run one part; say how it went."""
    print(f"{name}: {' '.join(line)}", flush=True)
    started = time.monotonic()
    environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    try:
        code = subprocess.run(line, cwd=folders.ROOT, timeout=limit_s, env=environment).returncode
        said = "done" if code == 0 else f"FAILED with code {code}"
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"FAILED: {error}"
    print(f"{name}: {said} after {time.monotonic() - started:.0f} s", flush=True)
    return said == "done"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    add("--only", nargs="+", metavar="NAME", help="these files of the parts only")
    add("--output", type=Path, default=folders.ROOT / "notebooks" / "data")
    add("--limit-s", type=float, default=7200.0, help="longest time of one file")
    add("--rehearse", action="store_true", help="tiny sizes, synthetic data, no GPU")
    a = parser.parse_args()
    failed = 0
    for kind in a.parts:
        for name, (ranks, flags) in PARTS[kind].items():
            if a.only is None or name in a.only:
                line = command(name, ranks, flags, a.output.resolve(), a.rehearse)
                failed += not run(name, line, a.limit_s)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
