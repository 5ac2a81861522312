"""Ranks that wait for others, and processes that share a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts
from perfmodel.programs.findings import WORTH, Finding, finding, share_of_step
from perfmodel.programs.findings.host import against_host_work, in_gaps, sleeps
from perfmodel.programs.findings.messages import only_messages
from perfmodel.programs.findings.places import innermost
from perfmodel.timing.host_timeline import CAUSES, HOST
from perfmodel.timing.late_ranks import COMPUTING, late_rank

if TYPE_CHECKING:
    from perfmodel.timing.collectives import Waiting
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank
    from perfmodel.timing.step_facts import StepFacts

HOST_WORK: Final = CAUSES[HOST]

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

_LATE: Final = 0.03
"""A rank that is late by a smaller share of a step holds nobody up."""

_SLICE_S, _NEAR = 2.5e-3, 0.1
"""Time slice of a process on an H200 (docs/findings.md); a GPU of another kind has another."""


@finding("shared_gpu", needs=("shared_gpus",))
def shared_gpus(
    facts: Facts, actions: Actions, shared: Mapping[int, tuple[int, ...]]
) -> Iterator[Finding]:
    """Ranks that run on one device."""
    for gpu, ranks in shared.items():
        who = " and ".join(str(r) for r in ranks)
        yield Finding(
            "shared_gpu",
            f"ranks {who} share GPU {gpu}",
            None,
            f"the operations of ranks {who} ran on one device, so their GPU times include each "
            f"other",
            "give every rank a GPU of its own (CUDA_VISIBLE_DEVICES by local rank)",
            subject=f"GPU {gpu}",
        )


@finding("shared_gpu", needs=("steps",))
def interrupted(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """GPUs on which a process that was not recorded takes turns."""
    known = {rank for ranks in facts.shared_gpus.values() for rank in ranks}
    for one in steps.interrupted:
        if one.rank not in known:
            uses = "uses" if abs(one.each_s - _SLICE_S) <= _NEAR * _SLICE_S else "may use"
            yield Finding(
                "shared_gpu",
                f"another process {uses} the GPU of rank {one.rank}",
                one.seconds,
                f"{one.count:.1f} kernels per step take {si(one.each_s, 's')} longer than the same "
                f"kernels of other steps, whatever they do: a time slice of another process, "
                f"which has its turn meanwhile",
                "find the other process (nvidia-smi), and give each program a GPU of its own "
                "(CUDA_VISIBLE_DEVICES)",
                rank=one.rank,
            )


@finding("straggler", needs=("steps", "gpu_waiting"))
def late_to_kernels(
    facts: Facts, actions: Actions, steps: StepFacts, waiting: Waiting
) -> Iterator[Finding]:
    """The rank for which the others wait in NCCL's kernels, with the work that makes it late.

    Not of a rank that only launches as much more slowly as two processes differ anyway.
    """
    late = steps.last_rank()
    if late is None or max(late.late_s, steps.straggler_saving_s) < _LATE * steps.step_s:
        return
    more = late.excess
    if more is not None and more.by_chance:
        return
    lags = (
        "; it lags by a constant amount, so that removing the lag saves little"
        if steps.straggler_saving_s < _LATE * steps.step_s
        else ""
    )
    waits = max(waiting.waiting_s or (0.0,))
    yield Finding(
        "straggler",
        f"rank {late.rank} is late{_late_by(late, steps)}",
        steps.straggler_saving_s,
        f"NCCL's kernels of the other ranks wait up to {si(waits, 's')} per step for rank "
        f"{late.rank}; it comes last to {percent(late.share_last)} of the collectives, "
        f"{si(late.late_s, 's')} per step after the rank before it, by more than chance with a "
        f"probability of {percent(late.probability, 0)}{_too_few(late)}"
        f"{_excess_said(late, steps)}{lags}",
        _help_late(late, steps, actions),
        line=more.line if more else None,
        range=(more.range or None) if more else None,
        rank=late.rank,
    )


_LONGER: Final = {
    "launch_bound": "it takes {} longer to launch kernels",
    "blocking_sync": "it waits {} longer for its GPU",
    "allocation": "it takes {} longer to allocate GPU memory",
    HOST_WORK: "its host works {} longer",
    "pageable_copy": "it copies {} longer from pageable memory",
    COMPUTING: "it computes {} longer",
}
"""What a late rank does longer than the median of the others."""
_COUNTED: Final = {COMPUTING: "kernels", "launch_bound": "launches"}


def _late_by(late: LateRank, steps: StepFacts) -> str:
    """What the rank does longer than the others; '' where that is not known."""
    more = late.excess
    if more is None:
        return ""
    if more.kind == COMPUTING and more.only_slower:
        return f": about as many kernels take {more.slower:.2g} times as long"
    said = _LONGER.get(more.kind, "its GPU idles {} longer")
    if more.kind == HOST_WORK and sleeps(steps.most_idle(HOST_WORK, late.rank)):
        said = "its host sleeps {} longer"
    return f": {said.format(si(more.seconds, 's'))}{f' in {more.range!r}' if more.range else ''}"


def _excess_said(late: LateRank, steps: StepFacts) -> str:
    """How many events the rank has more of, where its longest gap begins, what the thread does."""
    more = late.excess
    if more is None:
        return "; nothing that was recorded takes it longer than the others"
    said = ""
    if more.count and more.usual:
        said = (
            f"; it has {more.count:.0f} {_COUNTED[more.kind]} per step, which take "
            f"{si(more.seconds, 's')} longer than {more.usual:.0f} of the median of the others"
        )
    gap = more.gap
    if gap is None:
        return said
    where = f" in {gap.range!r}" if gap.range else ""
    thread = in_gaps(steps.most_idle(more.kind, late.rank))
    return (
        f"{said}; its longest gap, {si(gap.seconds, 's')}{where}, begins "
        f"{si(gap.in_step_s, 's')} into step {gap.step}{thread}"
    )


def _help_late(late: LateRank, steps: StepFacts, actions: Actions) -> str:
    """What to do about a late rank: by the work that makes it late, or what to measure."""
    more = late.excess
    if more is None:
        return actions.advise("record_late", rank=late.rank)
    where = f" on rank {late.rank}{f' in {more.range!r}' if more.range else ''}"
    if more.kind == HOST_WORK:
        recorder = steps.recorder.name if steps.recorder else ""
        idle = steps.most_idle(HOST_WORK, late.rank)
        return against_host_work(idle, where, recorder, actions)
    if more.kind == "pageable_copy":
        return actions.pin("Host-to-Device")
    if more.kind == COMPUTING and not more.only_slower and only_messages(steps):
        return actions.advise("help_stage", rank=late.rank)
    what = {
        COMPUTING: "compare_clocks" if more.only_slower else "help_rank",
        "launch_bound": "bind_rank" if more.as_many else "help_rank",
        "blocking_sync": "wait_less",
        "allocation": "allocate_less",
    }.get(more.kind, "help_rank")
    call = more.gap.call if more.gap and more.gap.call else "a blocking call"
    return actions.advise(what, where=where, call=call, rank=late.rank)


def straggler(steps: StepFacts) -> LateRank | None:
    """Return the rank that the others wait for, if a step would be shorter without."""
    if steps.straggler_saving_s < _LATE * steps.step_s:
        return None
    late = steps.last_rank()
    return None if late is None or (late.excess and late.excess.by_chance) else late


def slow_launches(steps: StepFacts) -> str:
    """Name the rank whose launches the others wait for, where only they make it late."""
    late = steps.last_rank()
    more = late.excess if late else None
    if late is None or more is None or not more.by_chance:
        return ""
    return (
        f"; the others wait up to {si(late.most_s, 's')} for rank {late.rank}, which takes "
        f"{si(more.seconds, 's')} longer for its launches"
    )


@finding("waiting_mpi", needs=("waiting",))
def waiting_in_mpi(facts: Facts, actions: Actions, waiting: Waiting) -> Iterator[Finding]:
    """Time in MPI's collectives before the last rank has come."""
    if waiting.waiting_s is None or _late_by_messages(facts) is not None:
        return  # named there, with its collectives
    if rare := _waiting_in_some_steps(facts, waiting, actions):
        yield rare
        return
    worst = _waits_longest(waiting.waiting_s)
    seconds, rank = waiting.waiting_s[worst], _number(facts, worst)
    who, more, last = _who_is_last(facts)
    begun = [g for g in facts.collectives if g.name.startswith("MPI_I") and g.waiting_s]
    saved = seconds
    if more is not None and begun and facts.host_ranks:  # nor go on before it is in MPI
        saved = max(seconds, min(more.more_s, facts.host_ranks[rank][1]))
    if seconds < WORTH * facts.batch.value:
        return
    yield Finding(
        "waiting_mpi",
        "ranks wait for each other"
        if last is None
        else f"ranks wait for rank {last}{_which(more)}",
        saved,
        f"rank {rank} waits longest in collectives: {share_of_step(facts, seconds)}"
        f"{_trend(facts, waiting, worst)}{who}",
        actions.balance(),
        range=more.range if more else None,
        rank=last,
        change="straggler",
    )


@finding("straggler", needs=("gpu_waiting",), unless=("steps",))
def waiting_in_nccl(facts: Facts, actions: Actions, waiting: Waiting) -> Iterator[Finding]:
    """Time in NCCL's kernels before the last rank has come."""
    if waiting.waiting_s is None:
        return
    worst = _waits_longest(waiting.waiting_s)
    seconds = waiting.waiting_s[worst]
    yield Finding(
        "straggler",
        "ranks wait for each other",
        seconds,
        f"rank {_number(facts, worst)} waits longest in NCCL's kernels, which keep its GPU busy "
        f"meanwhile: {share_of_step(facts, seconds)}",
        actions.balance(),
    )


def _waits_longest(waiting_s: Sequence[float]) -> int:
    return max(range(len(waiting_s)), key=waiting_s.__getitem__)


def _number(facts: Facts, index: int) -> int:
    """The rank that is the n-th of those that are measured."""
    return facts.numbers[index] if facts.numbers else index


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
        "waiting_mpi",
        "ranks wait for each other in some steps"
        if last is None
        else f"ranks wait for rank {last} in some steps",
        float(mean[worst]),
        f"rank {_number(facts, worst)} waits {si(float(mean[worst]), 's')} per step on average in "
        f"collectives: {si(float(np.median(by_batch[worst][long])), 's')} in {int(long.sum())} of "
        f"{len(long)} steps, {si(float(np.median(by_batch[worst][~long])), 's')} in the others"
        f"{who}",
        actions.balance(),
        of_mean=True,
        range=more.range if more else None,
        rank=last,
        change="straggler",
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
    """Work that takes a rank longer than the median rank; `alone` with the time of both.

    `of_mean` says that it is longer in some steps only, and that the times are means.
    """

    said: str
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
    if late is not None:
        said = (
            f"; rank {late.rank} comes last to {percent(late.share_last)} of them and causes "
            f"{percent(late.caused_s / sum(r.caused_s for r in facts.late))} of the waiting"
            f"{_too_few(late)}"
        )
        more = _longer(facts, late.rank)
        if more is None or (facts.host_ranks and more.more_s < _UNEQUAL * facts.batch.value):
            return said, None, late.rank
        return f"{said}; it {more.said}", more, late.rank
    if not facts.host_ranks:
        return "", None, None
    slow = max(facts.host_ranks, key=lambda rank: facts.host_ranks[rank][0])
    more = _longer(facts, slow)
    if more is None or more.more_s < _UNEQUAL * facts.batch.value:
        return "", None, None
    return f"; rank {slow} {more.said}", more, slow


def _too_few(late: LateRank) -> str:
    """Say where too few steps were recorded to tell a late rank from chance."""
    steps = f"{late.steps} step{'s' * (late.steps != 1)}"
    return "" if late.enough else f" (only {steps}: record more to be sure)"


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
    if rank not in facts.compute_s or not others:
        return None
    seconds = facts.compute_s[rank]
    more_s = seconds - float(np.median(others))
    if more_s <= 0:
        return None
    more, spent = si(more_s, "s"), si(seconds, "s")
    does, is_there = ("is", " outside MPI") if facts.host_ranks else ("computes", "")
    return _Longer(
        f"{does} {more} longer{is_there} than the median of the others",
        f"{does} {spent}{is_there} per step, {more} more than the other ranks' median",
        more_s,
    )


@finding("waiting_mpi", needs=("messages",))
def late_messages(facts: Facts, actions: Actions, messages: PointToPoint) -> Iterator[Finding]:
    """The rank to which most waiting in point-to-point messages leads back."""
    if _late_by_messages(facts) is None:
        yield from _unseen_waiting(facts, actions)
        return
    late = late_rank(facts.late, least=0.0)
    if late is None:
        waits = sorted(row.waiting_s for row in facts.late)
        yield Finding(
            "waiting_mpi",
            "ranks wait for each other's messages",
            waits[-1],
            f"up to {si(waits[-1], 's')} of a rank per step; they are late in turn: no rank is "
            f"late more often than chance makes it",
            actions.balance(),
            change="straggler",
        )
        return
    most = _longer(facts, late.rank)
    if most is None or most.more_s < _EXPLAINS * late.most_s:
        most = _computes_more(facts, late.rank)
    if most is not None and most.more_s < _EXPLAINS * late.most_s:
        most = None  # that is not why the others wait
    said = f"it {most.alone}; " if most else ""
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
        "waiting_mpi",
        f"ranks wait for messages of rank {late.rank}{_which(most)}",
        min(late.most_s, most.more_s) if most else late.most_s,
        f"{said}{si(late.caused_s, 's')} of all ranks' waiting per step leads back to rank "
        f"{late.rank}, up to {si(late.most_s, 's')} of one rank{passed}{_too_few(late)}",
        actions.advise(
            "help_rank" if most else "record_late",
            rank=late.rank,
            where=f" in {most.range!r}" if most and most.range else "",
        ),
        of_mean=bool(most and most.of_mean),
        range=most.range if most else None,
        rank=late.rank,
        change="straggler",
    )


def _late_by_messages(facts: Facts) -> LateRank | None:
    """Return the rank that most waiting leads back to, if that counts and is mostly in messages."""
    if facts.messages is None or not facts.late:
        return None
    late, total = facts.late[0], sum(row.caused_s for row in facts.late)
    mostly = sum(pair.waiting_s for pair in facts.messages.pairs) > _MOSTLY * total
    return late if mostly and late.most_s >= WORTH * facts.batch.value else None


def _unseen_waiting(facts: Facts, actions: Actions) -> Iterator[Finding]:
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
    seen = (
        max(facts.waiting.waiting_s, default=0.0)
        if facts.waiting and facts.waiting.waiting_s
        else 0.0
    )
    if seen > slow.more_s / 2:  # in collectives
        return
    whole = min(facts.ranges_by_rank, key=lambda r: len(r.path)).path
    steps = [r.more_s for r in facts.ranges_by_rank if r.path == whole and r.rank == slow.rank]
    if slow.path == whole or max(steps, default=0.0) > slow.more_s / 2:
        return
    yield Finding(
        "waiting_mpi",
        f"rank {slow.rank} takes longer in '{slow.range}' than the others",
        slow.more_s,
        f"it is {si(slow.seconds, 's')} in '{slow.range}', {si(slow.more_s, 's')} more than the "
        f"median rank, and the steps of all ranks are as long: the others pass the time "
        f"elsewhere, such as between calls of MPI_Test, which does not wait",
        actions.advise("help_rank", rank=slow.rank, where=f" in {slow.range!r}"),
        range=slow.range,
        rank=slow.rank,
        change="straggler",
    )
