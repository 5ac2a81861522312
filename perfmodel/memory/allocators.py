"""What allocators make of a request: CuPy's pools rounded and replayed, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

UNIT_BYTES: Final = 512
"""CuPy's device pool hands out multiples of this (cupy/cuda/memory.pyx, ALLOCATION_UNIT_SIZE), and
PyTorch's allocator too (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

PAGE_BYTES: Final = 2 << 20
"""The driver maps device memory in pages of 2 MiB: what NVML counts."""


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
    free: bool = False


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
        self._segments: list[list[Block]] = []

    def allocate(self, size: int) -> Block:
        """Hand out a block of at least `size` bytes."""
        wanted = device_block(size)
        fits = [b for blocks in self._segments for b in blocks if b.free and b.size >= wanted]
        if fits:
            block = min(fits, key=lambda b: b.size)
            block.free, rest = False, block.size - wanted
            if rest:
                block.size, at = wanted, block.neighbours.index(block)
                block.neighbours.insert(at + 1, Block(rest, block.neighbours, free=True))
        else:
            segment: list[Block] = []
            block = Block(wanted, segment)
            segment.append(block)
            self._segments.append(segment)
            self.total_bytes += wanted
        self.used_bytes += wanted
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return block

    def release(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        self.used_bytes -= block.size
        block.free, blocks = True, block.neighbours
        at = blocks.index(block)
        if at + 1 < len(blocks) and blocks[at + 1].free:
            block.size += blocks.pop(at + 1).size
        if at > 0 and blocks[at - 1].free:
            blocks[at - 1].size += blocks.pop(at).size
