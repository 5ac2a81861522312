"""Measures the host's calls: launches, copies, events, waiting, MPI and Python itself.

All are timed on the quietest core that this process may use, as a batch's host is in a good launch:
a core whose second half computes for somebody else runs Python half as fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from perfmodel.machines.measure.device import MEMORY_SOURCE, Device
from perfmodel.machines.measure.measurement import Found, Spread
from perfmodel.machines.measure.ranks import Ranks

ROUNDS: Final = 12_000
"""Of the loop in Python."""
CALLS: Final = 200
"""Calls between two looks at the clock."""
_MOST_CORES: Final = 8


def loop() -> int:
    """Add up the remainders of squares: about half a millisecond of Python, and nothing else."""
    total = 0
    for number in range(ROUNDS):
        total += number * number % 7
    return total


@contextmanager
def quietest_core(ranks: Ranks) -> Iterator[None]:
    """Keep this thread on the core, of this rank's share, on which the loop is fastest."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = sorted(os.sched_getaffinity(0))
    own = allowed[ranks.local_rank % len(allowed) :: ranks.size][:_MOST_CORES]
    timed = []
    for core in own:
        os.sched_setaffinity(0, {core})
        timed.append((Ranks().slowest(loop, 5).median, core))
    os.sched_setaffinity(0, {min(timed)[1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, set(allowed))


def python_calls(ranks: Ranks, repeats: int) -> Found:
    """Measure a fixed piece of Python, and a sum of one number by MPI over this rank alone."""
    with quietest_core(ranks):
        figures = {
            "python": Ranks().slowest(loop, repeats).figure(f"host, {ROUNDS} rounds of a loop")
        }
        if ranks.mpi is not None:
            one = np.zeros(1, np.float32)
            call = partial(ranks.mpi.COMM_SELF.Allreduce, ranks.mpi.IN_PLACE, one)
            figures["mpi_call"] = _per_call(call, repeats).figure(
                "host, per MPI_Allreduce of one number over one rank"
            )
    return Found({("latency_s", key): figure for key, figure in figures.items()})


def device_calls(device: Device, ranks: Ranks) -> Found:
    """Measure the host's time per call of the CUDA library and driver, the device idle or ahead."""
    cupy, stream = device.cupy, device.stream
    kernel = cupy.RawKernel(MEMORY_SOURCE, "nothing")
    event = cupy.cuda.Event(disable_timing=True)
    there = cupy.empty(1, np.float32)
    pinned = cupy.cuda.alloc_pinned_memory(4)
    runtime = cupy.cuda.runtime
    copy = partial(
        runtime.memcpyAsync, there.data.ptr, pinned.ptr, 4, runtime.memcpyHostToDevice, stream.ptr
    )

    def trip() -> None:
        kernel((1,), (1,), ())
        stream.synchronize()

    calls: dict[str, tuple[Callable[[], Any], str]] = {
        "launch": (partial(kernel, (1,), (1,), ()), "per CuPy RawKernel launch"),
        "launch_and_wait": (trip, "launch to its end"),
        "copy_call": (copy, "per cudaMemcpyAsync of 4 B from pinned memory"),
        "synchronize": (stream.synchronize, "per cudaStreamSynchronize of an idle stream"),
        "event_record": (partial(event.record, stream), "per cudaEventRecord"),
    }
    with quietest_core(ranks):
        found = {
            key: _per_call(call, device.repeats, device.wait).figure(f"host, {how}")
            for key, (call, how) in calls.items()
        }
    found["empty_kernel"] = device.queued(partial(kernel, (1,), (1,), ())).figure(
        "device, per empty kernel behind another"
    )
    return Found({("latency_s", key): figure for key, figure in found.items()})


def driver_launch(device: Device, ranks: Ranks) -> Found:
    """Measure the host's time per cuLaunchKernel, without the library above it."""
    kernel = device.cupy.RawKernel(MEMORY_SOURCE, "nothing").kernel.ptr
    launch = device.cupy.cuda.driver.launchKernel
    call = partial(launch, kernel, 1, 1, 1, 1, 1, 1, 0, device.stream.ptr, 0, 0)
    with quietest_core(ranks):
        found = _per_call(call, device.repeats, device.wait)
    return Found({("latency_s", "driver_launch"): found.figure("host, per cuLaunchKernel")})


def _per_call(
    call: Callable[[], Any], repeats: int, prepare: Callable[[], Any] = lambda: None
) -> Spread:
    """Return the host's seconds per call of `CALLS` in a row."""
    return Ranks().slowest(call, repeats, calls=CALLS, prepare=prepare)
