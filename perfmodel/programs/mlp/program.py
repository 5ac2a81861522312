"""The trainer of the two-layer MLP, and programs with its ranges: what a run of it may gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, HostReduction, Spent
from perfmodel.programs.identify import Identity, read_mark
from perfmodel.programs.mlp.identify import identify, precision, precision_of
from perfmodel.programs.mlp.mlp import as_it_ran, mlp
from perfmodel.programs.mlp.settings import (
    BATCH_RANGE,
    COPY,
    D2H,
    GRAPH,
    H2D,
    ON_DEVICE,
    REDUCE,
    SYNC,
)
from perfmodel.programs.program import Program
from perfmodel.readers.trace import Trace
from perfmodel.timing.launched import Parts
from perfmodel.timing.spans import FoundBy, Steps, named_steps

if TYPE_CHECKING:
    from perfmodel.programs.program import Options, StepClock
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.workloads.work import Workload

_STAGES: Final = (D2H, REDUCE, H2D)
_MOST: Final = 0.9
"""Copies of this share of the bytes that are reduced are copies of what is reduced."""
_REDUCING: Final = ("MPI_Allreduce", "MPI_Iallreduce")
_OWN_KERNELS: Final = ("hierarchical", "thin", "fused")


def facts_of(facts: Facts) -> Facts:
    """Return the facts with what the trainer's ranges say of copies and reductions."""
    polls = facts.config.get("transport") == "chunked" or facts.config.get("overlap") is True
    staged, host_s = _staged_by_mpi(facts), facts.host_s
    return replace(
        facts,
        polled_s=host_s.get(REDUCE, 0.0) if polls else 0.0,  # MPI works in MPI_Test, too
        copying_s={
            direction: host_s.get("cudaMemcpy" + direction.replace("-to-", "To"), 0.0)
            for direction in {group.direction for group in facts.copies}
        },
        copies=_without_staging(facts, staged),
        host_reduction=_through_host(facts, staged),
        input_copy=Spent(COPY, host_s[COPY]) if COPY in host_s else None,
    )


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
        "chunks": transport == "chunked",
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
        "ring": "--transport ring",
        "peer": "--transport peer",
        "flat": "--transport host-flat",
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
    if config.get("transport") not in ON_DEVICE:
        needs.append("--transport nccl")
    return f"--graph, which needs {' and '.join(needs)}" if needs else "--graph"


def _reduced_bytes(facts: Facts) -> float:
    """Bytes that MPI reduces per rank and batch, of the calls whose size is known."""
    return sum(g.count * (g.bytes or 0) for g in facts.collectives if g.name in _REDUCING)


def _staged_by_mpi(facts: Facts) -> float:
    """Bytes that the MPI library itself copies to the host, and back; 0 where it does not.

    The program waits for the GPU and calls MPI_Allreduce, copies nothing in ranges of its own, and
    yet as many bytes as are reduced leave the GPU in every batch.
    """
    size = _reduced_bytes(facts)
    if SYNC not in facts.host_s or REDUCE not in facts.host_s or {D2H, H2D} & set(facts.host_s):
        return 0.0
    moved = {
        direction: sum(g.bytes for g in facts.copies if g.direction == direction)
        for direction in ("Device-to-Host", "Host-to-Device")
    }
    return size if min(moved.values()) >= _MOST * size else 0.0


def _without_staging(facts: Facts, staged: float) -> Sequence[CopyGroup]:
    """Take the MPI library's copies out: the program does not choose their memory."""
    if not staged:
        return facts.copies
    kept = []
    for group in facts.copies:
        rest = 1 - staged / group.bytes if group.bytes else 0.0
        if rest > 1 - _MOST:
            kept.append(replace(
                group, count=max(group.count - 1, 1.0), bytes=rest * group.bytes,
                seconds=rest * group.seconds,
            ))  # fmt: skip
    return kept


def _through_host(facts: Facts, staged: float) -> HostReduction | None:
    """Return what staging gradients through the host takes; None where they are not."""
    stages = (REDUCE,) if staged else _STAGES
    spent = [facts.host_s[n] for n in stages if n in facts.host_s]
    size = _reduced_bytes(facts)
    if len(spent) < len(stages) or not size:
        return None
    return HostReduction(sum(spent), size, by_library=bool(staged))


class MlpProgram(Program):
    """See `perfmodel.programs.program.Program`."""

    name: str = "mlp"
    step_clock: StepClock = "host"
    replay: str = GRAPH
    identify = staticmethod(identify)
    by_formulas: bool = True

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """A report with the trainer's mark, with its range, or of which D, H, C or B is given.

        Its formulas are of steps, not of other levels.
        """
        if options.level:
            return False
        mark = read_mark(trace)
        if mark:
            return bool(mark.get("workload", self.name) == self.name)
        asked = not options.values.keys().isdisjoint("DHCB")
        return options.workload is None and (asked or BATCH_RANGE in trace.range_labels)

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Take the trainer's range, or the one that the user or the user's workload names."""
        of_workload = options.workload.batch_range if options.workload else None
        label = options.batch_label or of_workload or BATCH_RANGE
        asked: FoundBy = "asked" if options.batch_label else "declared"
        return trace, named_steps(trace, label, "mark" if read_mark(trace) else asked)

    def workload(self, identity: Identity, options: Options) -> Workload:
        """Return the MLP as the mark says that it ran, or the user's own formulas."""
        chosen = options.workload
        if chosen is None:
            parallel = identity.config.get("parallel")
            chosen = mlp(options.counting, "model" if parallel == "model" else "data")
        return as_it_ran(chosen, identity.config)

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return the peak by the mark's math; the thin kernels multiply float32 as it is."""
        run = precision(identity.values.get("b", 4), identity.config, seen_tf32=seen_tf32)
        return precision_of(label, run, identity.config)

    def actions(self, identity: Identity) -> Actions:
        """Return the trainer's flags, less what the mark says is done."""
        return actions_of(identity.config)

    def facts(self, facts: Facts) -> Facts:
        """Add what the trainer's ranges say."""
        return facts_of(facts)


MLP_PROGRAM: Final = MlpProgram()
