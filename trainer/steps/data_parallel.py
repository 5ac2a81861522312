"""Data parallelism: one training step on the images that a rank owns of a batch."""

from __future__ import annotations

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Array, Backend
from trainer.config import Config
from trainer.data import Bytes
from trainer.networks.base import Network
from trainer.ranges import SILENT, Ranges
from trainer.rates import LearningRate
from trainer.steps.batches import Batches, Split
from trainer.transports.base import Transport


class DataParallelStep:
    """One batch on this rank: load, forward, backward, all-reduce, step.

    Attributes
    ----------
    losses : array, shape (batches, most B')
        Cross-entropy of every image of this rank in the current epoch, on the device: reading
        it costs the loop no synchronization.
    uncapturable : str or None
        Why a CUDA graph cannot hold it; None if one can.
    """

    def __init__(
        self, network: Network, batches: Batches, transport: Transport, config: Config,
        ranges: Ranges, rate: LearningRate,
    ) -> None:  # fmt: skip
        self._network, self._batches, self._transport = network, batches, transport
        self._config, self._ranges, self._rate = config, ranges, rate
        self.losses = loss_buffer(network, batches.split, config)
        self.uncapturable = batches.uncapturable or transport.uncapturable

    def __call__(self, index: int) -> None:
        """Train on batch `index`."""
        ranges, network, config = self._ranges, self._network, self._config
        x, y, xt = self._batches.load(index, ranges)
        with ranges[names.FORWARD]:
            work = network.forward(x, ranges)
            network.loss_gradient(
                work, y, 1.0 / self._batches.split.size(index), self.losses[index, : len(x)]
            )
        with ranges[names.BACKWARD]:
            network.backward_output(work, ranges)
            self._transport.start()
            network.backward_hidden(x, work, ranges, xt)
            if not self._transport.steps:
                self._transport.all_reduce()
        if self._transport.steps:
            self._transport.all_reduce()
        else:
            with ranges[names.STEP]:
                network.step(self._rate.now, config.regularization)

    def count_correct(self, batches: Batches, labels: Bytes) -> tuple[int, int]:
        """Count this rank's images whose most likely class is their label, and those without one.

        An image is without a class where its scores are not finite.
        """
        xp, correct, without = self._network.backend.xp, 0, 0
        for index in range(len(batches.split)):
            low, high = batches.split.bounds(index)
            if low < high:
                x = batches.load(index, SILENT).x
                found = self._network.predict(x)
                correct += int((found == xp.asarray(labels[low:high])).sum())
                without += int((found < 0).sum())
        return correct, without


def loss_buffer(network: Network, split: Split, config: Config) -> Array:
    """Return zeros (batches, most B') on the device for the losses of an epoch."""
    widest = max(split.share(index) for index in range(len(split)))
    return network.backend.xp.zeros((len(split), widest), config.dtype)


def take_losses(losses: Array, backend: Backend) -> np.ndarray:
    """Return the sum of cross-entropies per batch (batches,) of this rank, and start anew."""
    sums = losses.sum(axis=1, dtype=np.float64)
    host = np.empty(len(sums))
    backend.to_host(sums, host)
    losses.fill(0)
    return host
