"""Bars and lanes: what a timeline is made of, and how bars are laid so that none overlap."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perfmodel.base.units import si
from perfmodel.timing.cuda_graphs import shortened
from perfmodel.timing.nsys_stats.stats import API_VERSION

HOST: Final = ("range", "mpi", "api")
GPU: Final = (
    "kernel", "graph", "nccl", "h2d", "d2h", "d2d", "p2p", "copy", "memset",
)  # fmt: skip
COPIES: Final = ("h2d", "d2h", "d2d", "p2p", "copy", "memset")
NAMES: Final[Mapping[str, str]] = {
    "range": "NVTX",
    "mpi": "MPI",
    "api": "CUDA API",
    "kernel": "kernels",
    "graph": "CUDA graphs",
    "nccl": "NCCL",
    "h2d": "copies H2D",
    "d2h": "copies D2H",
    "d2d": "copies D2D",
    "p2p": "copies P2P",
    "copy": "other copies",
    "memset": "sets",
}
"""Kinds of bars, in the order of their lanes, and what their lanes are called."""


_NCCL: Final = re.compile(r"^nccl(?:Dev)?Kernel_?(?=.)")


@dataclass(frozen=True, slots=True)
class Bar:
    """One range, call or GPU operation.

    Attributes
    ----------
    kind : str
        Key of `NAMES`.
    name : str
        As the report writes it, of any length and with any letters.
    start_ns, end_ns : int
        On the clock of the run's first report.
    own : bool
        Belongs to the batches that were asked for; others only run at the same time.
    process : int
        Counts the processes of all reports of the run; -1 where the report does not say.
    correlation : int or None
        Same for a CUDA call and what it launched, within a process.
    size_bytes, stream, device : int or None
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    own: bool
    process: int
    correlation: int | None = None
    size_bytes: int | None = None
    stream: int | None = None
    device: int | None = None

    @property
    def label(self) -> str:
        """What a picture writes on the bar."""
        if self.kind in COPIES and self.size_bytes is not None:
            return si(self.size_bytes, "B")
        if self.kind == "nccl":
            return _NCCL.sub("", _kernel(self.name))
        if self.kind == "api":
            return API_VERSION.sub("", self.name)
        return _kernel(self.name) if self.kind == "kernel" else self.name


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a rank: bars that do not overlap, by start.

    Attributes
    ----------
    rank : int or None
        None for what no rank did.
    kind : str
    unit : int
        Which thread (from 0, that of the batches first) or GPU of the rank.
    level : int
        Ranges: how many ranges are above.
    part : int
        Counts lanes that are there only because bars overlap.
    nested : bool
        Ranges: those of the next level lie inside those of this one.
    name : str
    """

    rank: int | None
    kind: str
    unit: int
    level: int
    part: int
    nested: bool
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """Key of bars that share lanes; `order` sorts the tracks of a rank."""

    rank: int | None
    kind: str
    unit: int = 0
    level: int = 0
    nested: bool = True

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Ranks ascending, host before GPU, thread by thread, kind by kind."""
        on_gpu = self.kind in GPU
        kinds = GPU if on_gpu else HOST
        rank = 2**31 if self.rank is None else self.rank
        return rank, on_gpu, self.unit, kinds.index(self.kind), self.level


def lanes_of(tracks: Mapping[Track, Iterable[Bar]]) -> tuple[Lane, ...]:
    """Lay the bars of every track into as few lanes as let none overlap."""
    gpus: dict[int | None, set[int]] = {}
    for track in tracks:
        if track.kind in GPU:
            gpus.setdefault(track.rank, set()).add(track.unit)
    found = []
    for track in sorted(tracks, key=lambda t: t.order):
        several = track.kind in GPU and len(gpus[track.rank]) > 1
        for part, bars in enumerate(apart(tracks[track])):
            name = _name(track, part, several=several)
            found.append(
                Lane(track.rank, track.kind, track.unit, track.level, part, track.nested, name,
                     tuple(bars))
            )  # fmt: skip
    return tuple(found)


def apart(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Split bars into lists in which each ends before the next starts; the first list that fits.

    As many lists as bars overlap at one time, which is the fewest there can be.
    """
    lists: list[list[Bar]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for bar in sorted(bars, key=lambda b: (b.start_ns, -b.end_ns, b.name)):
        while busy and busy[0][0] <= bar.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            at = heapq.heappop(free)
        else:
            at = len(lists)
            lists.append([])
        lists[at].append(bar)
        heapq.heappush(busy, (bar.end_ns, at))
    return lists


def _name(track: Track, part: int, *, several: bool) -> str:
    name = NAMES[track.kind]
    if track.kind == "range":
        name = f"{name} {track.level + 1}" if track.level >= 0 else f"{name} across"
    if track.kind in HOST and track.unit:
        name += f", thread {track.unit + 1}"
    if several:
        name += f", GPU {track.unit}"
    return f"{name} ({part + 1})" if part else name


@lru_cache(maxsize=4096)
def _kernel(name: str) -> str:
    return shortened(name)
