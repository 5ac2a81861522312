"""The parameters of the network, or their gradients: four tensors in one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainer.backends.base import Array

PARAMETERS: Final = ("W1", "b1", "W2", "b2")


@dataclass(frozen=True, slots=True)
class Tensors:
    """W1, b1, W2, b2 as views of one flat buffer, in this order; n = HD + H + CH + C elements."""

    flat: Array
    W1: Array
    b1: Array
    W2: Array
    b2: Array

    @classmethod
    def split(cls, flat: Array, inputs: int, hidden: int, classes: int) -> Tensors:
        """View a flat buffer of n elements as the four tensors."""
        shapes = ((hidden, inputs), (hidden,), (classes, hidden), (classes,))
        views, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            views.append(flat[start : start + size].reshape(shape))
            start += size
        return cls(flat, *views)

    def named(self) -> dict[str, Array]:
        """Return the four views by name, in memory order."""
        return {name: getattr(self, name) for name in PARAMETERS}
