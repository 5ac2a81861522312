"""Skew: who comes last to the collectives, how often, how late, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.collectives import (
    Calls,
    Instances,
    Matched,
    arrivals,
    blocking,
    waits,
)

_LATE: Final = 10


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
    """How late one rank came where it came last.

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


def skew_of(matched: Matched, ranks: Sequence[int], batch_s: Floats, warmup: int) -> Skew | None:
    """Measure the skew of matched collectives; None where ranks cannot be matched or aligned.

    Parameters
    ----------
    matched : Matched
    ranks : sequence of int
    batch_s : array, shape (ranks, batches)
        Host time of every batch after the warm-up, without waiting for messages.
    warmup : int
        Leading batches that are left out.
    """
    instances = matched.instances()
    if instances is None:
        return None
    arrived = [_arrived(matched.calls, one, warmup) for one in instances]
    arrived = [a for a in arrived if len(a.last)]
    if not arrived:
        return None
    last, late = (np.concatenate([getattr(a, n) for a in arrived]) for n in ("last", "late_s"))
    busy = _busy(matched, batch_s, warmup)
    imbalance = _imbalance(busy)
    return Skew(
        collectives=_by_collective(arrived, ranks),
        ranks=_by_rank(ranks, last, late, busy),
        count=len(last),
        imbalance_s=imbalance[0],
        imbalance=imbalance[1],
        clock_bound_s=matched.clock_bound_ns * 1e-9,
    )


def late_start(matched: Matched, ranks: Sequence[int], batch_s: Floats, warmup: int) -> str | None:
    """Say for whom a rank waits longest in the warm-up, if longer than ten usual batches take.

    Medians leave the warm-up out, and with it a rank that begins late.

    Parameters
    ----------
    matched : Matched
    ranks : sequence of int
    batch_s : array, shape (ranks, batches)
        Host time of every batch, with the warm-up.
    warmup : int
    """
    usual = np.nanmedian(batch_s[:, warmup:])
    most, said = float(_LATE * usual), None
    for one in matched.instances() or ():
        members = [matched.calls[i] for i in one.members.tolist()]
        start = np.stack([c.start_ns[r] for c, r in zip(members, one.rows, strict=True)])
        come = np.sort(start, axis=0)
        for i, c, rows in zip(one.members.tolist(), members, one.rows, strict=True):
            early = (c.batch[rows] >= 0) & (c.batch[rows] < warmup)
            waited = np.nan_to_num(waits(c, _last(c, rows, come))[rows]) * early
            at = int(waited.argmax()) if len(waited) else 0
            if len(waited) and waited[at] > most:
                last = ranks[int(one.members[int(start[:, at].argmax())])]
                most = float(waited[at])
                said = (
                    f"rank {ranks[i]} waits {si(most, 's')} in {c.name[int(rows[at])]} of step "
                    f"{int(c.batch[rows[at]])} for rank {last}, which comes late; steps of the "
                    f"warm-up are in no median"
                )
    return said


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Collectives of one communicator: name and size, first to last arrival, who was last."""

    keys: list[tuple[str, int]]
    spread_s: Floats
    last: Int64
    late_s: Floats


def _arrived(calls: Sequence[Calls], one: Instances, warmup: int) -> _Arrived:
    """When the ranks of a communicator came to the collectives that hold somebody up, if late.

    A rank that is late to a non-blocking one makes the others wait no longer than they do.
    """
    members = [calls[i] for i in one.members.tolist()]
    held = [c.held_ns()[2][rows] for c, rows in zip(members, one.rows, strict=True)]
    behind = [c.batch[rows] >= warmup for c, rows in zip(members, one.rows, strict=True)]
    chosen = np.all([*held, *behind], axis=0)
    rows = one.rows[:, chosen]
    start = np.stack([c.start_ns[r] for c, r in zip(members, rows, strict=True)])
    come = np.sort(start, axis=0)
    waited = np.max([waits(c, _last(c, r, come))[r] for c, r in zip(members, rows, strict=True)],
                    axis=0)  # fmt: skip
    late = (come[-1] - come[(len(members) - 1) // 2]) * 1e-9
    at_once = ~blocking(members[0])[rows[0]]
    names = [members[0].name[i] for i in rows[0].tolist()]
    return _Arrived(
        keys=list(zip(names, members[0].size[rows[0]].tolist(), strict=True)),
        spread_s=(come[-1] - come[0]) * 1e-9,
        last=one.members[start.argmax(axis=0)],
        late_s=np.where(at_once, np.minimum(late, waited), late),
    )


def _last(calls: Calls, rows: Int64, come: Int64) -> Int64:
    """When the last rank came to each of a rank's calls, of which only some are known."""
    found = np.full(len(calls.name), NULL)
    found[rows] = come[-1]
    return found


def _by_collective(arrived: Sequence[_Arrived], ranks: Sequence[int]) -> tuple[CollectiveSkew, ...]:
    keys = [key for a in arrived for key in a.keys]
    spread, last = (np.concatenate([getattr(a, n) for a in arrived]) for n in ("spread_s", "last"))
    code_of = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    code = np.array([code_of[key] for key in keys])
    found = []
    for (name, size), i in code_of.items():
        mine = code == i
        often = np.bincount(last[mine])
        p50, p95, largest = np.percentile(spread[mine], [50, 95, 100]).tolist()
        row = CollectiveSkew(
            name=name,
            bytes=None if size == NULL else size,
            count=int(mine.sum()),
            p50_s=p50,
            p95_s=p95,
            max_s=largest,
            last_rank=ranks[int(often.argmax())],
            last_share=float(often.max() / mine.sum()),
        )
        found.append((float(spread[mine].sum()), row))
    return tuple(row for _, row in sorted(found, key=lambda pair: -pair[0]))


def _by_rank(ranks: Sequence[int], last: Int64, late: Floats, busy: Floats) -> tuple[RankSkew, ...]:
    found = []
    for i, rank in enumerate(ranks):
        mine = late[last == i]
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


def _busy(matched: Matched, batch_s: Floats, warmup: int) -> Floats:
    """Time of every batch without the waiting in its collectives, shape (ranks, batches)."""
    waited = np.zeros(batch_s.shape)
    arrival = arrivals(matched.calls, matched.instances() or ())
    for i, c in enumerate(matched.calls):
        inside = np.flatnonzero(c.batch >= warmup)
        waiting = np.nan_to_num(waits(c, arrival[i])[inside])
        np.add.at(waited[i], c.batch[inside] - warmup, waiting)
    return np.maximum(batch_s - waited, 0.0)


def _imbalance(busy: Floats) -> tuple[float | None, float | None]:
    whole = busy[:, np.isfinite(busy).all(axis=0)]
    ranks = len(busy)
    if whole.shape[1] == 0 or ranks < 2 or not (whole.max(axis=0) > 0).all():
        return None, None
    most, mean = whole.max(axis=0), whole.mean(axis=0)
    share = (most - mean) / most * ranks / (ranks - 1)
    return float(np.median(most - mean)), float(np.median(share))
