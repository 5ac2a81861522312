"""The step in one launch over all parameters, alone or with the sum over ranks (peer.cu)."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainer.backends.base import Array
from trainer.kernels.source import load
from trainer.parameters import Tensors

THREADS: Final = 512
MOST_PACKET_BYTES: Final = 4 << 20
"""Gradients leave a GPU in packets up to so many bytes, to all ranks together."""
MOST_BLOCKS: Final = 264
"""Two for each multiprocessor of an H100 or H200; more would only wait for flags."""


class SumAndStep:
    """p <- p - rate (sum over ranks of g + decay p), biases without decay; see peer.cu.

    Parameters
    ----------
    parameters : Tensors
    rank : int
        This rank.
    inboxes, flags : sequence of int
        Addresses, in rank order, of every rank's inbox and flags as this GPU sees them; one rank
        alone sums nothing.
    launches : array of uint32, shape (blocks,)
        Counts this rank's launches; zeros at first.
    """

    def __init__(
        self,
        parameters: Tensors,
        rank: int = 0,
        inboxes: tuple[int, ...] = (0,),
        flags: tuple[int, ...] = (0,),
        launches: Array = None,
    ) -> None:
        self._flat = flat = parameters.flat
        module = load("peer", REAL=real_name(flat), RANKS=len(inboxes))
        name = "sum_and_step_packets" if sends_packets(flat, len(inboxes)) else "sum_and_step"
        self._kernel = module.get_function(name)
        ends = np.cumsum([parameters.W1.size, parameters.b1.size, parameters.W2.size])
        each, self._blocks = blocks_of(flat.size)
        self._front = (np.int32(flat.size), np.int32(each), np.int32(rank), flat)
        self._back = (  # struct Layout and struct Peers, by value
            _struct(ends.astype(np.int32)),
            _struct(np.array([*inboxes, *flags], np.uint64)),
            np.uintp(0) if launches is None else launches,
        )

    def __call__(self, gradients: Array, rate: float, decay: float) -> None:
        """Sum and descend; `gradients` is flat, shape (n,)."""
        real = self._flat.dtype.type
        arguments = (*self._front, gradients, real(rate), real(decay), *self._back)
        self._kernel((self._blocks,), (THREADS,), arguments)


def sends_packets(flat: Array, ranks: int) -> bool:
    """Return whether a latency saved is worth a third more bytes (all of them for float64)."""
    return ranks > 1 and (ranks - 1) * int(flat.nbytes) <= MOST_PACKET_BYTES


def inbox_bytes(flat: Array, ranks: int) -> int:
    """Return the size of a rank's inbox: two turns of a slot for each sender."""
    size, item = int(flat.size), int(flat.itemsize)
    if sends_packets(flat, ranks):
        return 2 * ranks * -(-size // (16 // item - 1)) * 16
    return 2 * ranks * -(-size // 4) * 4 * item


def _struct(members: np.ndarray) -> np.ndarray:
    """Return members of one type as one value, which a launch passes by value."""
    whole: np.ndarray = members.view([("members", members.dtype, members.shape)])
    return whole


def real_name(array: Array) -> str:
    """Return what CUDA calls the array's dtype."""
    return {"float32": "float", "float64": "double"}[str(array.dtype)]


def blocks_of(count: int) -> tuple[int, int]:
    """Return how many elements a block owns, and how many blocks there are."""
    each = max(THREADS, -(-count // MOST_BLOCKS))
    each = -(-each // 32) * 32
    return each, -(-count // each)
