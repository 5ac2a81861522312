"""Losses on the GPU itself: page migrations of unified memory, kernels of a single block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts
from perfmodel.programs.findings import Finding, finding
from perfmodel.readers.trace import ONE_THREAD
from perfmodel.timing.kernels import COMMUNICATION

if TYPE_CHECKING:
    from perfmodel.timing.step_facts import StepFacts

_MUCH: Final = 0.05
"""Kernels of one block with this share of a step are reported."""


@finding("page_migration", needs=("steps",))
def page_migrations(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Pages of unified memory that move between host and GPU while kernels wait for them."""
    moved = steps.unified
    if moved is None:
        return
    both = moved.to_gpu_bytes > 0 and moved.to_host_bytes > 0
    size = moved.to_gpu_bytes + moved.to_host_bytes
    rate = f" at {si(size / moved.seconds, 'B/s')}" if size and moved.seconds else ""
    back = moved.later_bytes
    later = f"; {si(back, 'B')} more move to the host after the last step" if back else ""
    yield Finding(
        "page_migration",
        "pages of unified memory move between host and GPU",
        moved.seconds,
        f"{moved.count:.0f} migrations per step move {si(moved.to_gpu_bytes, 'B')} to the GPU and "
        f"{si(moved.to_host_bytes, 'B')} to the host{rate}, in "
        f"{si(moved.seconds, 's')} of {si(steps.step_s or facts.batch.value, 's')}{later}",
        actions.advise("share_pages" if both else "prefetch_pages"),
    )


@finding("single_block", needs=("steps",))
def single_blocks(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Kernels of one block, or one thread: one multiprocessor works, the others idle."""
    step_s = steps.step_s or facts.batch.value
    for kernel in steps.kernels:
        seconds = kernel.seconds
        if not kernel.single or kernel.category == COMMUNICATION or seconds < _MUCH * step_s:
            continue
        chip = facts.machine.chip if facts.machine else None
        units = chip.multiprocessors if chip else None
        what = "thread" if kernel.single == ONE_THREAD else "block"
        of = f" of {units} multiprocessors" if units else ""
        yield Finding(
            "single_block",
            f"{kernel.name.removeprefix('void ')[:60]} runs in one {what}",
            seconds * (1 - 1 / units) if units else seconds,
            f"{kernel.count:.1f} launches per step take {si(seconds, 's')}, "
            f"{percent(seconds / step_s)} of the step, on one{of or ' multiprocessor'}",
            actions.advise("more_blocks"),
            subject=kernel.name,
        )
