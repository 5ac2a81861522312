"""Microbenchmarks as evidence: what a machine's copies, all-reduces and launches took alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.machines.measure.measurement import MachineMeasurement, Series

GROUPS: Final = ("copies", "MPI", "NCCL", "latency")
"""What of a machine's measurement is evidence: each may be left out."""
IN_A_BATCH: Final = 0.3
"""Relative deviation of a transfer in a batch from the same one alone: where microbenchmarks are
the only evidence, they are believed to this."""
_LARGEST: Final = 16 << 20
"""Bytes: gradients and images of a batch are smaller; larger messages leave the host's caches."""
_LEAST_NCCL: Final = 128 << 10
"""Below it NCCL's time does not depend on the size, which no gradient's is."""
_KERNELS: Final = 14.0
"""Of a batch with cuBLAS."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Times of one part's work alone: all rows together count as one configuration.

    Attributes
    ----------
    source : str
        File and series, for people.
    key : str
        Of the part (`perfmodel.programs.mlp.parts.Part.key`).
    rows : tuple of (mapping of str to float, float)
        Amounts of work, and seconds.
    """

    source: str
    key: str
    rows: tuple[tuple[Mapping[str, float], float], ...]


def from_measurement(
    found: MachineMeasurement, source: str, use: Sequence[str] = GROUPS
) -> tuple[Evidence, ...]:
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
    every: list[Evidence] = []
    for series in found.series:
        every += _of_series(series, source, use)
    empty = found.machine.latency_s.get("empty_kernel")
    if empty is not None and "latency" in use:
        row = ({"kernels": _KERNELS, "NCCL sums": 0.0}, _KERNELS * float(empty))
        every += [
            Evidence(f"{source}: empty kernels behind one another", f"gaps [{how}]", (row,))
            for how in ("queued", "replayed")
        ]
    return tuple(every)


def _of_series(series: Series, source: str, use: Sequence[str]) -> Iterator[Evidence]:
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
                yield Evidence(name, f"{part} [{of}]", rows)
    if series.kind == "mpi_allreduce" and "MPI" in use and p > 1:
        rounds = float(math.ceil(math.log2(p)))
        rows = tuple(({"messages": rounds, "bytes": 2 * (p - 1) / p * n}, t) for n, t in sizes)
        for memory in ("pageable", "pinned"):
            yield Evidence(name, f"all-reduce [MPI, {memory}]", rows)
    if (series.kind, series.clock) == ("nccl_allreduce", "device") and "NCCL" in use and p > 1:
        rows = tuple(
            ({"messages": 2.0 * (p - 1), "ramp": math.sqrt(ring), "bytes": ring}, t)
            for n, t in sizes
            if n >= _LEAST_NCCL and (ring := 2 * (p - 1) / p * n)
        )
        yield Evidence(name, "all-reduce [NCCL]", rows)
