"""What the GPU's matrix products reach: cuBLAS by data type, large squares and given shapes."""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.measure.device import Device
from perfmodel.machines.measure.measurement import Found, Products, Spread
from perfmodel.machines.measure.shapes import Effort, best_product, products_of_the_trainer

_WORKSPACE_BYTES: Final = 32 << 20
"""What cuBLAS recommends on Hopper."""
_DEFAULT_ALGORITHM: Final = -1
_KINDS: Final = {
    # element type, cudaDataType, cublasComputeType_t, type of alpha and beta
    "float64": ("float64", 1, 70, ctypes.c_double),
    "float32": ("float32", 0, 68, ctypes.c_float),
    "tf32": ("float32", 0, 77, ctypes.c_float),
    "float16": ("float16", 2, 68, ctypes.c_float),
    "bfloat16": ("bfloat16", 14, 68, ctypes.c_float),
}


class Cublas:
    """cublasGemmEx on a device's stream, with a workspace of its own."""

    def __init__(self, device: Device) -> None:
        self._device, self._library = device, _library()
        self._handle = ctypes.c_void_p()
        self._checked(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "Create")
        stream = ctypes.c_void_p(device.stream.ptr)
        self._checked(self._library.cublasSetStream_v2(self._handle, stream), "SetStream")
        self._workspace = device.cupy.empty(_WORKSPACE_BYTES, np.uint8)
        pointer = ctypes.c_void_p(self._workspace.data.ptr)
        size = ctypes.c_size_t(_WORKSPACE_BYTES)
        self._checked(
            self._library.cublasSetWorkspace_v2(self._handle, pointer, size), "SetWorkspace"
        )

    def product(self, m: int, n: int, k: int, dtype: str, layout: str) -> Callable[[], None]:
        """Return a call that multiplies random row-major matrices (m, k) x (k, n).

        A row-major result is the column-major transpose: the factors change places.
        """
        element, kind, compute, scalar = _KINDS[dtype]
        a, b = (self._device.random(size, element) for size in (m * k, k * n))
        out = self._device.random(m * n, element)
        ta, lda = (1, m) if layout[0] == "t" else (0, k)
        tb, ldb = (1, k) if layout[1] == "t" else (0, n)
        alpha, beta = scalar(1.0), scalar(0.0)
        arguments = (
            self._handle, tb, ta, n, m, k, ctypes.byref(alpha),
            ctypes.c_void_p(b.data.ptr), kind, ldb, ctypes.c_void_p(a.data.ptr), kind, lda,
            ctypes.byref(beta), ctypes.c_void_p(out.data.ptr), kind, n, compute,
            _DEFAULT_ALGORITHM,
        )  # fmt: skip
        kept = (a, b, out, alpha, beta)

        def call(_: Any = kept) -> None:  # which keeps the matrices alive
            self._checked(self._library.cublasGemmEx(*arguments), "GemmEx")

        return call

    @staticmethod
    def _checked(code: int, what: str) -> None:
        if code:
            raise PerfmodelError(
                f"wanted cublas{what} to succeed; found status {code} (cublasStatus_t); this part "
                "is left out"
            )


def products(
    device: Device, dtype: str, name: str, layout: str, shapes: Iterable[tuple[int, int, int]]
) -> Products:
    """Measure products of shapes (m, n, k)."""
    cublas = device.shared("cublas", Cublas)
    found: Mapping[tuple[int, int, int], Spread] = {
        shape: device.queued(cublas.product(*shape, dtype, layout)) for shape in shapes
    }
    return Products.of(name, dtype, layout, found)


def squares(device: Device, dtype: str, sizes: Iterable[int]) -> Found:
    """Measure large square products of a data type; the best of them is the ceiling."""
    found = products(device, dtype, "square", "nn", [(n, n, n) for n in sizes])
    return best_product(found, "cuBLAS", tensor=device.has_tensor_cores(dtype))


def trainer_products(device: Device, dtype: str, effort: Effort) -> Found:
    """Measure the trainer's products in a data type."""
    return Found(
        products=tuple(
            products(device, dtype, name, layout, shapes)
            for name, layout, shapes in products_of_the_trainer(effort.hidden, effort.batches)
        )
    )


def _library() -> Any:
    """Load the cuBLAS that CuPy uses."""
    cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
    handle = cublas.create()  # CuPy may load the library as late as here
    cublas.destroy(handle)
    found = re.search(r"(/\S*libcublas\.so\S*)", Path("/proc/self/maps").read_text("utf-8"))
    try:
        return ctypes.CDLL(found[1] if found else "libcublas.so")
    except OSError as error:
        raise PerfmodelError(
            f"wanted the cuBLAS library; found none ({error}); install the CUDA toolkit or "
            "pip install nvidia-cublas"
        ) from error
