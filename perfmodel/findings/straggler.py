"""A rank for which the others wait in kernels that communicate."""

from typing import Final

from perfmodel.findings import (
    WITHOUT,
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    StepFacts,
    percent,
    share_of_step,
    si,
)
from perfmodel.findings._host_work import against_host_work, in_gaps, sleeps
from perfmodel.findings._ranks import LATE, only_messages, rank_number, too_few, waits_longest
from perfmodel.timing.collectives import Waiting
from perfmodel.timing.host_timeline import CAUSES, HOST
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.late_ranks import COMPUTING, LateRank
from perfmodel.timing.step_facts import LATE_RANK

KIND = Kind(
    key="straggler",
    change="the late rank does no more than the others",
    remedy=WITHOUT,
    part="waiting",
    of_ranks=True,
    several=True,
    replays=LATE_RANK,
    kernels=(COMMUNICATION,),
    grounds={
        "formula": "step_s less the replay in which the late rank spends no more time on anything "
        "than the others",
        "inputs": [
            "summary.step_s",
            "stragglers[0].rank",
            "stragglers[0].caused_s",
            "stragglers[0].late_s",
            "stragglers[0].probability",
        ],
        "table": "exchanges",
        "where": {"cause_rank": "$stragglers[0].rank", "counted": True},
        "by": "waiting_s",
    },
)

_HOST_WORK: Final = CAUSES[HOST]

_LONGER: Final = {
    "launch_bound": "it takes {} longer to launch kernels",
    "blocking_sync": "it waits {} longer for its GPU",
    "allocation": "it takes {} longer to allocate GPU memory",
    _HOST_WORK: "its host works {} longer",
    "pageable_copy": "it copies {} longer from pageable memory",
    COMPUTING: "it computes {} longer",
}
"""What a late rank does longer than the median of the others."""

_COUNTED: Final = {COMPUTING: "kernels", "launch_bound": "launches"}


@KIND.rule(needs=("steps", "gpu_waiting"))
def late_to_kernels(facts: Facts, actions: Actions, steps: StepFacts, waiting: Waiting) -> Findings:
    """The rank for which the others wait in NCCL's kernels, with the work that makes it late.

    Not of a rank that only launches as much more slowly as two processes differ anyway.
    """
    late = steps.last_rank()
    if late is None or max(late.late_s, steps.straggler_saving_s) < LATE * steps.step_s:
        return
    more = late.excess
    if more is not None and more.by_chance:
        return
    lags = (
        "; it lags by a constant amount, so that removing the lag saves little"
        if steps.straggler_saving_s < LATE * steps.step_s
        else ""
    )
    waits = max(waiting.waiting_s or (0.0,))
    yield Finding(
        KIND.key,
        f"rank {late.rank} is late{_late_by(late, steps)}",
        steps.straggler_saving_s,
        f"NCCL's kernels of the other ranks wait up to {si(waits, 's')} per step for rank "
        f"{late.rank}; it comes last to {percent(late.share_last)} of the collectives, "
        f"{si(late.late_s, 's')} per step after the rank before it, by more than chance with a "
        f"probability of {percent(late.probability, 0)}{too_few(late)}"
        f"{_excess_words(late, steps)}{lags}",
        _help_late(late, steps, actions),
        line=more.line if more else None,
        range=(more.range or None) if more else None,
        rank=late.rank,
    )


def _late_by(late: LateRank, steps: StepFacts) -> str:
    """What the rank does longer than the others; '' where that is not known."""
    more = late.excess
    if more is None:
        return ""
    if more.kind == COMPUTING and more.only_slower:
        return f": about as many kernels take {more.slower:.2g} times as long"
    asleep = more.kind == _HOST_WORK and sleeps(steps.most_idle(_HOST_WORK, late.rank))
    usual = _LONGER.get(more.kind, "its GPU idles {} longer")
    words = "its host sleeps {} longer" if asleep else usual
    return f": {words.format(si(more.seconds, 's'))}{f' in {more.range!r}' if more.range else ''}"


def _excess_words(late: LateRank, steps: StepFacts) -> str:
    """How many events the rank has more of, where its longest gap begins, what the thread does."""
    more = late.excess
    if more is None:
        return "; nothing that was recorded takes it longer than the others"
    counted = (
        f"; it has {more.count:.0f} {_COUNTED[more.kind]} per step, which take "
        f"{si(more.seconds, 's')} longer than {more.usual:.0f} of the median of the others"
        if more.count and more.usual
        else ""
    )
    gap = more.gap
    if gap is None:
        return counted
    where = f" in {gap.range!r}" if gap.range else ""
    thread = in_gaps(steps.most_idle(more.kind, late.rank))
    return (
        f"{counted}; its longest gap, {si(gap.seconds, 's')}{where}, begins "
        f"{si(gap.in_step_s, 's')} into step {gap.step}{thread}"
    )


def _help_late(late: LateRank, steps: StepFacts, actions: Actions) -> str:
    """What to do about a late rank: by the work that makes it late, or what to measure."""
    more = late.excess
    if more is None:
        return actions.advise("record_late", rank=late.rank)
    where = f" on rank {late.rank}{f' in {more.range!r}' if more.range else ''}"
    if more.kind == _HOST_WORK:
        recorder = steps.recorder.name if steps.recorder else ""
        idle = steps.most_idle(_HOST_WORK, late.rank)
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


@KIND.rule(needs=("gpu_waiting",), unless=("steps",))
def waiting_in_nccl(facts: Facts, actions: Actions, waiting: Waiting) -> Findings:
    """Time in NCCL's kernels before the last rank has come."""
    if waiting.waiting_s is None:
        return
    worst = waits_longest(waiting.waiting_s)
    seconds = waiting.waiting_s[worst]
    yield Finding(
        KIND.key,
        "ranks wait for each other",
        seconds,
        f"rank {rank_number(facts, worst)} waits longest in NCCL's kernels, which keep its GPU "
        f"busy meanwhile: {share_of_step(facts, seconds)}",
        actions.balance(),
    )
