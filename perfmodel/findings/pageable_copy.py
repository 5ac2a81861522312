"""Copies from and to pageable memory, which pinned memory would make faster."""

from collections.abc import Sequence
from typing import Final

from perfmodel.findings import (
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    StepFacts,
    share_of_recorded,
    si,
)
from perfmodel.findings._idle import find_long_steps, saving_without
from perfmodel.timing.copies import CopyGroup, pinned_rate

KIND = Kind(
    key="pageable_copy",
    change="no copies from pageable memory",
    remedy="Copy from pinned memory:",
    part="copies",
    several=True,
    precedence=4,
    grounds={
        "formula": "step_s less free_s, the replay without copies of pageable memory",
        "inputs": [
            "summary.step_s",
            "critical_path[kind=pageable_copy].free_s",
            "copies[memory=pageable].seconds",
        ],
        "table": "operations",
        "where": {"kind": "memcpy", "counted": True},
        "by": "seconds",
    },
)

_WAYS: Final = {
    "Host-to-Device": ("from", "to the GPU"),
    "Device-to-Host": ("to", "back"),
}
"""Words for copies by their direction: before the host's memory, and behind their bytes."""
_BOTH: Final = 0.1
"""A direction with a smaller share of the time of pageable copies is not named: reading a number
back takes pageable memory, too."""


@KIND.rule(needs=("copies",), unless=("steps",))
def slower_than_pinned(facts: Facts, actions: Actions, copies: Sequence[CopyGroup]) -> Findings:
    """Copies from and to pageable memory, against pinned ones."""
    for group in copies:
        pinned = _pinned(facts)
        if group.memory != "pageable" or pinned is None:
            continue
        rate, source = pinned
        spent = max(facts.copying_s.get(group.direction, 0.0), group.seconds)
        yield Finding(
            KIND.key,
            f"{group.direction} copies use pageable memory",
            spent - group.bytes / rate,
            f"{group.count:.0f} copies, {si(group.bytes, 'B')} per step at "
            f"{si(group.bytes_per_s, 'B/s')} on the copy engine, "
            f"{share_of_recorded(facts, spent)} on the host; {source}",
            actions.pin(group.direction),
            subject=group.direction,
        )


find_long_steps(KIND, lambda actions, *_: actions.pin("Host-to-Device"))


@KIND.rule(needs=("steps",))
def copies_pageable_memory(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Copies in which the host waits: pinned ones take less, and the GPU idles less since."""
    groups = _pageable(facts)
    ways = " and ".join(_WAYS[group.direction][0] for group in groups) or "from"
    yield Finding(
        KIND.key,
        f"the host copies {ways} pageable memory",
        saving_without(KIND.key, steps, steps.idle_s() + _sooner_s(facts)),
        _described(facts),
        actions.pin(groups[0].direction) if groups else "",
    )


def _pinned(facts: Facts) -> tuple[float, str] | None:
    """Rate of pinned copies, and words on where it is from; None where it is not known."""
    link = facts.machine.bandwidth_bytes_per_s.get("pcie") if facts.machine else None
    known = pinned_rate(facts.copies, link)
    if known is None:
        return None
    rate, recorded = known
    words = "pinned copies in this report reach" if recorded else "pinned ones should reach about"
    return rate, f"{words} {si(rate, 'B/s')}"


def _pageable(facts: Facts) -> list[CopyGroup]:
    """Copies from and to pageable memory that take time, most first."""
    groups = [g for g in facts.copies if g.memory == "pageable" and g.direction in _WAYS]
    groups.sort(key=lambda group: -group.seconds)
    whole = sum(group.seconds for group in groups)
    return [group for group in groups if group.seconds > _BOTH * whole]


def _sooner_s(facts: Facts) -> float:
    """What pageable copies take less with pinned memory; all of it where its rate is not known."""
    rate, _ = _pinned(facts) or (float("inf"), "")
    return sum(max(group.seconds - group.bytes / rate, 0.0) for group in _pageable(facts))


def _described(facts: Facts) -> str:
    """Describe the copies from and to pageable memory."""
    groups, pinned = _pageable(facts), _pinned(facts)
    if not groups:
        return "copies from pageable memory"
    each = " and ".join(
        f"{si(g.bytes, 'B')} {_WAYS[g.direction][1]} at {si(g.bytes / g.seconds, 'B/s')}"
        for g in groups
    )
    spent = sum(group.seconds for group in groups)
    source = f"; {pinned[1]}" if pinned else ""
    return f"{each} per step, {si(spent, 's')} in which the host waits, too{source}"
