"""A step as a host that launches, a GPU that computes and a stream that communicates.

The host launches one call after the other; a kernel starts when it is launched and the one before
it is done; a collective starts when it is launched, the collective before it is done and, where it
sends what was computed, the kernels before it are done. Steps follow each other without waiting,
as in a training loop, so that the slower lane sets the time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

_LATENCY_S: Final = 5e-6
"""From a call's launch to its kernel's start on an idle GPU."""
_STEPS: Final = 5
_HOSTS: Final = (0.1, 10.0)
"""Hosts are looked for that take so many times as long."""
_HALVINGS: Final = 16
_INFORMS: Final = 1.03
"""A step that the GPU alone would set to within this factor says nothing of the host: steps that
are repeated differ by as much."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a step.

    Attributes
    ----------
    host_s : float
        What the host takes to launch it.
    gpu_s : float
        On the stream of its lane.
    launches : int
        Operations, between which there is a gap.
    collective : str
        '' for computing; else 'gather' if what follows waits for it, 'reduce' if only `joins` do.
    joins : bool
        Whether it waits for all collectives before it, as an optimizer does.
    waits : bool
        Whether the host waits for the GPU before it launches it.
    """

    host_s: float
    gpu_s: float
    launches: int = 1
    collective: str = ""
    joins: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """The time of a step.

    Attributes
    ----------
    step_s : float
    host_s, gpu_s, communication_s : float
        Work of each lane.
    exposed_s : float
        Of the step, what it would be shorter by without collectives.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"step_s": "", "exposed_s": "exposed_communication_s"}

    step_s: float
    host_s: float
    gpu_s: float
    communication_s: float
    exposed_s: float


def lanes(operations: Sequence[Operation], gap_s: float, contention: float = 0.0) -> Lanes:
    """Simulate steps of these operations.

    Parameters
    ----------
    operations : sequence of Operation
        In the order in which the host launches them.
    gap_s : float
        Between two operations of the GPU.
    contention : float
        Share by which a kernel takes longer during a collective.

    Examples
    --------
    >>> round(lanes([Operation(1e-3, 2e-3), Operation(1e-3, 3e-3)], 0.0).step_s, 6)
    0.005
    """
    whole = _step_s(operations, gap_s, contention)
    computing = [o for o in operations if not o.collective]
    talking = len(computing) < len(operations)
    quiet = [
        Operation(o.host_s, 0.0, 0, waits=o.waits) if o.collective else o for o in operations
    ] if talking else operations  # fmt: skip
    alone = _step_s(quiet, gap_s, 0.0) if talking else whole
    return Lanes(
        step_s=whole,
        host_s=sum(o.host_s for o in operations),
        gpu_s=sum(o.gpu_s + gap_s * o.launches for o in computing),
        communication_s=sum(o.gpu_s for o in operations if o.collective),
        exposed_s=max(whole - alone, 0.0),
    )


def host_factor(
    operations: Sequence[Operation], gap_s: float, contention: float, step_s: float
) -> float | None:
    """By how much the host must take longer for a step to take so long.

    None where the GPU sets the step, so that it says nothing of the host.

    Examples
    --------
    >>> round(host_factor([Operation(1e-3, 1e-4)], 0.0, 0.0, 2e-3), 3)
    2.0
    >>> host_factor([Operation(1e-3, 2e-3)], 0.0, 0.0, 2e-3) is None
    True
    """

    def at(factor: float) -> float:
        slower = [replace(o, host_s=o.host_s * factor) for o in operations]
        return _step_s(slower, gap_s, contention)

    low, high = _HOSTS
    if at(low) * _INFORMS >= step_s:
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if at(middle) < step_s else (low, middle)
    return math.sqrt(low * high)


def _step_s(operations: Sequence[Operation], gap_s: float, contention: float) -> float:
    """Time from the end of one step to that of the next, when they follow each other."""
    host = gpu = wire = 0.0
    ends = []
    busy: list[tuple[float, float]] = []
    for _ in range(_STEPS):
        for o in operations:
            host = (max(host, gpu, wire) if o.waits else host) + o.host_s
            ready = host + _LATENCY_S
            if o.collective:
                begin = max(wire, ready, gpu if o.collective == "reduce" else 0.0)
                wire = begin + o.gpu_s
                busy.append((begin, wire))
                gpu = max(gpu, wire) if o.collective == "gather" else gpu
                continue
            begin = max(gpu, ready, wire if o.joins else 0.0)
            end = begin + o.gpu_s + gap_s * o.launches
            gpu = end + contention * _beside(busy, begin, end) if contention else end
        ends.append(max(host, gpu))
        busy = busy[-64:]
    return ends[-1] - ends[-2]


def _beside(busy: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Time of an interval in which a collective runs."""
    return sum(max(min(end, b) - max(begin, a), 0.0) for a, b in busy[-4:])
