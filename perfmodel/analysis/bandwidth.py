"""All-reduces by size: time, algorithm and bus bandwidth, of reports and of a measured machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.analysis.measure import Launch
from perfmodel.base.errors import ModelError
from perfmodel.machines.link import Link, bus_bytes_per_s
from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.models.collectives import cost, fit_link
from perfmodel.timing.collectives import NCCL

_KINDS: Final = {"mpi_allreduce": "MPI", "nccl_allreduce": "NCCL"}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """All-reduces of one size over so many ranks.

    Attributes
    ----------
    source : str
        'training', measured inside batches, or the machine whose file it is.
    through : {'MPI', 'NCCL'}
    ranks, bytes : int
        p, and n, the size of the vector on every rank.
    seconds : float
        Median, without waiting for the last rank where that is told.
    sent_bytes : float
        What a ring sends per rank, 2 (p - 1)/p n (`perfmodel.models.collectives`, [P]).
    algorithm_bytes_per_s, bus_bytes_per_s : float
        n / t, and 2 (p - 1)/p n / t (nccl-tests, doc/PERFORMANCE.md).
    """

    source: str
    through: str
    ranks: int
    bytes: int
    seconds: float
    sent_bytes: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float

    @property
    def series(self) -> tuple[str, str, int]:
        """What rows of other sizes share."""
        return self.source, self.through, self.ranks


def of_launches(launches: Sequence[Launch]) -> tuple[Bandwidth, ...]:
    """Return the all-reduces of reports by size, medians over launches."""
    found: dict[tuple[str, int, int], list[float]] = {}
    for launch in launches:
        for group in launch.reduced:
            seconds = group.seconds if group.transfer_s is None else group.transfer_s
            if group.bytes and seconds > 0 and launch.ranks > 1:
                through = "NCCL" if group.name.startswith(NCCL) else "MPI"
                found.setdefault((through, launch.ranks, group.bytes), []).append(seconds)
    return tuple(
        _bandwidth("training", through, ranks, size, float(np.median(seconds)))
        for (through, ranks, size), seconds in sorted(found.items())
    )


def of_machine(measured: MachineMeasurement) -> tuple[Bandwidth, ...]:
    """Return the all-reduces that `perfmodel machine measure` timed, on the GPU's clock if it did.

    Series of one rank are left out.
    """
    best = {}
    for series in measured.series:
        through = _KINDS.get(series.kind)
        if through and series.ranks > 1 and (series.clock == "device" or through not in best):
            best[through] = series
    return tuple(
        _bandwidth(measured.machine.name, through, series.ranks, size, seconds)
        for through, series in sorted(best.items())
        for size, seconds in zip(series.bytes, series.median_s, strict=True)
    )


def links(rows: Iterable[Bandwidth]) -> dict[tuple[str, str, int], Link | None]:
    """Fit a ring's alpha and beta to every series; None where its times do not tell them."""
    series: dict[tuple[str, str, int], list[Bandwidth]] = {}
    for row in rows:
        series.setdefault(row.series, []).append(row)
    found: dict[tuple[str, str, int], Link | None] = {}
    for key, mine in series.items():
        try:
            found[key] = fit_link([r.bytes for r in mine], [r.seconds for r in mine], key[2])
        except ModelError:  # one size, or times that do not grow
            found[key] = None
    return found


def _bandwidth(source: str, through: str, ranks: int, size: int, seconds: float) -> Bandwidth:
    return Bandwidth(
        source=source,
        through=through,
        ranks=ranks,
        bytes=size,
        seconds=seconds,
        sent_bytes=cost("all-reduce", size, ranks, "ring").sent_bytes,
        algorithm_bytes_per_s=size / seconds,
        bus_bytes_per_s=bus_bytes_per_s("all-reduce", size, seconds, ranks),
    )
