"""Observations of replayed batches: what the kernels of a CUDA graph take, by their names."""

from __future__ import annotations

from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.parts import mlp_parts
from perfmodel.timing.cuda_graphs import kernel_seconds, traced_as_a_whole
from perfmodel.timing.run import Run

_SUMS: Final = "nccl"
_STEPS: Final = ("output_layer", "backward_hidden")
_UPDATE: Final = "sum_and_step"


def replayed_parts(run: Run, case: Case, warmup: int, batch_s: float) -> dict[str, float]:
    """Return seconds by `Part.key` of a graph's kernels, and of what lies between them.

    No range lies inside a replay, so that only names tell what a kernel is for: those of the fused
    network do, cuBLAS's do not. A sum over ranks counts on the rank that arrives last, which waits
    for nobody. Empty where the report has the graph as one operation.
    """
    if traced_as_a_whole(run):
        return {}
    spent = {name: seconds for name, (seconds, _) in kernel_seconds(run, warmup).items()}
    if not spent:
        return {}

    def typical(names: list[str]) -> float:
        return float(np.median(_together([spent[name] for name in names]))) if names else 0.0

    def last(names: list[str]) -> float:
        return float(np.median(_together([spent[name] for name in names]).min(axis=0)))

    sums = [name for name in spent if name.startswith(_SUMS)]
    steps = [name for name in spent if name.startswith(_STEPS)]
    update = [name for name in spent if name.startswith(_UPDATE)]
    others = [name for name in spent if name not in (*sums, *steps, *update)]
    found = {"all-reduce": last(sums)} if sums else {}
    found |= {"step in one kernel": last(update)} if update else {}
    found["fused steps"] = typical(steps)
    found["gaps"] = max(batch_s - sum(found.values()) - typical(others), 0.0)
    if case.settings["gemm"] != "cublas":
        found["wide products" if steps else "replayed kernels"] = typical(others)
    keys = {part.name: part.key for part in mlp_parts(case) if part.clock == "gpu"}
    return {keys[name]: s for name, s in found.items() if s > 0 and name in keys}


def _together(tables: list[Floats]) -> Floats:
    """Sum tables of shape (ranks, batches)."""
    whole: Floats = np.sum(np.nan_to_num(tables), axis=0)
    return whole
