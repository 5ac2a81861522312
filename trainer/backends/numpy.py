"""The NumPy backend: memory, GEMMs and fused element-wise steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainer.backends.base import Queue

_BLOCK_BYTES = 1 << 19
"""Element-wise chains walk matrices in blocks of rows that stay in a core's L2 cache."""


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

    GEMMs run on the BLAS's threads, the rest on one: threads of our own would have to
    take the cores from BLAS threads that spin for the next GEMM (2.0 ms for bias and sigmoid
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
