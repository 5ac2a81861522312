"""The CuPy backend: the NumPy backend's methods as cuBLAS calls and fused kernels on one GPU."""

from __future__ import annotations

from typing import Any

import cupy
import cupyx
import numpy as np

from trainer.errors import DeviceError

_BIAS_SIGMOID = cupy.ElementwiseKernel(
    "T z_in, T bias", "T z", "z = T(1) / (T(1) + exp(-(z_in + bias)))", "trainer_bias_sigmoid"
)
_SIGMOID_GRADIENT = cupy.ElementwiseKernel(
    "T d_in, T a", "T d", "d = d_in * a * (T(1) - a)", "trainer_sigmoid_gradient"
)
_DESCEND = cupy.ElementwiseKernel(
    "T p_in, T g, T rate, T decay", "T p", "p = p_in - rate * (g + decay * p_in)", "trainer_descend"
)
# One thread per image walks down its column of C class scores; all arrays are row-major (C, B').
_SOFTMAX_GRADIENT = cupy.ElementwiseKernel(
    "raw T bias, raw T y, int32 classes, int32 columns, T scale",
    "raw T z, raw T loss",
    """
    T top = z[i] + bias[0];
    for (int c = 0; c < classes; ++c) {
        const ptrdiff_t at = (ptrdiff_t)c * columns + i;
        const T value = z[at] + bias[c];
        z[at] = value;
        top = max(top, value);
    }
    T total = 0, own = 0;
    for (int c = 0; c < classes; ++c) {
        const ptrdiff_t at = (ptrdiff_t)c * columns + i;
        const T shifted = z[at] - top;
        const T e = exp(shifted);
        own += y[at] * shifted;
        total += e;
        z[at] = e;
    }
    loss[i] = log(total) - own;
    for (int c = 0; c < classes; ++c) {
        const ptrdiff_t at = (ptrdiff_t)c * columns + i;
        z[at] = (z[at] / total - y[at]) * scale;
    }
    """,
    "trainer_softmax_gradient",
)


class CupyBackend:
    """One GPU: device arrays, cuBLAS through CuPy, kernels on the default stream.

    Parameters
    ----------
    local_rank : int
        Ranks of a host take its GPUs in turn.
    """

    name = "cupy"
    gemm_name = "cublas"
    xp: Any = cupy
    on_device = True

    def __init__(self, local_rank: int = 0) -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"--backend cupy: wanted a CUDA GPU, found none ({error}); check nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or use --backend numpy"
            ) from error
        if count == 0:
            raise DeviceError(
                "--backend cupy: wanted a CUDA GPU, found none; check CUDA_VISIBLE_DEVICES, or "
                "use --backend numpy"
            )
        self.device = local_rank % count
        cupy.cuda.Device(self.device).use()

    def gemm(self, a: Any, b: Any, out: Any) -> None:
        """Call cuBLAS, which takes transposed views as they are.

        ``a.dot`` and not ``cupy.matmul``: the same call without the checks of a generalized ufunc,
        whose host time shows in every range.
        """
        a.dot(b, out)

    def bias_sigmoid(self, z: Any, bias: Any) -> None:
        """Run one fused kernel."""
        _BIAS_SIGMOID(z, bias[:, None], z)

    def sigmoid_gradient(self, d: Any, a: Any) -> None:
        """Run one fused kernel."""
        _SIGMOID_GRADIENT(d, a, d)

    def softmax_gradient(self, z: Any, bias: Any, y: Any, scale: float, loss: Any) -> None:
        """Run one kernel, one thread per image."""
        classes, columns = z.shape
        if columns:
            _SOFTMAX_GRADIENT(bias, y, classes, columns, scale, z, loss, size=columns)

    def descend(self, p: Any, g: Any, rate: float, decay: float) -> None:
        """Run one fused kernel."""
        _DESCEND(p, g, rate, decay, p)

    def to_host(self, source: Any, target: np.ndarray) -> None:
        """Call cudaMemcpy, which waits for the kernels before it and for itself."""
        runtime = cupy.cuda.runtime
        runtime.memcpy(
            target.ctypes.data, source.data.ptr, source.nbytes, runtime.memcpyDeviceToHost
        )

    def to_device(self, source: np.ndarray, target: Any) -> None:
        """Call cudaMemcpy; a pageable source is staged before it returns."""
        runtime = cupy.cuda.runtime
        runtime.memcpy(
            target.data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice
        )

    def synchronize(self) -> None:
        """Call cudaDeviceSynchronize."""
        cupy.cuda.runtime.deviceSynchronize()

    def pinned_empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return page-locked memory (cudaHostAlloc)."""
        pinned: np.ndarray = cupyx.empty_pinned(shape, dtype)
        return pinned

    def describe(self) -> dict[str, Any]:
        """Return versions and the name of the GPU."""
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.device)
        return {
            "numpy": np.__version__,
            "cupy": cupy.__version__,
            "cuda_runtime": runtime.runtimeGetVersion(),
            "cuda_driver": runtime.driverGetVersion(),
            "gpu": properties["name"].decode(),
        }
