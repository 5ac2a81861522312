"""The network over kernels written for it: four launches a batch where GEMMs were alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Array, Backend
from trainer.errors import ConfigError
from trainer.kernels.hierarchical import HierarchicalGemm
from trainer.kernels.peer import SumAndStep, real_name
from trainer.kernels.source import load
from trainer.networks.base import Network, Work
from trainer.ranges import SILENT, Ranges

MOST_CLASSES: Final = {"float32": 32, "float64": 16}
_COLUMNS: Final = 16  # of fused.cu: images a block of output_layer owns, and its threads
_OUTPUT_THREADS: Final = 512
_BACKWARD_THREADS: Final = 256


class FusedNetwork(Network):
    """`Network` on a GPU with its element-wise steps inside the GEMMs.

    ===========================  ==================================================================
    kernel                       computes
    ===========================  ==================================================================
    hierarchical, with sigmoid   a1 = sigmoid(W1 x + b1)
    output_layer                 z2 = W2 a1 + b2, softmax, loss, dz2
    backward_hidden              d1 = W2^T dz2 a1 (1 - a1), dW2, db1, db2
    hierarchical                 dW1 = d1 x^T
    ===========================  ==================================================================

    and one for the step, or for all-reduce and step together (`trainer.transports.peer`). With
    ``--math tf32`` cuBLAS multiplies the large matrices, faster than we do, and the two kernels
    in the middle compute the sigmoid as they read z1.

    Parameters
    ----------
    exact_images : bool
        All pixels are whole numbers up to 2048: TF32 holds them, so that ``--math tf32x3`` takes
        two GEMMs for its three.
    """

    def __init__(
        self, backend: Backend, inputs: int, hidden: int, classes: int, dtype: Any, columns: int,
        *, exact_images: bool = False,
    ) -> None:  # fmt: skip
        most = MOST_CLASSES[np.dtype(dtype).name]
        if classes > most:
            raise ConfigError(
                f"--gemm fused: keeps an image's classes in registers: expected --num-classes of "
                f"at most {most} in {np.dtype(dtype).name}; got {classes}; use --gemm hierarchical"
            )
        super().__init__(backend, inputs, hidden, classes, dtype, columns)
        self._gemm = backend.multiply
        self._fuses = isinstance(self._gemm, HierarchicalGemm)  # else cuBLAS, which has no sigmoid
        few = classes <= 16 and self.dtype == np.float32  # registers allow two rows a block
        rows = 2 if few and hidden >= 256 else 1
        macros: dict[str, str | int] = {
            "REAL": real_name(self.parameters.flat), "CLASSES": classes, "ROWS": rows,
            "SIGMOID": int(not self._fuses),
        }  # fmt: skip
        module = load("fused", **macros, VECTOR=4 if few else 1)
        self._output_layer = module.get_function("output_layer")
        self._backward_hidden = module.get_function("backward_hidden")
        self._backward_grid = (max(-(-hidden // rows), classes),)
        self._hidden = np.int32(hidden)
        self._exact = {"b_exact": True} if exact_images and self._fuses else {}
        self._update = SumAndStep(self.parameters)

    def work(self, columns: int) -> Work:
        """Return the workspace for a batch of so many images; rows start on 16 bytes.

        Each width has memory of its own, zeroed: what lies behind a row's end must stay 0.
        """
        if columns not in self._work:
            stride = -(-columns // 4) * 4
            a1, d1, z2 = (
                self.backend.xp.zeros((rows, stride), self.dtype)[:, :columns]
                for rows in (self.hidden, self.hidden, self.classes)
            )
            self._work[columns] = Work(a1, d1, z2, None)
        return self._work[columns]

    def forward(self, x: Array, ranges: Ranges = SILENT) -> Work:
        """Compute a1 alone, or z1 with cuBLAS; `loss_gradient` goes on from there."""
        work, p = self.work(len(x)), self.parameters
        with ranges[names.FORWARD_GEMM_1]:
            if self._fuses:
                self._gemm(p.W1, x.T, work.a1, bias=p.b1, **self._exact)
            else:
                self._gemm(p.W1, x.T, work.a1)
        return work

    def loss_gradient(self, work: Work, y: Array, scale: float, loss: Array) -> None:
        """Z2 <- scale (softmax(W2 a1 + b2) - y); loss (B',) <- cross-entropy per image."""
        self._output(work, y, scale, loss)

    def most_likely(self, work: Work) -> Array:
        """Return the most likely class of each image after `forward`, as `Network` does."""
        self._output(work, None, 0.0, None)
        return self.best(work.z2)

    def backward_output(self, work: Work, ranges: Ranges = SILENT) -> None:
        """Compute dW2, db2, and already d1 a1 (1 - a1) and db1."""
        p, g = self.parameters, self.gradients
        columns = work.z2.shape[1]
        with ranges[names.BACKWARD_GEMM_1]:
            self._backward_hidden(
                self._backward_grid, (_BACKWARD_THREADS,),
                (self._hidden, np.int32(columns), _stride(work.z2), p.b1, p.W2, work.a1, work.z2,
                 work.d1, g.W2, g.b1, g.b2),
            )  # fmt: skip

    def backward_hidden(
        self, x: Array, work: Work, ranges: Ranges = SILENT, xt: Array | None = None
    ) -> None:
        """Compute dW1 = d1 x^T; the rest is done."""
        with ranges[names.BACKWARD_GEMM_3]:
            images = x if xt is None else xt.T
            self._gemm(work.d1, images, self.gradients.W1, **self._exact)

    def step(self, rate: float, regularization: float) -> None:
        """Descend with one kernel over all parameters."""
        self._update(self.gradients.flat, rate, regularization)

    def _output(self, work: Work, y: Array | None, scale: float, loss: Array | None) -> None:
        columns = work.z2.shape[1]
        if columns == 0:
            return
        p, null = self.parameters, np.uintp(0)
        self._output_layer(
            (-(-columns // _COLUMNS),), (_OUTPUT_THREADS,),
            (self._hidden, np.int32(columns), _stride(work.z2), p.b1, p.W2, p.b2, work.a1,
             null if y is None else y, self.dtype.type(scale), work.z2,
             null if loss is None else loss),
        )  # fmt: skip


def _stride(matrix: Array) -> np.int32:
    """Return the elements from one row to the next."""
    return np.int32(matrix.strides[0] // matrix.itemsize)
