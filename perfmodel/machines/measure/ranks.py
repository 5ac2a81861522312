"""The MPI ranks a measurement runs on, and their all-reduces by size over MPI."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.machine import bus_bytes_per_s
from perfmodel.machines.measure.measurement import Found, Series, Spread

T = TypeVar("T")

_LAUNCHED: Final = (
    "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS",
)  # fmt: skip
_REST_S: Final = 0.01


class Ranks:
    """The ranks of one run; without MPI a single one.

    Attributes
    ----------
    rank, size, local_rank : int
    """

    def __init__(self, mpi: Any = None) -> None:
        self.mpi = mpi
        self.rank, self.size, self.local_rank = 0, 1, 0
        if mpi is not None:
            self._all = mpi.COMM_WORLD
            self.rank, self.size = self._all.Get_rank(), self._all.Get_size()
            host = self._all.Split_type(mpi.COMM_TYPE_SHARED)
            self.local_rank = host.Get_rank()
            host.Free()

    def rest(self) -> None:
        """Be a barrier that sleeps, so that who measures alone has the machine."""
        if self.size > 1:
            request = self._all.Ibarrier()
            while not request.Test():
                time.sleep(_REST_S)

    def meet(self) -> None:
        """Wait for all ranks (MPI_Barrier)."""
        if self.size > 1:
            self._all.Barrier()

    def agree(self, said: str) -> str:
        """Return what the lowest rank says that says anything; '' if all are silent."""
        if self.size == 1:
            return said
        first = np.array([self.rank if said else self.size], np.int32)
        self._all.Allreduce(self.mpi.IN_PLACE, first, self.mpi.MIN)
        return "" if first[0] == self.size else str(self._all.bcast(said, int(first[0])))

    def of_first(self, value: T) -> T:
        """Return what the first rank has."""
        return self._all.bcast(value, 0) if self.size > 1 else value

    def sum_in_place(self, values: np.ndarray) -> None:
        """Replace an array by its sum over the ranks (MPI_Allreduce)."""
        self._all.Allreduce(self.mpi.IN_PLACE, values)

    def slowest(
        self, call: Callable[[], Any], repeats: int, *, calls: int = 1,
        prepare: Callable[[], Any] = lambda: None,
    ) -> Spread:  # fmt: skip
        """Return host seconds per call, of the slowest rank in every repeat (collective).

        Before every repeat `prepare` runs, then all ranks meet; the first repeat warms up.
        """
        seconds = np.empty(repeats + 1)
        for i in range(repeats + 1):
            prepare()
            self.meet()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            seconds[i] = (time.perf_counter() - began) / calls
        return Spread.of(self.largest(seconds)[1:].tolist())

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the largest of every rank's element, by element (collective)."""
        if self.size > 1:
            self._all.Allreduce(self.mpi.IN_PLACE, values, self.mpi.MAX)
        return values

    def abort(self, code: int) -> None:
        """End every rank with an exit code (MPI_Abort)."""
        self._all.Abort(code)

    def library(self) -> str | None:
        """Return the MPI library's first line about itself; None without MPI."""
        if self.mpi is None:
            return None
        return str(self.mpi.Get_library_version()).split("\n")[0].split(",")[0].strip("\x00 ")


def connect(environment: Mapping[str, str] | None = None) -> Ranks:
    """Join the ranks that mpirun or srun started; a single rank where none of them did.

    Raises
    ------
    PerfmodelError
        If a launcher started ranks and mpi4py or its MPI library is missing.
    """
    env = os.environ if environment is None else environment
    if not any(name in env for name in _LAUNCHED):
        return Ranks()
    flags = sys.getdlopenflags()
    try:
        # nsys finds MPI's symbols in the global scope only
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
        return Ranks(importlib.import_module("mpi4py.MPI"))
    except (ImportError, RuntimeError) as error:
        raise PerfmodelError(
            f"started by an MPI launcher: expected mpi4py; got {error}; run pip install mpi4py "
            "beside the MPI library whose mpirun you use"
        ) from error
    finally:
        sys.setdlopenflags(flags)


_SMALL_BYTES: Final = 1 << 18
CALLS: Final = 10
"""Calls between two looks at the clock, of small messages."""


def over_mpi(ranks: Ranks, sizes: tuple[int, ...], repeats: int) -> Found:
    """Measure MPI_Allreduce of float32 on host memory, in place (collective)."""
    if ranks.size == 1:
        return Found()
    found = {}
    for size in sizes:
        source = np.random.default_rng(ranks.rank).standard_normal(size // 4).astype(np.float32)
        values = np.empty_like(source)
        refill = partial(np.copyto, values, source)  # sums of sums would overflow
        reduce = partial(ranks.sum_in_place, values)
        calls = CALLS if size <= _SMALL_BYTES else 1
        found[size] = ranks.slowest(reduce, repeats, calls=calls, prepare=refill)
    return with_bus(Series.of("mpi_allreduce", "host", "all", "host", ranks.size, found), "mpi")


def with_bus(series: Series, name: str) -> Found:
    """Return a series with its bus bandwidth (nccl-tests, doc/PERFORMANCE.md) at the best size."""
    best = max(range(len(series.bytes)), key=lambda i: series.bytes[i] / series.median_s[i])
    size = series.bytes[best]
    how = f"{series.kind}, {size} B over {series.ranks} ranks"
    per_second = bus_bytes_per_s("all-reduce", size, 1.0, series.ranks)
    figure = series.at(best).rate(per_second, how)
    return Found({("bandwidth_bytes_per_s", f"{name}_bus"): figure}, (series,))
