"""One GPU through CuPy: its name, random matrices, and times by CUDA events and by the host."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.measure.measurement import Spread

SOURCE: Final = """
extern "C" __global__ void spin(const long long cycles) {
    const long long began = clock64();
    while (clock64() - began < cycles) {}
}
extern "C" __global__ void fill(float *x, const size_t n, const unsigned seed) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        unsigned h = (unsigned)i * 2654435761u + seed;  // then murmur3's finalizer
        h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
        x[i] = (int)h * 4.6566129e-10f;
    }
}
"""
_USUAL_KILOHERTZ: Final = 1_500_000
_MOST_QUEUED: Final = 50
_QUEUED_S: Final = 2e-3
"""So long, or one call, is between two events."""


class Device:
    """A GPU in use by this process, on a stream of its own.

    Attributes
    ----------
    cupy : module
    name : str
    properties : dict
        As cudaGetDeviceProperties gives them.
    repeats : int
        How often everything is timed.

    Raises
    ------
    PerfmodelError
        If CuPy, the driver or a GPU is missing.
    """

    def __init__(self, index: int, repeats: int) -> None:
        self.cupy = _cupy()
        count = self.cupy.cuda.runtime.getDeviceCount()
        self.index = index % count
        self.cupy.cuda.Device(self.index).use()
        self.properties = self.cupy.cuda.runtime.getDeviceProperties(self.index)
        self.name = self.properties["name"].decode()
        self.repeats = repeats
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self._spin, self._fill = (self.cupy.RawKernel(SOURCE, name) for name in ("spin", "fill"))
        kilohertz = self.cupy.cuda.Device(self.index).attributes.get("ClockRate")
        self._hertz = 1e3 * (kilohertz or _USUAL_KILOHERTZ)
        self._began, self._ended = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        self._made: dict[str, Any] = {}
        self._seed = 0

    def random(self, count: int, dtype: str = "float32") -> Any:
        """Return random numbers in [-1, 1); bfloat16 as the upper halves of float32, in uint16."""
        values = self.cupy.empty(count, np.float32)
        self._seed += 1
        self._fill((1024,), (256,), (values, np.uint64(count), np.uint32(977 * self._seed)))
        if dtype == "bfloat16":
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(dtype, copy=False)

    def shared(self, name: str, make: Callable[[Device], Any]) -> Any:
        """Return what `make` makes of this device, made on first use."""
        if name not in self._made:
            self._made[name] = make(self)
        return self._made[name]

    def has_tensor_cores(self, dtype: str) -> bool:
        """Whether the tensor cores take a data type (CUDA Programming Guide, Tensor Cores)."""
        major, minor = int(self.properties["major"]), int(self.properties["minor"])
        if dtype == "float64":
            return major in (8, 9, 10) and minor == 0
        return major >= {"float16": 7, "tf32": 8, "bfloat16": 8}.get(dtype, 99)

    def wait(self) -> None:
        """Return when everything that was queued is done."""
        self.stream.synchronize()

    def spin(self, seconds: float) -> None:
        """Queue a kernel that only takes time, so that what follows it is there when it ends."""
        self._spin((1,), (1,), (np.int64(seconds * self._hertz),))

    def queued(self, call: Callable[[], Any], most: int = _MOST_QUEUED) -> Spread:
        """Return device seconds per call of calls that are queued one behind the other.

        A kernel that spins holds the device while the host queues the calls between two events, so
        that the host's pace is not in the result; the gap between two kernels is.
        """
        call()
        self.wait()
        began = time.perf_counter()
        call()
        host_s = time.perf_counter() - began
        self.wait()
        once_s = time.perf_counter() - began
        calls = max(1, min(most, int(_QUEUED_S / once_s)))
        head_start_s = min(5e-3, 20e-6 + 2.0 * calls * host_s)
        return Spread.of(
            [self._between_events(call, calls, head_start_s) for _ in range(self.repeats + 1)][1:]
        )

    def _between_events(self, call: Callable[[], Any], calls: int, head_start_s: float) -> float:
        self.spin(head_start_s)
        self._began.record(self.stream)
        for _ in range(calls):
            call()
        self._ended.record(self.stream)
        self._ended.synchronize()
        milliseconds = self.cupy.cuda.get_elapsed_time(self._began, self._ended)
        return float(milliseconds) * 1e-3 / calls

    def versions(self) -> dict[str, str]:
        """Return the versions of the driver, CUDA, CuPy and NCCL, of those there are."""
        runtime = self.cupy.cuda.runtime
        found = {
            "cupy": str(self.cupy.__version__),
            "cuda_runtime": str(runtime.runtimeGetVersion()),
            "cuda_driver": str(runtime.driverGetVersion()),
        }
        for name, ask in (("nccl", _nccl_version), ("driver", _driver_version)):
            try:
                found[name] = ask()
            except Exception:  # what cannot be asked is left out: each of these is optional
                continue
        return found


def _cupy() -> Any:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise PerfmodelError(
            f"wanted the package cupy, to measure a GPU; found none ({error}); run "
            "pip install cupy-cuda13x (or cupy-cuda12x), or measure the CPU with --device cpu"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        count, why = 0, f" ({error})"
    else:
        why = ""
    if not count:
        raise PerfmodelError(
            f"wanted a CUDA GPU; found none{why}; check nvidia-smi and CUDA_VISIBLE_DEVICES, or "
            "measure the CPU with --device cpu"
        )
    return cupy


def _nccl_version() -> str:
    return str(importlib.import_module("cupy.cuda.nccl").get_version())


def _driver_version() -> str:
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return str(nvml.nvmlSystemGetDriverVersion())
