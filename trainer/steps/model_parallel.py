"""Model parallelism: each rank holds some of the hidden neurons and sees every image."""

from __future__ import annotations

import numpy as np

from trainer import ranges as names
from trainer.config import Config
from trainer.data import Bytes
from trainer.mpi import Communicator
from trainer.networks.base import Network, Work
from trainer.parameters import Tensors
from trainer.ranges import SILENT, Ranges
from trainer.rates import LearningRate
from trainer.steps.batches import Batches
from trainer.steps.data_parallel import loss_buffer
from trainer.transports import make_transport
from trainer.transports.base import Message, Parties, Transport


def share_of_hidden(hidden: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the first hidden neuron of a rank and one past its last: H // p, or one more."""
    each, extra = divmod(hidden, ranks)
    low = rank * each + min(rank, extra)
    return low, low + each + (rank < extra)


class HiddenSlices:
    """The part of the parameters that a rank holds: rows of W1 and b1, columns of W2, all b2.

    Parameters
    ----------
    sizes : (int, int, int)
        D, H, C of the whole network.
    """

    def __init__(self, sizes: tuple[int, int, int], comm: Communicator) -> None:
        self.sizes, self._comm = sizes, comm
        self.low, self.high = share_of_hidden(sizes[1], comm.size, comm.rank)

    def take(self, whole: np.ndarray) -> np.ndarray:
        """Return this rank's flat parameters out of the whole network's."""
        tensors = Tensors.split(whole, *self.sizes)
        rows = slice(self.low, self.high)
        parts = (tensors.W1[rows], tensors.b1[rows], tensors.W2[:, rows], tensors.b2)
        return np.concatenate([np.ravel(part) for part in parts])

    def gather(self, own: np.ndarray) -> np.ndarray:
        """Return the whole network's flat parameters on every rank, out of each one's own.

        Each rank writes its slices into zeros and all are summed: one MPI_Allreduce, exact.
        """
        inputs, hidden, classes = self.sizes
        whole = np.zeros(hidden * inputs + hidden + classes * hidden + classes, own.dtype)
        target = Tensors.split(whole, *self.sizes)
        mine = Tensors.split(own, inputs, self.high - self.low, classes)
        rows = slice(self.low, self.high)
        target.W1[rows], target.b1[rows], target.W2[:, rows] = mine.W1, mine.b1, mine.W2
        if self._comm.rank == 0:
            target.b2[:] = mine.b2
        self._comm.sum_in_place(whole)
        return whole


class ModelParallelStep:
    """One batch: every rank computes its rows of z1 and its part of z2, which alone is summed.

    z2 = sum over ranks of W2[:, own] a1[own, :] is C B elements; the gradients need no sum:
    each rank has those of its own rows and columns from dz2, which all have whole (handout,
    section 4.3). That of b2 is computed by every rank alike.

    Attributes
    ----------
    losses, uncapturable
        As of `DataParallelStep`; the losses are the whole batch's on every rank.
    """

    def __init__(
        self, network: Network, batches: Batches, comm: Communicator, config: Config,
        ranges: Ranges, rate: LearningRate,
    ) -> None:  # fmt: skip
        self._network, self._batches, self._comm = network, batches, comm
        self._config, self._ranges, self._rate = config, ranges, rate
        self.losses = loss_buffer(network, batches.split, config)
        self._transports: dict[tuple[int, bool], Transport] = {}
        split = batches.split
        for index in (0, len(split) - 1):
            self._transport(split.share(index), ranges)
        some = self._transport(split.share(0), ranges)
        self.uncapturable = batches.uncapturable or some.uncapturable

    def __call__(self, index: int) -> None:
        """Train on batch `index`."""
        ranges, network, config = self._ranges, self._network, self._config
        x, y, xt = self._batches.load(index, ranges)
        with ranges[names.FORWARD]:
            work = self._forward(x, ranges)
            network.loss_gradient(work, y, 1.0 / len(x), self.losses[index, : len(x)])
        with ranges[names.BACKWARD]:
            network.backward_output(work, ranges)
            network.backward_hidden(x, work, ranges, xt)
        with ranges[names.STEP]:
            network.step(self._rate.now, config.regularization)

    def count_correct(self, batches: Batches, labels: Bytes) -> tuple[int, int]:
        """Count the images whose most likely class is their label, and those without one.

        Every rank takes part; those but rank 0 return zeros, since all see the same images.
        """
        network, correct, without = self._network, 0, 0
        xp = network.backend.xp
        for index in range(len(batches.split)):
            low, high = batches.split.bounds(index)
            x = batches.load(index, SILENT).x
            found = network.most_likely(self._forward(x, SILENT))
            correct += int((found == xp.asarray(labels[low:high])).sum())
            without += int((found < 0).sum())
        return (correct, without) if self._comm.rank == 0 else (0, 0)

    def _forward(self, x: object, ranges: Ranges) -> Work:
        work = self._network.forward(x, ranges)
        self._transport(work.z2.shape[1], ranges).all_reduce()
        return work

    def _transport(self, columns: int, ranges: Ranges) -> Transport:
        """Return the transport of z2 for so many images; the buffers are made on first use."""
        key = (columns, ranges is SILENT)  # an evaluation's has no ranges
        if key not in self._transports:
            network, config = self._network, self._config
            message = Message.of_one(network.work(columns).z2)
            self._transports[key] = make_transport(
                config.transport,
                Parties(
                    network.backend, self._comm, ranges, message,
                    overlap=config.overlap, barrier=config.sync_ranges,
                ),
            )  # fmt: skip
        return self._transports[key]
