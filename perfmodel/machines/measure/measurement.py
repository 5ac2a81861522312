"""What was measured of a machine: ceilings with their spread, and series by size and by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perfmodel.machines.link import Link
from perfmodel.machines.machine import Figure, Machine

KINDS: Final = ("copy", "mpi_allreduce", "nccl_allreduce")
MEMORIES: Final = ("pinned", "pageable", "host", "device")
DIRECTIONS: Final = ("h2d", "d2h", "all")
CLOCKS: Final = ("host", "device")
LAYOUTS: Final = ("nn", "nt", "tn")
DTYPES: Final = ("float64", "float32", "tf32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repeats.

    Attributes
    ----------
    median, q1, q3 : float
        In the unit of what was repeated; seconds where nothing else is said.
    repeats : int
    """

    median: float
    q1: float
    q3: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        q1, median, q3 = (
            float(q) for q in np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
        )
        return cls(median, q1, q3, len(values))

    def rate(self, amount: float, how: str) -> Figure:
        """Return `amount` per second of these seconds as a figure; the quartiles change places."""
        return Figure(amount / self.median, how, amount / self.q3, amount / self.q1, self.repeats)

    def figure(self, how: str) -> Figure:
        """Return the value itself as a figure."""
        return Figure(self.median, how, self.q1, self.q3, self.repeats)


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds by size of one kind of transfer.

    Attributes
    ----------
    kind : {'copy', 'mpi_allreduce', 'nccl_allreduce'}
    memory : {'pinned', 'pageable', 'host', 'device'}
        Kind of host memory of a copy; where an all-reduce's buffers are.
    direction : {'h2d', 'd2h', 'all'}
        'all' for an all-reduce, in which everyone sends and receives.
    clock : {'host', 'device'}
        'host': one call, until it is done, as the host sees it. 'device': CUDA events around calls
        that were queued together, per call.
    ranks : int
        Ranks that did the same at the same time; the slowest of them counts in every repeat.
    bytes : tuple of int
        Sizes, rising.
    median_s, q1_s, q3_s : tuple of float
        Seconds by size.
    repeats : int
    """

    kind: str
    memory: str
    direction: str
    clock: str
    ranks: int
    bytes: tuple[int, ...]
    median_s: tuple[float, ...]
    q1_s: tuple[float, ...]
    q3_s: tuple[float, ...]
    repeats: int

    @classmethod
    def of(
        cls, kind: str, memory: str, direction: str, clock: str, ranks: int,
        found: Mapping[int, Spread],
    ) -> Series:  # fmt: skip
        """Return a series from the spread at every size."""
        sizes = sorted(found)
        spreads = [found[size] for size in sizes]
        return cls(
            kind, memory, direction, clock, ranks, tuple(sizes),
            tuple(s.median for s in spreads), tuple(s.q1 for s in spreads),
            tuple(s.q3 for s in spreads), min(s.repeats for s in spreads),
        )  # fmt: skip

    @property
    def best_bytes_per_s(self) -> float:
        """The highest rate at any size."""
        return max(n / t for n, t in zip(self.bytes, self.median_s, strict=True))

    def line(self) -> Link | None:
        """Fit t = alpha + n beta; the relative errors are made small, so every size counts alike.

        None for less than three sizes, and where the line would have a negative time in it.
        """
        if len(self.bytes) < 3:
            return None
        seconds = np.array(self.median_s)
        rows = np.stack([np.ones(len(seconds)), np.array(self.bytes, float)], axis=1)
        (alpha, beta), *_ = np.linalg.lstsq(rows / seconds[:, None], np.ones(len(seconds)))
        return Link(float(alpha), float(beta)) if alpha >= 0 and beta > 0 else None


@dataclass(frozen=True, slots=True)
class Products:
    """Seconds of matrix products (m, k) x (k, n) -> (m, n) by shape.

    Attributes
    ----------
    name : str
        What the shapes are: 'square', or a product of the trainer such as 'forward 1'.
    dtype : {'float64', 'float32', 'tf32', 'float16', 'bfloat16'}
        'tf32': float32 matrices whose factors are rounded for the tensor cores; 'float32' is IEEE.
    layout : {'nn', 'nt', 'tn'}
        Which factor, the first or the second, is a transposed view of a row-major matrix.
    m, n, k : tuple of int
    median_s, q1_s, q3_s : tuple of float
    repeats : int
    """

    name: str
    dtype: str
    layout: str
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    median_s: tuple[float, ...]
    q1_s: tuple[float, ...]
    q3_s: tuple[float, ...]
    repeats: int

    @classmethod
    def of(
        cls, name: str, dtype: str, layout: str, found: Mapping[tuple[int, int, int], Spread]
    ) -> Products:
        """Return products from the spread at every shape (m, n, k)."""
        spreads = list(found.values())
        m, n, k = (tuple(shape[i] for shape in found) for i in range(3))
        return cls(
            name, dtype, layout, m, n, k, tuple(s.median for s in spreads),
            tuple(s.q1 for s in spreads), tuple(s.q3 for s in spreads),
            min(s.repeats for s in spreads),
        )  # fmt: skip

    @property
    def flops_per_s(self) -> tuple[float, ...]:
        """2 m n k FLOPs over the seconds, by shape."""
        shapes = zip(self.m, self.n, self.k, self.median_s, strict=True)
        return tuple(2 * m * n * k / t for m, n, k, t in shapes)


@dataclass(frozen=True, slots=True)
class Found:
    """What one part of a measurement found.

    Attributes
    ----------
    figures : mapping
        By section of the file and key: ('bandwidth_bytes_per_s', 'hbm').
    """

    figures: Mapping[tuple[str, str], Figure] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    products: tuple[Products, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineMeasurement:
    """The empirical ceilings of one machine, and how they were measured.

    Attributes
    ----------
    machine : Machine
        The same as of a datasheet: what is not measured is absent.
    gpus, cpus : tuple of str
        Names as the system reports them; without a GPU the ceilings are the CPU's.
    date, command : str
        When (ISO 8601, UTC) and how.
    ranks, cores : int
        MPI ranks, and cores that the first of them may use.
    versions : mapping
        Of Python, the driver, CUDA, CuPy, MPI, NCCL: those there were.
    series, products : tuple
    elapsed_s : mapping
        Seconds by part.
    warnings : tuple of str
        Parts that are missing and why.
    """

    machine: Machine
    gpus: tuple[str, ...]
    cpus: tuple[str, ...]
    date: str
    command: str
    ranks: int
    cores: int
    versions: Mapping[str, str]
    series: tuple[Series, ...] = ()
    products: tuple[Products, ...] = ()
    elapsed_s: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
