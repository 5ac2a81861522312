"""What is predicted: a case, the parts of its batch, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

import numpy as np

Clock = Literal["host", "gpu"]
Role = Literal["", "launches", "computes", "waits", "follows", "optional"]
Route = Literal["blocking", "queued", "replayed"]
"""How the host and the GPU take turns: the host waits for the GPU, queues, or replays a graph."""

BETWEEN: Final = "between ranges"
"""Phase of what lies between the ranges of a batch."""

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
    role : {'', 'launches', 'computes', 'waits', 'follows', 'optional'}
        Where the host waits for the GPU: parts that launch kernels, these kernels, the part in
        which the host waits for them, and those at the end of the batch. 'optional' takes no time
        in some runs.
    """

    name: str
    group: str
    phase: str
    clock: Clock
    amounts: Mapping[str, float]
    role: Role = ""

    @property
    def key(self) -> str:
        """Name in a model's file."""
        return f"{self.name} [{self.group}]"


class Case(Protocol):
    """One run of a program: its sizes and settings, and the parts of its batch."""

    @property
    def workload(self) -> str:
        """Name of the workload that a model is calibrated for."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Values of the workload's symbols."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What else changes the time of a batch, by name."""

    @property
    def key(self) -> tuple[tuple[str, object], ...]:
        """What two launches of one configuration share."""

    @property
    def label(self) -> str:
        """A short name for people."""

    @property
    def route(self) -> Route:
        """How the host and the GPU take turns."""

    @property
    def command(self) -> str:
        """How the program is run."""

    def parts(self, alone: Alone | None = None) -> tuple[Part, ...]:
        """Return the parts of one rank's batch in the order in which they run.

        GEMMs that were measured alone have those seconds as their amounts.
        """

    def resized(self, sizes: Mapping[str, int]) -> Self:
        """Return the case with other sizes, those that are given."""


@dataclass(frozen=True)
class Observation:
    """One launch of one case: medians over the batches after the warm-up, in seconds.

    Attributes
    ----------
    source : str
        File name of the report.
    batch_s : float
        Median host time of a batch; to the end of its GPU work where the host only queues.
    parts : mapping of str to float
        Seconds by `Part.key`, of the parts that the report tells.
    phases : mapping of str to float
        Seconds by NVTX range along the critical path: of the rank that reaches the all-reduce
        last, without the ranges inside.
    batches : int
        Batches behind the medians.
    """

    source: str
    case: Case
    batch_s: float
    parts: Mapping[str, float]
    phases: Mapping[str, float]
    batches: int


@dataclass(frozen=True)
class Alone:
    """Device seconds of GEMMs by two sizes, from microbenchmarks.

    Attributes
    ----------
    source : str
        The microbenchmarks' file.
    seconds : mapping
        By (name of the GEMM, data type): rows (h, k, seconds).
    kernel_s : float
        What a queued kernel takes that does nothing: it is part of every row.
    """

    source: str
    seconds: Mapping[tuple[str, str], tuple[tuple[int, int, float], ...]]
    kernel_s: float


def interpolate(rows: Iterable[tuple[int, int, float]], h: float, k: float) -> float:
    """Return seconds at (h, k): linear in the logarithms between the nearest measured ones.

    Above the measured sizes time grows with the work; below them it stays what the smallest takes.
    """
    table = {(a, b): s for a, b, s in rows}
    hs, ks = (np.array(sorted({key[i] for key in table})) for i in (0, 1))
    grid = np.log([[table[a, b] for b in ks] for a in hs])
    inside_h, inside_k = (float(np.clip(at, x[0], x[-1])) for at, x in ((h, hs), (k, ks)))
    columns = [float(np.interp(np.log(inside_k), np.log(ks), row)) for row in grid]
    found = float(np.exp(np.interp(np.log(inside_h), np.log(hs), columns)))
    return found * max(h / float(hs[-1]), 1.0) * max(k / float(ks[-1]), 1.0)
