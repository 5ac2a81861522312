"""Steps of a network whose layers are known: GPU time by phase, and what the layers do in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import WorkloadError
from perfmodel.base.kernels import kernel
from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import KERNEL, NULL, Trace
from perfmodel.timing.intervals import lengths, union
from perfmodel.timing.kernels import COMMUNICATION, categorize
from perfmodel.timing.launched import launched
from perfmodel.timing.operator_times import OperatorKey, OperatorTimes
from perfmodel.timing.step_report import StepReport
from perfmodel.workloads.layers import Attention, Net, total

_PHASES: Final = {
    "forward": re.compile(r"(forward|fwd)([ _-]?(pass|step))?", re.IGNORECASE),
    "backward": re.compile(r"(backward|bwd)([ _-]?(pass|step))?", re.IGNORECASE),
    "optimizer": re.compile(r"opt|optim|optimizer([ ._-]?step)?|update", re.IGNORECASE),
}
"""Names of the ranges in a step that hold one phase each."""
_NAMES: Final = (*_PHASES, "step", "(outside phases)", "(communication)")
_STEP, _OUTSIDE, _SENT = range(len(_PHASES), len(_NAMES))
_UNTYPED: Final = (
    "no name of a kernel says with which type the layers compute, so that the utilization is "
    "unknown: give --dtype"
)
_UPDATED_BYTES: Final = 4
"""Of a number that an optimizer updates: float32 also where GEMMs take a shorter type."""


@dataclass(frozen=True, slots=True)
class LayeredStep:
    """The computation of a step.

    Attributes
    ----------
    net : Net
    batch : int
        Samples of all ranks together.
    training : bool
        Whether a step also has a backward pass and an update.
    """

    net: Net
    batch: int
    training: bool = True


def phase_times(trace: Trace, steps: StepReport, dtype: str | None = None) -> OperatorTimes | None:
    """Time the phases that ranges name in every step, or the step; None without GPU operations.

    The work is not yet counted. An operation belongs to the phase in which it was launched, by
    whatever thread of the process.

    Parameters
    ----------
    trace : Trace
    steps : StepReport
        Of the same trace.
    dtype : str, optional
        That the layers compute with; what the names of kernels say by default.
    """
    inside = steps.times.ops
    if len(inside.op) == 0:
        return None
    op, lane = inside.op, inside.lane.astype(np.int64)
    step = steps.steps.number[inside.step].astype(np.int64)
    phase = _phase_of(trace, op)
    code, categories = categorize(trace.ops, trace.strings)
    phase[code[op] == categories.index(COMMUNICATION)] = _SENT
    cells, cell = np.unique(np.column_stack([phase, lane, step]), axis=0, return_inverse=True)
    cell = cell.ravel()
    here, key = np.unique(cells[:, 0], return_inverse=True)
    zero = np.zeros(len(cells), np.int64)
    keys = tuple(_key(trace, op[phase == p], int(p), dtype) for p in here)
    return OperatorTimes(
        keys=keys,
        key=key.ravel().astype(np.int64),
        lane=cells[:, 1],
        step=cells[:, 2],
        count=zero + 1,
        kernels=np.bincount(cell[trace.ops.kind[op] == KERNEL], minlength=len(cells)),
        flops=zero,
        read_bytes=zero,
        write_bytes=zero,
        fusible_bytes=zero,
        gpu_ns=lengths(cell, trace.ops.start_ns[op], trace.ops.end_ns[op], len(cells)),
        lanes=len(steps.times.process),
        warnings=() if any(key.unit for key in keys) else (_UNTYPED,),
        source="layers",
    )


def _phase_of(trace: Trace, op: Int64) -> Int64:
    """Return the phase of every operation; `_STEP` of all where no range names any."""
    found = launched(trace)
    at = np.searchsorted(found.op, op)
    process, at_ns = found.process[at].astype(np.int64), found.at_ns[at]
    ranges = trace.ranges
    known = np.flatnonzero((ranges.end_ns != NULL) & (ranges.name >= 0))
    phase = np.full(len(op), _OUTSIDE, np.int64)
    for code, pattern in enumerate(_PHASES.values()):
        named = np.array([bool(pattern.fullmatch(x)) for x in trace.range_labels], np.bool_)
        rows = known[named[ranges.name[known]]]
        owner = trace.thread_process[ranges.thread[rows]].astype(np.int64)
        who, start, end = union(owner, ranges.start_ns[rows], ranges.end_ns[rows])
        for one in np.unique(who):
            mine, here = who == one, np.flatnonzero(process == one)
            last = np.searchsorted(start[mine], at_ns[here], side="right") - 1
            within = (last >= 0) & (at_ns[here] < end[mine][last])
            phase[here[within]] = code
    return phase if (phase < _STEP).any() else np.full(len(op), _STEP, np.int64)


def _key(trace: Trace, op: Int64, phase: int, dtype: str | None) -> OperatorKey:
    """Describe a phase, with the unit on which most of its GEMMs' time went."""
    spent: dict[tuple[str, str], int] = {}
    op = op[trace.ops.name[op] >= 0]
    names, place = np.unique(trace.ops.name[op], return_inverse=True)
    lasted_ns = sums(place, trace.ops.end_ns[op] - trace.ops.start_ns[op], len(names))
    for code, ns in zip(names.tolist(), lasted_ns.tolist(), strict=True):
        known = kernel(trace.strings[code])
        types = known.types if known.multiplies else None
        if types is not None and types.unit and types.dtype:
            key = types.dtype, types.unit
            spent[key] = spent.get(key, 0) + ns
    said, unit = max(spent, key=lambda k: spent[k], default=("", ""))
    origin = "kernel" if said else ""
    if dtype and (not said or said != dtype):
        unit = f"{dtype}_tensor" if dtype in ("float16", "bfloat16") else dtype
        said, origin = dtype, "given"
    name = _NAMES[phase]
    modelled = phase <= _STEP
    return OperatorKey(
        name, name.strip("()"), said, origin, unit, "", modelled, communicates=phase == _SENT
    )


def with_counts(
    found: Sequence[OperatorTimes], step: LayeredStep, ranks: int
) -> tuple[OperatorTimes, ...]:
    """Put the layers' work into the times of phases; all of the bytes as read.

    Raises
    ------
    WorkloadError
        If the batch is no multiple of the ranks.
    """
    if step.batch % ranks:
        raise WorkloadError(
            f"expected a batch that {ranks} ranks divide; got {step.batch}: give the batch of all "
            f"ranks together with --batch-size"
        )
    causal = any(isinstance(n.layer, Attention) and n.layer.causal for n in step.net.nodes)
    return tuple(replace(_counted(one, step, ranks), causal=causal) for one in found)


def _counted(one: OperatorTimes, step: LayeredStep, ranks: int) -> OperatorTimes:
    dtype = next((key.dtype for key in one.keys if key.modelled and key.dtype), "float32")
    cost = total(step.net, step.batch // ranks, ITEM_BYTES[dtype])
    update = total(step.net, 1, _UPDATED_BYTES).update_bytes
    work = {
        "forward": (cost.forward_flops, cost.forward_bytes),
        "backward": (cost.backward_flops, cost.backward_bytes),
        "optimizer": (0, update),
    }
    if not step.training:
        work = {"forward": work["forward"]}
    work["step"] = tuple(sum(column) for column in zip(*work.values(), strict=True))
    flops, moved = np.array([work.get(key.name, (0, 0)) for key in one.keys], object).T
    if max(*flops, *moved) > 2**62:
        raise WorkloadError(
            "expected a step that a GPU can compute; got over 2^62 FLOPs or bytes: correct the "
            "batch or the sizes of the network"
        )
    keys = tuple(replace(key, modelled=key.name in work) for key in one.keys)
    read = moved.astype(np.int64)[one.key]
    return replace(one, keys=keys, flops=flops.astype(np.int64)[one.key], read_bytes=read)
