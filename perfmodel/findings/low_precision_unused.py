"""Products in single precision without tensor cores."""

from collections.abc import Sequence
from typing import Final

from perfmodel.base.kernels import PRODUCTS, kernel, kernel_types
from perfmodel.findings import (
    WORTH,
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    StepFacts,
    percent,
    si,
    worth,
)
from perfmodel.findings._kernels import limited
from perfmodel.programs.facts import OperatorRow

KIND = Kind(
    key="low_precision_unused",
    change="GEMMs run on tensor cores",
    remedy="Use tensor cores:",
    part="compute",
    several=True,
    shortens_kernels=True,
    kernels=PRODUCTS,
    precedence=5,
    grounds={
        "formula": "time of GEMM kernels on slow units, times 1 - their peak / the tensor cores' "
        "peak; at most the replay without kernels",
        "inputs": [
            "summary.step_s",
            "kernels.categories[category=GEMM].seconds",
            "critical_path[kind=kernel].free_s",
        ],
        "table": "operations",
        "where": {"category": ["GEMM", "convolution"], "counted": True},
        "by": "seconds",
    },
)

_WITHOUT_TENSOR_CORES: Final = {
    "float32": ("FP32 units", "tf32_tensor", "TF32's"),
    "float64": ("FP64 units", "float64_tensor", "FP64's"),
}
"""By type: the unit that multiplies without tensor cores, and the peak of those."""

_LEAST_SHARE_OF_COMPUTING: Final = 0.05
"""Products on FP32 units with this share of the computing time are said, whatever they save."""


@KIND.rule(needs=("steps",))
def precision(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Products in single precision without tensor cores, by their operators or kernels."""
    plain = [
        o for o in facts.operators
        if o.of_tensor_ceiling and o.dtype in _WITHOUT_TENSOR_CORES and o.bound != "latency"
    ]  # fmt: skip
    if plain:
        by_operators = _without_tensor_cores(facts, steps, plain, actions)
        if sum(o.share for o in plain) >= _LEAST_SHARE_OF_COMPUTING or worth(by_operators, facts):
            yield by_operators
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
    by_kernels = Finding(
        KIND.key,
        "GEMMs run without tensor cores",
        min(seconds * share, steps.saved_s("kernel")),
        f"{sum(k.count for k in slow):.0f} FP32 kernels per step take {si(seconds, 's')}; their "
        f"peak is {si(peaks['float32'], 'FLOP/s')}, that of TF32 "
        f"{si(peaks['tf32_tensor'], 'FLOP/s')}",
        actions.advise("lower_precision"),
        gpu_s=seconds * share,
    )
    if sum(k.share for k in slow) >= _LEAST_SHARE_OF_COMPUTING or worth(by_kernels, facts):
        yield by_kernels


def _without_tensor_cores(
    facts: Facts, steps: StepFacts, plain: Sequence[OperatorRow], actions: Actions
) -> Finding:
    """Tensor cores take the same multiple of their least time, it is assumed, as the unit does."""
    seconds = sum(o.gpu_s for o in plain)
    faster = sum(o.gpu_s * (1.0 - o.tensor_s / o.least_s) for o in plain)
    peaks = facts.machine.peak_flops_per_s if facts.machine else {}
    unit = max(plain, key=lambda o: o.gpu_s).unit
    saving_s, by_host = limited(faster, facts, steps)
    hidden = by_host and facts.sizes_recorded and saving_s < WORTH * facts.batch.value
    name, tensor, whose = _WITHOUT_TENSOR_CORES[unit]
    return Finding(
        KIND.key,
        "GEMMs run without tensor cores",
        None if hidden else saving_s,  # by the recording, not by the program
        f"{sum(o.count for o in plain):.0f} GEMMs on {name} take {si(seconds, 's')} per step: "
        f"{percent(sum(o.least_s for o in plain) / seconds)} of their ceiling "
        f"({si(peaks[unit], 'FLOP/s')}), "
        f"{percent(sum(o.tensor_s for o in plain) / seconds)} of {whose} on tensor cores "
        f"({si(peaks[tensor], 'FLOP/s')}){by_host}",
        actions.advise("lower_precision"),
        gpu_s=faster,
    )
