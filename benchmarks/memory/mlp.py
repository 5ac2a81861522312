"""Worker of benchmarks.memory: what the trainer's step really allocates, beside the formulas.

For every case it makes a session of `trainer/` on one GPU, trains two batches and evaluates, under
a hook that hears every request to CuPy's pool. Prints one JSON line per case.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from perfmodel.programs.mlp.memory import allocations, footprint, training
from trainer.backends.choice import choose
from trainer.config import Config
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.train import Session

CASES = [
    {"hidden_size": h, "batch_size": b, "data_on": on}
    for on in ("host", "device")
    for h in (128, 512, 2048, 4096)
    for b in (1500, 6000, 24000)
]
IMAGES = 48_000
TEST_IMAGES = 10_000


class Pool:
    """CuPy's default pool and NVML, watched; on a machine without a GPU nothing is measured."""

    def __init__(self, on_device: bool) -> None:
        self._on = on_device
        self.used = self.peak = 0
        if not on_device:
            return
        import cupy

        from perfmodel.machines.gpu_samples import NvmlSampler

        self._pool: Any = cupy.get_default_memory_pool()
        self._nvml = NvmlSampler([0], pcie=False)
        pool = self

        class Hook(cupy.cuda.MemoryHook):
            name = "peak"

            def malloc_postprocess(self, **call: Any) -> None:
                pool.used += call["mem_size"]
                pool.peak = max(pool.peak, pool.used)

            def free_preprocess(self, **call: Any) -> None:
                pool.used -= call["mem_size"]

        self.hook: Any = Hook()

    def nvml_bytes(self) -> float | None:
        """Return what NVML says is used on the GPU, by all."""
        return self._nvml.sample()[0].memory_used_bytes if self._on else None

    def measured(self) -> dict[str, Any]:
        """Return the case's measurements."""
        if not self._on:
            return {"peak_bytes": None, "held_bytes": None, "reserved_bytes": None}
        return {
            "peak_bytes": self.peak,
            "held_bytes": self._pool.used_bytes(),
            "reserved_bytes": self._pool.total_bytes(),
        }

    def empty(self) -> None:
        """Give everything back to CUDA."""
        gc.collect()
        if self._on:
            self._pool.free_all_blocks()
        self.peak = self.used


def theory(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the formulas say of a case."""
    sizes = {"D": 784, "H": settings["hidden_size"], "C": 10, "B": settings["batch_size"]}
    chosen = {"data_on": settings["data_on"], "transport": "none"}
    case = training(sizes, chosen, images=IMAGES, test_images=TEST_IMAGES)
    found = footprint(allocations(case))
    return {
        "theory_held_bytes": found.held_bytes["device"],
        "theory_asked_bytes": found.asked_bytes["device"],
        "theory_peak_bytes": found.peak_bytes,
        "theory_reserved_bytes": found.reserved_bytes,
    }


def run(settings: dict[str, Any], pool: Pool, dataset: Any, backend: Any) -> dict[str, Any]:
    """Train two batches and evaluate; return the case's row."""
    config = Config(
        **settings, backend=backend.name, transport="none", train_size=IMAGES,
        test_size=TEST_IMAGES, data="synthetic", evaluate_every=0,
    )  # fmt: skip
    session = Session(config, Communicator(), dataset, backend)
    session.prepare()
    session.run_batches(2)
    session.synchronize()
    session._parts.accuracies()
    session.synchronize()
    return {**settings, **theory(settings), **pool.measured(), "nvml_bytes": pool.nvml_bytes()}


def main() -> None:
    budget_s, backend = float(sys.argv[1]), sys.argv[2]
    began = time.perf_counter()
    dataset = synthetic(Config(data="synthetic", train_size=IMAGES, test_size=TEST_IMAGES))
    pool = Pool(backend == "cupy")
    before = pool.nvml_bytes()
    context = None
    if backend == "cupy":
        import cupy

        pool.hook.__enter__()
        cupy.cuda.runtime.free(0)
        context = pool.nvml_bytes()
    print(json.dumps({"nvml_before_bytes": before, "nvml_context_bytes": context}), flush=True)
    made = choose(Config(backend=backend, transport="none"), 0)  # allocates cuBLAS's workspace
    for settings in CASES[:1] + CASES:  # the first one loads libraries and compiles
        if time.perf_counter() - began > budget_s:
            print(json.dumps({"stopped": f"after {budget_s:g} s"}), flush=True)
            break
        try:
            row = run(settings, pool, dataset, made)
        except Exception as error:  # the other cases go on
            row = {**settings, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(row), flush=True)
        pool.empty()


if __name__ == "__main__":
    main()
