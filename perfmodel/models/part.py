"""One part of a batch: what it does, on whose clock, and how much of it there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.programs.mlp.case import Case

Clock = Literal["host", "gpu"]
Route = Literal["blocking", "queued", "replayed"]

D2H: Final = "cudaMemcpyDeviceToHost"
H2D: Final = "cudaMemcpyHostToDevice"
REDUCE: Final = "MPI_Allreduce"
BETWEEN: Final = "between ranges"

DERIVED: Final = ("gaps", "slowest rank")
"""Parts that no clock tells: what is left of a batch beyond the side that sets its pace."""

BOUNDS: Final[Mapping[str, str]] = {
    "batches": "host",
    "spilled": "host",
    "paged": "host",
    "launches": "host",
    "kernels": "launch latency",
    "copies": "link latency",
    "messages": "link latency",
    "bytes": "link bandwidth",
    "moved": "memory",
    "flops": "compute",
    "tail": "compute",
    "alone": "compute",
    "ramp": "link bandwidth",
    "slower": "host",
    "NCCL sums": "link latency",
}
"""What a part is bound by when most of its time is this amount's."""

UNITS: Final[Mapping[str, str]] = {
    "batches": "s",
    "spilled": "s/B^0.5",
    "paged": "s",
    "launches": "s/launch",
    "kernels": "s/kernel",
    "copies": "s/copy",
    "messages": "s/message",
    "bytes": "s/B",
    "moved": "s/B",
    "flops": "s/FLOP",
    "tail": "s/FLOP^0.5",
    "alone": "s/s",
    "ramp": "s/B^0.5",
    "slower": "s/sd",
    "NCCL sums": "s/sum",
}
"""Unit of an amount's coefficient."""


@dataclass(frozen=True, slots=True)
class Part:
    """One term of a batch: seconds = sum of coefficients times amounts.

    Attributes
    ----------
    name : str
        What it does; parts of one name and `group` share their coefficients.
    group : str
        What it does it with: a kind of memory, a library, a transport.
    phase : str
        The NVTX range whose time it is part of.
    clock : {'host', 'gpu'}
    amounts : mapping of str to float
        Keys of `UNITS`.
    """

    name: str
    group: str
    phase: str
    clock: Clock
    amounts: Mapping[str, float]

    @property
    def key(self) -> str:
        """Name in a model's file."""
        return f"{self.name} [{self.group}]"


def route(case: Case) -> Route:
    """How the host and the GPU take turns: the host waits for the GPU, queues, or replays."""
    s = case.settings
    if case.workload is not None:
        return "queued"
    if s["graph"] == "yes":
        return "replayed"
    return "queued" if s["transport"] in ("nccl", "peer", "none") else "blocking"
