"""The NumPy backend: memory, matrix products and fused element-wise steps; and the choice of one.

`trainer.backend_cupy` has the same methods for a GPU; `trainer.network` is written once over both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from trainer.config import Config
from trainer.errors import ConfigError, DeviceError

Array = Any
"""A numpy.ndarray or a cupy.ndarray: whatever the backend allocates."""

_BLOCK_BYTES = 1 << 19
"""Element-wise chains walk matrices in blocks of rows that stay in a core's L2 cache."""


class Queue(Protocol):
    """An in-order queue of copies beside the computing one: a CUDA stream, or none.

    Attributes
    ----------
    stream : cupy.cuda.Stream or None
    """

    stream: Any

    def follow(self) -> None:
        """Let what is queued from now on wait for what the device was told to compute so far."""

    def to_host(self, source: Array, target: np.ndarray) -> None:
        """Queue a copy to a page-locked host array."""

    def to_device(self, source: np.ndarray, target: Array) -> None:
        """Queue a copy from a page-locked host array."""

    def record(self) -> Callable[[], bool]:
        """Return a function that tells whether all that is queued by now is done."""

    def join(self) -> None:
        """Let what the device is told to compute from now on wait for this queue."""


class Backend(Protocol):
    """What the network needs of a device; every method works in place, without allocating."""

    name: str
    gemm_name: str
    xp: Any
    on_device: bool
    multiply: Any
    """Who multiplies large matrices: a `trainer.kernels.Gemm` on a GPU, else `gemm`."""

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


class Immediate:
    """NumPy's queue: a copy is done when the call returns."""

    stream = None

    def follow(self) -> None:
        """Return: what was computed is there."""

    def to_host(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy: both are on the host."""
        np.copyto(target, source)

    def to_device(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy: both are on the host."""
        np.copyto(target, source)

    def record(self) -> Callable[[], bool]:
        """Return a yes."""
        return lambda: True

    def join(self) -> None:
        """Return: nothing is under way."""


class NumpyBackend:
    """NumPy with its BLAS; element-wise chains in cache-sized blocks.

    Matrix products run on the BLAS's threads, the rest on one: threads of our own would have to
    take the cores from BLAS threads that spin for the next product (2.0 ms for bias and sigmoid
    on two threads, 1.6 on one, at H = 512, B = 3000 on two cores).
    """

    name = "numpy"
    gemm_name = "blas"
    xp: Any = np
    on_device = False

    def __init__(self) -> None:
        self.multiply = self.gemm
        self._scratch: dict[tuple[Any, ...], np.ndarray] = {}

    def gemm(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        """Call BLAS on views of contiguous arrays, transposed or not, without copies."""
        np.matmul(a, b, out=out)

    def bias_sigmoid(self, z: np.ndarray, bias: np.ndarray) -> None:
        """Replace z by 1 / (1 + exp(-(z + bias))); exp may overflow to inf, which gives 0."""
        minus = np.negative(bias, out=self._get(bias.shape, bias.dtype, "bias"))[:, None]
        with np.errstate(over="ignore"):
            for rows in _blocks(z):
                v = z[rows]
                np.subtract(minus[rows], v, out=v)
                np.exp(v, out=v)
                np.add(v, 1, out=v)
                np.divide(1, v, out=v)

    def sigmoid_gradient(self, d: np.ndarray, a: np.ndarray) -> None:
        """Replace d by d a (1 - a)."""
        for rows in _blocks(d):
            v = d[rows]
            s = self._get(v.shape, v.dtype, "block")
            np.subtract(1, a[rows], out=s)
            np.multiply(s, a[rows], out=s)
            np.multiply(v, s, out=v)

    def softmax_gradient(
        self, z: np.ndarray, bias: np.ndarray, y: np.ndarray, scale: float, loss: np.ndarray
    ) -> None:
        """Replace z by scale (softmax(z + bias) - y), shifted by its maximum."""
        total = self._get((z.shape[1],), z.dtype, "total")
        own = self._get(z.shape, z.dtype, "own")
        np.add(z, bias[:, None], out=z)
        np.subtract(z, z.max(axis=0, out=total), out=z)
        np.multiply(z, y, out=own).sum(axis=0, out=loss)
        np.exp(z, out=z).sum(axis=0, out=total)
        np.divide(z, total, out=z)
        np.subtract(np.log(total, out=total), loss, out=loss)
        np.subtract(z, y, out=z)
        np.multiply(z, scale, out=z)

    def descend(self, p: np.ndarray, g: np.ndarray, rate: float, decay: float) -> None:
        """Set p to p - rate (g + decay p)."""
        for rows in _blocks(p):
            w, d = p[rows], g[rows]
            if decay:
                np.add(d, np.multiply(w, decay, out=self._get(w.shape, w.dtype, "block")), out=d)
            np.multiply(d, rate, out=d)
            np.subtract(w, d, out=w)

    def to_host(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy: both are on the host."""
        np.copyto(target, source)

    def to_device(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy: both are on the host."""
        np.copyto(target, source)

    def synchronize(self) -> None:
        """Return: nothing runs behind NumPy's back."""

    def pinned_empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return an ordinary array: there is no device to copy to."""
        return np.empty(shape, dtype)

    def queue(self) -> Queue:
        """Return a queue that copies at once."""
        return Immediate()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work itself: NumPy has nothing to record (see `why_not_captured`)."""
        return work

    def describe(self) -> dict[str, Any]:
        """Return NumPy's and its BLAS's version."""
        return {"numpy": np.__version__, "blas": _blas_name()}

    def _get(self, *key: Any) -> np.ndarray:
        """Return the scratch array of this shape, dtype and purpose, made on first use."""
        if key not in self._scratch:
            self._scratch[key] = np.empty(key[0], key[1])
        return self._scratch[key]


def _blocks(matrix: np.ndarray) -> Iterator[slice]:
    """Cut the rows of a matrix into slices of about `_BLOCK_BYTES`."""
    rows = len(matrix)
    step = max(1, _BLOCK_BYTES * rows // max(1, matrix.nbytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _blas_name() -> str:
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas.get('version', '')}".strip()


def choose(config: Config, local_rank: int) -> Backend:
    """Return the backend that `config` names; ``'auto'`` is CuPy where a GPU answers, else NumPy.

    Raises
    ------
    DeviceError
        If CuPy is wanted but it, the driver or the GPU is missing.
    ConfigError
        If a GPU's way to multiply is wanted of NumPy.
    """
    if config.backend != "numpy":
        try:
            from trainer.backend_cupy import CupyBackend

            return CupyBackend(local_rank, gemm=config.gemm, math=config.math)
        except ImportError as error:
            if config.backend != "auto":
                raise DeviceError(
                    f"--backend cupy: wanted the package cupy, found none ({error}); run "
                    "pip install cupy-cuda13x (or cupy-cuda12x), or use --backend numpy"
                ) from error
        except DeviceError:
            if config.backend != "auto":
                raise
    for flag, found, usual in (("gemm", config.gemm, "cublas"), ("math", config.math, "ieee")):
        if found != usual:
            raise ConfigError(
                f"--{flag} {found}: wanted a CUDA GPU and --backend cupy, found the backend "
                "numpy, which multiplies with its BLAS; leave it out"
            )
    return NumpyBackend()
