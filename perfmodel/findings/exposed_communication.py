"""Communication that no computing hides, and messages that another way would send faster."""

from collections.abc import Mapping, Sequence
from typing import Final

from perfmodel.findings import (
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    StepFacts,
    share_of_recorded,
    share_of_step,
    si,
)
from perfmodel.findings._ranks import innermost, only_messages, over_nvlink
from perfmodel.programs.facts import DeviceReduce
from perfmodel.timing.collectives import NCCL, CollectiveGroup
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.nccl import PASSES

KIND = Kind(
    key="exposed_communication",
    change="no communication that computing does not hide",
    remedy="Overlap it with computing:",
    part="communication",
    kernels=(COMMUNICATION,),
    grounds={
        "formula": "step_s less the replay in which collectives take no time",
        "inputs": [
            "summary.step_s",
            "ranks[].communication_s",
            "ranks[].waiting_s",
            "collectives[].exposed_s",
        ],
        "table": "exchanges",
        "where": {"counted": True},
        "by": "exposed_s",
    },
)

_MANY_MESSAGES: Final = 20

_SMALL_BYTES: Final = 65536
"""Messages that are smaller take as long as an empty one, nearly."""

_LEAST_SHARE_OF_STEP: Final = 0.1
"""Communication with a smaller share of a step is what a program needs."""

_PARTS: Final = 0.1
"""Gradients are not summed in the forward pass: more than this share there is of layers' parts."""

_MOSTLY: Final = 0.5
"""Share of the time in messages from which advice on those of one kind is worth following."""


@KIND.rule(needs=("reduced",))
def nccl_latency(facts: Facts, actions: Actions, reduced: DeviceReduce) -> Findings:
    """NCCL's all-reduce against what the link needs for its bytes: the rest is latency."""
    direct = over_nvlink(facts, reduced.bytes)
    if direct is None or reduced.bytes <= 0:
        return
    yield Finding(
        KIND.key,
        "NCCL's all-reduce is mostly latency",
        reduced.seconds - direct,
        f"its kernels transfer for {share_of_step(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')}",
        actions.reduce_faster(facts.ranks),
    )


@KIND.rule(needs=("collectives",), unless=("steps",))
def many_reductions(
    facts: Facts, actions: Actions, collectives: Sequence[CollectiveGroup]
) -> Findings:
    """Several all-reduces of MPI a batch, most of them small."""
    reduced = [g for g in collectives if g.name == "MPI_Allreduce" and g.bytes]
    count = sum(g.count for g in reduced)
    if count < 1.5 or "chunks" in actions.done:  # divided on purpose
        return
    small = [g for g in reduced if g.bytes and g.bytes < _SMALL_BYTES]
    saved = sum(g.count * g.seconds for g in small)
    yield Finding(
        KIND.key,
        "the gradients are reduced in several messages",
        saved,
        f"{count:.0f} all-reduces per step, {len(small)} of them under 64 KB, which together "
        f"take {si(saved, 's')}",
        f"keep the gradients in one flat buffer: one copy and one all-reduce{actions.flag('flat')}",
    )


@KIND.rule(needs=("host_ranks",))
def in_mpi(
    facts: Facts, actions: Actions, host_ranks: Mapping[int, tuple[float, float]]
) -> Findings:
    """Time that every rank of a program without a GPU is in MPI: many messages, or large ones.

    Ranks that send many messages wait for each other in each of them. One message in their place
    takes that once. Of a few large ones the time of the ranks' waiting is not theirs.
    """
    if actions.known:  # its ranges have findings of their own
        return
    kinds = [(g.count, g.count * (g.bytes or 0)) for g in facts.collectives]
    pairs = facts.messages.pairs if facts.messages else ()
    kinds += [(pair.messages, pair.bytes) for pair in pairs if pair.sender == min(host_ranks)]
    count, size = (sum(column) for column in zip(*kinds, strict=True)) if kinds else (0.0, 0.0)
    most = max((count for count, _ in kinds), default=0.0)
    waiting = {row.rank: row.waiting_s for row in facts.late}
    inside_s = min(inside for _, inside in host_ranks.values())
    own_s = min(max(s - waiting.get(rank, 0.0), 0.0) for rank, (_, s) in host_ranks.items())
    many = most >= _MANY_MESSAGES and size < _SMALL_BYTES * count
    saving_s = inside_s * (1.0 - 1.0 / most) if many else own_s
    if not many and (
        saving_s < _LEAST_SHARE_OF_STEP * facts.batch.value or size < _SMALL_BYTES * count
    ):
        return
    yield Finding(
        KIND.key,
        "ranks send many small messages" if many else "ranks send large messages",
        saving_s,
        f"a rank sends about {count:.0f} messages, {si(size, 'B')} per step; every rank is at "
        f"least {share_of_recorded(facts, inside_s)} in MPI",
        actions.advise("join_messages" if many else "overlap_messages"),
        range=_most_messages(facts),
    )


def _most_messages(facts: Facts) -> str | None:
    """Return the innermost range inside the step in which a rank is in MPI for longest."""
    inside = [(one.mpi_s, one.path) for one in facts.ranges_by_rank if "/" in one.path]
    most = innermost({path: seconds for seconds, path in sorted(inside)})
    return None if most is None else most.rpartition("/")[2]


def _waiting_for_messages(facts: Facts, steps: StepFacts, actions: Actions) -> Finding:
    """Without waiting a step takes as long as the rank that waits least."""
    waits = (facts.gpu_waiting.waiting_s if facts.gpu_waiting else None) or (0.0,)
    return Finding(
        KIND.key,
        "ranks wait for each other's messages",
        max(steps.bucket_saving_s, min(waits)),
        f"{steps.collectives:.0f} kernels of ncclSend and ncclRecv per step, up to "
        f"{si(steps.exposed_s, 's')} beside no computing; every rank waits in them for "
        f"{si(min(waits), 's')} to {si(max(waits), 's')}, as stages of a pipeline (its bubble) and "
        f"ranks with experts do",
        actions.advise("fill_stages"),
    )


@KIND.rule(needs=("steps",))
def exposed(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Communication beside which nothing computes."""
    if round(steps.collectives) == 0:  # a usual step has none: what takes long is in a few
        return
    if only_messages(steps):
        yield _waiting_for_messages(facts, steps, actions)
        return
    many = steps.collectives >= _MANY_MESSAGES
    nccl = all(name.startswith(NCCL) for name, *_ in steps.messages)
    whose = "NCCL" if nccl else "communication"
    alone = (
        ""
        if steps.stragglers
        else "; how much of that is waiting for other ranks is unknown: analyze the reports of all "
        "ranks together"
    )
    where = [f"{si(seconds, 's')} in '{name}'" for name, seconds in steps.exposed_in[:3] if name]
    ranges = f" ({', '.join(where)})" if where else ""
    yield Finding(
        KIND.key,
        "communication is not hidden behind computing",
        steps.bucket_saving_s,
        f"{steps.collectives:.0f} {whose} kernels per step, {si(steps.exposed_s, 's')} of them "
        f"beside no computing{ranges}"
        f"{f'; each costs a launch and {whose} latency' if many else ''}{alone}",
        actions.advise(_against_messages(steps, many=many)),
    )


def _against_messages(steps: StepFacts, *, many: bool) -> str:
    """What helps, by what is sent and the pass that sends it.

    Ranks that share layers sum their parts in the forward pass, too; gradients are summed in the
    backward pass or right after it; parameters that ranks share are gathered, and their gradients
    summed to shares in the backward pass alone. All else, such as an evaluation's, has no advice
    of its own.
    """

    def share(operation: str, *passes: str) -> float:
        return sum(s for n, p, s in steps.messages if n.endswith(operation) and p in passes)

    late = "backward", "after"
    if share("AllReduce", "forward") + share("ReduceScatter", "forward") > _PARTS:
        return "share_less"
    gathered, summed = share("AllGather", "forward", *late), share("ReduceScatter", *late)
    if gathered > _PARTS and summed > 0 and gathered + summed + share("AllReduce", *late) > _MOSTLY:
        return "gather_ahead"
    others = share("AllReduce", "") + sum(
        share(name, *PASSES) for name in ("AllGather", "ReduceScatter")
    )
    if share("AllReduce", *late) > _MOSTLY and others <= _PARTS:  # broadcasts may be beside them
        return "join_messages" if many else "overlap_messages"
    return "hide_messages"
