"""How gradients are summed over the ranks: small strategies, found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trainer.backend import Array, Backend
from trainer.config import TRANSPORTS
from trainer.errors import ConfigError
from trainer.mpi import Communicator
from trainer.network import Tensors
from trainer.ranges import Ranges
from trainer.rates import LearningRate


@dataclass(frozen=True, slots=True)
class Message:
    """What is summed over the ranks: device arrays that lie one after the other.

    Attributes
    ----------
    flat : array, shape (n,)
        All of it.
    tensors : sequence of array
        The same memory as tensors.
    late : int
        Elements at the front of `flat` that are computed last; those behind them may be summed
        meanwhile.
    """

    flat: Array
    tensors: Sequence[Array]
    late: int

    @classmethod
    def of_gradients(cls, gradients: Tensors) -> Message:
        """All four gradients; those of W2 and b2, at the end, are there first."""
        late = gradients.W1.size + gradients.b1.size
        return cls(gradients.flat, tuple(gradients.named().values()), late)

    @classmethod
    def of_one(cls, array: Array) -> Message:
        """One contiguous array, there at once."""
        return cls(array.reshape(-1), (array,), array.size)

    def pieces(self, *, flat: bool) -> tuple[list[Array], list[Array]]:
        """Return the pieces that are there early and those that are late."""
        if flat:
            parts = ([self.flat[self.late :]], [self.flat[: self.late]])
            return [p for p in parts[0] if p.size], [p for p in parts[1] if p.size]
        early: list[Array] = []
        late: list[Array] = []
        before = 0
        for tensor in self.tensors:
            (late if before < self.late else early).append(tensor)
            before += tensor.size
        return early, late


@dataclass(frozen=True, slots=True)
class Update:
    """The step of gradient descent, for a transport that takes it with the sum."""

    parameters: Tensors
    rate: LearningRate
    regularization: float


class Transport(Protocol):
    """A way to all-reduce a `Message`.

    Attributes
    ----------
    steps : bool
        It also updates the parameters: no step of the network follows.
    uncapturable : str or None
        Why a CUDA graph cannot hold it; None if one can.
    """

    steps: bool
    uncapturable: str | None

    def start(self) -> None:
        """Hear that the early part is computed (or queued): a non-blocking transport begins."""

    def all_reduce(self) -> None:
        """Replace the message by its sum over all ranks."""


@dataclass(frozen=True, slots=True)
class Parties:
    """What every transport is made of."""

    backend: Backend
    comm: Communicator
    ranges: Ranges
    message: Message
    overlap: bool = False
    barrier: bool = False
    update: Update | None = None


class NoTransport:
    """Nothing to sum: one rank, whose gradients stay where they are."""

    steps: bool = False
    uncapturable: str | None = None

    def start(self) -> None:
        """Leave them alone."""

    def all_reduce(self) -> None:
        """Leave them alone."""


def _host(parties: Parties) -> Transport:
    from trainer.transport_host import HostTransport, OverlappedTransport

    return (OverlappedTransport if parties.overlap else HostTransport)(parties)


def _pinned(parties: Parties) -> Transport:
    from trainer.transport_host import HostTransport, OverlappedTransport

    return (OverlappedTransport if parties.overlap else HostTransport)(parties, pinned=True)


def _host_flat(parties: Parties) -> Transport:
    from trainer.transport_host import HostTransport, OverlappedTransport

    kind = OverlappedTransport if parties.overlap else HostTransport
    return kind(parties, pinned=True, flat=True)


def _chunked(parties: Parties) -> Transport:
    from trainer.transport_host import ChunkedTransport

    return ChunkedTransport(parties)


def _cuda_aware(parties: Parties) -> Transport:
    from trainer.transport_device import CudaAwareTransport

    return CudaAwareTransport(parties)


def _nccl(parties: Parties) -> Transport:
    from trainer.transport_device import NcclTransport

    return NcclTransport(parties)


def _peer(parties: Parties) -> Transport:
    from trainer.transport_peer import PeerTransport

    return PeerTransport(parties)


def _none(parties: Parties) -> Transport:
    if parties.comm.size > 1:
        raise ConfigError(
            f"--transport none: wanted one rank, found {parties.comm.size}, whose gradients must "
            "be summed; use --transport host"
        ).on_all_ranks()
    return NoTransport()


_MAKERS: Final[dict[str, Callable[[Parties], Transport]]] = {
    "host": _host,
    "pinned": _pinned,
    "host-flat": _host_flat,
    "chunked": _chunked,
    "cuda-aware": _cuda_aware,
    "nccl": _nccl,
    "peer": _peer,
    "none": _none,
}
assert tuple(_MAKERS) == TRANSPORTS


def make_transport(name: str, parties: Parties) -> Transport:
    """Return the transport called `name`, its buffers allocated for this message.

    Raises
    ------
    ConfigError
        If there is no such transport, or not here.
    """
    if name not in _MAKERS:
        raise ConfigError(f"--transport: wanted one of {', '.join(TRANSPORTS)}; found {name!r}")
    if parties.overlap and name in ("none", "cuda-aware", "peer"):
        raise ConfigError(
            f"--overlap: wanted a transport with a non-blocking form (host, pinned, host-flat, "
            f"chunked, nccl), found {name}; leave out --overlap"
        ).on_all_ranks()
    return _MAKERS[name](parties)
