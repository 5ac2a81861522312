"""Skew of MPI's collectives: who comes last, how often, how late, and the ranks' imbalance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Int64, distinct_rows
from perfmodel.readers.trace import NULL
from perfmodel.timing.exchanges import Exchanges
from perfmodel.timing.late_ranks import Arrivals


@dataclass(frozen=True, slots=True)
class CollectiveSkew:
    """Arrivals at the collectives of one name and size, after the warm-up.

    `p50_s`, `p95_s` and `max_s` are of the time from the first rank's arrival to the last one's;
    `last_rank` is the one that most often came last, in `last_share` of the `count` instances.
    """

    name: str
    bytes: int | None
    count: int
    p50_s: float
    p95_s: float
    max_s: float
    last_rank: int
    last_share: float


@dataclass(frozen=True, slots=True)
class RankSkew:
    """Lateness of one rank where it came last.

    Lateness is the time from the middle rank's arrival (of two: the earlier one's) to its own:
    what it makes a usual rank wait. `per_batch_s` adds it up. Percentiles are None for a rank that
    never was last. `busy_s` is the median of its batches without its waiting for other ranks.
    """

    rank: int
    last: int
    last_share: float
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    per_batch_s: float
    busy_s: float | None


@dataclass(frozen=True, slots=True)
class Skew:
    """Arrivals at all collectives of a run.

    Attributes
    ----------
    collectives : tuple
        By name and size, longest skew of all instances together first.
    ranks : tuple
        All ranks, the one that costs most first.
    count : int
        Collectives that all ranks took part in.
    imbalance_s : float or None
        Median over batches of the slowest rank's time without waiting, less the mean of all.
    imbalance : float or None
        The same as a share: (max - mean) / max times p / (p - 1), which is 0 for equal ranks and 1
        where one does everything. Source: DeRose, Homer, Johnson, "Detecting application load
        imbalance on high end massively parallel systems", Euro-Par 2007.
    clock_bound_s : float
        Clocks of different reports are known to so much, either way.
    """

    collectives: tuple[CollectiveSkew, ...]
    ranks: tuple[RankSkew, ...]
    count: int
    imbalance_s: float | None
    imbalance: float | None
    clock_bound_s: float


def skew_of(found: Exchanges, ranks: Sequence[int], batch_s: Floats, warmup: int) -> Skew | None:
    """Measure the skew of MPI's matched collectives; None where there are none.

    Parameters
    ----------
    found : Exchanges
    ranks : sequence of int
    batch_s : array, shape (ranks, batches)
        Host time of every batch, with the warm-up.
    warmup : int
        Leading batches that are left out.
    """
    arrived = Arrivals.of(found, found.by_mpi & (found.begin_ns != NULL) & (found.step >= warmup))
    if len(arrived.row) == 0:
        return None
    late = arrived.last_ns - arrived.middle_ns
    # a rank that is late to a non-blocking one makes the others wait no longer than they do
    late = np.where(found.blocking[arrived.row], late, np.minimum(late, arrived.waited_ns))
    waited = found.seconds_by_step(batch_s.shape[1], waiting=True)
    busy = np.maximum(batch_s - waited[np.searchsorted(found.ranks, ranks)], 0.0)[:, warmup:]
    imbalance = _imbalance(busy)
    return Skew(
        collectives=_by_collective(found, arrived),
        ranks=_by_rank(ranks, found.rank[arrived.row], late.astype(np.float64) * 1e-9, busy),
        count=len(arrived.row),
        imbalance_s=imbalance[0],
        imbalance=imbalance[1],
        clock_bound_s=float(found.clock_error_ns.max()) * 1e-9,
    )


def _by_collective(found: Exchanges, arrived: Arrivals) -> tuple[CollectiveSkew, ...]:
    spread = (arrived.last_ns - arrived.first_ns) * 1e-9
    last = found.rank[arrived.row]
    distinct, code = distinct_rows(found.name[arrived.row], found.bytes[arrived.row])
    rows = []
    for i, (name, size) in enumerate(distinct.tolist()):
        mine = code == i
        often = np.bincount(last[mine])
        p50, p95, largest = np.percentile(spread[mine], [50, 95, 100]).tolist()
        row = CollectiveSkew(
            name=found.names[name],
            bytes=None if size == NULL else size,
            count=int(mine.sum()),
            p50_s=p50,
            p95_s=p95,
            max_s=largest,
            last_rank=int(often.argmax()),
            last_share=float(often.max() / mine.sum()),
        )
        rows.append((float(spread[mine].sum()), row))
    return tuple(row for _, row in sorted(rows, key=lambda pair: -pair[0]))


def _by_rank(ranks: Sequence[int], last: Int64, late: Floats, busy: Floats) -> tuple[RankSkew, ...]:
    found = []
    for i, rank in enumerate(ranks):
        mine = late[last == rank]
        p50, p95, largest = (
            np.percentile(mine, [50, 95, 100]).tolist() if len(mine) else (None, None, None)
        )
        known = busy[i][np.isfinite(busy[i])]
        found.append(
            RankSkew(
                rank=rank,
                last=len(mine),
                last_share=len(mine) / len(last),
                p50_s=p50,
                p95_s=p95,
                max_s=largest,
                per_batch_s=float(mine.sum()) / busy.shape[1],
                busy_s=float(np.median(known)) if len(known) else None,
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.per_batch_s, row.rank)))


def _imbalance(busy: Floats) -> tuple[float | None, float | None]:
    whole = busy[:, np.isfinite(busy).all(axis=0)]
    ranks = len(busy)
    if whole.shape[1] == 0 or ranks < 2 or not (whole.max(axis=0) > 0).all():
        return None, None
    most, mean = whole.max(axis=0), whole.mean(axis=0)
    share = (most - mean) / most * ranks / (ranks - 1)
    return float(np.median(most - mean)), float(np.median(share))
