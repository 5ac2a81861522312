"""Findings: what a batch loses, ranked by the time that mending it would save."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perfmodel.base.units import si
from perfmodel.machines.machine import Machine
from perfmodel.programs.mlp.rungs import Rungs
from perfmodel.timing.collectives import CollectiveGroup, Waiting
from perfmodel.timing.copies import CopyGroup
from perfmodel.timing.samples import Estimate

_WORTH: Final = 0.01
"""Savings below this share of a batch are not worth a line."""

_OF_PCIE: Final = 0.8
"""Share of PCIe's datasheet rate that large pinned copies reach (52.7 of 64 GB/s on an H200)."""

_STAGES: Final = ("cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice")
_REDUCING: Final = ("MPI_Allreduce", "MPI_Iallreduce")
_PEERS: Final = 8
"""So many GPUs of one host reach each other's memory directly."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One loss, with the evidence for it and what to change.

    `saving_s` is an upper bound per batch, None where it cannot be told. Savings overlap: they
    do not add up.
    """

    title: str
    saving_s: float | None
    evidence: str
    action: str


@dataclass(frozen=True, slots=True)
class GemmTime:
    """One range's products: achieved rate against the time its ceilings allow."""

    label: str
    seconds: float
    flops: float
    bound_s: float | None


@dataclass(frozen=True, slots=True)
class DeviceReduce:
    """NCCL's all-reduce of `bytes` a rank and batch: its kernels' time, less waiting if known."""

    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What the findings are drawn from; all times are medians per rank and batch.

    `waiting` is about MPI, on the host; `gpu_waiting` about NCCL's kernels, which count as busy.
    `config` is the run's configuration mark: what it already does is not advised. `lacking` are GPU
    operations of the whole run that no batch has: with some, `busy_s` is a lower bound.
    """

    batch: Estimate
    busy_s: float | None
    gpu_ops: float
    synchronizations: float
    synchronize_s: float
    host_s: Mapping[str, float]
    copies: Sequence[CopyGroup]
    collectives: Sequence[CollectiveGroup]
    waiting: Waiting | None
    gemms: Sequence[GemmTime]
    shared_gpus: Mapping[int, tuple[int, ...]]
    machine: Machine | None
    ranks: int
    gpu_waiting: Waiting | None = None
    reduced: DeviceReduce | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    lacking: int = 0

    @property
    def rungs(self) -> Rungs:
        """What the run does, and what comes next."""
        return Rungs(self.config)


def find(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings worth at least one percent of a batch, largest saving first.

    A saving is between nothing and the whole batch; those that cannot be told come last.
    """
    if facts.batch.value <= 0:
        return ()
    found = [
        *_shared(facts),
        *_idle(facts),
        *_through_host(facts),
        *_between_gpus(facts),
        *_pageable(facts),
        *_inputs(facts),
        *_waiting(facts),
        *_many_collectives(facts),
        *_slow_products(facts),
    ]
    worth = [
        f if f.saving_s is None else replace(f, saving_s=min(f.saving_s, facts.batch.value))
        for f in found
        if f.saving_s is None or f.saving_s >= _WORTH * facts.batch.value
    ]
    return tuple(sorted(worth, key=lambda f: (f.saving_s is None, -(f.saving_s or 0.0))))


def _share(facts: Facts, seconds: float) -> str:
    return f"{si(seconds, 's')} of {si(facts.batch.value, 's')}, {seconds / facts.batch.value:.0%}"


def _shared(facts: Facts) -> Iterator[Finding]:
    for gpu, ranks in facts.shared_gpus.items():
        who = " and ".join(str(r) for r in ranks)
        yield Finding(
            f"ranks {who} share GPU {gpu}",
            None,
            f"the operations of ranks {who} ran on one device, so their GPU times include each "
            f"other",
            "give every rank a GPU of its own (CUDA_VISIBLE_DEVICES by local rank)",
        )


def _idle(facts: Facts) -> Iterator[Finding]:
    """Time in which neither the GPU nor a collective works: launches, synchronizations, Python."""
    if facts.busy_s is None:
        return
    mpi = statistics.median(facts.waiting.seconds) if facts.waiting else 0.0
    if facts.rungs.overlaps or facts.rungs.transport == "chunked":  # MPI works in MPI_Test, too
        mpi = max(mpi, facts.host_s.get("MPI_Allreduce", 0.0))
    idle = facts.batch.value - facts.busy_s - mpi
    if idle <= 0:
        return
    mpi_said = f", collectives take {si(mpi, 's')}" if facts.waiting or mpi else ""
    evidence = (
        f"the GPU is busy {'at least ' * bool(facts.lacking)}{_share(facts, facts.busy_s)}"
        f"{mpi_said}; "
        f"{facts.gpu_ops:.0f} GPU operation{'s' * (round(facts.gpu_ops) != 1)}"
    )
    if facts.synchronizations:
        evidence += (
            f" and {facts.synchronizations:.0f} synchronizing calls "
            f"({si(facts.synchronize_s, 's')} inside them)"
        )
    evidence += " per batch"
    action = facts.rungs.launch_less(synchronizes=facts.synchronizations > 0)
    if facts.lacking:
        evidence += f"; {facts.lacking} operations of the run are in no range, and not counted"
        action = f"count these first, as the warning says (--attribute time); then {action}"
    yield Finding("the GPU waits for the host", idle, evidence, action)


def _through_host(facts: Facts) -> Iterator[Finding]:
    """Gradients staged through host memory, against an all-reduce between the GPUs."""
    spent = [facts.host_s[n] for n in _STAGES if n in facts.host_s]
    reduced = [g for g in facts.collectives if g.name in _REDUCING and g.bytes]
    if len(spent) < 3 or facts.ranks < 2 or facts.shared_gpus or not reduced:
        return
    size = sum(g.count * (g.bytes or 0) for g in reduced)
    direct = _over_nvlink(facts, size)
    if direct is None:
        return
    yield Finding(
        "gradients are reduced through the host",
        sum(spent) - direct,
        f"copying out, reducing and copying back takes {_share(facts, sum(spent))}; "
        f"{si(size, 'B')} over NVLink needs {si(direct, 's')} plus latency",
        f"reduce on the GPUs: NCCL{facts.rungs.flag('--transport nccl')}, or CUDA-aware MPI",
    )


def _over_nvlink(facts: Facts, size: float) -> float | None:
    """Seconds of a ring between the GPUs; half the data sheet's rate is one direction."""
    link = facts.machine.bandwidth_bytes_per_s.get("nvlink") if facts.machine else None
    return None if link is None else 2 * (facts.ranks - 1) / facts.ranks * size / (link / 2)


def _between_gpus(facts: Facts) -> Iterator[Finding]:
    """NCCL's all-reduce against what the link needs for its bytes: the rest is latency."""
    reduced = facts.reduced
    direct = _over_nvlink(facts, reduced.bytes) if reduced is not None else None
    if reduced is None or direct is None or reduced.bytes <= 0:
        return
    steps = []
    if facts.rungs.by_data and facts.ranks <= _PEERS:
        peer = facts.rungs.flag("--transport peer")
        steps.append(f"one kernel that reads the other GPUs' gradients and takes the step{peer}")
    if facts.rungs.by_data and not facts.rungs.overlaps:
        steps.append(f"sum what is computed first beside the rest{facts.rungs.flag('--overlap')}")
    yield Finding(
        "NCCL's all-reduce is mostly latency",
        reduced.seconds - direct,
        f"its kernels transfer for {_share(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')}",
        ", or ".join(steps) or "fewer ranks, which have more to compute for every message",
    )


def _pageable(facts: Facts) -> Iterator[Finding]:
    for group in facts.copies:
        if group.memory != "pageable":
            continue
        pinned = [g for g in facts.copies if g.memory == "pinned" and g.largest_bytes > 1e5]
        if pinned:
            rate = max(g.bytes_per_s for g in pinned)
            source = f"pinned copies in this report reach {si(rate, 'B/s')}"
        elif facts.machine and "pcie" in facts.machine.bandwidth_bytes_per_s:
            rate = _OF_PCIE * facts.machine.bandwidth_bytes_per_s["pcie"]
            source = f"pinned ones should reach about {si(rate, 'B/s')}"
        else:
            continue
        label = "cudaMemcpy" + group.direction.replace("-to-", "To")
        spent = max(facts.host_s.get(label, 0.0), group.seconds)
        yield Finding(
            f"{group.direction} copies use pageable memory",
            spent - group.bytes / rate,
            f"{group.count:.0f} copies, {si(group.bytes, 'B')} per batch at "
            f"{si(group.bytes_per_s, 'B/s')} on the copy engine, {_share(facts, spent)} on the "
            f"host; {source}",
            facts.rungs.pin(group.direction),
        )


def _inputs(facts: Facts) -> Iterator[Finding]:
    label = "copying images host -> device"
    if label in facts.host_s:
        yield Finding(
            "the inputs are copied in every batch",
            facts.host_s[label],
            f"{label} takes {_share(facts, facts.host_s[label])}",
            facts.rungs.keep_inputs(),
        )


def _waiting(facts: Facts) -> Iterator[Finding]:
    for waiting, where in (
        (facts.waiting, "collectives"),
        (facts.gpu_waiting, "NCCL's kernels, which keep its GPU busy meanwhile"),
    ):
        if waiting is None or waiting.waiting_s is None:
            continue
        worst = max(range(len(waiting.waiting_s)), key=waiting.waiting_s.__getitem__)
        seconds = waiting.waiting_s[worst]
        yield Finding(
            "ranks wait for each other",
            seconds,
            f"rank {worst} waits longest in {where}: {_share(facts, seconds)}",
            facts.rungs.balance(),
        )


def _many_collectives(facts: Facts) -> Iterator[Finding]:
    reduced = [g for g in facts.collectives if g.name == "MPI_Allreduce" and g.bytes]
    count = sum(g.count for g in reduced)
    if count < 1.5 or facts.rungs.transport == "chunked":
        return
    small = [g for g in reduced if g.bytes and g.bytes < 65536]
    saved = sum(g.count * g.seconds for g in small)
    yield Finding(
        "the gradients are reduced in several messages",
        saved,
        f"{count:.0f} all-reduces per batch, {len(small)} of them under 64 KB, which together "
        f"take {si(saved, 's')}",
        "keep the gradients in one flat buffer: one copy and one all-reduce"
        f"{facts.rungs.flag('--transport host-flat')}",
    )


def _slow_products(facts: Facts) -> Iterator[Finding]:
    for gemm in facts.gemms:
        if gemm.bound_s is None:
            continue
        yield Finding(
            f"{gemm.label} runs at {gemm.bound_s / gemm.seconds:.0%} of its ceiling",
            gemm.seconds - gemm.bound_s,
            f"{si(gemm.flops, 'FLOP')} in {si(gemm.seconds, 's')} = "
            f"{si(gemm.flops / gemm.seconds, 'FLOP/s')}; the machine's ceilings allow "
            f"{si(gemm.bound_s, 's')}",
            facts.rungs.multiply(),
        )
