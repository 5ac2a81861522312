"""The sums of what is allocated: as asked for, as blocks, and as CuPy's pool takes it from CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.models.allocators import DevicePool
from perfmodel.programs.mlp.memory import Allocation, Memory

_MOST_BLOCKS: Final = 4096
"""More blocks of one size are replayed as one."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sums of a list of allocations by memory.

    Attributes
    ----------
    asked_bytes, held_bytes : dict of str to int
        By memory, what stays: as asked for, and as the allocator's blocks.
    peak_bytes : int
        Most device memory handed out at once, those included that do not stay.
    reserved_bytes : int
        Device memory that the pool asked CUDA for: it keeps what was given back.
    apart_bytes : int
        Device memory that libraries ask CUDA for past the pool; in none of the other sums.
    unknown : tuple of str
        Names of allocations that no formula tells.
    """

    asked_bytes: Mapping[Memory, int]
    held_bytes: Mapping[Memory, int]
    peak_bytes: int
    reserved_bytes: int
    apart_bytes: int
    unknown: tuple[str, ...]

    @property
    def rounding_bytes(self) -> int:
        """Device bytes that only the allocator's rounding adds."""
        return self.held_bytes["device"] - self.asked_bytes["device"]


def footprint(listed: tuple[Allocation, ...]) -> Footprint:
    """Replay allocations in their order through CuPy's device pool, and sum them by memory."""
    pool, apart = DevicePool(), 0
    asked: dict[Memory, int] = {"device": 0, "pinned": 0}
    held: dict[Memory, int] = {"device": 0, "pinned": 0}
    for one in listed:
        if not one.bytes or one.held_bytes is None:
            continue
        if not one.pooled:
            apart += one.bytes
            continue
        if one.stays:
            asked[one.memory] += one.bytes
            held[one.memory] += one.held_bytes
        if one.memory == "device":
            pieces = one.count if one.count <= _MOST_BLOCKS else 1
            blocks = [pool.allocate(one.held_bytes // pieces) for _ in range(pieces)]
            for block in [] if one.stays else blocks:
                pool.release(block)
    return Footprint(
        asked, held, pool.peak_bytes, pool.total_bytes, apart,
        tuple(one.name for one in listed if one.bytes is None),
    )  # fmt: skip
