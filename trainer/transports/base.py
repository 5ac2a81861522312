"""Transports: their interface, their parts, and the table that each registers in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trainer.backends.base import Array, Backend
from trainer.errors import ConfigError
from trainer.mpi import Communicator
from trainer.parameters import Tensors
from trainer.ranges import Ranges
from trainer.rates import LearningRate


@dataclass(frozen=True, slots=True)
class Message:
    """Data summed over the ranks: device arrays that lie one after the other.

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
        """Begin to sum the early part, which is computed or queued, if it can be done meanwhile."""

    def all_reduce(self) -> None:
        """Replace the message by its sum over all ranks."""


@dataclass(frozen=True, slots=True)
class Parties:
    """The parts of every transport."""

    backend: Backend
    comm: Communicator
    ranges: Ranges
    message: Message
    overlap: bool = False
    barrier: bool = False
    update: Update | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts of a transport before one is made.

    Attributes
    ----------
    name : str
        Of ``--transport``.
    make : callable
        Makes one for the parties of a run, its buffers allocated; raises ConfigError or DeviceError
        on all ranks where it cannot work.
    overlaps : bool
        It can sum the early part of a message while the late part is computed.
    images_on : str
        ``--data-on`` where nothing else is asked for.
    model_parallel_instead : str or None
        It sums gradients only: the transport to use with ``--parallel model``.
    """

    name: str
    make: Callable[[Parties], Transport]
    overlaps: bool = False
    images_on: str = "host"
    model_parallel_instead: str | None = None


KINDS: Final[dict[str, Kind]] = {}
"""By name; filled by the files of this package (`trainer.transports`)."""


def register(kind: Kind) -> None:
    """Add a transport; called once by the file that defines it."""
    assert kind.name not in KINDS, f"two transports are called {kind.name}"
    KINDS[kind.name] = kind


def make_transport(name: str, parties: Parties) -> Transport:
    """Return the transport called `name`, its buffers allocated for this message.

    Raises
    ------
    ConfigError
        If there is no such transport, or not here.
    """
    if name not in KINDS:
        raise ConfigError(f"--transport: expected one of {', '.join(sorted(KINDS))}; got {name!r}")
    kind = KINDS[name]
    if parties.overlap and not kind.overlaps:
        able = sorted(other.name for other in KINDS.values() if other.overlaps)
        raise ConfigError(
            f"--overlap: expected a transport with a non-blocking form ({', '.join(able)}); got "
            f"{name}; leave out --overlap"
        ).on_all_ranks()
    return kind.make(parties)
