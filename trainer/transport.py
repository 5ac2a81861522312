"""How gradients are summed over the ranks: one-method strategies, found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from trainer import ranges as names
from trainer.backend import Backend
from trainer.errors import ConfigError
from trainer.mpi import Communicator
from trainer.network import Tensors
from trainer.ranges import Ranges


class Transport(Protocol):
    """A way to all-reduce."""

    def all_reduce(self, gradients: Tensors) -> None:
        """Replace the gradients by their sum over all ranks."""


class HostTransport:
    """The document's baseline: device to host, MPI_Allreduce, host to device, tensor by tensor.

    Per rank and batch it moves n b bytes each way over PCIe (n = HD + H + CH + C elements of b
    bytes) and all-reduces n b bytes in four calls. With NumPy the gradients are on the host
    already and only the all-reduce remains.

    Parameters
    ----------
    pinned : bool
        Page-locked host buffers, which the GPU reads and writes without a staging copy.
    barrier : bool
        Wait for all ranks first, so that MPI_Allreduce shows transfer and not waiting.
    """

    def __init__(
        self,
        backend: Backend,
        comm: Communicator,
        ranges: Ranges,
        gradients: Tensors,
        *,
        pinned: bool = False,
        barrier: bool = False,
    ) -> None:
        self._backend, self._comm, self._ranges = backend, comm, ranges
        self._barrier = barrier
        self._host: list[np.ndarray] = []
        if backend.on_device:
            empty = backend.pinned_empty if pinned else np.empty
            self._host = [empty(g.shape, g.dtype) for g in gradients.named().values()]

    def all_reduce(self, gradients: Tensors) -> None:
        """Copy out, sum, copy back; each part under the document's range."""
        device = list(gradients.named().values())
        host = self._host or device
        if self._host:
            with self._ranges[names.DEVICE_TO_HOST]:
                for source, target in zip(device, host, strict=True):
                    self._backend.to_host(source, target)
        if self._barrier:
            self._comm.barrier()
        with self._ranges[names.ALLREDUCE]:
            for buffer in host:
                self._comm.sum_in_place(buffer)
        if self._host:
            with self._ranges[names.HOST_TO_DEVICE]:
                for source, target in zip(host, device, strict=True):
                    self._backend.to_device(source, target)


class NoTransport:
    """Nothing to sum: one rank, whose gradients stay where they are."""

    def all_reduce(self, gradients: Tensors) -> None:
        """Leave them alone."""


Maker = Callable[[Backend, Communicator, Ranges, Tensors, bool], Transport]


def _host(b: Backend, c: Communicator, r: Ranges, g: Tensors, barrier: bool) -> Transport:
    return HostTransport(b, c, r, g, barrier=barrier)


def _pinned(b: Backend, c: Communicator, r: Ranges, g: Tensors, barrier: bool) -> Transport:
    return HostTransport(b, c, r, g, pinned=True, barrier=barrier)


def _none(b: Backend, c: Communicator, r: Ranges, g: Tensors, barrier: bool) -> Transport:
    if c.size > 1:
        raise ConfigError(
            f"--transport none: wanted one rank, found {c.size}, whose gradients must be summed; "
            "use --transport host"
        )
    return NoTransport()


TRANSPORTS: Final[dict[str, Maker]] = {"host": _host, "pinned": _pinned, "none": _none}
"""Every transport by its name on the command line; a new one is a file and a line here."""


def make_transport(
    name: str,
    backend: Backend,
    comm: Communicator,
    ranges: Ranges,
    gradients: Tensors,
    *,
    barrier: bool = False,
) -> Transport:
    """Return the transport called `name`, its buffers allocated for these gradients."""
    if name not in TRANSPORTS:
        raise ConfigError(f"--transport: wanted one of {', '.join(TRANSPORTS)}; found {name!r}")
    return TRANSPORTS[name](backend, comm, ranges, gradients, barrier)
