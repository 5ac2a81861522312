"""Microbenchmarks of a machine as evidence: its copies, all-reduces, launches and GEMMs alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import MachineMeasurement, Series
from perfmodel.models.part import Alone
from perfmodel.models.terms import Microbenchmark

GROUPS: Final = ("copies", "MPI", "NCCL", "latency")
"""What of a machine's measurement is evidence: each may be left out."""
_LARGEST: Final = 16 << 20
"""Bytes: gradients and images of a batch are smaller; larger messages leave the host's caches."""
_LEAST_NCCL: Final = 128 << 10
"""Below it NCCL's time does not depend on the size, which no gradient's is."""
_KERNELS: Final = 14.0
"""Of a batch with cuBLAS."""
INPUTS, CLASSES = 784, 10
LARGE: Final = ("forward 1", "backward 3")
"""GEMMs of D inputs."""
SMALL: Final = ("forward 2", "backward 1", "backward 2")
"""GEMMs of C classes."""


def microbenchmarks(
    found: MachineMeasurement, source: str, use: Sequence[str] = GROUPS
) -> tuple[Microbenchmark, ...]:
    """Return what a machine's measurement says of the parts of a batch.

    Parameters
    ----------
    found : MachineMeasurement
        Of `perfmodel machine measure`.
    source : str
        The file's name.
    use : sequence of str
        Which of `GROUPS`.
    """
    every: list[Microbenchmark] = []
    for series in found.series:
        every += _of_series(series, source, use)
    empty = found.machine.latency_s.get("empty_kernel")
    if empty is not None and "latency" in use:
        row = ({"kernels": _KERNELS, "NCCL sums": 0.0}, _KERNELS * float(empty))
        every += [
            Microbenchmark(f"{source}: empty kernels behind one another", f"gaps [{how}]", (row,))
            for how in ("queued", "replayed")
        ]
    return tuple(every)


def _of_series(series: Series, source: str, use: Sequence[str]) -> Iterator[Microbenchmark]:
    """What one series tells: copies by direction and memory, sums by library."""
    p = series.ranks
    name = f"{source}: {series.kind}, {series.memory}, {series.direction}, {p} rank{'s' * (p > 1)}"
    sizes = [
        (n, t) for n, t in zip(series.bytes, series.median_s, strict=True) if n <= _LARGEST
    ]  # fmt: skip
    if series.kind == "copy" and series.clock == "host" and "copies" in use:
        rows = tuple(({"copies": 1.0, "bytes": float(n)}, t) for n, t in sizes)
        group = series.memory + (", one rank" if p == 1 else "")
        parts = {"d2h": ("copy out",), "h2d": ("copy back", "copy images")}[series.direction]
        for part in parts:
            if part != "copy images" or p > 1:  # images are copied alike on any number of ranks
                of = series.memory if part == "copy images" else group
                yield Microbenchmark(name, f"{part} [{of}]", rows)
    if series.kind == "mpi_allreduce" and "MPI" in use and p > 1:
        rounds = float(math.ceil(math.log2(p)))
        rows = tuple(({"messages": rounds, "bytes": 2 * (p - 1) / p * n}, t) for n, t in sizes)
        for memory in ("pageable", "pinned"):
            yield Microbenchmark(name, f"all-reduce [MPI, {memory}]", rows)
    if (series.kind, series.clock) == ("nccl_allreduce", "device") and "NCCL" in use and p > 1:
        rows = tuple(
            ({"messages": 2.0 * (p - 1), "ramp": math.sqrt(ring), "bytes": ring}, t)
            for n, t in sizes
            if n >= _LEAST_NCCL and (ring := 2 * (p - 1) / p * n)
        )
        yield Microbenchmark(name, "all-reduce [NCCL]", rows)


def gemms_alone(found: MachineMeasurement, source: str) -> Alone | None:
    """Return what a machine's measurement says of the trainer's GEMMs; None if nothing.

    Raises
    ------
    ModelError
        If a product's shapes are those of another network, or no grid of h and k.
    """
    rows: dict[tuple[str, str], tuple[tuple[int, int, float], ...]] = {}
    for p in found.products:
        if p.name not in (*LARGE, *SMALL):
            continue
        sizes = [_sizes(p.name, shape) for shape in zip(p.m, p.n, p.k, strict=True)]
        across = INPUTS if p.name in LARGE else CLASSES
        grid = {(h, k) for h, k, _ in sizes}
        full = len({h for h, _ in grid}) * len({k for _, k in grid})
        widths = {other for *_, other in sizes}
        if widths != {across} or not len(sizes) == len(grid) == full:
            raise ModelError(
                f"{source}: expected GEMMs {p.name!r} ({p.dtype}) of width {across} and every h "
                f"with every k, once; got {len(sizes)} shapes for a grid of {full}, of width "
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
