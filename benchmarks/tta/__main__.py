"""Trains the same network with several seeds per configuration, for the time to a precision.

    python -m benchmarks.tta                    # NumPy, 5 seeds, all configurations
    python -m benchmarks.tta --backend cupy     # the same on a GPU, in one process
    mpirun -n 2 python -m benchmarks.tta --backend cupy --transport nccl

All run in one process (or group of ranks), seed by seed, so that what the machine does meanwhile
meets every configuration alike; before that, an epoch of each is thrown away: it compiles kernels
and touches memory. Records go to benchmarks/results/tta/CONFIGURATION.json (tta_cupy/ on a GPU),
after every run, so that a run cut off leaves what it had. `perfmodel study tta` reads them;
benchmarks.tta.report writes the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from trainer import mpi
from trainer.backends.choice import choose
from trainer.config import Config
from trainer.data import load
from trainer.errors import TrainerError
from trainer.record import Run, run_record
from trainer.train import Session

UNIT = {"pixels": "unit", "learning_rate": 0.5, "epochs": 20}
RAW = {"pixels": "raw", "learning_rate": 0.2, "epochs": 20}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {**UNIT, "batch_size": 400},
    "large": {**UNIT, "batch_size": 3200},
    "scaled": {**UNIT, "batch_size": 3200, "scale_learning_rate": 400},
    "rule": {**UNIT, "batch_size": 3200, "scale_learning_rate": 400, "warmup_epochs": 1},
    "raw_base": {**RAW, "batch_size": 3200},
    "raw_large": {**RAW, "batch_size": 12800},
    "raw_rule": {**RAW, "batch_size": 12800, "scale_learning_rate": 3200, "warmup_epochs": 1},
}
"""Pixels 0..1: a small batch, a large one, the large one by one rule and by both; and pixels
0..255, the document's, whose rate cannot grow."""


class Trainings:
    """The ranks, the backend and the images that all runs share."""

    def __init__(self, c: argparse.Namespace) -> None:
        self._common = {
            "hidden_size": c.hidden_size, "backend": c.backend, "transport": c.transport,
            "data": c.data, "data_on": "device" if c.backend == "cupy" else None,
            "threads": c.threads, "train_size": c.images,
        }  # fmt: skip
        self.comm = mpi.connect()
        first = Config(**self._common)
        self._threads = mpi.set_threads(self.comm, c.threads)
        self.backend = choose(first, self.comm.local_rank)
        self._data = load(first) if self.comm.rank == 0 else None

    def run(self, settings: dict[str, Any], seed: int) -> dict[str, Any]:
        """Train once; return the run record, without the name of the host."""
        config = Config(**{**self._common, **settings}, seed=seed)
        run = Run(config, self.comm, self.backend, self._threads, f"seed{seed}")
        result = Session(config, self.comm, self._data, self.backend).run()
        record = run_record(run, result, None)
        record["machine"] = {"processor": record["machine"]["processor"]}
        return record


def write(path: Path, about: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """Write a configuration's records."""
    results.write(path, {**about, "runs": runs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--backend", choices=("numpy", "cupy"), default="numpy")
    add("--transport", default="none", help="of the gradients, under mpirun")
    add("--data", default="mnist", help="as the trainer's --data")
    add("--images", type=int, help="train on the first so many only")
    add("--hidden-size", type=int, default=64)
    add("--threads", type=int, default=0, help="BLAS threads a rank")
    add("--seeds", type=int, default=5)
    add("--epochs", type=int, help="instead of each configuration's own")
    add("--configurations", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    add("--budget", type=float, default=1e9, help="seconds: no run begins that would end later")
    add("--out", type=Path, help="folder (benchmarks/results/tta, or tta_cupy)")
    c = parser.parse_args()
    out = c.out or folders.RESULTS / ("tta" if c.backend == "numpy" else "tta_cupy")
    began = time.perf_counter()
    trainings = Trainings(c)
    comm, described = trainings.comm, trainings.backend.describe()
    device = str(described["gpu"]) if c.backend == "cupy" else f"CPU, {results.processor()}"
    more = {} if c.epochs is None else {"epochs": c.epochs}
    chosen = {name: {**CONFIGURATIONS[name], **more} for name in c.configurations}
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    longest = 0.0
    for seed in range(c.seeds + 1):  # 0: thrown away
        for name, settings in chosen.items():
            started = time.perf_counter()
            if comm.largest(started - began) + longest > c.budget:
                continue
            try:
                record = trainings.run(settings if seed else {**settings, "epochs": 1}, seed or 1)
            except TrainerError as error:
                if comm.size > 1 and not error.everywhere:
                    raise
                print(f"[{started - began:6.1f} s] {name:9} seed {seed}: {error}", flush=True)
                continue
            took = time.perf_counter() - started
            longest = comm.largest(max(longest, took)) if seed else longest
            if comm.rank or not seed:
                continue
            reached = record["epochs"][-1]["precision_test"]
            print(f"[{started - began:6.1f} s] {name:9} seed {seed}: {reached:.4f}, {took:.1f} s",
                  flush=True)  # fmt: skip
            records[name].append(record)
            about = {
                "name": name, "command": results.command("tta", sys.argv[1:]),
                "date": results.today(), "device": device,
            }  # fmt: skip
            write(out / f"{name}.json", about, records[name])


if __name__ == "__main__":
    main()
