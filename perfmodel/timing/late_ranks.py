"""Which ranks the others wait for: whose waiting leads back to whom, and how far that is chance.

A rank that is late only because it waited itself is not the cause: what a rank waited since it and
the rank that waits for it last met is passed on to whom it waited for, as the delay analysis of
Scalasca does (Böhme et al., "Identifying the root causes of wait states in large-scale parallel
applications", ICPP 2010).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int64
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges

SURE: Final = 0.95
"""Posterior probability from which a rank is said to be late by more than chance."""
_WORTH: Final = 0.01
"""Less than this share of all waiting is no line in a table."""
_MOST: Final = 0.5
"""A rank is late if more than this share of all waiting leads back to it."""
_COUNTED: Final = 0.5
"""Steps with less waiting than this share of the mean do not say who is late: of a rank that is
late in all steps they are few, of one that is late now and then those between."""
_START: Final = 10
"""A rank is late to start if others wait for it longer than so many usual batches."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank, how long it waits, and how long others wait for it.

    Attributes
    ----------
    rank : int
    share_last : float
        Collectives to which it comes last, of all.
    late_s : float
        Per step: from the arrival of the rank before it to its own, where it is last.
    waiting_s, caused_s, most_s : float
        Per step: its own waiting; that of all others that leads back to it, and that of the rank
        that waits longest for it.
    latest, steps : int
        Steps in which most waiting leads back to it, of those that have at least half as much
        waiting as the mean.
    probability : float
        That it is late by more than chance, see `beyond_chance`.
    enough : bool
        Whether so many steps could show it.
    doing : str
        What it does more of than the other ranks; '' where it is not late, or does no more.
    """

    rank: int
    share_last: float
    late_s: float
    waiting_s: float
    caused_s: float
    most_s: float
    latest: int
    steps: int
    probability: float
    enough: bool
    doing: str = ""

    @property
    def persistent(self) -> bool:
        """Whether it is late by more than chance."""
        return self.probability >= SURE


@dataclass(frozen=True, slots=True)
class Chain:
    """Waiting per step of a rank for a peer that waited itself, as its own waiting leads back."""

    rank: int
    peer: int
    origin: int
    waiting_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Collectives, a row for each one, in the order of their numbers.

    Attributes
    ----------
    row : int64, shape (n,)
        The exchange of the last rank.
    first_ns, middle_ns, before_ns, last_ns : int64, shape (n,)
        When the first rank came, the middle one (of an even number the earlier), the one before the
        last, and the last.
    waited_ns : int64, shape (n,)
        Longest waiting of a rank.
    """

    row: Int64
    first_ns: Int64
    middle_ns: Int64
    before_ns: Int64
    last_ns: Int64
    waited_ns: Int64

    @classmethod
    def of(cls, found: Exchanges, chosen: Bool) -> Arrivals:
        """Find who comes last to the matched collectives all of whose rows are chosen."""
        rows = np.flatnonzero((found.instance >= 0) & (found.way == COLLECTIVE))
        number = found.instance[rows]
        whole = np.bincount(number, ~chosen[rows]) == 0
        rows = rows[whole[number]] if len(rows) else rows
        order = rows[np.lexsort((found.post_ns[rows], found.instance[rows]))]
        number = found.instance[order]
        head = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
        size = np.diff(np.append(head, len(order)))
        post, tail = found.post_ns[order], head + size - 1
        waited = np.maximum.reduceat(found.wait_ns[order], head) if len(head) else head
        return cls(
            order[tail],
            post[head],
            post[head + (size - 1) // 2],
            post[tail - 1],
            post[tail],
            waited,
        )


def beyond_chance(latest: int, steps: int, ranks: int) -> float:
    """Probability that a rank is the latest of a step more often than chance makes it.

    In each of n steps one of p ranks is the latest, and it is this one in k. Of equal ranks each is
    it with the chance 1 / p. Where all shares of the ranks are equally likely before (a uniform
    Dirichlet distribution, of which each share is Beta(1, p - 1) with the mean 1 / p), the share
    of one is Beta(1 + k, p - 1 + n - k) after n independent steps, and above 1 / p with the
    probability 1 - I_{1/p}(1 + k, p - 1 + n - k), I the regularized incomplete beta function
    (Gelman et al., Bayesian Data Analysis, 3rd ed., 2.4 and 3.4). Of two ranks it takes 4 steps to
    reach 95 % (1 - 1 / 2^5), of eight 3.
    """
    from scipy.special import betainc  # few reports need it

    if ranks < 2 or steps < 1:
        return 0.0
    return 1.0 - float(betainc(1 + latest, ranks - 1 + steps - latest, 1.0 / ranks))


def late_ranks(
    found: Exchanges, first: int, stop: int
) -> tuple[tuple[LateRank, ...], tuple[Chain, ...]]:
    """Find out which ranks the others wait for in the steps `first` to `stop`.

    Returns
    -------
    tuple of LateRank
        The one that causes most waiting first; empty where no exchange is matched.
    tuple of Chain
        Waiting that is passed on, of at least 1 % of all, the longest first.
    """
    inside = (found.held_step >= first) & (found.held_step < stop)
    matched = inside & (found.instance >= 0)
    if not matched.any():
        return (), ()
    count, ranks = stop - first, len(found.ranks)
    waits = np.flatnonzero(inside & (found.cause_rank >= 0))
    waits = waits[np.argsort((found.begin_ns + found.wait_ns)[waits], kind="stable")]
    blame = _blame(found, waits)
    place = {rank: i for i, rank in enumerate(found.ranks)}
    caused = np.zeros((ranks, ranks))
    by_step = np.zeros((count, ranks))
    passed: dict[tuple[int, int, int], float] = {}
    for row, shares in zip(waits.tolist(), blame, strict=True):
        rank, peer = int(found.rank[row]), int(found.cause_rank[row])
        for origin, ns in shares.items():
            if origin != rank:
                caused[place[rank], place[origin]] += ns
                by_step[found.held_step[row] - first, place[origin]] += ns
                if origin != peer:
                    passed[rank, peer, origin] = passed.get((rank, peer, origin), 0.0) + ns
    waiting = found.seconds_by_step(stop, waiting=True)[:, first:].sum(axis=1) / count
    seconds = caused * 1e-9 / count
    total = by_step.sum(axis=1)
    counted = by_step[(total > 0) & (total >= _COUNTED * total.mean())]
    latest = np.bincount(counted.argmax(axis=1), minlength=ranks) if len(counted) else [0] * ranks
    arrived = Arrivals.of(found, (found.step >= first) & (found.step < stop))
    last, late = found.rank[arrived.row], (arrived.last_ns - arrived.before_ns) * 1e-9
    enough = beyond_chance(len(counted), len(counted), ranks) >= SURE
    rows = [
        LateRank(
            rank=rank,
            share_last=float((last == rank).mean()) if len(last) else 0.0,
            late_s=float(late[last == rank].sum()) / count,
            waiting_s=float(waiting[i]),
            caused_s=float(seconds[:, i].sum()),
            most_s=float(seconds[:, i].max()),
            latest=int(latest[i]),
            steps=len(counted),
            probability=beyond_chance(int(latest[i]), len(counted), ranks),
            enough=enough,
        )
        for i, rank in enumerate(found.ranks)
    ]
    least = max(_WORTH * float(found.wait_ns[waits].sum()), 1.0)
    chains = [Chain(*key, ns * 1e-9 / count) for key, ns in passed.items() if ns >= least]
    return (
        tuple(sorted(rows, key=lambda row: (-row.caused_s, row.rank))),
        tuple(sorted(chains, key=lambda chain: (-chain.waiting_s, chain.rank, chain.peer))),
    )


def late_rank(ranks: Sequence[LateRank], least: float = _MOST) -> LateRank | None:
    """Return the rank to which a share of all waiting, or more, leads back, beyond chance.

    Of too few steps the one that is the latest in each of them; None if there is no such rank.
    """
    worst = ranks[0] if ranks else None
    if worst is None or worst.caused_s <= least * sum(r.caused_s for r in ranks):
        return None
    sure = worst.persistent if worst.enough else worst.latest == worst.steps
    return worst if sure else None


def _blame(found: Exchanges, waits: Int64) -> list[dict[int, float]]:
    """For every wait, by the moment at which it ended, the ns by the rank that it leads back to."""
    since = _met(found, waits)
    ends: dict[int, list[int]] = {}
    shares: dict[int, list[dict[int, float]]] = {}
    blame = []
    columns = (found.rank, found.cause_rank, found.begin_ns, found.wait_ns)
    for met, (rank, peer, begin, waited) in zip(
        since.tolist(), zip(*(c[waits].tolist() for c in columns), strict=True), strict=True
    ):
        mine: dict[int, float] = {}
        own = ends.get(peer, [])
        for i in range(bisect_right(own, met), bisect_right(own, begin + waited)):
            for origin, ns in shares[peer][i].items():
                mine[origin] = mine.get(origin, 0.0) + ns
        total = sum(mine.values())
        if total > waited:
            mine = {origin: ns * waited / total for origin, ns in mine.items()}
            total = waited
        mine[peer] = mine.get(peer, 0.0) + waited - total
        ends.setdefault(rank, []).append(begin + waited)
        shares.setdefault(rank, []).append(mine)
        blame.append(mine)
    return blame


def _met(found: Exchanges, waits: Int64) -> Int64:
    """When each waiting rank and the one that it waits for last met before, in ns.

    Both ends of a message, or all ranks of a collective, were there then; without such a moment
    when the waiting began.
    """
    result = found.begin_ns[waits].copy()
    met: dict[tuple[int, int], list[int]] = {}
    matched = np.flatnonzero(found.instance >= 0)
    messages = matched[found.way[matched] != COLLECTIVE]
    pairs = messages[np.argsort(found.instance[messages], kind="stable")].reshape(-1, 2)
    here, there = found.rank[pairs[:, 0]], found.rank[pairs[:, 1]]
    both = found.post_ns[pairs].max(axis=1)
    for a, b, at in zip(here.tolist(), there.tolist(), both.tolist(), strict=True):
        met.setdefault((min(a, b), max(a, b)), []).append(at)
    collectives = matched[found.way[matched] == COLLECTIVE]
    last = np.full(int(found.instance.max(initial=-1)) + 1, NULL)
    np.maximum.at(last, found.instance[collectives], found.post_ns[collectives])
    own: dict[int, list[int]] = {}
    for rank in np.unique(found.rank[collectives]).tolist():
        mine = found.instance[collectives[found.rank[collectives] == rank]]
        own[rank] = np.unique(last[mine]).tolist()
    for times in met.values():
        times.sort()
    for n, (rank, peer, begin) in enumerate(
        zip(
            *(c[waits].tolist() for c in (found.rank, found.cause_rank, found.begin_ns)),
            strict=True,
        )
    ):
        times, latest = met.get((min(rank, peer), max(rank, peer)), []), NULL
        if (at := bisect_left(times, begin)) > 0:
            latest = times[at - 1]
        mine, others = own.get(rank, []), own.get(peer, [])
        at = bisect_left(mine, begin)
        while at > 0 and mine[at - 1] > latest:  # the last collective of both
            there_too = bisect_left(others, mine[at - 1])
            if there_too < len(others) and others[there_too] == mine[at - 1]:
                latest = mine[at - 1]
            at -= 1
        if latest != NULL:
            result[n] = latest
    return result


def late_start(found: Exchanges, batch_s: Floats, warmup: int) -> str | None:
    """Say for whom a rank waits longest in the warm-up, if longer than ten usual batches take.

    Medians leave the warm-up out, and with it a rank that begins late.

    Parameters
    ----------
    found : Exchanges
    batch_s : array, shape (ranks, batches)
        Host time of every batch, with the warm-up.
    warmup : int
    """
    early = found.by_mpi & (found.step >= 0) & (found.step < warmup) & (found.cause_rank >= 0)
    waited = np.where(early, found.wait_ns, 0)
    at = int(waited.argmax()) if len(waited) else 0
    usual = np.nanmedian(batch_s[:, warmup:])
    if not len(waited) or waited[at] * 1e-9 <= _START * usual:
        return None
    return (
        f"rank {found.rank[at]} waits {si(waited[at] * 1e-9, 's')} in "
        f"{found.names[found.name[at]]} of batch {found.step[at]} for rank "
        f"{found.cause_rank[at]}, which comes late; batches of the warm-up are in no median"
    )
