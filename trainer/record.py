"""The run record: configuration, versions, curves and timings of a run as one JSON object."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.backends.base import Backend
from trainer.config import Config
from trainer.mpi import Communicator, library_version
from trainer.train import Result


def versions(backend: Backend) -> dict[str, Any]:
    """Return the versions that may change a run's numbers or its profile."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in ("mpi4py", "nvtx"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {**found, "mpi": library_version(), **backend.describe()}


@dataclass(frozen=True, slots=True)
class Run:
    """A rank's knowledge of its run.

    Attributes
    ----------
    config : Config
    comm : Communicator
    backend : Backend
    threads : int
        BLAS threads of this rank.
    run_id : str
        The same on all ranks.
    """

    config: Config
    comm: Communicator
    backend: Backend
    threads: int
    run_id: str


def config_mark(run: Run, *, graph: bool = False) -> dict[str, Any]:
    """Return what the NVTX mark says of this rank, in the names perfmodel reads.

    Parameters
    ----------
    graph : bool
        The step is replayed as a CUDA graph.
    """
    config = run.config
    return {
        "workload": "mlp",
        "input_size": config.input_size,
        "hidden_size": config.hidden_size,
        "num_classes": config.num_classes,
        "batch_size": config.batch_size,
        "ranks": run.comm.size,
        "rank": run.comm.rank,
        "dtype": config.dtype,
        "parallel": config.parallel,
        "transport": config.transport,
        "backend": run.backend.name,
        "gemm": run.backend.gemm_name,
        "math": config.math,
        "tf32_products": _tf32_products(config),
        "overlap": config.overlap,
        "graph": graph,
        "data_on": config.images_on,
        "train_size": config.train_size,
        "test_size": config.test_size,
        "sync_ranges": config.sync_ranges,
        "seed": config.seed,
        "epochs": config.epochs,
        **_rates(config),
        "threads": run.threads,
        "run_id": run.run_id,
        "versions": versions(run.backend),
    }


def _rates(config: Config) -> dict[str, Any]:
    """Return what is said of the rate where a rule was asked for; other marks say nothing."""
    if not config.warmup_epochs and config.scale_learning_rate is None:
        return {}
    return {
        "learning_rate": config.learning_rate,
        "scale_learning_rate": config.scale_learning_rate,
        "peak_learning_rate": config.peak_learning_rate,
        "warmup_epochs": config.warmup_epochs,
    }


def _tf32_products(config: Config) -> int | None:
    """Return how many TF32 GEMMs one float32 GEMM takes; None without tensor cores."""
    if config.math == "tf32x3":
        return 2 if config.gemm == "fused" and config.pixels == "raw" else 3
    return 1 if config.math == "tf32" else None


def run_record(run: Run, result: Result, verification: dict[str, Any] | None) -> dict[str, Any]:
    """Return the record of a run, of JSON types only; what was not measured is None."""
    return {
        "why_no_graph": result.why_no_graph,
        "status": "stopped" if result.stopped else "finished",
        "run_id": run.run_id,
        "ranks": run.comm.size,
        "threads": run.threads,
        "config": {**run.config.as_dict(), "backend": run.backend.name},
        "peak_learning_rate": run.config.peak_learning_rate,
        "versions": versions(run.backend),
        "machine": {"host": platform.node(), "processor": platform.machine()},
        "epochs": result.epochs,
        "verify": verification,
        "timings": timings(run.config, result),
    }


def timings(config: Config, result: Result) -> dict[str, Any]:
    """Summarize host times, in seconds.

    The first batch holds compilation and first touches; the quantiles leave it out. On a GPU a
    batch's host time ends when its last call was accepted, unless its transport waits.
    """
    seconds = np.array(result.batch_seconds)
    later = seconds[1:]
    quantiles = np.quantile(later, [0.05, 0.5, 0.95]).tolist() if later.size else [None] * 3
    return {
        "setup": result.seconds["setup"],
        "train": result.seconds["train"],
        "evaluate": result.seconds["evaluate"],
        "batches": len(seconds),
        "batch_first": float(seconds[0]) if seconds.size else None,
        "batch_p05": quantiles[0],
        "batch_median": quantiles[1],
        "batch_p95": quantiles[2],
        "images_per_second": config.batch_size / quantiles[1] if quantiles[1] else None,
    }
