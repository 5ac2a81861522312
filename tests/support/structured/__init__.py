"""Random programs whose nests of loops are known, to test how steps are found.

Kinds of programs are functions of `training`, `inference`, `learning` and `computing`; each draws a
program from a seed. Nothing here knows how steps are searched.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Final

from . import computing, inference, learning, training
from .program import Built, Drawing, Program, Truth

__all__ = ["FINAL_SEED", "KINDS", "TUNING_SEEDS", "UNSEEN_SEEDS", "Program", "Truth", "program"]

TUNING_SEEDS: Final = range(0, 20)
"""Programs to look at while the search is changed."""
UNSEEN_SEEDS: Final = range(20, 40)
"""Programs that are only scored."""
FINAL_SEED: Final = 1000
"""From this seed on, programs score a search that does not change any more."""

KINDS: Final[dict[str, Callable[[Drawing], Built]]] = {
    **training.KINDS, **learning.KINDS, **inference.KINDS, **computing.KINDS
}  # fmt: skip


def program(kind: str, seed: int) -> Program:
    """Return the program of a kind that a seed determines."""
    drawing = Drawing(random.Random(zlib.crc32(kind.encode()) * 1_000_003 + seed))
    built = KINDS[kind](drawing)
    return Program(kind, seed, built.truth, built.operations, built.ranges, drawing.draws)
