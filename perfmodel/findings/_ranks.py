"""Ranks: the ones that others wait for, the links between them, and the ranges they are long in."""

from collections.abc import Mapping, Sequence
from typing import Final

from perfmodel.findings import Facts, StepFacts
from perfmodel.timing.late_ranks import LateRank

LATE: Final = 0.03
"""A rank that is late by a smaller share of a step holds nobody up."""

_NEARLY: Final = 0.8
"""A range inside another explains it if it has this share of its time."""


def holding_up(steps: StepFacts) -> LateRank | None:
    """Return the rank that the others wait for, if a step would be shorter without it."""
    if steps.straggler_saving_s < LATE * steps.step_s:
        return None
    late = steps.last_rank()
    return None if late is None or (late.excess and late.excess.by_chance) else late


def too_few(late: LateRank) -> str:
    """Say where too few steps were recorded to tell a late rank from chance."""
    steps = f"{late.steps} step{'s' * (late.steps != 1)}"
    return "" if late.enough else f" (only {steps}: record more to be sure)"


def waits_longest(waiting_s: Sequence[float]) -> int:
    """Return the position of the rank that waits longest."""
    return max(range(len(waiting_s)), key=waiting_s.__getitem__)


def rank_number(facts: Facts, index: int) -> int:
    """Return the rank that is the n-th of those that are measured."""
    return facts.numbers[index] if facts.numbers else index


def over_nvlink(facts: Facts, size: float) -> float | None:
    """Return the seconds of a ring between the GPUs; half the data sheet's rate is one way."""
    link = facts.machine.peers_bytes_per_s if facts.machine else None
    return None if link is None else 2 * (facts.ranks - 1) / facts.ranks * size / (link / 2)


def only_messages(steps: StepFacts) -> bool:
    """Whether NCCL only sends and receives, as between the stages of a pipeline."""
    return bool(steps.messages) and all(n.endswith("SendRecv") for n, _, _ in steps.messages)


def innermost(seconds: Mapping[str, float]) -> str | None:
    """Return the path that has most time, or the innermost one that has nearly as much.

    >>> innermost({"step/solve": 1.0, "step/solve/exchange": 0.9, "step/read": 0.2})
    'step/solve/exchange'
    """
    most = max(seconds.values(), default=0.0)
    near = [path for path, spent in seconds.items() if spent > 0 and spent >= _NEARLY * most]
    return max(near, key=lambda path: (path.count("/"), seconds[path]), default=None)
