"""What the trainer loses and what to change, with its flags, less what its mark says it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from perfmodel.base.units import si
from perfmodel.programs import findings
from perfmodel.programs.findings import (
    Actions,
    Facts,
    Finding,
    over_nvlink,
    share_of_batch,
)
from perfmodel.programs.mlp.mlp_ranges import COPY
from perfmodel.timing.idle import INPUTS, REDUCTIONS

_STAGES: Final = ("cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice")
_REDUCING: Final = ("MPI_Allreduce", "MPI_Iallreduce")
_OWN_KERNELS: Final = ("hierarchical", "thin", "fused")
_ON_GPU: Final = ("nccl", "peer", "none")

IDLE_CAUSES: Final = {
    COPY: INPUTS,
    **dict.fromkeys(_STAGES, REDUCTIONS),
}
"""Why the GPU idles, by the range in which the host is."""


def advise(facts: Facts) -> Iterator[Finding]:
    """Find what a run of the trainer, or of a program with its ranges, loses."""
    actions = actions_of(facts.config)
    chunked = facts.config.get("transport") == "chunked"
    polls = chunked or facts.config.get("overlap") is True  # MPI works in MPI_Test, too
    facts = replace(
        facts,
        polled_s=facts.host_s.get("MPI_Allreduce", 0.0) if polls else 0.0,
        copying_s={
            direction: facts.host_s.get("cudaMemcpy" + direction.replace("-to-", "To"), 0.0)
            for direction in {group.direction for group in facts.copies}
        },
    )
    yield from findings.shared_gpus(facts)
    yield from findings.idle_gpu(facts, actions)
    yield from _through_host(facts, actions)
    yield from findings.nccl_latency(facts, actions)
    yield from findings.pageable_copies(facts, actions)
    yield from _inputs(facts, actions)
    yield from findings.waiting_ranks(facts, actions)
    if not chunked:
        yield from findings.many_reductions(facts, actions)
    yield from findings.slow_products(facts, actions)


def actions_of(config: Mapping[str, Any]) -> Actions:
    """Return what to advise to a run with this configuration mark; without one, everything.

    Only what the mark says is done is left out, and flags of the trainer are named only to runs of
    the trainer.
    """
    transport, gemm, math = (config.get(key) for key in ("transport", "gemm", "math"))
    by_data = config.get("parallel") != "model"
    overlapped = config.get("overlap") is True or not by_data or transport in ("chunked", "peer")
    done = {
        "fused": gemm == "fused",
        "graph": config.get("graph") is True,
        "prefetch": config.get("data_on") == "prefetch",
        "overlapped": overlapped,
        "own kernels": gemm in _OWN_KERNELS,
        "tf32": config.get("tf32") is True or math == "tf32",
        "tf32x3": math == "tf32x3",
        "peer": not by_data,
    }
    flags = {
        "graph": _graph_flags(config),
        "pin out": "--transport host-flat",
        "pin in": "--transport host-flat, --data-on pinned",
        "keep": "--data-on device",
        "prefetch": "--data-on prefetch",
        "overlapping": "--overlap",
        "tile": "--gemm hierarchical",
        "tf32": "--math tf32 or tf32x3",
        "one": "--math tf32",
        "nccl": "--transport nccl",
        "peer": "--transport peer",
        "flat": "--transport host-flat",
        "evaluate": "--evaluate-every 0",
    } | ({"fuse": "--gemm fused"} if by_data else {})
    known = "transport" in config
    return Actions(
        known, {what for what, is_done in done.items() if is_done}, flags if known else {}
    )


def _graph_flags(config: Mapping[str, Any]) -> str:
    """Return the flag for a CUDA graph with those that it needs."""
    needs = []
    if config.get("data_on") != "device":
        needs.append("--data-on device")
    if config.get("transport") not in _ON_GPU:
        needs.append("--transport nccl")
    return f"--graph, which needs {' and '.join(needs)}" if needs else "--graph"


def _through_host(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Gradients staged through host memory, against an all-reduce between the GPUs."""
    spent = [facts.host_s[n] for n in _STAGES if n in facts.host_s]
    reduced = [g for g in facts.collectives if g.name in _REDUCING and g.bytes]
    if len(spent) < 3 or facts.ranks < 2 or facts.shared_gpus or not reduced:
        return
    size = sum(g.count * (g.bytes or 0) for g in reduced)
    direct = over_nvlink(facts, size)
    if direct is None:
        return
    yield Finding(
        "gradients are reduced through the host",
        sum(spent) - direct,
        f"copying out, reducing and copying back takes {share_of_batch(facts, sum(spent))}; "
        f"{si(size, 'B')} over NVLink needs {si(direct, 's')} plus latency",
        actions.reduce_on_gpus(),
    )


def _inputs(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Copies of the images to the GPU."""
    label = COPY
    if label in facts.host_s:
        yield Finding(
            "the inputs are copied in every batch",
            facts.host_s[label],
            f"{label} takes {share_of_batch(facts, facts.host_s[label])}",
            actions.keep_inputs(),
        )
