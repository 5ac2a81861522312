"""Communication: what is not hidden behind computing, and what another way would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from perfmodel.base.units import si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import DeviceReduce, Facts, HostReduction
from perfmodel.programs.findings import Finding, finding, share_of_step
from perfmodel.programs.findings.places import innermost
from perfmodel.timing.collectives import NCCL
from perfmodel.timing.nccl import PASSES

if TYPE_CHECKING:
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.step_facts import StepFacts

_MANY_MESSAGES: Final = 20
_SMALL_BYTES: Final = 65536
"""Messages that are smaller take as long as an empty one, nearly."""
_MUCH: Final = 0.1
"""Communication with a smaller share of a step is what a program needs."""
_PARTS: Final = 0.1
"""Gradients are not summed in the forward pass: more than this share there is of layers' parts."""
_MOST: Final = 0.5
"""Share of the time in messages from which advice on those of one kind is worth following."""


@finding("exposed_communication", needs=("reduced",))
def nccl_latency(facts: Facts, actions: Actions, reduced: DeviceReduce) -> Iterator[Finding]:
    """NCCL's all-reduce against what the link needs for its bytes: the rest is latency."""
    direct = _over_nvlink(facts, reduced.bytes)
    if direct is None or reduced.bytes <= 0:
        return
    yield Finding(
        "exposed_communication",
        "NCCL's all-reduce is mostly latency",
        reduced.seconds - direct,
        f"its kernels transfer for {share_of_step(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')}",
        actions.reduce_faster(facts.ranks),
    )


@finding("exposed_communication", needs=("collectives",), unless=("steps",))
def many_reductions(
    facts: Facts, actions: Actions, collectives: Sequence[CollectiveGroup]
) -> Iterator[Finding]:
    """Several all-reduces of MPI a batch, most of them small."""
    reduced = [g for g in collectives if g.name == "MPI_Allreduce" and g.bytes]
    count = sum(g.count for g in reduced)
    if count < 1.5 or "chunks" in actions.done:  # divided on purpose
        return
    small = [g for g in reduced if g.bytes and g.bytes < _SMALL_BYTES]
    saved = sum(g.count * g.seconds for g in small)
    yield Finding(
        "exposed_communication",
        "the gradients are reduced in several messages",
        saved,
        f"{count:.0f} all-reduces per step, {len(small)} of them under 64 KB, which together "
        f"take {si(saved, 's')}",
        f"keep the gradients in one flat buffer: one copy and one all-reduce{actions.flag('flat')}",
    )


@finding("exposed_communication", needs=("host_ranks",))
def in_mpi(
    facts: Facts, actions: Actions, host_ranks: Mapping[int, tuple[float, float]]
) -> Iterator[Finding]:
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
    if not many and (saving_s < _MUCH * facts.batch.value or size < _SMALL_BYTES * count):
        return
    yield Finding(
        "exposed_communication",
        "ranks send many small messages" if many else "ranks send large messages",
        saving_s,
        f"a rank sends about {count:.0f} messages, {si(size, 'B')} per step; every rank is at "
        f"least {share_of_step(facts, inside_s)} in MPI",
        actions.advise("join_messages" if many else "overlap_messages"),
        range=_most_messages(facts),
    )


def _most_messages(facts: Facts) -> str | None:
    """Return the innermost range inside the step in which a rank is in MPI for longest."""
    spent: dict[str, float] = {}
    for one in facts.ranges_by_rank:
        if "/" in one.path:
            spent[one.path] = max(spent.get(one.path, 0.0), one.mpi_s)
    most = innermost(spent)
    return None if most is None else most.rpartition("/")[2]


def _waiting_for_messages(facts: Facts, steps: StepFacts, actions: Actions) -> Finding:
    """Without waiting a step takes as long as the rank that waits least."""
    waits = (facts.gpu_waiting.waiting_s if facts.gpu_waiting else None) or (0.0,)
    return Finding(
        "exposed_communication",
        "ranks wait for each other's messages",
        max(steps.bucket_saving_s, min(waits)),
        f"{steps.collectives:.0f} kernels of ncclSend and ncclRecv per step, up to "
        f"{si(steps.exposed_s, 's')} beside no computing; every rank waits in them for "
        f"{si(min(waits), 's')} to {si(max(waits), 's')}, as stages of a pipeline (its bubble) and "
        f"ranks with experts do",
        actions.advise("fill_stages"),
    )


@finding("exposed_communication", needs=("steps",))
def exposed(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
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
    said = f" ({', '.join(where)})" if where else ""
    yield Finding(
        "exposed_communication",
        "communication is not hidden behind computing",
        steps.bucket_saving_s,
        f"{steps.collectives:.0f} {whose} kernels per step, {si(steps.exposed_s, 's')} of them "
        f"beside no computing{said}"
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
    if gathered > _PARTS and summed > 0 and gathered + summed + share("AllReduce", *late) > _MOST:
        return "gather_ahead"
    others = share("AllReduce", "") + sum(
        share(name, *PASSES) for name in ("AllGather", "ReduceScatter")
    )
    if share("AllReduce", *late) > _MOST and others <= _PARTS:  # broadcasts may be beside them
        return "join_messages" if many else "overlap_messages"
    return "hide_messages"


def only_messages(steps: StepFacts) -> bool:
    """Whether NCCL only sends and receives, as between the stages of a pipeline."""
    return bool(steps.messages) and all(n.endswith("SendRecv") for n, _, _ in steps.messages)


@finding("host_reduction", needs=("host_reduction",), unless=("shared_gpus",))
def through_host(facts: Facts, actions: Actions, reduced: HostReduction) -> Iterator[Finding]:
    """Gradients staged through host memory, against an all-reduce between the GPUs."""
    direct = _over_nvlink(facts, reduced.bytes)
    if direct is None or facts.ranks < 2:
        return
    done = (
        "MPI_Allreduce, in which the MPI library copies the gradients to the host, sums them there "
        "and copies them back,"
        if reduced.by_library
        else "copying out, reducing and copying back"
    )
    yield Finding(
        "host_reduction",
        "gradients are reduced through the host",
        reduced.seconds - direct,
        f"{done} takes {share_of_step(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')} plus latency",
        actions.reduce_on_gpus(facts.ranks),
    )


def _over_nvlink(facts: Facts, size: float) -> float | None:
    """Seconds of a ring between the GPUs; half the data sheet's rate is one direction."""
    link = facts.machine.peers_bytes_per_s if facts.machine else None
    return None if link is None else 2 * (facts.ranks - 1) / facts.ranks * size / (link / 2)
