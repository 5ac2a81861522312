"""What allocators make of a request: CuPy's pools rounded and replayed, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

UNIT_BYTES: Final = 512
"""CuPy's device pool hands out multiples of this (cupy/cuda/memory.pyx, ALLOCATION_UNIT_SIZE), and
PyTorch's allocator too (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def device_block(size: int) -> int:
    """Return what CuPy's device pool holds for a request of `size` bytes.

    Examples
    --------
    >>> device_block(1_628_200)
    1628672
    """
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def pinned_block(size: int) -> int:
    """Return what CuPy's pinned pool holds: the next power of two, 512 bytes at least.

    Source: cupy/cuda/pinned_memory.pyx, PinnedMemoryPool.malloc.

    Examples
    --------
    >>> pinned_block(188_160_000)
    268435456
    """
    return 0 if size == 0 else 1 << (device_block(size) - 1).bit_length()


@dataclass(eq=False, slots=True)
class Block:
    """A piece of device memory, handed out or free; its neighbours are those of one cudaMalloc."""

    size: int
    neighbours: list[Block] = field(repr=False)


class DevicePool:
    """CuPy's device pool: the smallest free block that fits is split, else cudaMalloc is asked.

    Source: cupy/cuda/memory.pyx, SingleDeviceMemoryPool, on one stream; nothing is given back to
    CUDA.

    Attributes
    ----------
    total_bytes : int
        Asked of cudaMalloc so far.
    used_bytes, peak_bytes : int
        Handed out now, and at most.
    """

    def __init__(self) -> None:
        self.total_bytes = self.used_bytes = self.peak_bytes = 0
        self._free: list[Block] = []

    def allocate(self, size: int) -> Block:
        """Hand out a block of at least `size` bytes."""
        wanted = device_block(size)
        fits = [block for block in self._free if block.size >= wanted]
        if fits:
            block = min(fits, key=lambda b: b.size)
            self._free.remove(block)
            rest, block.size = block.size - wanted, wanted
            if rest:
                self._free.append(Block(rest, block.neighbours))
                block.neighbours.insert(block.neighbours.index(block) + 1, self._free[-1])
        else:
            block = Block(wanted, [])
            block.neighbours.append(block)
            self.total_bytes += wanted
        self.used_bytes += wanted
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return block

    def release(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        self.used_bytes -= block.size
        blocks = block.neighbours
        at = blocks.index(block)
        for near in (*blocks[at + 1 : at + 2], *blocks[max(at - 1, 0) : at]):
            if near in self._free:
                self._free.remove(near)
                blocks.remove(near)
                block.size += near.size
        self._free.append(block)
