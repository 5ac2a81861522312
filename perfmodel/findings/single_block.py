"""Kernels of one block, or one thread: one multiprocessor works, the others idle."""

from typing import Final

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, percent, si
from perfmodel.readers.trace import ONE_THREAD
from perfmodel.timing.kernels import COMMUNICATION

KIND = Kind(
    key="single_block",
    change="a kernel of one block runs on the whole GPU",
    remedy="Launch more blocks:",
    part="compute",
    several=True,
    shortens_kernels=True,
    grounds={
        "formula": "time on one multiprocessor, less what it would take on all",
        "inputs": ["summary.step_s", "kernels.largest[].seconds"],
        "table": "operations",
        "where": {"kind": "kernel", "counted": True},
        "by": "seconds",
    },
)

_LEAST_SHARE_OF_STEP: Final = 0.05
"""Kernels of one block with this share of a step are reported."""


@KIND.rule(needs=("steps",))
def single_blocks(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Kernels that are launched with one block, or one thread."""
    step_s = steps.step_s or facts.batch.value
    for kernel in steps.kernels:
        seconds = kernel.seconds
        if (
            not kernel.single
            or kernel.category == COMMUNICATION
            or seconds < _LEAST_SHARE_OF_STEP * step_s
        ):
            continue
        chip = facts.machine.chip if facts.machine else None
        units = chip.multiprocessors if chip else None
        what = "thread" if kernel.single == ONE_THREAD else "block"
        of = f" of {units} multiprocessors" if units else ""
        yield Finding(
            KIND.key,
            f"{kernel.name.removeprefix('void ')[:60]} runs in one {what}",
            seconds * (1 - 1 / units) if units else seconds,
            f"{kernel.count:.1f} launches per step take {si(seconds, 's')}, "
            f"{percent(seconds / step_s)} of the step, on one{of or ' multiprocessor'}",
            actions.advise("more_blocks"),
            subject=kernel.name,
        )
