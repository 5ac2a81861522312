"""Predicts the times of benchmarks.vecadd from a machine's bandwidths and two latencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.vecadd.ways import SECTOR, THREADS
from perfmodel.machines.machine import Machine

READ: Final = 8
WRITTEN: Final = 4
"""Bytes of an addition: two float32 read, one written."""

KEYS: Final = {
    "kernel": ("hbm_triad", "hbm"),
    "copy_in": ("pcie_h2d_pageable", "pcie"),
    "copy_out": ("pcie_d2h_pageable", "pcie"),
    "migration": ("pcie_h2d", "pcie"),
}
"""Bandwidths by what they bound: as measured, else the datasheet's."""


def bandwidth(machine: Machine, part: str) -> float | None:
    """Return bytes per second, or None if the machine has no such link."""
    known = machine.bandwidth_bytes_per_s
    return next((known[key] for key in KEYS[part] if key in known), None)


def over(size_bytes: float, bytes_per_s: float | None) -> float | None:
    """Return the seconds of a copy, or None without a bandwidth."""
    return None if bytes_per_s is None else size_bytes / bytes_per_s


def kernel_s(
    machine: Machine, way: str, n: int, latency_s: Mapping[str, float] | None
) -> float | None:
    """Predict a kernel whose data are in the GPU's memory.

    grid    the bytes over the bandwidth of memory, and a launch where it is known
    thread  two loads together, then an addition and a store that the next loads may not pass:
            of eight floats, which are one sector of 32 bytes, one waits for memory and seven for L1
    block   8 warps that each load four new sectors a time: every round waits for memory once

    None where a bandwidth or the latencies are not known.
    """
    if way == "grid":
        moved_s = over((READ + WRITTEN) * n, bandwidth(machine, "kernel"))
        return None if moved_s is None else moved_s + machine.latency_s.get("launch", 0.0)
    if latency_s is None:
        return None
    if way == "thread":
        return n / SECTOR * (latency_s["memory_s"] + (SECTOR - 1) * latency_s["l1_s"])
    return n / THREADS * latency_s["memory_s"]


def predicted(
    machine: Machine, memory: str, way: str, n: int, latency_s: Mapping[str, float] | None
) -> dict[str, float | None]:
    """Predict the parts of a row that a bandwidth or a latency bounds, by their names there.

    A kernel that pages arrive for takes at least as long as what it reads takes over PCIe, and as
    long as it would with its data there.
    """
    kernel = kernel_s(machine, way, n, latency_s)
    if memory == "explicit":
        return {
            "copy_in_s": over(READ * n, bandwidth(machine, "copy_in")),
            "kernel_s": kernel,
            "copy_out_s": over(WRITTEN * n, bandwidth(machine, "copy_out")),
        }
    arrival = over(READ * n, bandwidth(machine, "migration"))
    first = None if kernel is None or arrival is None else max(kernel, arrival)
    return {"kernel_s": first, "second_kernel_s": kernel}
