"""Data parallelism: the images of each batch that a rank owns, and one training step on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainer import ranges as names
from trainer.backend import Array, Backend
from trainer.config import Config
from trainer.data import Bytes, Dataset, one_hot
from trainer.mpi import Communicator
from trainer.network import Network
from trainer.ranges import SILENT, Ranges
from trainer.transport import Transport

_BROADCAST_BYTES: Final = 1 << 30  # MPI counts are 32-bit


@dataclass(frozen=True, slots=True)
class Split:
    """How N images are cut into batches of B and each batch over p ranks.

    The last batch holds the N mod B images that remain, if any. Of a batch of m images rank r
    takes m // p, and one more if r < m mod p: any B is handled exactly, because gradients are
    sums over the batch's images divided by m, whoever adds them.

    Attributes
    ----------
    images, batch, ranks, rank : int
        N, B, p and r.
    """

    images: int
    batch: int
    ranks: int = 1
    rank: int = 0

    def __len__(self) -> int:
        """Return the batches of an epoch: ceil(N / B)."""
        return -(-self.images // self.batch)

    def size(self, index: int) -> int:
        """Return the images in batch `index` over all ranks."""
        return min(self.batch, self.images - index * self.batch)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first image of this rank in batch `index`, and one past its last."""
        size, start = self.size(index), index * self.batch
        each, extra = divmod(size, self.ranks)
        low = start + self.rank * each + min(self.rank, extra)
        return low, low + each + (self.rank < extra)

    def share(self, index: int) -> int:
        """Return B' of batch `index`: this rank's images in it."""
        low, high = self.bounds(index)
        return high - low


class Batches:
    """Images and one-hot labels of this rank, batch by batch, ready to be used or copied.

    On the host, batches lie one after the other, each contiguous: images (B', D) and labels
    (C, B') in the training dtype. With NumPy a batch is a view; with a GPU it is copied into one
    device buffer, b (D + C) B' bytes per batch.
    """

    def __init__(
        self,
        backend: Backend,
        split: Split,
        data: tuple[Bytes, Bytes],
        config: Config,
        *,
        pinned: bool = False,
    ) -> None:
        images, labels = data
        self._backend, self.split = backend, split
        bounds = [split.bounds(index) for index in range(len(split))]
        total = sum(high - low for low, high in bounds)
        empty = backend.pinned_empty if pinned and backend.on_device else np.empty
        x = empty((total, config.input_size), config.dtype)
        y = empty(config.num_classes * total, config.dtype)
        self._views: list[tuple[np.ndarray, np.ndarray]] = []
        start = 0
        for low, high in bounds:
            rows = slice(start, start + high - low)
            fill_pixels(x[rows], images[low:high], config.pixels)
            part = y[config.num_classes * rows.start : config.num_classes * rows.stop]
            part = part.reshape(config.num_classes, high - low)
            part[:] = one_hot(labels[low:high], config.num_classes, config.dtype)
            self._views.append((x[rows], part))
            start = rows.stop
        self._device = self._device_views(config) if backend.on_device else None

    def _device_views(self, config: Config) -> list[tuple[Array, Array]]:
        """View one pair of device buffers as each batch's images and labels."""
        xp, widest = self._backend.xp, max(len(x) for x, _ in self._views)
        x_buffer = xp.empty((widest, config.input_size), config.dtype)
        y_buffer = xp.empty(config.num_classes * widest, config.dtype)
        return [(x_buffer[: len(x)], y_buffer[: y.size].reshape(y.shape)) for x, y in self._views]

    def load(self, index: int, ranges: Ranges) -> tuple[Array, Array]:
        """Return x (B', D) and y (C, B') of batch `index` where the backend computes."""
        host = self._views[index]
        if self._device is None:
            return host
        device = self._device[index]
        with ranges[names.COPY_IMAGES]:
            for source, target in zip(host, device, strict=True):
                self._backend.to_device(source, target)
        return device


def fill_pixels(target: np.ndarray, images: Bytes, pixels: str) -> None:
    """Write images into a floating-point array: raw 0..255, or divided by 255."""
    np.copyto(target, images)
    if pixels == "unit":
        np.divide(target, 255, out=target)


class DataParallelStep:
    """One batch on this rank: load, forward, backward, all-reduce, step.

    Attributes
    ----------
    losses : array, shape (batches, most B')
        Cross-entropy of every image of this rank in the current epoch, on the device: reading
        it costs the loop no synchronization.
    """

    def __init__(
        self,
        network: Network,
        batches: Batches,
        transport: Transport,
        config: Config,
        ranges: Ranges,
    ) -> None:
        self._network, self._batches, self._transport = network, batches, transport
        self._config, self._ranges = config, ranges
        split = batches.split
        widest = max(split.share(index) for index in range(len(split)))
        self.losses = network.backend.xp.zeros((len(split), widest), config.dtype)

    def __call__(self, index: int) -> None:
        """Train on batch `index`."""
        ranges, network, config = self._ranges, self._network, self._config
        with ranges[names.BATCH]:
            x, y = self._batches.load(index, ranges)
            with ranges[names.FORWARD]:
                work = network.forward(x, ranges)
                network.loss_gradient(
                    work, y, 1.0 / self._batches.split.size(index), self.losses[index, : len(x)]
                )
            with ranges[names.BACKWARD]:
                network.backward_output(work, ranges)
                network.backward_hidden(x, work, ranges)
                self._transport.all_reduce(network.gradients)
            with ranges[names.STEP]:
                network.step(config.learning_rate, config.regularization)

    def take_losses(self) -> np.ndarray:
        """Return the sum of cross-entropies per batch (batches,) of this rank, and start anew."""
        backend = self._network.backend
        sums = self.losses.sum(axis=1, dtype=np.float64)
        host = np.empty(len(sums))
        backend.to_host(sums, host)
        self.losses.fill(0)
        return host


def distribute(comm: Communicator, dataset: Dataset | None) -> Dataset:
    """Give every rank rank 0's data set (MPI_Bcast of bytes)."""
    if comm.size == 1:
        assert dataset is not None
        return dataset
    parts = (
        ()
        if dataset is None
        else (dataset.images, dataset.labels, dataset.test_images, dataset.test_labels)
    )
    sizes = np.array([part.size for part in parts] or [0] * 4, np.int64)
    comm.broadcast(sizes)
    received = []
    for index, size in enumerate(sizes):
        flat = np.ascontiguousarray(parts[index]).ravel() if parts else np.empty(size, np.uint8)
        for start in range(0, flat.size, _BROADCAST_BYTES):
            comm.broadcast(flat[start : start + _BROADCAST_BYTES])
        received.append(flat)
    images, labels, test_images, test_labels = received
    return Dataset(
        images.reshape(len(labels), -1), labels,
        test_images.reshape(len(test_labels), -1), test_labels,
    )  # fmt: skip


def count_correct(network: Network, batches: Batches, labels: Bytes) -> int:
    """Count this rank's images of a data set whose most likely class is their label."""
    xp, correct = network.backend.xp, 0
    for index in range(len(batches.split)):
        low, high = batches.split.bounds(index)
        if low < high:
            x, _ = batches.load(index, SILENT)
            correct += int((network.predict(x) == xp.asarray(labels[low:high])).sum())
    return correct
