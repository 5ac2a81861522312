"""Attention that is computed with a matrix of scores in memory."""

import re
from typing import Final

from perfmodel.base.kernels import kernel
from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si

KIND = Kind(
    key="unfused_attention",
    change="attention is one kernel",
    remedy="Use one kernel for attention:",
    part="compute",
    several=True,
    shortens_kernels=True,
    kernels=("softmax and loss",),
    precedence=6,
    grounds={
        "formula": "time of the softmax of scores, and of element-wise kernels as long",
        "inputs": [
            "summary.step_s",
            "kernels.categories[category=softmax and loss].seconds",
        ],
        "table": "operations",
        "where": {"category": "softmax and loss", "counted": True},
        "by": "seconds",
    },
)

_LOG: Final = re.compile(r"log_?softmax", re.I)
"""What a kernel for both says in its template arguments where it computes a loss's logarithm."""


@KIND.rule(needs=("steps",))
def attention(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
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
        KIND.key,
        "attention is computed with a matrix of scores in memory",
        min(seconds, steps.saved_s("kernel")),
        f"{sum(k.count for k in scores):.0f} softmax kernels over scores and the element-wise "
        f"kernels as large take {si(seconds, 's')} per step; no fused attention kernel runs",
        actions.advise("fuse_attention"),
        gpu_s=seconds,
    )
