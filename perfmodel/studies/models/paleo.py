"""Paleo: the time of every layer at a percentage of the platform's peaks, and of the exchange.

Source: H. Qi, E. R. Sparks, A. Talwalkar, *Paleo: A Performance Model for Deep Neural Networks*,
ICLR 2017, and its program (github.com/TalwalkarLab/paleo, `profilers/flops_profiler.py`): a layer
reads its inputs, computes, and writes its output, one after the other,

    T = R + C + W = bytes / (PPP bandwidth) + FLOPs / (PPP peak),

where PPP, the platform percent of peak, is what a program reaches of both. Its program can also let
the two overlap: max(C, R + W). Where this differs from Paleo: every layer that moves bytes counts,
not convolutions, fully connected layers and pools only, and the update is one of SGD with momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Link, Machine
from perfmodel.studies.models.collectives import Cost as Exchanged
from perfmodel.studies.models.collectives import cost
from perfmodel.workloads.layers import Cost, Net, Placed, costs

_COSTS: Final[Mapping[str, Callable[[float, int], Exchanged]]] = {
    # one rank takes everybody's gradients and gives everybody the sum
    "OneToAll": lambda n, p: Exchanged(2 * (p - 1), 2.0 * (p - 1) * n, (p - 1.0) * n),
    # up a binary tree and down again
    "tree": lambda n, p: Exchanged(
        2 * (down := cost("broadcast", n, p)).messages, 2 * down.sent_bytes, down.sent_bytes
    ),
    # everybody exchanges everything with a partner, L times
    "butterfly": lambda n, p: cost("all-reduce", n, p, "recursive doubling"),
    # not one of Paleo's, which NCCL uses
    "ring": lambda n, p: cost("all-reduce", n, p, "ring"),
}
SCHEMES: Final = tuple(_COSTS)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One scheme's exchange after a step.

    Attributes
    ----------
    cost : Exchanged
        Messages and bytes of the busiest rank.
    seconds : float
    efficiency : float
        The step alone over step and exchange, one after the other: what p ranks do together over
        p times what one does (weak scaling).
    """

    scheme: str
    cost: Exchanged
    seconds: float
    efficiency: float


def exchange(scheme: str, size_bytes: float, ranks: int) -> Exchanged:
    """Count the messages and bytes of the busiest rank, which Paleo takes for the time.

    Source: Qi et al. (ICLR 2017), and `comm.py` of its program; L = ceil(log2 p) rounds:
    OneToAll 2 (p-1) n, TreeAllReduce 2 L n, ButterflyAllReduce L n; ring 2 (p-1)/p n.

    Raises
    ------
    ModelError
        If there is no such scheme, or a number is out of range.

    Examples
    --------
    >>> exchange("tree", 1000, 8).sent_bytes
    6000
    """
    if scheme not in _COSTS:
        raise ModelError(f"expected a scheme among {', '.join(SCHEMES)}; got {scheme!r}; take one")
    cost("broadcast", size_bytes, ranks)  # refuses what cannot be
    return _COSTS[scheme](size_bytes, ranks)


def exchanges(size_bytes: float, ranks: int, link: Link, step_s: float) -> tuple[Exchange, ...]:
    """Return all schemes for gradients of `size_bytes` after a step of `step_s` seconds."""
    found = []
    for scheme in SCHEMES:
        counted = exchange(scheme, size_bytes, ranks)
        seconds = counted.seconds(link)
        found.append(Exchange(scheme, counted, seconds, step_s / (step_s + seconds)))
    return tuple(found)


PEAKS: Final[Mapping[str, tuple[str, ...]]] = {
    "float64": ("float64",),
    "float32": ("float32",),
    "tf32": ("tf32_tensor",),
    "float16": ("float16_tensor", "float16"),
    "bfloat16": ("bfloat16_tensor",),
    "float8": ("float8_tensor",),
}
"""Peaks of the products of a data type, of which the first counts that a machine has."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A machine's peak for one data type, its memory bandwidth, and what is reached of both.

    Attributes
    ----------
    peak : str
        Key of the peak, such as 'float32' or 'tf32_tensor'.
    ppp : float
        Platform percent of peak as a fraction of one.
    """

    name: str
    peak: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    ppp: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ppp) and self.ppp > 0):
            raise ModelError(
                f"expected a platform percent of peak above 0; got {self.ppp}: give it as a "
                f"fraction, such as 0.5"
            )

    def compute_s(self, flops: float) -> float:
        """Return FLOPs / (PPP peak)."""
        return flops / (self.ppp * self.peak_flops_per_s)

    def memory_s(self, size_bytes: float) -> float:
        """Return bytes / (PPP bandwidth)."""
        return size_bytes / (self.ppp * self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a training step by pass; forward alone is inference."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.forward_s + other.forward_s,
            self.backward_s + other.backward_s,
            self.update_s + other.update_s,
        )

    @property
    def training_s(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer, what it costs, and the time of that.

    Attributes
    ----------
    times : Times
        Paleo's sum of reading, computing and writing.
    overlapped : Times
        The longer of computing and moving bytes: the least it can take at this PPP.
    bound : str
        'compute' or 'memory': the longer of the two in the forward pass.
    """

    layer: Placed
    cost: Cost
    times: Times
    overlapped: Times
    bound: str


def platform(machine: Machine, dtype: str = "float32", ppp: float = 1.0) -> Platform:
    """Return a machine as Paleo sees it.

    Raises
    ------
    ModelError
        If the machine has no peak of `dtype` or no memory bandwidth, or PPP is not above 0.
    """
    if dtype not in PEAKS:
        raise ModelError(f"expected a data type among {', '.join(PEAKS)}; got {dtype!r}; take one")
    peaks, links = machine.peak_flops_per_s, machine.bandwidth_bytes_per_s
    peak = next((key for key in PEAKS[dtype] if key in peaks), None)
    link = next((key for key in ("hbm", "dram") if key in links), None)
    if peak is None or link is None:
        raise ModelError(
            f"expected {machine.name}'s peak of {dtype} and its memory bandwidth; got peaks of "
            f"{', '.join(peaks) or 'nothing'} and rates of {', '.join(links) or 'nothing'}: take "
            f"another --dtype, or add the figure to its file in perfmodel/machines"
        )
    return Platform(machine.name, peak, peaks[peak], links[link], ppp)


def layer_times(
    net: Net, where: Platform, batch: int = 1, element_bytes: int = 4
) -> tuple[LayerTime, ...]:
    """Return every layer with its cost and its time on a platform.

    Raises
    ------
    WorkloadError
        If the batch is not positive, or the network's shapes do not fit.
    """
    return tuple(_timed(x, c, where) for x, c in costs(net, batch, element_bytes))


def step(
    net: Net, where: Platform, batch: int = 1, element_bytes: int = 4, *, overlapped: bool = False
) -> Times:
    """Return the time of all layers, one after the other: the step of one GPU, no exchange."""
    found = layer_times(net, where, batch, element_bytes)
    return sum((x.overlapped if overlapped else x.times for x in found), Times())


def fit_ppp(at_peak_s: float, measured_s: float) -> float:
    """Return the platform percent of peak: the time at the peaks over the measured one.

    All of Paleo's time is proportional to 1 / PPP, so one measurement fits it. Above one, caches
    or an algorithm with fewer operations did what the model thinks memory or products must do.

    Raises
    ------
    ModelError
        If a time is not above 0.

    Examples
    --------
    >>> fit_ppp(at_peak_s=2.0, measured_s=5.0)
    0.4
    """
    if not (at_peak_s > 0 and measured_s > 0 and math.isfinite(measured_s)):
        raise ModelError(
            f"expected two times above 0 s to fit the percent of peak; got {at_peak_s} s at the "
            f"peaks and {measured_s} s measured: give the median time of a step"
        )
    return at_peak_s / measured_s


def _timed(x: Placed, cost: Cost, where: Platform) -> LayerTime:
    compute = (where.compute_s(cost.forward_flops), where.compute_s(cost.backward_flops), 0.0)
    sizes = (cost.forward_bytes, cost.backward_bytes, cost.update_bytes)
    memory = tuple(map(where.memory_s, sizes))
    sums = (c + m for c, m in zip(compute, memory, strict=True))
    bound = "compute" if compute[0] > memory[0] else "memory"
    return LayerTime(x, cost, Times(*sums), Times(*map(max, compute, memory)), bound)
