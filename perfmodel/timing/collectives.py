"""Collectives of MPI and of communication libraries, grouped: their transfer and waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64, distinct_rows
from perfmodel.readers.trace import NULL
from perfmodel.timing.batches import Batches
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges
from perfmodel.timing.nccl import NcclKernels
from perfmodel.timing.range_times import Path

NCCL: Final = "NCCL "
"""Prefix of the names of NCCL's collectives here."""

ALL_REDUCES: Final = ("MPI_Allreduce", f"{NCCL}AllReduce")


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Collectives of one name, size and number of ranks inside the steps, per rank that takes part.

    `seconds` is the whole call or kernel; `waiting_s` its part before those came that the rank
    needs, `transfer_s` the part after; None where that is unknown. Of non-blocking calls it is the
    time in them and in the call that waits for them. MPI's are medians over all instances and
    ranks. Those of kernels are means, so that transfer and waiting add up to the kernels' time: a
    median would hide the rank that others wait for.

    `ranks` are those of the communicator; of MPI's calls, if not all. The bus bandwidth is that of
    the median transfer; its factors are those of NCCL tests (doc/PERFORMANCE.md): 2 (p - 1) / p for
    all-reduce; p - 1 for all-gather and reduce-scatter of kernels, whose payload is one rank's
    share; 1 for other kernels. Of kernels there is more: the communicator's id, the `algorithm`
    with its protocol, the part that no computing kernel covers (`exposed_s`), and `by_rank`: rank,
    mean kernel time and mean waiting.
    """

    name: str
    bytes: int | None
    count: float
    seconds: float
    transfer_s: float | None
    waiting_s: float | None
    bus_bytes_per_s: float | None
    library: str = "mpi"
    communicator: int | None = None
    ranks: int | None = None
    algorithm: str | None = None
    exposed_s: float | None = None
    by_rank: tuple[tuple[int, float, float | None], ...] = ()

    @property
    def own_s(self) -> float:
        """The transfer, or the whole call where waiting is not known apart."""
        return self.seconds if self.transfer_s is None else self.transfer_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time in exchanges per batch and rank: all of it, and the part spent waiting.

    Sequences have a median over batches for every rank; `by_batch` is the waiting of every rank
    and batch, shape (ranks, batches), NaN in batches that a rank lacks.
    """

    seconds: Sequence[float]
    waiting_s: Sequence[float] | None
    by_batch: Floats | None = None


def waiting_of(
    found: Exchanges, batches: Batches, ranks: Sequence[int], first: int, stop: int
) -> Waiting:
    """Sum up what some ranks spend in exchanges, and wait there, per batch from `first` to `stop`.

    What several exchanges wait for at once counts once.
    """
    rows = np.searchsorted(found.ranks, ranks)
    spent, waited = (
        found.seconds_by_step(stop, waiting=waiting)[rows] for waiting in (False, True)
    )
    for i, rank in enumerate(ranks):
        lacking = np.setdiff1d(np.arange(stop), batches.numbers(rank))
        spent[i, lacking] = waited[i, lacking] = np.nan
    spent, waited = spent[:, first:], waited[:, first:]
    inside = (found.step >= first) & (found.step < stop)
    usual = np.nanmedian(waited, axis=1) if (found.wait_ns[inside] != NULL).any() else None
    return Waiting(
        np.nanmedian(spent, axis=1).tolist(), None if usual is None else usual.tolist(), waited
    )


def groups(
    found: Exchanges,
    kernels: NcclKernels | None,
    steps: Mapping[int, Int64],
) -> tuple[CollectiveGroup, ...]:
    """Group the collectives of some steps by name, size and ranks; MPI's first, by their time.

    Parameters
    ----------
    found : Exchanges
    kernels : NcclKernels or None
        What the rows that are kernels are; None if these are to be left out.
    steps : mapping of int to int64
        Numbers of the steps of each rank that count.
    """
    inside = found.way == COLLECTIVE
    if kernels is None:
        inside &= found.by_mpi
    for rank in np.unique(found.rank).tolist():
        mine = found.rank == rank
        inside[mine] &= np.isin(found.step[mine], steps.get(rank, ()))
    rows = np.flatnonzero(inside)
    if len(rows) == 0:
        return ()
    matched = found.instance >= 0
    width = np.full(len(found), len(steps))
    _, number, members = np.unique(found.instance[matched], return_inverse=True, return_counts=True)
    width[matched] = members[number]
    communicator = np.where(found.by_mpi, NULL, found.communicator)
    columns = (found.name, communicator, found.bytes, np.where(found.by_mpi, width, 0))
    _, code = distinct_rows(*(column[rows] for column in columns))
    order = np.argsort(code, kind="stable")
    parts = np.split(rows[order], np.flatnonzero(np.diff(code[order])) + 1)
    cells = {rank: len(numbers) for rank, numbers in steps.items()}
    result = [
        _group(found.taken(part), int(width[part[0]]), cells, kernels, part) for part in parts
    ]
    return tuple(sorted(result, key=lambda g: (g.library != "mpi", -g.count * g.seconds)))


def _group(
    found: Exchanges, width: int, cells: Mapping[int, int], kernels: NcclKernels | None, rows: Int64
) -> CollectiveGroup:
    """Sum up the rows of one group."""
    name = found.names[found.name[0]]
    mpi = name.startswith("MPI_")
    average = np.median if mpi else np.mean
    seconds, split = found.spent_ns * 1e-9, found.wait_ns != NULL
    known = bool(split.any() if mpi else split.all())
    waiting, moved = found.wait_ns[split] * 1e-9, found.transfer_ns[split] * 1e-9
    size = int(found.bytes[0])
    transfer = float(np.median(moved)) if known else None
    ranks = np.unique(found.rank).tolist()
    width = width if mpi else len(ranks)
    factor = _bus_factor(name, width) if not mpi or name in ALL_REDUCES else 0.0
    bus = size / transfer * factor if transfer and size > 0 and factor else None
    group = CollectiveGroup(
        name=name,
        bytes=None if size == NULL else size,
        count=len(found) / sum(cells[rank] for rank in (cells if mpi else ranks)),
        seconds=float(average(seconds)),
        transfer_s=float(average(moved)) if known else None,
        waiting_s=float(average(waiting)) if known else None,
        bus_bytes_per_s=bus,
        library="mpi" if mpi else name.partition(" ")[0].lower(),
        ranks=width if not mpi or width < len(cells) else None,
    )
    if mpi or kernels is None:
        return group
    algorithms, uses = np.unique(kernels.algorithm[rows], return_counts=True)
    communicator = int(found.communicator[0])
    by_rank = []
    for rank in ranks:
        mine = found.rank == rank
        waits = float(found.wait_ns[mine].mean() * 1e-9) if known else None
        by_rank.append((rank, float(seconds[mine].mean()), waits))
    return replace(
        group,
        communicator=None if communicator == NULL else communicator % 2**64,
        algorithm=kernels.algorithms[algorithms[np.argmax(uses)]] or None,
        exposed_s=float(kernels.exposed_ns[rows].mean() * 1e-9),
        by_rank=tuple(by_rank),
    )


def _bus_factor(name: str, ranks: int) -> float:
    if name in ALL_REDUCES or name.endswith("AllReduce"):
        return 2 * (ranks - 1) / ranks
    if name.endswith(("AllGather", "ReduceScatter")):
        return float(ranks - 1)
    return float(ranks > 1)


def marked_by_nccl(path: Path) -> bool:
    """Whether a range is the one that NCCL pushes itself inside the trainer's of the same name."""
    return path[-2:] == ("ncclAllReduce", "ncclAllReduce")
