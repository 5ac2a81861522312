"""Copies between host and GPU that are much of a step: parameters, states or a cache."""

from collections.abc import Sequence
from typing import Final

from perfmodel.findings import WORTH, Actions, Facts, Finding, Findings, Kind, percent, si
from perfmodel.timing.copies import CopyGroup
from perfmodel.timing.host_timeline import CAUSES, PAGEABLE

KIND = Kind(
    key="offloading",
    change="no copies",
    remedy="Keep the data on the GPU:",
    part="copies",
    replays="copy",
    grounds={
        "formula": "step_s less the replay without copies",
        "inputs": ["summary.step_s", "copies[].bytes", "copies[].seconds"],
        "table": "operations",
        "where": {"kind": "memcpy", "counted": True},
        "by": "seconds",
    },
)

_OFFLOADED: Final = 0.1
"""Share of a step from which copies between host and GPU are more than those of inputs: 0.3 to 6 %
in the recorded trainings that offload nothing."""

_EITHER_WAY: Final = 0.5
"""Copies that bring back at least this share of what they take away hold what is kept."""


@KIND.rule(needs=("copies",))
def copied_in_every_step(facts: Facts, actions: Actions, copies: Sequence[CopyGroup]) -> Findings:
    """Copies of a step, most of which could stay on the GPU.

    The saving is that of a replay without copies; without one, all their time. What does not come
    back must come, as inputs do: what pinned memory would save of that is another finding's.
    """
    there, back = (
        [group for group in copies if group.direction == direction]
        for direction in ("Host-to-Device", "Device-to-Host")
    )
    seconds = sum(group.seconds for group in (*there, *back))
    whole = max(facts.batch.value, facts.mean_s)
    if not seconds >= _OFFLOADED * whole > 0:
        return
    into, out = (sum(group.bytes for group in groups) for groups in (there, back))
    steps = facts.steps
    held = min(into, out) >= _EITHER_WAY * max(into, out)
    exposed, pinned = seconds, 0.0
    if steps and KIND.replays in steps.free_s:  # of the median step; others may have more of them
        exposed = min(seconds, whole * steps.saved_s(KIND.replays) / steps.step_s)
        pinned = 0.0 if held else whole * steps.saved_s(CAUSES[PAGEABLE]) / steps.step_s
    what = "what is offloaded returns" if held else "parameters, states or inputs are on the host"
    link = facts.machine.bandwidth_bytes_per_s.get("pcie") if facts.machine else None
    rate = (into + out) / seconds
    reached = f", {percent(rate / link)} of the link's {si(link, 'B/s')}" if link else ""
    hidden = max(seconds - exposed, 0.0)
    beside = (
        f"{si(hidden, 's')} of it runs beside kernels"
        if hidden > WORTH * whole
        else "no kernel hides it"
    )
    yield Finding(
        KIND.key,
        "the GPU waits for copies between it and the host",
        max(exposed - pinned, 0.0),
        f"{si(into, 'B')} to the GPU and {si(out, 'B')} back per step at {si(rate, 'B/s')}"
        f"{reached}: {si(seconds, 's')} of {si(whole, 's')}, {percent(seconds / whole)}; "
        f"{beside}; {what}",
        actions.advise("offload_less"),
        of_mean=bool(steps and steps.long),
    )
