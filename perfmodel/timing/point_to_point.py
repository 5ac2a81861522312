"""Messages between ranks by pair, and the ranges of all ranks beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, distinct_rows
from perfmodel.timing.exchanges import COLLECTIVE, SEND, Exchanges
from perfmodel.timing.late_ranks import Chain, LateRank
from perfmodel.timing.samples import PathTable

_RARE: Final = 2.0
"""A mean that is beyond others by so many times what the median is, is of some steps."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Messages from one rank to another in the batches that count, per batch.

    `waiting_s` is the time that either of them waited for the other.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"sender": "from", "receiver": "to"}

    sender: int
    receiver: int
    messages: float
    bytes: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Point-to-point messages of a run.

    Attributes
    ----------
    pairs : tuple of Pair
        Most waiting first.
    ranks : tuple of LateRank
        The rank that causes most waiting, in messages and in collectives, first.
    chains : tuple of Chain
        The longest first.
    unmatched : int
        Sends and receives without the other end, such as of ranks without a report.
    warnings : tuple of str
        About the exchanges and the clocks of the reports.
    """

    pairs: tuple[Pair, ...]
    ranks: tuple[LateRank, ...]
    chains: tuple[Chain, ...]
    unmatched: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeOfRank:
    """Median host time of one range on one rank, of the steps that have it.

    Attributes
    ----------
    rank : int
    range, path : str
    seconds : float
    more_s : float
        Time beyond that of the median rank; ranks without the range spend none in it.
    imbalance : float
        The slowest rank's time over the mean, less 1.
    of_steps : float
        Share of the rank's steps that have it.
    mpi_s : float
        Mean over all steps of its time inside MPI.
    own_s, own_more_s : float
        Median over all steps of its time outside MPI, and what is beyond that of the median rank;
        their means where those are more than twice as much: it is longer in some steps only.
    own_of_mean : bool
        Whether `own_s` and `own_more_s` are means.
    """

    rank: int
    range: str
    path: str
    seconds: float
    more_s: float
    imbalance: float
    of_steps: float = 1.0
    mpi_s: float = 0.0
    own_s: float = 0.0
    own_more_s: float = 0.0
    own_of_mean: bool = False


def point_to_point(
    found: Exchanges, first: int, stop: int, ranks: tuple[LateRank, ...], chains: tuple[Chain, ...]
) -> PointToPoint | None:
    """Sum up the messages of the steps `first` to `stop` by pair; None without messages."""
    inside = (found.way != COLLECTIVE) & (found.step >= first) & (found.step < stop)
    if not inside.any():
        return None
    matched = found.instance >= 0
    sent = np.flatnonzero(inside & matched & (found.way == SEND))
    receiver = np.full(int(found.instance.max(initial=-1)) + 1, -1)
    received = matched & (found.way != COLLECTIVE) & (found.way != SEND)
    receiver[found.instance[received]] = found.rank[received]
    waited = np.zeros(len(receiver), np.int64)
    held = matched & (found.cause_rank >= 0)
    np.add.at(waited, found.instance[held], found.wait_ns[held])
    number = found.instance[sent]
    distinct, code = distinct_rows(found.rank[sent], receiver[number])
    messages = np.bincount(code)
    size = np.bincount(code, np.maximum(found.bytes[sent], 0))
    seconds = np.bincount(code, waited[number]) * 1e-9
    count = stop - first
    pairs = [
        Pair(a, b, n / count, total / count, waiting / count)
        for (a, b), n, total, waiting in zip(
            distinct.tolist(), messages.tolist(), size.tolist(), seconds.tolist(), strict=True
        )
    ]
    return PointToPoint(
        tuple(sorted(pairs, key=lambda p: (-p.waiting_s, p.sender, p.receiver))),
        ranks, chains, int((inside & ~matched).sum()), found.warnings,
    )  # fmt: skip


def ranges_by_rank(measured: PathTable, ranks: Sequence[int]) -> tuple[RangeOfRank, ...]:
    """Median host time of every range on every rank, where there are several ranks."""
    if len(ranks) < 2:
        return ()
    found = []
    for at in np.flatnonzero(measured.timed_ranks() > 0).tolist():
        one = measured[at]
        host = one.seconds["host"]
        known = np.flatnonzero(np.isfinite(host).any(axis=1))
        median = np.zeros(len(host))
        median[known] = np.nanmedian(host[known], axis=1)
        share = np.isfinite(host).mean(axis=1)
        inside = np.nan_to_num(one.mpi_s)
        outside, beyond, some = _outside(np.nan_to_num(host) - inside)
        usual = float(np.quantile(median, 0.5, method="lower"))  # of two ranks the faster one
        most, mean = float(median.max()), float(median.mean())
        found += [
            RangeOfRank(
                rank=ranks[i],
                range=one.label,
                path="/".join(one.path),
                seconds=float(median[i]),
                more_s=float(median[i]) - usual,
                imbalance=most / mean - 1.0 if mean > 0 else 0.0,
                of_steps=float(share[i]),
                mpi_s=float(inside[i].mean()),
                own_s=float(outside[i]),
                own_more_s=float(beyond[i]),
                own_of_mean=bool(some[i]),
            )
            for i in known.tolist()
        ]
    return tuple(found)


def _outside(seconds: Floats) -> tuple[Floats, Floats, Bool]:
    """Return the time of every rank, what is beyond the median rank's, and which are means."""
    usual, mean = np.median(seconds, axis=1), seconds.mean(axis=1)
    more, more_of_mean = (t - np.quantile(t, 0.5, method="lower") for t in (usual, mean))
    some = more_of_mean > _RARE * np.maximum(more, 0.0)
    return np.where(some, mean, usual), np.where(some, more_of_mean, more), some
