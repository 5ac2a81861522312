"""Time that kernels take beyond their ceilings, and what a step takes less without it."""

from typing import Final

from perfmodel.findings import Facts, StepFacts, si
from perfmodel.programs.facts import OperatorRow

LARGEST: Final = 3
"""Operators that a finding names, or of which each has one."""

OF_PEAK: Final = 0.8
"""Share of a unit's dense peak that large GEMMs reach: 0.76 to 0.80 (docs/machines.md)."""

OF_HBM: Final = 0.85
"""Share of the memory's bandwidth that a triad reaches (docs/machines.md)."""


def limited(gpu_s: float, facts: Facts, steps: StepFacts) -> tuple[float, str]:
    """Return what a step takes less where its kernels do, and why that may be less of it."""
    most_s = steps.saved_s("kernel")
    if gpu_s <= most_s:
        return gpu_s, ""
    slowed = " (recording sizes slows it down)" if facts.sizes_recorded else ""
    return (
        most_s,
        f"; the GPU would save {si(gpu_s, 's')}, but then the host limits the step{slowed}",
    )


def reachable(o: OperatorRow) -> float:
    """Share of its ceiling that an operator can reach."""
    return OF_PEAK if o.bound == "compute" else OF_HBM


def recoverable_s(o: OperatorRow) -> float:
    """Return what an operator takes more than at the share of its ceiling that can be reached.

    Where memory bounds it, without the bytes that fusing saves.
    """
    fused = (o.fusible_bytes or 0.0) / o.bytes if o.bound == "memory" and o.bytes else 0.0
    return max(o.gpu_s - (1.0 - fused) * o.least_s / reachable(o), 0.0)
