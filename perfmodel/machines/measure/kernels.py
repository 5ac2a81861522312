"""A program's own kernels, timed by shape: those of a module that it names.

The module has two functions, of which it may leave out one, and imports nothing of perfmodel:

    kernels(hidden, batches)    yields (name, dtype, layout, (m, n, k), call)
    steps(mpi, hidden)          yields (bytes, call), collective over mpi.COMM_WORLD (None: alone)

`call()` queues the kernel once on CuPy's current stream. `trainer/microbenchmarks.py` is such a
module.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.machines.measure.device import Device
from perfmodel.machines.measure.measurement import Found, Products, Series, Spread
from perfmodel.machines.measure.ranks import Ranks

_CALLS: Final = 20
"""Steps of all ranks between two events: each of them waits for the others."""
_HEAD_START_S: Final = 1e-3
"""So long all devices spin while their hosts queue the calls, which take them longer to launch
than to run."""


def of_module(name: str) -> Any:
    """Import a module of kernels.

    Raises
    ------
    PerfmodelError
        If there is none, or it has neither function.
    """
    try:
        found = importlib.import_module(name)
    except ImportError as error:
        raise PerfmodelError(
            f"expected a module of kernels to time; got none called {printable(name)!r} ({error}); "
            "run in the folder that holds it, or set PYTHONPATH"
        ) from error
    if not any(hasattr(found, function) for function in ("kernels", "steps")):
        raise PerfmodelError(
            f"expected {printable(name)} to have kernels(hidden, batches) or steps(mpi, hidden); "
            "got neither; see docs/machines.md"
        )
    return found


def by_shape(device: Device, module: Any, hidden: Sequence[int], batches: Sequence[int]) -> Found:
    """Measure every kernel of a module at every shape, by the device's clock."""
    found: dict[tuple[str, str, str], dict[tuple[int, int, int], Spread]] = {}
    if not hasattr(module, "kernels"):
        return Found()
    for name, dtype, layout, shape, call in module.kernels(hidden, batches):
        found.setdefault((name, dtype, layout), {})[shape] = device.queued(call)
    return Found(products=tuple(Products.of(*key, each) for key, each in found.items()))


def by_size(device: Device, ranks: Ranks, module: Any, hidden: Sequence[int]) -> Found:
    """Measure steps over all parameters, alone or with the sum of all ranks (collective)."""
    if not hasattr(module, "steps"):
        return Found()
    found = {}
    for size, call in module.steps(ranks.mpi if ranks.size > 1 else None, hidden):
        device.wait()
        times = []
        for _ in range(device.repeats + 1):
            ranks.meet()
            call()  # lets all ranks meet on the device
            times.append(device.timed(call, _CALLS, _HEAD_START_S))
        found[size] = Spread.of(ranks.largest(np.array(times))[1:].tolist())
    kind, where = "step", "device"
    return Found(series=(Series.of(kind, where, "all", "device", ranks.size, found),))
