"""Data parallelism: the images of each batch that a rank owns, and one training step on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Array, Backend
from trainer.config import Config
from trainer.data import Bytes, one_hot
from trainer.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Split:
    """Partition of N images into batches of B and of each batch over p ranks.

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


class Batch(NamedTuple):
    """Images x (B', D) and labels y (C, B') of a batch, and perhaps its images by pixels.

    xt (D, B') has the same numbers as x: the sum over a batch's images then reads both of its
    factors along their rows, which tensor cores prefer.
    """

    x: Array
    y: Array
    xt: Array | None = None


class Batches:
    """Images and one-hot labels of this rank, batch by batch, ready to be used or copied.

    On the host, batches lie one after the other, each contiguous: images (B', D) and labels
    (C, B') in the training dtype. With NumPy a batch is a view of them. With a GPU it is one of:

    ============  ===============================================================================
    ``host``      copied from pageable memory into one device buffer, b (D + C) B' bytes a batch
    ``pinned``    the same from page-locked memory
    ``prefetch``  copied from page-locked memory, on a stream of its own, into one of two device
                  buffers while the batch before is computed in the other
    ``device``    a view of the whole set, copied once
    ============  ===============================================================================
    """

    def __init__(
        self,
        backend: Backend,
        split: Split,
        data: tuple[Bytes, Bytes],
        config: Config,
        *,
        on: str = "host",
        by_pixels: bool = False,
    ) -> None:
        self._backend, self.split = backend, split
        self._on = on if backend.on_device else "numpy"
        pinned = self._on in ("pinned", "prefetch")
        x, y = _host_arrays(split, data, config, backend.pinned_empty if pinned else np.empty)
        self._host = _cut(split, x, y, config.num_classes)
        self._slots: list[list[Batch]] = []
        if self._on == "device":
            xp = backend.xp
            whole = _cut(split, xp.asarray(x), xp.asarray(y), config.num_classes)
            if by_pixels:
                whole = [Batch(b.x, b.y, _by_pixels(xp, b.x)) for b in whole]
            self._slots = [whole]
            self._host = []
        elif backend.on_device:
            self._slots = [self._buffers(config) for _ in range(1 + (self._on == "prefetch"))]
        self._queue = backend.queue()
        self._under_way: tuple[int, int] | None = None

    @property
    def uncapturable(self) -> str | None:
        """Why a CUDA graph cannot hold the loading of a batch; None if it can."""
        if self._on in ("device", "numpy"):
            return None
        return f"batches are copied from the host (--data-on {self._on}); use --data-on device"

    def _buffers(self, config: Config) -> list[Batch]:
        """View one pair of device buffers as each batch's images and labels."""
        xp, widest = self._backend.xp, max(len(batch.x) for batch in self._host)
        x_buffer = xp.empty((widest, config.input_size), config.dtype)
        y_buffer = xp.empty(config.num_classes * widest, config.dtype)
        return [
            Batch(x_buffer[: len(b.x)], y_buffer[: b.y.size].reshape(b.y.shape)) for b in self._host
        ]

    def load(self, index: int, ranges: Ranges) -> Batch:
        """Return batch `index` where the backend computes."""
        if self._on == "numpy":
            return self._host[index]
        if self._on == "device":
            return self._slots[0][index]
        with ranges[names.COPY_IMAGES]:
            if self._on == "prefetch":
                return self._fetch(index)
            device = self._slots[0][index]
            for source, target in zip(self._host[index][:2], device[:2], strict=True):
                self._backend.to_device(source, target)
        return device

    def _fetch(self, index: int) -> Batch:
        """Wait (on the device) for batch `index` and start to copy the next one."""
        found, slot = self._under_way or (-1, 0)
        if found != index:
            self._copy(index, slot)
        self._queue.join()
        # all that was queued so far computes on the other buffer: what comes next may overwrite
        # it once that is done
        following = (index + 1) % len(self._host)
        self._copy(following, 1 - slot)
        self._under_way = (following, 1 - slot)
        return self._slots[slot][index]

    def _copy(self, index: int, slot: int) -> None:
        self._queue.follow()
        for source, target in zip(self._host[index][:2], self._slots[slot][index][:2], strict=True):
            self._queue.to_device(source, target)


def _host_arrays(
    split: Split, data: tuple[Bytes, Bytes], config: Config, empty: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's images (N', D) and its batches' one-hot labels, flat, in batch order."""
    images, labels = data
    bounds = [split.bounds(index) for index in range(len(split))]
    total, classes = sum(high - low for low, high in bounds), config.num_classes
    x = empty((total, config.input_size), config.dtype)
    y = empty(classes * total, config.dtype)
    start = 0
    for low, high in bounds:
        rows = slice(start, start + high - low)
        fill_pixels(x[rows], images[low:high], config.pixels)
        part = y[classes * rows.start : classes * rows.stop].reshape(classes, high - low)
        part[:] = one_hot(labels[low:high], classes, config.dtype)
        start = rows.stop
    return x, y


def _cut(split: Split, x: Array, y: Array, classes: int) -> list[Batch]:
    """View images (N', D) and flat labels as the pairs of each batch."""
    views, start = [], 0
    for index in range(len(split)):
        stop = start + split.share(index)
        part = y[classes * start : classes * stop].reshape(classes, stop - start)
        views.append(Batch(x[start:stop], part))
        start = stop
    return views


def _by_pixels(xp: Any, x: Array) -> Array:
    """Return a copy of images (B', D) as (D, B'), every row beginning on 16 bytes."""
    images, pixels = x.shape
    copy = xp.zeros((pixels, -(-images // 4) * 4), x.dtype)[:, :images]
    copy[:] = x.T
    return copy


def fill_pixels(target: np.ndarray, images: Bytes, pixels: str) -> None:
    """Write images into a floating-point array: raw 0..255, or divided by 255."""
    np.copyto(target, images)
    if pixels == "unit":
        np.divide(target, 255, out=target)
