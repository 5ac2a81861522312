"""Faults that are put into the programs, and when each rank has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

STEPS, WARMUP = 24, 4
"""Steps of a run, and those at its begin that are not timed."""
EVERY: Final = 6
"""Steps from one checkpoint or validation to the next."""
Extra = Callable[[int, int, int, int], float]
"""Takes rank, step, ranks and the chosen rank; returns a multiple of the fault's seconds."""


def _draws(rank: int, step: int) -> float:
    return float(np.random.default_rng((rank, step)).exponential())


TIMED: Final[dict[str, tuple[str, Extra]]] = {
    "slow_rank": ("compute", lambda r, s, p, at: r == at),
    "slow_input": ("input", lambda r, s, p, at: r == at),
    "late_root": ("input", lambda r, s, p, at: r == 0),
    "logging_root": ("log", lambda r, s, p, at: r == 0),
    "checkpoint_root": ("checkpoint", lambda r, s, p, at: r == 0 and s % EVERY == 5),
    "passed_on": ("compute", lambda r, s, p, at: r == at),
    "slow_half": ("compute", lambda r, s, p, at: r >= p // 2),
    "unequal": ("compute", lambda r, s, p, at: r / (p - 1)),
    "in_turn": ("compute", lambda r, s, p, at: r == s % p),
    "at_random": ("compute", lambda r, s, p, at: _draws(r, s)),
    "growing": ("compute", lambda r, s, p, at: (r == at) * 2 * s / STEPS),
    "pauses": ("compute", lambda r, s, p, at: (r == at) * 3 * (s in (7, 13, 14, 20))),
    "loader": ("input", lambda r, s, p, at: True),
    "logging": ("log", lambda r, s, p, at: True),
    "checkpoint": ("checkpoint", lambda r, s, p, at: s % EVERY == 5),
    "validation": ("validation", lambda r, s, p, at: s % EVERY == 5),
    "barriers": ("compute", lambda r, s, p, at: r == s % p),
    "polling": ("compute", lambda r, s, p, at: r == at),
}  # fmt: skip
"""Phase of a fault, and how much longer a rank is in it. Barriers make all ranks wait for the one
that has its turn; with polling, no call shows that they wait."""
OTHER_WAYS: Final = (
    "barriers", "polling", "small_messages", "many_collectives", "large_messages", "serial_root",
    "in_order", "slow_link", "passed_on",
)  # fmt: skip
"""Faults of the exchange."""
