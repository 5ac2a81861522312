"""Waiting in MPI point-to-point messages: who waits for whom, and for which rank.

A receiver that is blocked before the message was sent waits for a late sender; a sender that is
blocked before the receive was posted, for a late receiver. Source: Scalasca's patterns "Late
Sender" and "Late Receiver"; what a rank waited itself just before is passed on to whom it waited
for, as its delay analysis does (Böhme et al., "Identifying the root causes of wait states in
large-scale parallel applications", ICPP 2010).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import si
from perfmodel.readers.trace import Trace
from perfmodel.timing.clock_sync import FAR, align, collective_limits, utc_shifts
from perfmodel.timing.collectives import Calls, calls_by_rank, report_of, times_for_all
from perfmodel.timing.messages import End, Message, ends_of, match, match_any, members_of
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTable

_WORTH: Final = 0.01


@dataclass(frozen=True, slots=True)
class Pair:
    """Messages from one rank to another in the batches that count, per batch.

    `waiting_s` is the time that either of them waited for the other.
    """

    sender: int
    receiver: int
    messages: float
    bytes: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class RankWaiting:
    """One rank's waiting per batch, and what it makes all others wait.

    `caused_s` is the waiting of all ranks that leads back to this one, `most_s` that of the rank
    that waits longest for it.
    """

    rank: int
    waiting_s: float
    caused_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Waiting per batch of a rank for a peer that waited itself, as its own waiting leads back."""

    rank: int
    peer: int
    origin: int
    waiting_s: float


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Point-to-point messages of a run.

    Attributes
    ----------
    pairs : tuple of Pair
        Most waiting first.
    ranks : tuple of RankWaiting
        The rank that causes most waiting first.
    chains : tuple of Chain
        Those of at least one percent of all waiting, the longest first.
    unmatched : int
        Sends and receives without the other end, such as of ranks without a report.
    warnings : tuple of str
        About the clocks of the reports.
    by_batch : mapping of int to float64 array
        Waiting in s of every rank by batch that counts.
    """

    pairs: tuple[Pair, ...]
    ranks: tuple[RankWaiting, ...]
    chains: tuple[Chain, ...]
    unmatched: int
    warnings: tuple[str, ...] = ()
    by_batch: Mapping[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RangeOfRank:
    """Median host time of one range on one rank.

    `more_s` is what it takes more than on the median rank; `imbalance` the slowest rank's time over
    the mean, less 1.
    """

    rank: int
    range: str
    path: str
    seconds: float
    more_s: float
    imbalance: float


def point_to_point(
    traces: Sequence[Trace],
    begins: Mapping[int, Sequence[int]],
    collectives: Mapping[int, Calls] | None = None,
) -> PointToPoint | None:
    """Match the messages of a run's ranks and find who waits; None without messages.

    Parameters
    ----------
    traces : sequence of Trace
    begins : mapping of int to sequence of int
        Of every rank, the starts in ns (on its report's clock) of the batches that count, and the
        end of the last one.
    collectives : mapping of int to Calls, optional
        Of every rank, which help to align the clocks of several reports.
    """
    batches = max((len(b) - 1 for b in begins.values()), default=0)
    members = members_of(traces)
    ends = [
        end for trace, shift in zip(traces, utc_shifts(traces), strict=True)
        for end in ends_of(trace, shift, begins, members)
    ]  # fmt: skip
    if batches < 1 or not ends:
        return None
    matched, sends, receives = match(ends)
    said = _align(matched, ends, traces, collectives)
    matched += match_any(sends, receives)
    waits = _waits(matched)
    count = 1 + max((max(s.rank, r.rank) for s, r in matched), default=0)
    pair_wait, waiting, by_peer = _blame(waits, _meetings(matched), count)
    caused = np.zeros((count, count))
    for (rank, _), blame in by_peer.items():
        caused[rank] += blame
    np.fill_diagonal(caused, 0.0)
    pairs: dict[tuple[int, int], list[float]] = {}
    for s, r in matched:
        cell = pairs.setdefault((s.rank, r.rank), [0.0, 0.0])
        cell[0] += 1
        cell[1] += max(s.size, 0)
    found = [
        Pair(a, b, n / batches, size / batches, float(pair_wait[a, b]) * 1e-9 / batches)
        for (a, b), (n, size) in pairs.items()
    ]  # fmt: skip
    rows = [
        RankWaiting(
            rank, float(waiting[rank]) * 1e-9 / batches,
            float(caused[:, rank].sum()) * 1e-9 / batches,
            float(caused[:, rank].max()) * 1e-9 / batches,
        )
        for rank in range(count)
    ]  # fmt: skip
    return PointToPoint(
        tuple(sorted(found, key=lambda p: (-p.waiting_s, p.sender, p.receiver))),
        tuple(sorted(rows, key=lambda r: (-r.caused_s, r.rank))),
        _chains(by_peer, float(waiting.sum()), batches),
        len(ends) - 2 * len(matched),
        said,
        _by_batch(waits, begins),
    )


def _by_batch(waits: Sequence[_Wait], begins: Mapping[int, Sequence[int]]) -> dict[int, Floats]:
    found = {rank: np.zeros(max(len(starts) - 1, 0)) for rank, starts in begins.items()}
    for wait in waits:
        found[wait.rank][wait.batch] += wait.waiting * 1e-9
    return found


def _chains(
    by_peer: Mapping[tuple[int, int], Floats], waiting_ns: float, batches: int
) -> tuple[Chain, ...]:
    """Return the waiting for peers that is not of their own making."""
    found = [
        Chain(rank, peer, origin, blame[origin] * 1e-9 / batches)
        for (rank, peer), blame in by_peer.items()
        for origin in np.flatnonzero(blame >= max(_WORTH * waiting_ns, 1.0)).tolist()
        if origin not in (rank, peer)
    ]
    return tuple(sorted(found, key=lambda c: -c.waiting_s))


def _align(
    matched: Sequence[Message],
    ends: Sequence[End],
    traces: Sequence[Trace],
    collectives: Mapping[int, Calls] | None,
) -> tuple[str, ...]:
    """Shift the ends of all messages onto the first report's clock; return warnings.

    No message arrives before it was sent. Where the UTC starts contradict that, or the collectives,
    the shifts are those with which the collectives end at the same time, as far as all agrees.
    """
    ranks = sorted({end.rank for end in ends})
    report = dict(zip(ranks, report_of(traces, ranks).tolist(), strict=True))
    if len(set(report.values())) < 2:
        return ()
    limits, guess = np.full((len(traces), len(traces)), FAR), None
    calls = [collectives[rank] for rank in ranks if rank in collectives] if collectives else []
    times = times_for_all(calls) if len(calls) == len(ranks) else None
    if times is not None:
        mine = np.array([report[rank] for rank in ranks])
        limits = np.minimum(limits, collective_limits(*times, mine))
        guess = np.zeros(len(traces), np.int64)
        guess[mine] = np.median(times[1][0] - times[1], axis=1)
        guess -= guess[0]
    for sender, receiver in matched:
        i, j = report[receiver.rank], report[sender.rank]
        if i != j:
            limits[i, j] = min(limits[i, j], receiver.end - sender.posted)
    found = align(limits, guess)
    for end in ends:
        by = int(found.shift_ns[report[end.rank]])
        end.posted, end.begin, end.end = end.posted + by, end.begin + by, end.end + by
    said = []
    if len(found.moved):
        said.append(
            f"the clocks of {len(found.moved)} of {len(traces)} reports contradict the order of "
            f"messages by up to {si(float(np.abs(found.shift_ns).max()) * 1e-9, 's')}: they are "
            f"aligned by these and by the collectives"
        )
    if len(found.drifting):
        said.append(
            f"the clocks of {len(found.drifting)} of {len(traces)} reports drift: no one shift "
            f"lets all messages arrive after they were sent; profile for a shorter time"
        )
    return tuple(said)


@dataclass(slots=True)
class _Wait:
    """A blocking call, with the last of the other ranks that it needed."""

    rank: int
    begin: int
    end: int
    peer: int
    ready: int
    message: tuple[int, int]  # sender and receiver
    batch: int

    @property
    def waiting(self) -> int:
        """Time until the other rank was there, in ns."""
        return max(min(self.ready, self.end) - self.begin, 0)


def _waits(matched: Sequence[Message]) -> list[_Wait]:
    """Blocking calls by their end, each with the rank that it waited for longest."""
    found: dict[tuple[int, int, int], _Wait] = {}
    for sender, receiver in matched:
        for here, there in ((receiver, sender), (sender, receiver)):
            if here.end <= here.begin or there.posted > here.end:
                continue  # it did not wait for what came later
            key = here.rank, here.begin, here.end
            wait = found.get(key)
            if wait is None or there.posted > wait.ready:
                message = sender.rank, receiver.rank
                found[key] = _Wait(*key, there.rank, there.posted, message, here.batch)
    return sorted(found.values(), key=lambda w: w.end)


def _blame(
    waits: Sequence[_Wait], met: Mapping[tuple[int, int], Sequence[int]], ranks: int
) -> tuple[Floats, Floats, dict[tuple[int, int], Floats]]:
    """Waiting in ns by (sender, receiver), by rank, and by (rank, peer) and origin.

    What the peer itself waited since the two last met (`met`) is not its own doing.
    """
    by_pair, waiting = np.zeros((ranks, ranks)), np.zeros(ranks)
    by_peer: dict[tuple[int, int], Floats] = {}
    ends: list[list[int]] = [[] for _ in range(ranks)]
    shares: list[list[Floats]] = [[] for _ in range(ranks)]
    for wait in waits:
        waited, peer = wait.waiting, wait.peer
        times = met[min(wait.rank, peer), max(wait.rank, peer)]
        at = bisect_left(times, wait.begin) - 1
        since = times[at] if at >= 0 else wait.begin
        blame = np.zeros(ranks)
        for i in range(bisect_right(ends[peer], since), bisect_right(ends[peer], wait.ready)):
            blame += shares[peer][i]
        if blame.sum() > waited:
            blame *= waited / blame.sum()
        blame[peer] += waited - blame.sum()
        ends[wait.rank].append(wait.end)
        shares[wait.rank].append(blame)
        by_pair[wait.message] += waited
        waiting[wait.rank] += waited
        by_peer[wait.rank, peer] = by_peer.get((wait.rank, peer), 0.0) + blame
    return by_pair, waiting, by_peer


def _meetings(matched: Sequence[Message]) -> dict[tuple[int, int], list[int]]:
    """When both ends of the messages between two ranks were posted, in time order."""
    met: dict[tuple[int, int], list[int]] = {}
    for a, b in matched:
        key = min(a.rank, b.rank), max(a.rank, b.rank)
        met.setdefault(key, []).append(max(a.posted, b.posted))
    return {key: sorted(times) for key, times in met.items()}


def messages_of(run: Run, excluded: int) -> PointToPoint | None:
    """Match the messages of the batches behind the warm-up."""
    times = run.range_times
    rows = np.flatnonzero(times.labelled(run.batch_label) & (times.batch >= excluded))
    begins = {}
    for rank in run.ranks:
        mine = rows[times.rank[rows] == rank]
        if len(mine):
            start = times.start_ns[mine]
            end = int((start + np.maximum(times.host_ns[mine], 0)).max())
            begins[rank] = [*np.sort(start).tolist(), end]
    if len(run.traces) == 1:
        return point_to_point(run.traces, begins)
    calls, _ = calls_by_rank(run.traces, run.range_times, run.batch_label, run.ranks)
    return point_to_point(run.traces, begins, dict(zip(run.ranks, calls, strict=True)))


def ranges_by_rank(measured: PathTable, ranks: Sequence[int]) -> tuple[RangeOfRank, ...]:
    """Median host time of every range on every rank, where there are several ranks."""
    if len(ranks) < 2:
        return ()
    found = []
    for at in np.flatnonzero(measured.timed_ranks() > 1).tolist():
        one = measured[at]
        host = one.seconds["host"]
        known = np.isfinite(host).any(axis=1)
        median = np.full(len(host), np.nan)
        median[known] = np.nanmedian(host[known], axis=1)
        usual = np.nanquantile(median, 0.5, method="lower")  # of two ranks the faster one
        most, mean = np.nanmax(median), np.nanmean(median)
        imbalance = float(most / mean - 1.0) if mean > 0 else 0.0
        found += [
            RangeOfRank(
                rank=rank,
                range=one.label,
                path="/".join(one.path),
                seconds=float(seconds),
                more_s=float(seconds - usual),
                imbalance=imbalance,
            )
            for rank, seconds in zip(ranks, median.tolist(), strict=True)
            if np.isfinite(seconds)
        ]
    return tuple(found)
