"""cuBLAS through a handle and workspace of our own, which a CUDA graph can capture."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Final

import cupy
import numpy as np

from trainer.errors import DeviceError, OperandError
from trainer.kernels.launch import check

_WORKSPACE_BYTES: Final = 32 << 20
"""cuBLAS's recommendation for Hopper; without it cuBLAS would allocate inside a capture."""
_N, _T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_FP32_REAL, _FP64_REAL = 0, 1  # cudaDataType: CUDA_R_32F, CUDA_R_64F
_COMPUTE: Final = {"float32": 68, "tf32": 77, "float64": 70}  # cublasComputeType_t
_DEFAULT_ALGORITHM: Final = -1


def _library() -> Any:
    """Load the cuBLAS that CuPy uses."""
    from cupy_backends.cuda.libs import cublas

    handle = cublas.create()  # CuPy may load the library as late as here
    cublas.destroy(handle)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"(/\S*libcublas\.so\S*)", maps)
    try:
        return ctypes.CDLL(found[1] if found else "libcublas.so")
    except OSError as error:
        raise DeviceError(
            f"--gemm cublas: expected the cuBLAS library; got none ({error}); install the CUDA "
            "toolkit or pip install nvidia-cublas, or use --gemm hierarchical"
        ) from error


class CublasGemm:
    """out = alpha a b + beta out, by cublasGemmEx on the current stream.

    Parameters
    ----------
    math : {'ieee', 'tf32'}
        Whether factors of float32 GEMMs are rounded to TF32 for tensor cores.
    """

    name = "cublas"

    def __init__(self, *, math: str = "ieee") -> None:
        self._lib, self._tf32 = _library(), math == "tf32"
        self._handle = ctypes.c_void_p()
        _check(self._lib.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        self._workspace = cupy.empty(_WORKSPACE_BYTES, np.uint8)
        self._stream: int | None = None
        self._plans: dict[Any, tuple[Any, ...] | None] = {}

    def __call__(self, a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Multiply; a (m, k), b (k, n) may be transposed views, out (m, n) is row-major."""
        stream = cupy.cuda.get_current_stream().ptr
        if stream != self._stream:
            self._use(stream)
        key = (
            a.shape, a.strides, a.dtype.char, b.shape, b.strides, b.dtype.char,
            out.shape, out.strides, out.dtype.char, alpha, beta,
        )  # fmt: skip
        if key in self._plans:
            plan = self._plans[key]
        else:
            check(a, b, out)
            plan = self._plans[key] = self._plan(a, b, out, alpha, beta) if out.size else None
        if plan is None:
            return
        # a row-major out is a column-major out^T = b^T a^T: the factors change places
        ta, tb, m, n, k, al, be, kind, la, lb, lc, compute = plan
        code = self._lib.cublasGemmEx(
            self._handle, tb, ta, n, m, k, al,
            ctypes.c_void_p(b.data.ptr), kind, lb, ctypes.c_void_p(a.data.ptr), kind, la,
            be, ctypes.c_void_p(out.data.ptr), kind, lc, compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        if code:
            _check(code, "cublasGemmEx")

    def _use(self, stream: int) -> None:
        """Work on a stream; setting it forgets the workspace, so that follows."""
        _check(self._lib.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)), "SetStream")
        pointer = ctypes.c_void_p(self._workspace.data.ptr)
        size = ctypes.c_size_t(_WORKSPACE_BYTES)
        _check(self._lib.cublasSetWorkspace_v2(self._handle, pointer, size), "SetWorkspace")
        self._stream = stream

    def _plan(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> tuple[Any, ...]:
        (m, k), n = a.shape, b.shape[1]
        dtype = out.dtype.name
        scalar = ctypes.c_float if dtype == "float32" else ctypes.c_double
        kind = _FP32_REAL if dtype == "float32" else _FP64_REAL
        compute = _COMPUTE["tf32" if self._tf32 and dtype == "float32" else dtype]
        (ta, la), (tb, lb) = _layout(a), _layout(b)
        _, lc = _layout(out)
        return (
            ta, tb, m, n, k, ctypes.byref(scalar(alpha)), ctypes.byref(scalar(beta)), kind,
            la, lb, max(lc, n), compute,
        )  # fmt: skip


def _layout(matrix: Any) -> tuple[int, int]:
    """Return cuBLAS's operation and leading dimension for a row-major or transposed matrix.

    Seen column-major, a row-major matrix is its own transpose: it needs no operation once the
    factors have changed places.
    """
    rows, columns = matrix.shape
    if rows == 0 or columns == 0:  # whose strides say nothing
        return _N, max(1, columns)
    by_row, by_column = (s // matrix.itemsize for s in matrix.strides)
    if (by_column == 1 or columns == 1) and by_row >= columns:
        return _N, by_row
    if (by_row == 1 or rows == 1) and by_column >= rows:
        return _T, by_column
    if columns == 1:  # a column with any stride: rows of one element
        return _N, max(by_row, 1)
    raise OperandError(
        f"--gemm cublas: expected a row-major matrix or the transpose of one; got strides "
        f"{matrix.strides} for {matrix.shape}; copy it first"
    )


def _check(code: int, what: str) -> None:
    if code:
        raise DeviceError(
            f"cuBLAS: {what} failed with status {code}; see cublasStatus_t in its documentation"
        )
