"""The interface of a device for network and transports; `numpy` and `cupy` beside this have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Array = Any
"""A numpy.ndarray or a cupy.ndarray: whatever the backend allocates."""


class Queue(Protocol):
    """An in-order queue of copies beside the computing one: a CUDA stream, or none.

    Attributes
    ----------
    stream : cupy.cuda.Stream or None
    """

    stream: Any

    def follow(self) -> None:
        """Let what is queued from now on wait for what the device was given to compute so far."""

    def to_host(self, source: Array, target: np.ndarray) -> None:
        """Queue a copy to a page-locked host array."""

    def to_device(self, source: np.ndarray, target: Array) -> None:
        """Queue a copy from a page-locked host array."""

    def record(self) -> Callable[[], bool]:
        """Return a function that tells whether all that is queued by now is done."""

    def join(self) -> None:
        """Let what the device is given to compute from now on wait for this queue."""


class Backend(Protocol):
    """The device interface of the network; every method works in place, without allocating."""

    name: str
    gemm_name: str
    xp: Any
    on_device: bool
    multiply: Any
    """Multiplier of large matrices: a `trainer.kernels.Gemm` on a GPU, else `gemm`."""

    def gemm(self, a: Array, b: Array, out: Array) -> None:
        """Out = a b, any of them transposed views of contiguous arrays."""

    def bias_sigmoid(self, z: Array, bias: Array) -> None:
        """Replace z (H, B') by sigmoid(z + bias), bias (H,)."""

    def softmax_gradient(self, z: Array, bias: Array, y: Array, scale: float, loss: Array) -> None:
        """Replace z (C, B') by scale (softmax(z + bias) - y); loss (B',) gets the cross-entropy."""

    def sigmoid_gradient(self, d: Array, a: Array) -> None:
        """Replace d by d a (1 - a), all (H, B')."""

    def descend(self, p: Array, g: Array, rate: float, decay: float) -> None:
        """Set p to p - rate (g + decay p); g may be overwritten."""

    def to_host(self, source: Array, target: np.ndarray) -> None:
        """Copy a device array into a host array and wait for it."""

    def to_device(self, source: np.ndarray, target: Array) -> None:
        """Copy a host array into a device array and wait for it."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def pinned_empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return a page-locked host array."""

    def queue(self) -> Queue:
        """Return a new queue of copies."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` tells the device to do, without doing it; return its replay."""

    def describe(self) -> dict[str, Any]:
        """Return names and versions for the run record."""
