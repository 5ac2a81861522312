"""The place of a finding in the program: the line of code and the range of its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perfmodel.base.kernels import PRODUCTS
from perfmodel.timing.host_timeline import CAUSES
from perfmodel.timing.kernels import COMMUNICATION

if TYPE_CHECKING:
    from perfmodel.programs.findings import Finding
    from perfmodel.timing.step_facts import KernelTime, StepFacts


_NEARLY: Final = 0.8
"""A range inside another explains it if it has this share of its time."""


def innermost(seconds: Mapping[str, float]) -> str | None:
    """Return the path that has most time, or the innermost one that has nearly as much.

    >>> innermost({"step/solve": 1.0, "step/solve/exchange": 0.9, "step/read": 0.2})
    'step/solve/exchange'
    """
    most = max(seconds.values(), default=0.0)
    near = [path for path, spent in seconds.items() if spent > 0 and spent >= _NEARLY * most]
    return max(near, key=lambda path: (path.count("/"), seconds[path]), default=None)


def located(findings: Iterable[Finding], steps: StepFacts | None) -> tuple[Finding, ...]:
    """Give findings the place of the longest gap, or of the largest kernel, that they are about."""
    if steps is None:
        return tuple(findings)
    return tuple(_located(finding, steps) for finding in findings)


def _located(finding: Finding, steps: StepFacts) -> Finding:
    if finding.kind in CAUSES:
        gap = steps.longest(finding.kind)
        return finding if gap is None else replace(finding, line=gap.line, range=gap.range or None)
    if finding.rank is not None or finding.line is not None:  # it has its own place
        return finding
    kernel = next((k for k in steps.kernels if _is_about(finding.kind, k)), None)
    return finding if kernel is None else replace(finding, line=kernel.line)


def _is_about(kind: str, kernel: KernelTime) -> bool:
    """Whether a finding of a kind is about kernels such as this one."""
    categories: dict[str, Sequence[str]] = {
        "exposed_communication": (COMMUNICATION,),
        "straggler": (COMMUNICATION,),
        "low_precision_unused": PRODUCTS,
        "kernel_below_ceiling": PRODUCTS,
        "unfused_attention": ("softmax",),
    }
    if kind == "memory_bound":
        return kernel.category not in (*PRODUCTS, COMMUNICATION)
    return kernel.category in categories.get(kind, ())
