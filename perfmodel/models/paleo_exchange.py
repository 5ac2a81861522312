"""The exchange of gradients in data parallel training, by Paleo's schemes and by a ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.base.errors import ModelError
from perfmodel.machines.link import Link
from perfmodel.models.collectives import Cost, cost


def _one_to_all(size_bytes: float, ranks: int) -> Cost:
    """2 (p-1) n / B: one rank takes everybody's gradients and gives everybody the sum."""
    cost("broadcast", size_bytes, ranks)  # refuses what cannot be
    return Cost(2 * (ranks - 1), 2.0 * (ranks - 1) * size_bytes, (ranks - 1.0) * size_bytes)


def _tree(size_bytes: float, ranks: int) -> Cost:
    """2 L n / B: up a binary tree and down again."""
    down = cost("broadcast", size_bytes, ranks, "binomial tree")
    return Cost(2 * down.messages, 2 * down.sent_bytes, down.sent_bytes)


def _butterfly(size_bytes: float, ranks: int) -> Cost:
    """L n / B: everybody exchanges everything with a partner, L times."""
    return cost("all-reduce", size_bytes, ranks, "recursive doubling")


def _ring(size_bytes: float, ranks: int) -> Cost:
    """2 (p-1)/p n / B; not one of Paleo's, which NCCL uses."""
    return cost("all-reduce", size_bytes, ranks, "ring")


_COSTS: Final[Mapping[str, Callable[[float, int], Cost]]] = {
    "OneToAll": _one_to_all,
    "tree": _tree,
    "butterfly": _butterfly,
    "ring": _ring,
}
SCHEMES: Final = tuple(_COSTS)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One scheme's exchange after a step.

    Attributes
    ----------
    cost : Cost
        Messages and bytes of the busiest rank.
    seconds : float
    efficiency : float
        The step alone over step and exchange, one after the other: what p ranks do together over
        p times what one does (weak scaling).
    """

    scheme: str
    cost: Cost
    seconds: float
    efficiency: float


def exchange(scheme: str, size_bytes: float, ranks: int) -> Cost:
    """Count the messages and bytes of the busiest rank, which Paleo takes for the time.

    Source: Qi et al. (ICLR 2017), and `comm.py` of its program; L = ceil(log2 p) rounds:
    OneToAll 2 (p-1) n, TreeAllReduce 2 L n, ButterflyAllReduce L n; ring 2 (p-1)/p n.

    Raises
    ------
    ModelError
        If there is no such scheme, or a number is out of range.

    Examples
    --------
    >>> exchange("tree", 1000, 8).sent_bytes
    6000
    """
    if scheme not in _COSTS:
        raise ModelError(f"wanted a scheme among {', '.join(SCHEMES)}; found {scheme!r}; take one")
    return _COSTS[scheme](size_bytes, ranks)


def exchanges(size_bytes: float, ranks: int, link: Link, step_s: float) -> tuple[Exchange, ...]:
    """Return all schemes for gradients of `size_bytes` after a step of `step_s` seconds."""
    found = []
    for scheme in SCHEMES:
        counted = exchange(scheme, size_bytes, ranks)
        seconds = counted.seconds(link)
        found.append(Exchange(scheme, counted, seconds, step_s / (step_s + seconds)))
    return tuple(found)
