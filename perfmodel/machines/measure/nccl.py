"""All-reduces of the ranks by size over NCCL."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.measure.device import Device
from perfmodel.machines.measure.measurement import Found, Series, Spread
from perfmodel.machines.measure.ranks import CALLS, Ranks, with_bus


class Nccl:
    """NCCL's communicator of all ranks, each with a GPU of its own (collective).

    Raises
    ------
    PerfmodelError
        On all ranks, if NCCL is missing or two ranks share a GPU.
    """

    def __init__(self, device: Device, ranks: Ranks) -> None:
        self._device = device
        identity = b""
        try:
            self._nccl: Any = importlib.import_module("cupy.cuda.nccl")
            given = self._nccl.get_unique_id()
            identity = given if isinstance(given, bytes) else np.array(given, np.int8).tobytes()
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if said := ranks.agree(said):
            raise PerfmodelError(
                f"expected NCCL; got none ({said}); run pip install nvidia-nccl-cu13 (or -cu12)"
            )
        shared: Any = ranks.of_first(identity)
        if not isinstance(given, bytes):  # before CuPy 14
            shared = tuple(np.frombuffer(shared, np.int8).tolist())
        try:
            self._communicator = self._nccl.NcclCommunicator(ranks.size, shared, ranks.rank)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if said := ranks.agree(said):
            raise PerfmodelError(
                f"expected a GPU for each of {ranks.size} ranks; NCCL says: {said}; start "
                "fewer ranks"
            )

    def all_reduce(self, values: Any) -> None:
        """Queue the sum of float32 values over the ranks, in place."""
        pointer, nccl = values.data.ptr, self._nccl
        self._communicator.allReduce(
            pointer, pointer, values.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM,
            self._device.stream.ptr,
        )  # fmt: skip


def over_nccl(device: Device, ranks: Ranks, sizes: tuple[int, ...]) -> Found:
    """Measure ncclAllReduce of float32 by the device's clock and by the host's (collective)."""
    if ranks.size == 1:
        return Found()
    nccl = Nccl(device, ranks)
    queued, waited = {}, {}
    for size in sizes:
        source = device.random(size // 4)
        values = source.copy()
        times = [_queued(device, ranks, nccl, source, values) for _ in range(device.repeats + 1)]
        queued[size] = Spread.of(ranks.largest(np.array(times))[1:].tolist())

        def refill(values: Any = values, source: Any = source) -> None:
            values[...] = source
            device.wait()

        def once(values: Any = values) -> None:
            nccl.all_reduce(values)
            device.wait()

        waited[size] = ranks.slowest(once, device.repeats, prepare=refill)
    by_device = Series.of("nccl_allreduce", "device", "all", "device", ranks.size, queued)
    by_host = Series.of("nccl_allreduce", "device", "all", "host", ranks.size, waited)
    found = with_bus(by_device, "nccl")
    return Found(found.figures, (by_device, by_host))


def _queued(device: Device, ranks: Ranks, nccl: Nccl, source: Any, values: Any) -> float:
    """Return device seconds per sum of some queued ones; one before them lets all ranks meet."""
    values[...] = source
    device.wait()
    ranks.meet()
    nccl.all_reduce(values)
    return device.timed(partial(nccl.all_reduce, values), CALLS)
