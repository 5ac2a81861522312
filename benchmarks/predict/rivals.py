"""Rivals of the calibrated model: the document's, PALEO's, a hard roofline, boosted trees.

All are calibrated on the same launches, and predict seconds per batch from sizes and settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from perfmodel.machines.devices import known
from perfmodel.programs.mlp.mlp import Parallel, as_it_ran, mlp
from perfmodel.studies.mlp.case import Case
from perfmodel.studies.models.terms import Observation

Predictor = Callable[[Case], float]
_RATE: Final = 0.1
"""By how much of what is left each tree changes the answer."""


def rivals(observations: Sequence[Observation]) -> dict[str, Predictor]:
    """Calibrate every rival."""
    trees = boosted([features(o.case) for o in observations], [o.batch_s for o in observations])
    return {
        "document": document(observations),
        "paleo": paleo(observations),
        "roofline": roofline(observations),
        "boosted trees": lambda case: trees(features(case)),
    }


Tree = float | tuple[int, float, "Tree", "Tree"]
"""A value, or the column and edge that part what is below it from the rest."""

_counted: dict[object, tuple[float, float, float]] = {}


def work(case: Case) -> tuple[float, float, float]:
    """FLOPs, PCIe bytes and network bytes of one rank's batch, as the document counts."""
    if case.key in _counted:
        return _counted[case.key]
    parallel: Parallel = "model" if case.settings["parallel"] == "model" else "data"
    load = as_it_ran(mlp("document", parallel), case.settings)
    counts = load.total().subs({k: case.sizes[k] for k in load.symbols})
    links = float(counts.pci_bytes), float(counts.mpi_bytes + counts.peer_bytes)
    return _counted.setdefault(case.key, (float(counts.flops), *links))


def document(observations: Sequence[Observation]) -> Predictor:
    """F/P_flops + n_pci/P_pci + n_mpi/P_mpi, fitted at the run nearest to the document's own."""
    best = min(
        (o for o in observations
         if o.phases.get("cudaMemcpyDeviceToHost") and o.case.sizes["p"] > 1),
        key=lambda o: sum(abs(math.log(o.case.sizes[k] / v)) for k, v in (("H", 512), ("B", 3000))),
    )  # fmt: skip
    flops, pci, mpi = work(best.case)
    products = sum(s for key, s in best.parts.items() if "GEMMs" in key)
    copies = best.phases["cudaMemcpyDeviceToHost"] + best.phases["cudaMemcpyHostToDevice"]
    rates = flops / products, pci / copies, mpi / best.phases["MPI_Allreduce"]
    return lambda case: sum(n / rate for n, rate in zip(work(case), rates, strict=True))


def paleo(observations: Sequence[Observation]) -> Predictor:
    """Peak rates times one scalar, the platform percent of peak (Qi et al., ICLR 2017).

    FLOPs at the datasheet's peak, bytes over PCIe and the network at PCIe's; the scalar is the
    median over the calibration's runs.
    """
    h200 = next(m for m in known() if "H200" in m.name)
    peak, pcie = h200.peak_flops_per_s["float32"], h200.bandwidth_bytes_per_s["pcie"]

    def ideal(case: Case) -> float:
        flops, pci, mpi = work(case)
        z = case.sizes
        images = z["b"] * (z["D"] + z["C"]) * z["B"] / z["p"]
        return flops / peak + (pci + mpi + images * (case.settings["data_on"] != "device")) / pcie

    percent = float(np.median([ideal(o.case) / o.batch_s for o in observations]))
    return lambda case: ideal(case) / percent


def roofline(observations: Sequence[Observation]) -> Predictor:
    """max(F/P_flops, bytes/bandwidth) at the best rates that the calibration's runs reached."""
    fastest = max(work(o.case)[0] / o.batch_s for o in observations)
    links = max(sum(work(o.case)[1:]) / o.batch_s for o in observations)
    return lambda case: max(work(case)[0] / fastest, sum(work(case)[1:]) / links)


def features(case: Case) -> list[float]:
    """What the trees see: logarithms of the sizes and of the document's counts, and settings."""
    z, s = case.sizes, case.settings
    logs = [math.log(z[k]) for k in ("H", "B", "p", "b")]
    counts = [math.log1p(n) for n in work(case)]
    said = ("host", "pinned", "host-flat", "chunked", "nccl", "peer", "device", "prefetch", "thin",
            "fused", "tf32", "tf32x3", "model")  # fmt: skip
    values = set(s.values())
    return [*logs, *counts, *(float(word in values) for word in said), float(s["graph"] == "yes")]


def boosted(
    rows: Sequence[Sequence[float]], seconds: Sequence[float]
) -> Callable[[Sequence[float]], float]:
    """Boost 300 regression trees of depth 2 on log times (Friedman 2001), squared error."""
    x, y = np.array(rows), np.log(seconds)
    start, trees = float(y.mean()), []
    left = y - start
    for _ in range(300):
        tree = _tree(x, left, 2)
        left = left - _RATE * np.array([_leaf(tree, row) for row in x])
        trees.append(tree)
    return lambda row: math.exp(start + _RATE * sum(_leaf(t, np.array(row)) for t in trees))


def _tree(x: np.ndarray, y: np.ndarray, depth: int) -> Tree:
    """Grow a tree that splits where the squared error falls most."""
    best: tuple[float, int, float] | None = None
    for column in range(x.shape[1]) if depth and len(y) > 1 else ():
        order = np.argsort(x[:, column], kind="stable")
        values, sums = x[order, column], np.cumsum(y[order])
        count = np.arange(1, len(y))
        # the squared error falls by what the two means explain
        gain = sums[:-1] ** 2 / count + (sums[-1] - sums[:-1]) ** 2 / (len(y) - count)
        gain[values[1:] <= values[:-1]] = -np.inf
        at = int(np.argmax(gain))
        if np.isfinite(gain[at]) and (best is None or gain[at] > best[0] + 1e-12):
            best = float(gain[at]), column, float((values[at] + values[at + 1]) / 2)
    if best is None:
        return float(y.mean())
    _, column, edge = best
    low = x[:, column] < edge
    return column, edge, _tree(x[low], y[low], depth - 1), _tree(x[~low], y[~low], depth - 1)


def _leaf(tree: Tree, row: np.ndarray) -> float:
    while isinstance(tree, tuple):
        column, edge, low, high = tree
        tree = low if row[column] < edge else high
    return tree
