"""Operators that the bandwidth of the GPU's memory limits."""

from collections.abc import Sequence

from perfmodel.base.kernels import PRODUCTS
from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, percent, si
from perfmodel.findings._kernels import LARGEST, OF_HBM, limited, recoverable_s
from perfmodel.programs.facts import OperatorRow
from perfmodel.timing.kernels import COMMUNICATION

KIND = Kind(
    key="memory_bound",
    change="operators that memory limits are fused",
    remedy="Fuse them:",
    part="compute",
    several=True,
    shortens_kernels=True,
    kernels=(*PRODUCTS, COMMUNICATION),
    other_kernels=True,
    precedence=7,
    grounds={
        "formula": "time of operators that memory bounds, minus the time of their other bytes at "
        "85 % of the bandwidth",
        "inputs": [
            "summary.step_s",
            "operators[bound=memory].gpu_s",
            "operators[bound=memory].bytes",
        ],
        "table": "operations",
        "where": {
            "category": [
                "element-wise",
                "reduction",
                "normalization",
                "softmax and loss",
                "copy",
            ],
            "counted": True,
        },
        "by": "seconds",
    },
)


@KIND.rule(needs=("steps", "operators"))
def memory(
    facts: Facts, actions: Actions, steps: StepFacts, rows: Sequence[OperatorRow]
) -> Findings:
    """Operators that the memory's bandwidth bounds, and what they take more than it."""
    bound = [o for o in rows if o.bound == "memory" and not o.flops]
    if not bound:
        return
    gpu_s = sum(map(recoverable_s, bound))
    saving_s, by_host = limited(gpu_s, facts, steps)
    twice = sum(o.fusible_bytes or 0.0 for o in bound)
    seconds, moved = sum(o.gpu_s for o in bound), sum(o.bytes or 0.0 for o in bound)
    slow = sorted(bound, key=recoverable_s, reverse=True)[:LARGEST]
    named = ", ".join(
        f"{o.name} ({o.phase}) {si(o.gpu_s, 's')} at {percent(o.least_s / o.gpu_s)}" for o in slow
    )
    yield Finding(
        KIND.key,
        "operators are limited by the GPU's memory",
        saving_s,
        f"operators without GEMMs take {si(seconds, 's')} per step, "
        f"{percent(sum(o.share for o in bound))} of the computing time, to move {si(moved, 'B')}: "
        f"{si(moved / seconds, 'B/s')}; most is lost by {named} of the bandwidth. {si(twice, 'B')} "
        f"are read of what such an operator wrote just before: saved if these were fused, and the "
        f"rest took {percent(OF_HBM)} of the bandwidth{by_host}",
        actions.advise("move_less"),
        gpu_s=gpu_s,
        line=facts.lines.get((slow[0].name, slow[0].phase)),
    )
