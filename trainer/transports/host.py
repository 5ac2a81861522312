"""Transports through host memory: copies over PCIe and MPI, blocking, overlapped or in chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Array, Backend
from trainer.transports.base import Kind, Parties, Transport, register

CHUNKS: Final = 6
"""Pieces of the pipeline: enough to hide two of its three stages, few enough for their latency."""
_SMALLEST_CHUNK_BYTES: Final = 64 << 10


class HostTransport:
    """The assignment's baseline: device to host, MPI_Allreduce, host to device.

    Per rank and batch it moves n b bytes each way over PCIe (n = HD + H + CH + C elements of b
    bytes) and all-reduces n b bytes. With NumPy the gradients are on the host already and only
    the all-reduce remains.

    Parameters
    ----------
    parties : Parties
    pinned : bool
        Page-locked host buffers, which the GPU reads and writes without a staging copy.
    flat : bool
        One call for all gradients instead of one for each of the four.

    Notes
    -----
    `Parties.barrier` waits for all ranks first, so that MPI_Allreduce shows transfer and not
    waiting.
    """

    steps: bool = False
    uncapturable: str | None = "MPI sums on the host, which a CUDA graph cannot call"

    def __init__(self, parties: Parties, *, pinned: bool = False, flat: bool = False) -> None:
        self._parties = parties
        message = parties.message
        self._device: list[Array] = [message.flat] if flat else list(message.tensors)
        self._host = [_host_buffer(parties.backend, piece, pinned) for piece in self._device]

    def start(self) -> None:
        """Do nothing: everything is summed at the end."""

    def all_reduce(self) -> None:
        """Copy out, sum, copy back; each part under the assignment's range."""
        p, on_device = self._parties, self._parties.backend.on_device
        if on_device:
            with p.ranges[names.DEVICE_TO_HOST]:
                for source, target in zip(self._device, self._host, strict=True):
                    p.backend.to_host(source, target)
        if p.barrier:
            p.comm.barrier()
        with p.ranges[names.ALLREDUCE]:
            for buffer in self._host:
                p.comm.sum_in_place(buffer)
        if on_device:
            with p.ranges[names.HOST_TO_DEVICE]:
                for source, target in zip(self._host, self._device, strict=True):
                    p.backend.to_device(source, target)


class OverlappedTransport:
    """As `HostTransport`, but W2's and b2's gradients are summed while W1's is computed.

    Their copy is queued on a stream of its own and their MPI_Iallreduce begins when the copy is
    done. MPI makes progress only inside its calls: while the host waits for the copy of the rest
    it keeps asking (MPI_Test).
    """

    steps: bool = False
    uncapturable: str | None = HostTransport.uncapturable

    def __init__(self, parties: Parties, *, pinned: bool = False, flat: bool = False) -> None:
        self._parties = parties
        self._queue = parties.backend.queue()
        early, late = parties.message.pieces(flat=flat)
        buffer: Callable[[Array], np.ndarray]
        buffer = lambda piece: _host_buffer(parties.backend, piece, pinned)  # noqa: E731
        self._early = [(piece, buffer(piece)) for piece in early]
        self._late = [(piece, buffer(piece)) for piece in late]
        self._requests: list[Any] = []
        self._copied: Callable[[], bool] = lambda: True

    def start(self) -> None:
        """Queue the copy of the early gradients; sum them at once if it is done."""
        p = self._parties
        if p.backend.on_device:
            with p.ranges[names.DEVICE_TO_HOST]:
                self._copied = self._copy_out(self._early)
        if self._copied():
            self._begin()

    def all_reduce(self) -> None:
        """Sum the late gradients, finish the early ones, copy all back."""
        p, on_device = self._parties, self._parties.backend.on_device
        if on_device:
            with p.ranges[names.DEVICE_TO_HOST]:
                copied = self._copy_out(self._late)
                while not copied():
                    self._progress()
        while self._early and not self._requests:  # before the barrier: in one order on all ranks
            self._progress()
        if p.barrier:
            p.comm.barrier()
        with p.ranges[names.ALLREDUCE]:
            for _, buffer in self._late:
                p.comm.sum_in_place(buffer)
            for request in self._requests:
                request.Wait()
            self._requests = []
        if on_device:
            with p.ranges[names.HOST_TO_DEVICE]:
                for device, buffer in (*self._early, *self._late):
                    p.backend.to_device(buffer, device)

    def _copy_out(self, pieces: list[tuple[Array, np.ndarray]]) -> Callable[[], bool]:
        self._queue.follow()
        for device, buffer in pieces:
            self._queue.to_host(device, buffer)
        return self._queue.record()

    def _progress(self) -> None:
        """Give MPI the processor; begin what has arrived."""
        if self._requests:
            for request in self._requests:
                request.Test()
        elif self._early and self._copied():
            self._begin()

    def _begin(self) -> None:
        with self._parties.ranges[names.ALLREDUCE]:
            start_sum = self._parties.comm.start_sum
            self._requests = [start_sum(buffer) for _, buffer in self._early]


class ChunkedTransport:
    """A pipeline: while one chunk is summed, the next leaves the device and the last returns.

    PCIe carries both directions at once and MPI runs beside it, so that the slowest of the three
    remains, plus one chunk of each of the others. Every rank begins its chunks in the same order,
    as MPI demands, the early gradients' first.
    """

    steps: bool = False
    uncapturable: str | None = HostTransport.uncapturable

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._out, self._in = parties.backend.queue(), parties.backend.queue()
        flat, late = parties.message.flat, parties.message.late
        host = _host_buffer(parties.backend, flat, pinned=True)
        cut = late if parties.overlap else 0
        self._early = _cut(flat[cut:], host[cut:]) if parties.overlap else []
        self._late = _cut(flat[:late], host[:late]) if parties.overlap else _cut(flat, host)
        self._leaving: list[tuple[Array, np.ndarray, Callable[[], bool]]] = []
        self._summing: list[tuple[Array, np.ndarray, Any]] = []

    def start(self) -> None:
        """Send the early gradients on their way; sum what has arrived on the host."""
        if self._early:
            self._send(self._early)
            if not self._parties.barrier:  # what began before it would differ between ranks
                self._advance()

    def all_reduce(self) -> None:
        """Send the rest and keep all chunks moving until the last one is queued to return."""
        p = self._parties
        self._send(self._late)
        if p.barrier:
            p.comm.barrier()
        while self._leaving or self._summing:
            with p.ranges[names.ALLREDUCE]:
                while not (self._summing and self._summing[0][2].Test()):
                    self._advance()
            device, host, _ = self._summing.pop(0)
            if p.backend.on_device:
                with p.ranges[names.HOST_TO_DEVICE]:
                    self._in.to_device(host, device)
        self._in.join()

    def _send(self, chunks: list[tuple[Array, np.ndarray]]) -> None:
        if not self._parties.backend.on_device:  # host is the same memory
            self._leaving += [(*chunk, self._out.record()) for chunk in chunks]
            return
        with self._parties.ranges[names.DEVICE_TO_HOST]:
            self._out.follow()
            for device, host in chunks:
                self._out.to_host(device, host)
                self._leaving.append((device, host, self._out.record()))

    def _advance(self) -> None:
        """Begin to sum the chunks that have arrived, in order."""
        while self._leaving and self._leaving[0][2]():
            device, host, _ = self._leaving.pop(0)
            self._summing.append((device, host, self._parties.comm.start_sum(host)))


def _host_buffer(backend: Backend, piece: Array, pinned: bool) -> np.ndarray:
    """Return the host's copy of a device array; with NumPy the array itself."""
    if not backend.on_device:
        same: np.ndarray = piece
        return same
    empty = backend.pinned_empty if pinned else np.empty
    return empty(piece.shape, piece.dtype)


def _cut(device: Array, host: np.ndarray) -> list[tuple[Array, np.ndarray]]:
    """Cut a flat array and its host buffer into chunks of equal size."""
    count = max(1, min(CHUNKS, host.nbytes // _SMALLEST_CHUNK_BYTES))
    edges = [host.size * i // count for i in range(count + 1)]
    return [(device[a:b], host[a:b]) for a, b in pairwise(edges) if b > a]


def _staged(parties: Parties, *, pinned: bool = False, flat: bool = False) -> Transport:
    kind = OverlappedTransport if parties.overlap else HostTransport
    return kind(parties, pinned=pinned, flat=flat)


register(Kind("host", _staged, overlaps=True))
register(Kind("pinned", partial(_staged, pinned=True), overlaps=True, images_on="pinned"))
register(Kind("host-flat", partial(_staged, pinned=True, flat=True), overlaps=True))
register(Kind("chunked", ChunkedTransport, overlaps=True))
