"""Choices that follow from bytes, one after the other, so that a near input is a near case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class Draws:
    """The draws of `random.Random` that the targets need, taken from bytes, two for each.

    A fuzzer guided by coverage changes a byte, and with it one choice; a generator seeded with all
    bytes would make another case of each. After the last byte come the numbers of a generator
    seeded with the first two, so that a short input is a whole case too.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._rest = random.Random(data[:2])

    def randrange(self, start: int, stop: int | None = None) -> int:
        """Return a whole number below `start`, or from `start` to below `stop`."""
        low, high = (0, start) if stop is None else (start, stop)
        if self._at >= len(self._data):
            return self._rest.randrange(low, high)
        drawn = int.from_bytes(self._data[self._at : self._at + 2], "little")
        self._at += 2
        return low + drawn % (high - low)

    def random(self) -> float:
        """Return a fraction from 0 to below 1."""
        return self.randrange(65_536) / 65_536

    def choice(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return options[self.randrange(len(options))]


def drawn(count: int) -> list[bytes]:
    """Return so many inputs of 200 bytes to begin with, the same ones every time."""
    return [random.Random(seed).randbytes(200) for seed in range(count)]
