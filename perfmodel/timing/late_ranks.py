"""Late ranks: the ranks that others wait for, directly and indirectly, beyond chance.

A rank that is late only because it waited itself is not the cause: what a rank waited since it and
the rank that waits for it last met is passed on to whom it waited for, as the delay analysis of
Scalasca does (Böhme et al., "Identifying the root causes of wait states in large-scale parallel
applications", ICPP 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int64, distinct_rows
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.clock_sync import FAR
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges
from perfmodel.timing.host_timeline import CAUSES, LAUNCH
from perfmodel.timing.idle_causes import Gap

SURE: Final = 0.95
"""Posterior probability from which a rank is said to be late by more than chance."""
_WORTH: Final = 0.01
"""Less than this share of all waiting is no line in a table."""
_MOST: Final = 0.25
"""A rank is late if more than this share of all waiting leads back to it: less than half, since one
step in which another rank is held up by the system may take as long as all the others."""
_OUTLIER: Final = 10
"""Waiting of a step counts as so many times the median at most."""
_COUNTED: Final = 0.5
"""Steps with less waiting than this share of the mean do not say who is late: of a rank that is
late in all steps they are few, of one that is late now and then those between."""
_START: Final = 10
"""A rank is late to start if others wait for it longer than so many usual batches."""


COMPUTING: Final = "computing"
"""The kind of an excess of kernels' time."""
_AS_MANY: Final = 0.2
"""Two ranks have as many kernels, or launches, if the numbers differ by less than this share."""
_SLOWER: Final = 1.25
"""Kernels are slower if as many of them take so many times as long."""
_OTHER_PROCESS: Final = 1.5
"""Launches are slower from here: the same program took 35, 24, 24 and 27 ms in four processes of
one host that launching limits (docs/recorder.md)."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What a late rank spends more time in than the median of the other ranks.

    Attributes
    ----------
    kind : str
        One of `perfmodel.timing.host_timeline.CAUSES`, or 'computing'.
    seconds : float
        Per step beyond the others, without the profiler where that is known.
    range : str
        In which most of it lies; '' where that is unknown.
    line : str or None
        Line of code of the longest gap.
    count, usual : float or None
        Kernels, or launches, of the rank per step, and of the median of the others; None of other
        kinds.
    slower : float or None
        How many times as long they take, all together.
    gap : Gap or None
        The longest pause of its GPU by this cause.
    """

    kind: str
    seconds: float
    range: str
    line: str | None
    count: float | None = None
    usual: float | None = None
    slower: float | None = None
    gap: Gap | None = None

    @property
    def as_many(self) -> bool:
        """Whether the rank has about as many kernels, or launches, as the others."""
        return bool(self.count and self.usual) and abs(self.more - 1) <= _AS_MANY

    @property
    def more(self) -> float:
        """How many times as many kernels, or launches, the rank has; 1 where that is not known."""
        return self.count / self.usual if self.count and self.usual else 1.0

    @property
    def only_slower(self) -> bool:
        """Whether it has about as many kernels, or launches, which take longer."""
        least = _SLOWER if self.kind == COMPUTING else _OTHER_PROCESS
        return self.as_many and (self.slower or 0.0) >= least * self.more

    @property
    def by_chance(self) -> bool:
        """Whether it only launches as much more slowly as two processes differ anyway."""
        return self.kind == CAUSES[LAUNCH] and self.as_many and not self.only_slower

    def __str__(self) -> str:
        """Name the kind and the range."""
        if self.kind == COMPUTING and self.only_slower:
            return f"{self.kind}: about as many kernels take {self.slower:.2g} times as long"
        return f"{self.kind} in {self.range}" if self.range else self.kind


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
        Work that takes it longer than the other ranks; '' if it is not late, or none does.
    excess : Excess or None
        The same with its time and its place.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"persistent": "persistent"}

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
    excess: Excess | None = None

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
    (Gelman et al., Bayesian Data Analysis, 3rd ed., 2.4 and 3.4). For whole numbers that is the
    chance of k or fewer successes in n + p - 1 trials with the chance 1 / p (NIST, Digital Library
    of Mathematical Functions, 8.17.5). Of two ranks it takes 4 steps to reach 95 % (1 - 1 / 2^5),
    of eight 3.
    """
    if ranks < 2 or steps < 1:
        return 0.0
    trials, successes = steps + ranks - 1, np.arange(latest + 1)
    factorial = np.concatenate(
        [[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))]
    )  # the logarithm
    ways = factorial[trials] - factorial[successes] - factorial[trials - successes]
    chance = successes * np.log(1 / ranks) + (trials - successes) * np.log1p(-1 / ranks)
    return min(float(np.exp(ways + chance).sum()), 1.0)


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
    rank, peer = (np.searchsorted(found.ranks, c[waits]) for c in (found.rank, found.cause_rank))
    step, waited = found.held_step[waits] - first, found.wait_ns[waits].astype(np.float64)
    passed_on = _passed_on(found, waits)
    direct = np.setdiff1d(np.arange(len(waits)), np.fromiter(passed_on, np.int64, len(passed_on)))
    caused, by_step = np.zeros((ranks, ranks)), np.zeros((count, ranks))
    np.add.at(caused, (rank[direct], peer[direct]), waited[direct])
    np.add.at(by_step, (step[direct], peer[direct]), waited[direct])
    passed: dict[tuple[int, int, int], float] = {}
    for i, shares in passed_on.items():
        for whom, ns in shares.items():
            origin = found.ranks.index(whom)
            if origin != rank[i]:
                caused[rank[i], origin] += ns
                by_step[step[i], origin] += ns
                if origin != peer[i]:
                    key = found.ranks[rank[i]], found.ranks[peer[i]], whom
                    passed[key] = passed.get(key, 0.0) + ns
    waiting = found.seconds_by_step(stop, waiting=True)[:, first:].sum(axis=1) / count
    seconds = caused * 1e-9 / count
    total = by_step.sum(axis=1)
    usual = np.minimum(total, _OUTLIER * np.median(total[total > 0])) if total.any() else total
    counted = by_step[(total > 0) & (total >= _COUNTED * usual.mean())]
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
    """Return the first rank to which a share of all waiting leads back, and more than by chance.

    Of too few steps the first rank if it is the latest in each of them; None if there is none.
    """
    total = sum(row.caused_s for row in ranks)
    for row in ranks:
        sure = row.persistent if row.enough else row.latest == row.steps
        if sure and row.caused_s > least * total:
            return row
    return None


def _passed_on(found: Exchanges, waits: Int64) -> dict[int, dict[int, float]]:
    """Of waits for a rank that waited itself, in the order of their ends, the ns by their origins.

    Between the last moment at which both ranks were in an exchange with each other and the end of
    the wait: in most runs there is no such wait.
    """
    rank, peer = found.rank[waits], found.cause_rank[waits]
    begin, over = found.begin_ns[waits], (found.begin_ns + found.wait_ns)[waits]
    own = np.lexsort((over, rank))
    low = int(begin.min(initial=FAR))
    span = int(over.max(initial=low)) - low + 2

    def until(moment: Int64) -> Int64:
        """Return the number of its waits that a peer has behind it at a moment, see `own`."""
        key = np.maximum(moment - low, 0) + peer * span
        return np.searchsorted(over[own] - low + rank[own] * span, key, side="right")

    since = _met(found, waits)
    start, stop = until(since), until(over)
    result: dict[int, dict[int, float]] = {}
    for i in np.flatnonzero(start < stop).tolist():
        mine: dict[int, float] = {}
        for n in own[start[i] : stop[i]].tolist():
            for origin, ns in result.get(n, {int(peer[n]): float(over[n] - begin[n])}).items():
                mine[origin] = mine.get(origin, 0.0) + ns
        waited, total = float(over[i] - begin[i]), sum(mine.values())
        scale = min(waited / total, 1.0)
        mine = {origin: ns * scale for origin, ns in mine.items()}
        mine[int(peer[i])] = mine.get(int(peer[i]), 0.0) + waited - total * scale
        result[i] = mine
    return result


def _met(found: Exchanges, waits: Int64) -> Int64:
    """When each waiting rank and the one that it waits for were last in an exchange before, in ns.

    Both had come to it then; without such a moment when the waiting began.
    """
    rank, peer, begin = found.rank[waits], found.cause_rank[waits], found.begin_ns[waits]
    matched = np.flatnonzero(found.instance >= 0)
    came = np.full(int(found.instance.max(initial=-1)) + 1, NULL)
    np.maximum.at(came, found.instance[matched], found.post_ns[matched])
    met = np.full(len(waits), NULL)
    rows = matched[found.way[matched] == COLLECTIVE]
    _, group = distinct_rows(found.communicator[rows], np.where(found.by_mpi, -1, found.name)[rows])
    for one in np.split(rows[np.argsort(group)], np.cumsum(np.bincount(group))[:-1]):
        both = np.flatnonzero(np.isin(rank, found.rank[one]) & np.isin(peer, found.rank[one]))
        times = np.append(NULL, np.unique(came[found.instance[one]]))
        before = times[np.searchsorted(times, begin[both]) - 1]
        met[both] = np.maximum(met[both], before)
    messages = matched[found.way[matched] != COLLECTIVE]
    ends = messages[np.argsort(found.instance[messages], kind="stable")].reshape(-1, 2)
    ranks = np.concatenate([found.rank[ends], np.column_stack([rank, peer])])
    _, pair = distinct_rows(ranks.min(axis=1), ranks.max(axis=1))
    moment = np.concatenate([came[found.instance[ends[:, 0]]], begin])
    low = int(moment.min(initial=FAR))
    span = int(moment.max(initial=low)) - low + 1
    key = pair * span + moment - low
    times = np.append(-1, np.sort(key[: len(ends)]))
    before = times[np.searchsorted(times, key[len(ends) :]) - 1]
    same = (before >= 0) & (before // span == pair[len(ends) :])
    met = np.where(same, np.maximum(met, before % span + low), met)
    return np.where(met == NULL, begin, met)


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
