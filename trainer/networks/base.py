"""The two-layer network: parameters, forward, backward and step, once for NumPy and CuPy.

Layout, as in the assignment: a batch is a matrix whose columns are images. In memory an image is
contiguous, so x is held as (B', D) and used as its transpose; all other matrices are row-major.

===========  ==========  =========================================================
symbol       shape       meaning
===========  ==========  =========================================================
x            B' x D      images of this rank (transposed: D x B')
y            C x B'      labels, one-hot
W1, b1       H x D, H    first layer
W2, b2       C x H, C    second layer
z1, a1       H x B'      W1 x + b1 and its sigmoid; later a1 alone
z2           C x B'      W2 a1 + b2; later scale (softmax(z2) - y), the gradient
===========  ==========  =========================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Array, Backend
from trainer.parameters import Tensors
from trainer.ranges import SILENT, Ranges


@dataclass(frozen=True, slots=True)
class Work:
    """Intermediate matrices for a batch of B' columns: contiguous views of shared buffers."""

    a1: Array
    d1: Array
    z2: Array
    ones: Array


class Network:
    """A D-H-C network with its gradients and workspaces, all allocated here, once.

    Parameters
    ----------
    backend : Backend
    inputs, hidden, classes : int
        D, H, C.
    dtype : str or dtype
        Of everything.
    columns : int
        Most images (B') a batch will have.

    Attributes
    ----------
    parameters, gradients : Tensors
        Gradients are those of the cross-entropy alone; `step` adds the regularization's.
    """

    def __init__(
        self, backend: Backend, inputs: int, hidden: int, classes: int, dtype: Any, columns: int
    ) -> None:
        xp = backend.xp
        size = hidden * inputs + hidden + classes * hidden + classes
        self.backend, self.dtype = backend, np.dtype(dtype)
        self.inputs, self.hidden, self.classes = inputs, hidden, classes
        self.parameters, self.gradients = (
            Tensors.split(xp.zeros(size, dtype), inputs, hidden, classes) for _ in range(2)
        )
        self._columns = columns
        self._buffers: tuple[Array, ...] = ()
        self._work: dict[int, Work] = {}

    @staticmethod
    def initial(seed: int, inputs: int, hidden: int, classes: int) -> np.ndarray:
        """Return W = 0.01 randn and b = 0, as the assignment has them, flat, in float64."""
        flat = np.zeros(hidden * inputs + hidden + classes * hidden + classes)
        host = Tensors.split(flat, inputs, hidden, classes)
        rng = np.random.default_rng(seed)
        for weights in (host.W1, host.W2):
            weights[:] = 0.01 * rng.standard_normal(weights.shape)
        return flat

    def initialize(self, seed: int) -> None:
        """Set the parameters to `initial`'s."""
        self.set_parameters(self.initial(seed, self.inputs, self.hidden, self.classes))

    def set_parameters(self, flat: np.ndarray) -> None:
        """Overwrite the parameters by a flat host array of n elements."""
        self.parameters.flat[:] = self.backend.xp.asarray(flat.astype(self.dtype))

    def host_parameters(self) -> np.ndarray:
        """Return the parameters as a flat host array of n elements."""
        host = np.empty(self.parameters.flat.size, self.dtype)
        self.backend.to_host(self.parameters.flat, host)
        return host

    def work(self, columns: int) -> Work:
        """Return the workspace for a batch of so many images; made on first use, then kept."""
        if columns not in self._work:
            xp, most = self.backend.xp, self._columns
            rows = (self.hidden, self.hidden, self.classes)
            if not self._buffers:
                self._buffers = (
                    *(xp.empty(r * most, self.dtype) for r in rows), xp.ones((most, 1), self.dtype)
                )  # fmt: skip
            a1, d1, z2 = (
                buffer[: r * columns].reshape(r, columns)
                for r, buffer in zip(rows, self._buffers, strict=False)
            )
            self._work[columns] = Work(a1, d1, z2, self._buffers[-1][:columns])
        return self._work[columns]

    def forward(self, x: Array, ranges: Ranges = SILENT) -> Work:
        """Compute a1 and z2 (without b2) for images x (B', D); section 3.3 of the handout.

        z1 = W1 x + b1; a1 = sigmoid(z1); z2 = W2 a1 (+ b2, left to the softmax).
        """
        work, p, backend = self.work(len(x)), self.parameters, self.backend
        with ranges[names.FORWARD_GEMM_1]:
            backend.gemm(p.W1, x.T, work.a1)
        backend.bias_sigmoid(work.a1, p.b1)
        with ranges[names.FORWARD_GEMM_2]:
            backend.gemm(p.W2, work.a1, work.z2)
        return work

    def loss_gradient(self, work: Work, y: Array, scale: float, loss: Array) -> None:
        """z2 <- scale (softmax(z2 + b2) - y), eq. 3; loss (B',) <- cross-entropy per image."""
        self.backend.softmax_gradient(work.z2, self.parameters.b2, y, scale, loss)

    def backward_output(self, work: Work, ranges: Ranges = SILENT) -> None:
        """Compute d1 = W2^T dz2, dW2 = dz2 a1^T (eq. 4) and db2 = dz2 1 (eq. 5)."""
        p, g, gemm = self.parameters, self.gradients, self.backend.gemm
        with ranges[names.BACKWARD_GEMM_1]:
            gemm(p.W2.T, work.z2, work.d1)
        with ranges[names.BACKWARD_GEMM_2]:
            gemm(work.z2, work.a1.T, g.W2)
        gemm(work.z2, work.ones, g.b2[:, None])

    def backward_hidden(
        self, x: Array, work: Work, ranges: Ranges = SILENT, xt: Array | None = None
    ) -> None:
        """Compute dz1 = d1 a1 (1 - a1), dW1 = dz1 x^T (eq. 6) and db1 = dz1 1 (eq. 7).

        Where there is a copy of the images by pixels, xt (D, B'), it may be used instead of x.
        """
        g, backend = self.gradients, self.backend
        backend.sigmoid_gradient(work.d1, work.a1)
        with ranges[names.BACKWARD_GEMM_3]:
            backend.gemm(work.d1, x, g.W1)
        backend.gemm(work.d1, work.ones, g.b1[:, None])

    def step(self, rate: float, regularization: float) -> None:
        """Descend, p <- p - rate grad J (eq. 2); weights feel 0.5 lambda ||W||^2, biases do not."""
        p, g, descend = self.parameters, self.gradients, self.backend.descend
        descend(p.W1, g.W1, rate, regularization)
        descend(p.b1, g.b1, rate, 0.0)
        descend(p.W2, g.W2, rate, regularization)
        descend(p.b2, g.b2, rate, 0.0)

    def penalty(self, regularization: float) -> float:
        """Return 0.5 lambda ||W||^2 of the current weights (eq. 1); NaN beside any NaN, infinity.

        The biases are looked at, too: an update that overflows in the last batch of an epoch is in
        no batch's loss.
        """
        flat = self.host_parameters().astype(np.float64)
        if not np.isfinite(flat).all():
            return math.nan
        host = Tensors.split(flat, self.inputs, self.hidden, self.classes)
        squares = sum(float(np.vdot(w, w)) for w in (host.W1, host.W2))
        return 0.5 * regularization * squares

    def predict(self, x: Array) -> Array:
        """Return the most likely class of each image of x (B', D), as `most_likely` does."""
        return self.most_likely(self.forward(x))

    def most_likely(self, work: Work) -> Array:
        """Return the most likely class of each image after `forward`, shape (B',).

        -1 where a score is NaN or infinite.
        """
        return self.best(work.z2 + self.parameters.b2[:, None])

    def best(self, scores: Array) -> Array:
        """Return the row of the largest of `scores` (C, B') in each column; -1 beside a NaN."""
        xp = self.backend.xp
        return xp.where(xp.isfinite(scores).all(axis=0), scores.argmax(axis=0), -1)
