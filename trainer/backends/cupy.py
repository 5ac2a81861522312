"""The CuPy backend: the NumPy backend's methods as cuBLAS calls and fused kernels on one GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import cupy
import cupyx
import numpy as np

from trainer.errors import DeviceError
from trainer.kernels import large_gemm, make_gemm

MOST_THIN: Final = 32
"""A GEMM whose smallest size is at most this is thin."""

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


class CopyQueue:
    """A CUDA stream for copies, or for NCCL, beside the computing stream."""

    def __init__(self, computing: Any) -> None:
        self._computing = computing
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._before, self._after = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def follow(self) -> None:
        """Let the stream wait for what was launched so far."""
        self._before.record(self._computing)
        self.stream.wait_event(self._before)

    def to_host(self, source: Any, target: np.ndarray) -> None:
        """Call cudaMemcpyAsync."""
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(
            target.ctypes.data, source.data.ptr, source.nbytes, runtime.memcpyDeviceToHost,
            self.stream.ptr,
        )  # fmt: skip

    def to_device(self, source: np.ndarray, target: Any) -> None:
        """Call cudaMemcpyAsync."""
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(
            target.data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice,
            self.stream.ptr,
        )  # fmt: skip

    def record(self) -> Callable[[], bool]:
        """Record an event now; return the question whether it has happened."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        return lambda: bool(event.done)

    def join(self) -> None:
        """Let the computing stream wait for this one."""
        self._after.record(self.stream)
        self._computing.wait_event(self._after)


class CupyBackend:
    """One GPU: device arrays, GEMMs by cuBLAS or our kernels, all on one stream.

    The stream is not CUDA's default one, which cannot be captured, but a blocking one: a
    cudaMemcpy, which works on the default stream, waits for it.

    Parameters
    ----------
    local_rank : int
        Ranks of a host take its GPUs in turn.
    gemm : str
        Who multiplies: see `trainer.kernels.GEMMS`, or ``'fused'``.
    math : str
        How float32 is multiplied: see `trainer.kernels.MATHS`.
    """

    name = "cupy"
    xp: Any = cupy
    on_device = True

    def __init__(self, local_rank: int = 0, *, gemm: str = "cublas", math: str = "ieee") -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"--backend cupy: expected a CUDA GPU; got none ({error}); check nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or use --backend numpy"
            ) from error
        if count == 0:
            raise DeviceError(
                "--backend cupy: expected a CUDA GPU; got none; check CUDA_VISIBLE_DEVICES, or "
                "use --backend numpy"
            )
        self.device = local_rank % count
        cupy.cuda.Device(self.device).use()
        self.stream = cupy.cuda.Stream()
        self.stream.use()
        self.gemm_name, self.math = gemm, math
        self.multiply = make_gemm(large_gemm(gemm, math), math=math)
        self._thin = make_gemm("thin") if gemm == "thin" else None

    def gemm(self, a: Any, b: Any, out: Any) -> None:
        """Multiply into `out`; transposed views are taken as they are."""
        if self._thin is not None and min(*a.shape, b.shape[1]) <= MOST_THIN:
            self._thin(a, b, out)
        else:
            self.multiply(a, b, out)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` launches, without running it; return its replay."""
        self.stream.begin_capture()
        try:
            work()
        except Exception:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                self.stream.end_capture()  # may fail, too: what happened first is what counts
            raise
        graph = self.stream.end_capture()
        graph.upload(self.stream)
        stream = self.stream
        return lambda: graph.launch(stream)

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

    def queue(self) -> CopyQueue:
        """Return a new stream for copies."""
        return CopyQueue(self.stream)

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
