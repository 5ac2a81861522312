"""Kernels: below their ceilings, without tensor cores, bound by memory, not fused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from perfmodel.base.kernels import kernel, kernel_types
from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, GemmTime, OperatorRow
from perfmodel.programs.findings import WORTH, Finding, finding, worth

if TYPE_CHECKING:
    from perfmodel.timing.step_facts import StepFacts

_LOG: Final = re.compile(r"log_?softmax", re.I)
"""What a kernel for both says in its template arguments where it computes a loss's logarithm."""
_WITHOUT_TENSOR_CORES: Final = {
    "float32": ("FP32 units", "tf32_tensor", "TF32's"),
    "float64": ("FP64 units", "float64_tensor", "FP64's"),
}
"""By type: the unit that multiplies without tensor cores, and the peak of those."""
_OF_PEAK: Final = 0.8
"""Share of a unit's dense peak that large GEMMs reach: 0.76 to 0.80 (docs/machines.md)."""
_OF_HBM: Final = 0.85
"""Share of the memory's bandwidth that a triad reaches (docs/machines.md)."""
_MUCH: Final = 0.05
"""Products on FP32 units with this share of the computing time are said, whatever they save."""
_NAMED: Final = 3


@finding("low_precision_unused", needs=("steps",))
def precision(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Products in single precision without tensor cores, by their operators or kernels."""
    plain = [
        o for o in facts.operators
        if o.of_tensor_ceiling and o.dtype in _WITHOUT_TENSOR_CORES and o.bound != "latency"
    ]  # fmt: skip
    if plain:
        found = _without_tensor_cores(facts, steps, plain, actions)
        if sum(o.share for o in plain) >= _MUCH or worth(found, facts):
            yield found
        return
    slow = [
        k for k in steps.kernels
        if k.category in ("GEMM", "convolution") and kernel(k.name).multiplies
        and kernel_types(k.name).unit == kernel_types(k.name).dtype == "float32"
    ]  # fmt: skip
    peaks = facts.machine.peak_flops_per_s if facts.machine else {}
    if not slow or not {"float32", "tf32_tensor"} <= peaks.keys():
        return
    seconds = sum(k.seconds for k in slow)
    share = 1.0 - peaks["float32"] / peaks["tf32_tensor"]
    found = Finding(
        "low_precision_unused",
        "GEMMs run without tensor cores",
        min(seconds * share, steps.saved_s("kernel")),
        f"{sum(k.count for k in slow):.0f} FP32 kernels per step take {si(seconds, 's')}; their "
        f"peak is {si(peaks['float32'], 'FLOP/s')}, that of TF32 "
        f"{si(peaks['tf32_tensor'], 'FLOP/s')}",
        actions.advise("lower_precision"),
        gpu_s=seconds * share,
    )
    if sum(k.share for k in slow) >= _MUCH or worth(found, facts):
        yield found


def _without_tensor_cores(
    facts: Facts, steps: StepFacts, plain: Sequence[OperatorRow], actions: Actions
) -> Finding:
    """Tensor cores take the same multiple of their least time, it is assumed, as the unit does."""
    seconds = sum(o.gpu_s for o in plain)
    faster = sum(o.gpu_s * (1.0 - o.tensor_s / o.least_s) for o in plain)
    peaks = facts.machine.peak_flops_per_s if facts.machine else {}
    unit = max(plain, key=lambda o: o.gpu_s).unit
    saving_s, limited = _limited(faster, facts, steps)
    hidden = limited and facts.sizes_recorded and saving_s < WORTH * facts.batch.value
    name, tensor, whose = _WITHOUT_TENSOR_CORES[unit]
    return Finding(
        "low_precision_unused",
        "GEMMs run without tensor cores",
        None if hidden else saving_s,  # by the recording, not by the program
        f"{sum(o.count for o in plain):.0f} GEMMs on {name} take {si(seconds, 's')} per step: "
        f"{percent(sum(o.least_s for o in plain) / seconds)} of their ceiling "
        f"({si(peaks[unit], 'FLOP/s')}), "
        f"{percent(sum(o.tensor_s for o in plain) / seconds)} of {whose} on tensor cores "
        f"({si(peaks[tensor], 'FLOP/s')}){limited}",
        actions.advise("lower_precision"),
        gpu_s=faster,
    )


@finding("unfused_attention", needs=("steps",))
def attention(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Softmax of a matrix of scores several times a step, and kernels that take as long."""
    scores = [
        k for k in steps.kernels
        if kernel(k.name).operation.startswith("softmax") and not _LOG.search(k.name)
        and k.count >= 2
    ]  # fmt: skip
    if not scores or any(k.category == "attention" for k in steps.kernels):
        return
    least = min(k.median_s for k in scores) / 3
    beside = [
        k for k in steps.kernels
        if k.category in ("element-wise", "copy") and k.median_s >= least
        and k.count >= min(s.count for s in scores)
    ]  # fmt: skip
    seconds = sum(k.seconds for k in [*scores, *beside])
    yield Finding(
        "unfused_attention",
        "attention is computed with a matrix of scores in memory",
        min(seconds, steps.saved_s("kernel")),
        f"{sum(k.count for k in scores):.0f} softmax kernels over scores and the element-wise "
        f"kernels as large take {si(seconds, 's')} per step; no fused attention kernel runs",
        actions.advise("fuse_attention"),
        gpu_s=seconds,
    )


@finding("memory_bound", needs=("steps", "operators"))
def memory(
    facts: Facts, actions: Actions, steps: StepFacts, rows: Sequence[OperatorRow]
) -> Iterator[Finding]:
    """Operators that the memory's bandwidth bounds, and what they take more than it."""
    bound = [o for o in rows if o.bound == "memory" and not o.flops]
    if not bound:
        return
    gpu_s = sum(map(_recoverable_s, bound))
    saving_s, limited = _limited(gpu_s, facts, steps)
    twice = sum(o.fusible_bytes or 0.0 for o in bound)
    seconds, moved = sum(o.gpu_s for o in bound), sum(o.bytes or 0.0 for o in bound)
    slow = sorted(bound, key=_recoverable_s, reverse=True)[:_NAMED]
    named = ", ".join(
        f"{o.name} ({o.phase}) {si(o.gpu_s, 's')} at {percent(o.least_s / o.gpu_s)}" for o in slow
    )
    yield Finding(
        "memory_bound",
        "operators are limited by the GPU's memory",
        saving_s,
        f"operators without GEMMs take {si(seconds, 's')} per step, "
        f"{percent(sum(o.share for o in bound))} of the computing time, to move {si(moved, 'B')}: "
        f"{si(moved / seconds, 'B/s')}; most is lost by {named} of the bandwidth. {si(twice, 'B')} "
        f"are read of what such an operator wrote just before: saved if these were fused, and the "
        f"rest took {percent(_OF_HBM)} of the bandwidth{limited}",
        actions.advise("move_less"),
        gpu_s=gpu_s,
        line=facts.lines.get((slow[0].name, slow[0].phase)),
    )


@finding("kernel_below_ceiling", needs=("steps", "operators"))
def gemms(
    facts: Facts, actions: Actions, steps: StepFacts, rows: Sequence[OperatorRow]
) -> Iterator[Finding]:
    """GEMMs and attention against the lower of the roofs of their unit and of memory."""
    slow = [o for o in rows if o.flops and o.bound != "latency"]
    for o in sorted(slow, key=_recoverable_s, reverse=True)[:_NAMED]:
        flops = o.flops or 0.0
        saving_s, limited = _limited(_recoverable_s(o), facts, steps)
        yield Finding(
            "kernel_below_ceiling",
            f"{o.name} ({o.phase}) runs at {percent(o.least_s / o.gpu_s)} of its ceiling",
            saving_s,
            f"{o.count:.0f} calls per step take {si(o.gpu_s, 's')} for {si(flops, 'FLOP')} "
            f"({si(flops / o.gpu_s, 'FLOP/s')}); peak and bandwidth allow {si(o.least_s, 's')}, of "
            f"which large GEMMs reach {percent(_reachable(o))}{limited}",
            actions.advise("raise_rate"),
            gpu_s=_recoverable_s(o),
            subject=f"{o.name} ({o.phase})",
            line=facts.lines.get((o.name, o.phase)),
        )


@finding("kernel_below_ceiling", needs=("gemms",))
def slow_products(facts: Facts, actions: Actions, gemms: Sequence[GemmTime]) -> Iterator[Finding]:
    """Products against the ceilings of the machine."""
    for gemm in gemms:
        if gemm.bound_s is None:
            continue
        yield Finding(
            "kernel_below_ceiling",
            f"{gemm.label} runs at {percent(gemm.bound_s / gemm.seconds)} of its ceiling",
            gemm.seconds - gemm.bound_s,
            f"{si(gemm.flops, 'FLOP')} in {si(gemm.seconds, 's')} = "
            f"{si(gemm.flops / gemm.seconds, 'FLOP/s')}; the machine's ceilings allow "
            f"{si(gemm.bound_s, 's')}",
            actions.multiply(),
            subject=gemm.label,
        )


def _limited(gpu_s: float, facts: Facts, steps: StepFacts) -> tuple[float, str]:
    """What a step takes less where its kernels take so much less, and why that is less."""
    most_s = steps.saved_s("kernel")
    if gpu_s <= most_s:
        return gpu_s, ""
    slowed = " (recording sizes slows it down)" if facts.sizes_recorded else ""
    return (
        most_s,
        f"; the GPU would save {si(gpu_s, 's')}, but then the host limits the step{slowed}",
    )


def _reachable(o: OperatorRow) -> float:
    return _OF_PEAK if o.bound == "compute" else _OF_HBM


def _recoverable_s(o: OperatorRow) -> float:
    """What an operator takes more than at the share of its ceiling that can be reached.

    Where memory bounds it, without the bytes that fusing saves.
    """
    fused = (o.fusible_bytes or 0.0) / o.bytes if o.bound == "memory" and o.bytes else 0.0
    return max(o.gpu_s - (1.0 - fused) * o.least_s / _reachable(o), 0.0)
