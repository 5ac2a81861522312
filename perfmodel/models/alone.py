"""Products measured alone: what cuBLAS takes for the network's shapes, from microbenchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.models.part import Part
from perfmodel.programs.mlp.case import Case

_WIDE: Final = ("forward 1", "backward 3")
_THIN: Final = ("forward 2", "backward 1", "backward 2")
_PARTS: Final = {"wide products": _WIDE, "thin products": _THIN}
_DTYPES: Final = {("ieee", 4): "float32", ("tf32", 4): "tf32", ("ieee", 8): "float64"}
_INPUTS, _CLASSES = 784, 10


@dataclass(frozen=True)
class Alone:
    """Device seconds of cuBLAS's products by hidden units of a rank and images of a rank.

    Attributes
    ----------
    source : str
        The microbenchmarks' file.
    seconds : mapping
        By (name of the product, data type): rows (h, B', seconds), D = 784, C = 10.
    kernel_s : float
        What a queued kernel takes that does nothing: it is part of every row.
    """

    source: str
    seconds: Mapping[tuple[str, str], tuple[tuple[int, int, float], ...]]
    kernel_s: float

    def knows(self, case: Case, part: str = "thin products") -> bool:
        """Whether a part's products are cuBLAS's, of shapes and a data type measured here.

        cuBLAS also multiplies the wide ones for the thin kernels, and in TF32 for the fused ones.
        """
        z, s = case.sizes, case.settings
        if case.workload is not None or s["backend"] != "cupy":
            return False
        wide = s["gemm"] == "thin" or (s["gemm"], s["math"]) == ("fused", "tf32")
        if s["gemm"] != "cublas" and not (wide and part == "wide products"):
            return False
        dtype = _DTYPES.get((s["math"], z["b"]))
        names = all((name, dtype) in self.seconds for name in (*_WIDE, *_THIN))
        return names and (z["D"], z["C"]) == (_INPUTS, _CLASSES)

    def part(self, part: Part, case: Case) -> Part:
        """Return a part with the seconds of its products alone for its FLOPs, where known.

        Kernels that start while others run hide a little of what an empty one takes, so that is
        taken off here, and how many there are is an amount of its own.
        """
        names = _PARTS.get(part.name)
        if names is None or not self.knows(case, part.name):
            return part
        z, s = case.sizes, case.settings
        dtype = _DTYPES[s["math"], z["b"]]
        h, k = float(z["H"]), float(-(-z["B"] // z["p"]))
        if s["parallel"] == "model":
            h, k = h / z["p"], float(z["B"])
        found = 0.0
        for name in names:
            taken = interpolate(self.seconds[name, dtype], h, k)
            found += max(taken - self.kernel_s, 0.2 * taken)
        amounts = {"alone": found, "kernels": float(len(names))}
        return replace(part, group="cublas, as alone", amounts=amounts)


def interpolate(rows: Iterable[tuple[int, int, float]], h: float, k: float) -> float:
    """Return seconds at (h, k): linear in the logarithms between the nearest measured ones.

    Above the measured sizes time grows with the work; below them it stays what the smallest takes.
    """
    table = {(a, b): s for a, b, s in rows}
    hs, ks = (np.array(sorted({key[i] for key in table})) for i in (0, 1))
    grid = np.log([[table[a, b] for b in ks] for a in hs])
    inside_h, inside_k = (float(np.clip(at, x[0], x[-1])) for at, x in ((h, hs), (k, ks)))
    columns = [float(np.interp(np.log(inside_k), np.log(ks), row)) for row in grid]
    found = float(np.exp(np.interp(np.log(inside_h), np.log(hs), columns)))
    return found * max(h / float(hs[-1]), 1.0) * max(k / float(ks[-1]), 1.0)


def from_measurement(found: MachineMeasurement, source: str) -> Alone | None:
    """Return what a machine's measurement says of the trainer's products; None if nothing.

    Raises
    ------
    ModelError
        If a product's shapes are those of another network, or no grid of h and k.
    """
    rows: dict[tuple[str, str], tuple[tuple[int, int, float], ...]] = {}
    for p in found.products:
        if p.name not in (*_WIDE, *_THIN):
            continue
        sizes = [_sizes(p.name, shape) for shape in zip(p.m, p.n, p.k, strict=True)]
        across = _INPUTS if p.name in _WIDE else _CLASSES
        grid = {(h, k) for h, k, _ in sizes}
        full = len({h for h, _ in grid}) * len({k for _, k in grid})
        widths = {other for *_, other in sizes}
        if widths != {across} or not len(sizes) == len(grid) == full:
            raise ModelError(
                f"{source}: wanted products {p.name!r} ({p.dtype}) of width {across} and every h "
                f"with every k, once; found {len(sizes)} shapes for a grid of {full}, of width "
                f"{', '.join(map(str, sorted(widths)))}; measure again: the file was changed or "
                "damaged"
            )
        rows[p.name, p.dtype] = tuple(
            (h, k, seconds) for (h, k, _), seconds in zip(sizes, p.median_s, strict=True)
        )
    kernel = found.machine.latency_s.get("empty_kernel")
    if not rows or kernel is None:
        return None
    return Alone(source, rows, kernel)


def _sizes(name: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return hidden units, images and the other width (D or C) of a product's (m, n, k)."""
    m, n, k = shape
    return {
        "forward 1": (m, n, k), "forward 2": (k, n, m), "backward 1": (m, n, k),
        "backward 2": (n, k, m), "backward 3": (m, k, n),
    }[name]  # fmt: skip
