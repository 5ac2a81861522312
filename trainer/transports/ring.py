"""Our own all-reduce over MPI_Sendrecv: a ring of ranks, on host memory or on GPU memory."""

from __future__ import annotations

from itertools import pairwise

from trainer import ranges as names
from trainer.backends.base import Array
from trainer.errors import ConfigError
from trainer.transports.base import Kind, Parties, register
from trainer.transports.device import why_not_cuda_aware


class RingTransport:
    """Reduce-scatter and all-gather in 2 (p - 1) exchanges of n/p elements with the neighbours.

    Every rank sends 2 (p - 1)/p n elements, the least that an all-reduce can (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). A CUDA-aware MPI
    moves each piece from GPU to GPU, and the GPU adds it: nothing is summed on the host, where
    Open MPI's MPI_Allreduce sums GPU memory. Each piece is summed along one way around the ring
    and then copied, so all ranks have the same bits.
    """

    steps: bool = False
    uncapturable: str | None = "MPI is called by the host, which a CUDA graph cannot do"

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        comm, flat = parties.comm, parties.message.flat
        reason = why_not_cuda_aware(comm) if parties.backend.on_device and comm.size > 1 else None
        if reason:
            raise ConfigError(
                "--transport ring: expected an MPI that takes GPU pointers; got none: "
                f"{reason}; load a CUDA-aware MPI (ompi_info --parsable | grep cuda), or use "
                "--transport nccl"
            ).on_all_ranks()
        edges = [flat.size * i // comm.size for i in range(comm.size + 1)]
        self._pieces: list[Array] = [flat[a:b] for a, b in pairwise(edges)]
        largest = max(piece.size for piece in self._pieces)
        self._received: Array = parties.backend.xp.empty(largest, flat.dtype)

    def start(self) -> None:
        """Do nothing: everything is summed at the end."""

    def all_reduce(self) -> None:
        """Wait for the gradients; pass pieces around the ring, first to sum, then to share."""
        p, rank, size = self._parties, self._parties.comm.rank, self._parties.comm.size
        if p.backend.on_device:
            with p.ranges[names.SYNCHRONIZE]:
                p.backend.synchronize()
        if p.barrier:
            p.comm.barrier()
        after, before = (rank + 1) % size, (rank - 1) % size
        with p.ranges[names.ALLREDUCE]:
            for step in range(size - 1):
                own, other = (self._pieces[(rank - step - k) % size] for k in (0, 1))
                received = self._received[: other.size]
                p.comm.exchange(own, after, received, before)
                p.backend.xp.add(other, received, out=other)
                p.backend.synchronize()  # MPI reads it next
            for step in range(size - 1):
                own, other = (self._pieces[(rank + 1 - step - k) % size] for k in (0, 1))
                p.comm.exchange(own, after, other, before)


register(Kind("ring", RingTransport))
