"""Ranks that wait for each other in MPI: in collectives, or for messages."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.findings import (
    WITHOUT,
    WORTH,
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    percent,
    share_of_step,
    si,
)
from perfmodel.findings._ranks import innermost, rank_number, too_few, waits_longest
from perfmodel.timing.collectives import Waiting
from perfmodel.timing.late_ranks import LateRank, late_rank
from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank
from perfmodel.timing.step_facts import LATE_RANK

KIND = Kind(
    key="waiting_mpi",
    change="the late rank does no more than the others",
    remedy=WITHOUT,
    of_ranks=True,
    several=True,
    replays=LATE_RANK,
    grounds={
        "formula": "waiting per step of the rank that waits, before the ranks came that it needs",
        "inputs": [
            "summary.step_s",
            "stragglers[0].rank",
            "stragglers[0].caused_s",
            "ranks[].waiting_s",
        ],
        "table": "exchanges",
        "where": {"cause_rank": "$stragglers[0].rank", "counted": True},
        "by": "waiting_s",
    },
)

_UNEQUAL: Final = 0.05
"""A rank that takes longer by this share of a step in a range is reported without any waiting."""

_EXPLAINS: Final = 0.2
"""A range explains why the others wait for a rank if it takes this share of the waiting longer."""

_TELLING: Final = 3
"""Of so many ranks the median one tells which rank is longer than usual."""

_RARE: Final = 2.0
"""A mean so many times the median is of some steps; parts that differ so much, of a trend."""

_STEPS: Final = 6
"""Of fewer steps nobody can say which are long."""

_MOSTLY: Final = 0.5
"""With this share of the waiting in messages, or more, a late rank is named for these."""


@KIND.rule(needs=("waiting",))
def waiting_in_mpi(facts: Facts, actions: Actions, waiting: Waiting) -> Findings:
    """Time in MPI's collectives before the last rank has come."""
    if waiting.waiting_s is None or _late_by_messages(facts) is not None:
        return  # named there, with its collectives
    if rare := _waiting_in_some_steps(facts, waiting, actions):
        yield rare
        return
    worst = waits_longest(waiting.waiting_s)
    seconds, rank = waiting.waiting_s[worst], rank_number(facts, worst)
    who, more, last = _who_is_last(facts)
    begun = [g for g in facts.collectives if g.name.startswith("MPI_I") and g.waiting_s]
    more_s = more.more_s if more and begun and facts.host_ranks else 0.0
    held_s = min(more_s, facts.host_ranks[rank][1]) if more_s else 0.0  # until it is in MPI
    if seconds < WORTH * facts.batch.value:
        return
    yield Finding(
        KIND.key,
        "ranks wait for each other"
        if last is None
        else f"ranks wait for rank {last}{_which(more)}",
        max(seconds, held_s),
        f"rank {rank} waits longest in collectives: {share_of_step(facts, seconds)}"
        f"{_trend(facts, waiting, worst)}{who}",
        actions.balance(),
        range=more.range if more else None,
        rank=last,
    )


def _waiting_in_some_steps(facts: Facts, waiting: Waiting, actions: Actions) -> Finding | None:
    """Waiting that medians hide, since fewer than half of the steps have it."""
    by_batch = waiting.by_batch
    if not facts.host_ranks or by_batch is None or by_batch.shape[1] < _STEPS:
        return None
    by_batch = by_batch[:, np.isfinite(by_batch).all(axis=0)]  # steps that all ranks have
    mean, usual = by_batch.mean(axis=1), np.median(by_batch, axis=1)
    worst = int(mean.argmax())
    if mean[worst] < max(_RARE * float(usual[worst]), WORTH * facts.batch.value):
        return None
    long = by_batch[worst] > mean[worst]
    who, more, last = _who_is_last(facts)
    return Finding(
        KIND.key,
        "ranks wait for each other in some steps"
        if last is None
        else f"ranks wait for rank {last} in some steps",
        float(mean[worst]),
        f"rank {rank_number(facts, worst)} waits {si(float(mean[worst]), 's')} per step on average "
        f"in collectives: {si(float(np.median(by_batch[worst][long])), 's')} in {int(long.sum())} "
        f"of {len(long)} steps, {si(float(np.median(by_batch[worst][~long])), 's')} in the others"
        f"{who}",
        actions.balance(),
        of_mean=True,
        range=more.range if more else None,
        rank=last,
    )


def _trend(facts: Facts, waiting: Waiting, worst: int) -> str:
    """Say if the waiting grows or falls with the steps."""
    by_batch = waiting.by_batch
    if not facts.host_ranks or by_batch is None or by_batch.shape[1] < _STEPS:
        return ""
    parts = np.array_split(by_batch[worst][np.isfinite(by_batch[worst])], 3)
    first, last = float(np.median(parts[0])), float(np.median(parts[-1]))
    if max(first, last) < _RARE * min(first, last) + _UNEQUAL * facts.batch.value:
        return ""
    return (
        f", {si(first, 's')} in the first third of the steps and {si(last, 's')} in the last: it "
        f"{'grows' if last > first else 'falls'}"
    )


@dataclass(frozen=True, slots=True)
class _Longer:
    """Work that takes a rank longer than the median rank: by how much, `alone` with its time.

    `of_mean` says that it is longer in some steps only, and that the times are means.
    """

    more: str
    alone: str
    more_s: float
    range: str | None = None
    of_mean: bool = False


def _which(more: _Longer | None) -> str:
    """What the late rank does longer, behind its number."""
    if more is None:
        return ""
    where = f" in {more.range!r}" if more.range else " outside MPI"
    mean = " on average" * more.of_mean
    return f", which is {si(more.more_s, 's')} longer{where}{mean}"


def _who_is_last(facts: Facts) -> tuple[str, _Longer | None, int | None]:
    """Name the rank to which most waiting leads back, with what takes it longer, and its number.

    Of a program without a GPU, where there is no such rank, one that computes longer than the
    others.
    """
    late = late_rank(facts.late)
    if late is None and not facts.host_ranks:
        return "", None, None
    computing = {rank: outside_s for rank, (outside_s, _) in facts.host_ranks.items()}
    rank = late.rank if late else max(computing, key=lambda rank: computing[rank])
    more = _longer(facts, rank)
    if more is not None and facts.host_ranks and more.more_s < _UNEQUAL * facts.batch.value:
        more = None
    if late is None:
        return (f"; rank {rank} {more.more}", more, rank) if more else ("", None, None)
    last = (
        f"; rank {rank} comes last to {percent(late.share_last)} of them and causes "
        f"{percent(late.caused_s / sum(r.caused_s for r in facts.late))} of the waiting"
        f"{too_few(late)}"
    )
    return f"{last}; it {more.more}" if more else last, more, rank


def _longer(facts: Facts, rank: int) -> _Longer | None:
    """Return what a rank spends more time in than the median rank; the innermost such range.

    Without a GPU time outside MPI counts: in MPI the others wait for this rank. Where no range
    explains at least half of it, what the rank does outside MPI.
    """
    if facts.host_ranks:
        return _longer_outside(facts, rank)
    own = [r for r in facts.ranges_by_rank if r.rank == rank and r.more_s > 0]
    most = max(own, key=lambda r: (r.more_s, len(r.path)), default=None)
    return None if most is None else _in_range(most, most.seconds, most.more_s)


def _longer_outside(facts: Facts, rank: int) -> _Longer | None:
    """Return where a rank is longer outside MPI than the median rank, in a range if one says it."""
    own = {r.path: r for r in facts.ranges_by_rank if r.rank == rank and "/" in r.path}
    path = innermost({path: one.own_more_s for path, one in own.items()})
    most = None if path is None else own[path]
    outside = _computes_more(facts, rank)
    if outside is not None and (most is None or most.own_more_s < outside.more_s / 2):
        return outside
    if most is None:
        return None
    return replace(_in_range(most, most.own_s, most.own_more_s), of_mean=most.own_of_mean)


def _in_range(one: RangeOfRank, seconds: float, more_s: float) -> _Longer:
    more = si(more_s, "s")
    return _Longer(
        f"is {more} longer in '{one.range}' than the median rank",
        f"is {si(seconds, 's')} in '{one.range}', {more} more than the median rank",
        more_s,
        one.range,
    )


def _computes_more(facts: Facts, rank: int) -> _Longer | None:
    """Return how much longer a rank computes than the median of the others."""
    others = [seconds for r, seconds in facts.compute_s.items() if r != rank]
    seconds = facts.compute_s.get(rank, 0.0)
    more_s = seconds - float(np.median(others)) if others else 0.0
    if more_s <= 0:
        return None
    more, spent = si(more_s, "s"), si(seconds, "s")
    does, is_there = ("is", " outside MPI") if facts.host_ranks else ("computes", "")
    return _Longer(
        f"{does} {more} longer{is_there} than the median of the others",
        f"{does} {spent}{is_there} per step, {more} more than the other ranks' median",
        more_s,
    )


@KIND.rule(needs=("messages",))
def late_messages(facts: Facts, actions: Actions, messages: PointToPoint) -> Findings:
    """The rank to which most waiting in point-to-point messages leads back."""
    if _late_by_messages(facts) is None:
        yield from _unseen_waiting(facts, actions)
        return
    late = late_rank(facts.late, least=0.0)
    if late is None:
        waits = sorted(row.waiting_s for row in facts.late)
        yield Finding(
            KIND.key,
            "ranks wait for each other's messages",
            waits[-1],
            f"up to {si(waits[-1], 's')} of a rank per step; they are late in turn: no rank is "
            f"late more often than chance makes it",
            actions.balance(),
        )
        return
    work = _longer(facts, late.rank), _computes_more(facts, late.rank)
    enough_s = _EXPLAINS * late.most_s  # less is not why the others wait
    most = next((one for one in work if one and one.more_s >= enough_s), None)
    longer = f"it {most.alone}; " if most else ""
    through: dict[int, float] = {}
    for chain in messages.chains:
        if chain.origin == late.rank:
            through[chain.peer] = through.get(chain.peer, 0.0) + chain.waiting_s
    peer = max(through, key=lambda rank: through[rank], default=None)
    passed = (
        f"; {si(through[peer], 's')} of it comes through rank {peer}, which waits itself"
        if peer is not None
        else ""
    )
    yield Finding(
        KIND.key,
        f"ranks wait for messages of rank {late.rank}{_which(most)}",
        min(late.most_s, most.more_s) if most else late.most_s,
        f"{longer}{si(late.caused_s, 's')} of all ranks' waiting per step leads back to rank "
        f"{late.rank}, up to {si(late.most_s, 's')} of one rank{passed}{too_few(late)}",
        actions.advise(
            "help_rank" if most else "record_late",
            rank=late.rank,
            where=f" in {most.range!r}" if most and most.range else "",
        ),
        of_mean=bool(most and most.of_mean),
        range=most.range if most else None,
        rank=late.rank,
    )


def _late_by_messages(facts: Facts) -> LateRank | None:
    """Return the rank that most waiting leads back to, if that counts and is mostly in messages."""
    if facts.messages is None or not facts.late:
        return None
    late, total = facts.late[0], sum(row.caused_s for row in facts.late)
    mostly = sum(pair.waiting_s for pair in facts.messages.pairs) > _MOSTLY * total
    return late if mostly and late.most_s >= WORTH * facts.batch.value else None


def _unseen_waiting(facts: Facts, actions: Actions) -> Findings:
    """A rank that takes longer, where others poll for its messages: no call shows that they wait.

    Not of ranks whose step is longer than the others': they make no one wait. Of two ranks, the one
    that polls is the longer one where it polls.
    """
    if facts.ranks < _TELLING:
        return
    shared = [r for r in facts.ranges_by_rank if r.more_s < r.seconds]  # not a master's own work
    slow = max(shared, key=lambda r: (r.more_s, len(r.path)), default=None)
    if slow is None or slow.more_s < _UNEQUAL * facts.batch.value:
        return
    in_collectives = (facts.waiting.waiting_s if facts.waiting else None) or (0.0,)
    if max(in_collectives) > slow.more_s / 2:
        return
    whole = min(facts.ranges_by_rank, key=lambda r: len(r.path)).path
    steps = [r.more_s for r in facts.ranges_by_rank if r.path == whole and r.rank == slow.rank]
    if slow.path == whole or max(steps, default=0.0) > slow.more_s / 2:
        return
    yield Finding(
        KIND.key,
        f"rank {slow.rank} takes longer in '{slow.range}' than the others",
        slow.more_s,
        f"it is {si(slow.seconds, 's')} in '{slow.range}', {si(slow.more_s, 's')} more than the "
        f"median rank, and the steps of all ranks are as long: the others pass the time "
        f"elsewhere, such as between calls of MPI_Test, which does not wait",
        actions.advise("help_rank", rank=slow.rank, where=f" in {slow.range!r}"),
        range=slow.range,
        rank=slow.rank,
    )
