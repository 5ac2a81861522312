"""Measures a GPU: arithmetic, its memories, its bus to the host, launches and GEMMs."""

from __future__ import annotations

import ctypes
import importlib
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from itertools import cycle, starmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.machine import Figure
from perfmodel.machines.measure.measurement import (
    Effort,
    Found,
    Products,
    Series,
    Spread,
    best_product,
    products_of_the_trainer,
)
from perfmodel.machines.measure.ranks import Ranks

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
        self._seed = 0

    def random(self, count: int, dtype: str = "float32") -> Any:
        """Return random numbers in [-1, 1); bfloat16 as the upper halves of float32, in uint16."""
        values = self.cupy.empty(count, np.float32)
        self._seed += 1
        self._fill((1024,), (256,), (values, np.uint64(count), np.uint32(977 * self._seed)))
        if dtype == "bfloat16":
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(dtype, copy=False)

    @cached_property
    def cublas(self) -> Cublas:
        """The cuBLAS handle of the device's stream."""
        return Cublas(self)

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

    def queued(self, call: Callable[[], Any]) -> Spread:
        """Return device seconds per call of calls that are queued one behind the other.

        A kernel that spins holds the device while the host queues the calls between two events, so
        that the host's speed is not in the result; the gap between two kernels is.
        """
        call()
        self.wait()
        began = time.perf_counter()
        call()
        host_s = time.perf_counter() - began
        self.wait()
        once_s = time.perf_counter() - began
        calls = max(1, min(_MOST_QUEUED, int(_QUEUED_S / once_s)))
        head_start_s = min(5e-3, 20e-6 + 2.0 * calls * host_s)
        times = [self.timed(call, calls, head_start_s) for _ in range(self.repeats + 1)]
        return Spread.of(times[1:])

    def timed(self, call: Callable[[], Any], calls: int, head_start_s: float = 0.0) -> float:
        """Return device seconds per call between two events, behind a kernel that spins so long."""
        if head_start_s:
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
        with suppress(Exception):  # what cannot be asked is left out: each of these is optional
            found["nccl"] = str(importlib.import_module("cupy.cuda.nccl").get_version())
        with suppress(Exception):
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            found["driver"] = str(nvml.nvmlSystemGetDriverVersion())
        return found


def _cupy() -> Any:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise PerfmodelError(
            f"expected the package cupy, to measure a GPU; got none ({error}); run "
            "pip install cupy-cuda13x (or cupy-cuda12x), or measure the CPU with --device cpu"
        ) from error
    count, why = 0, ""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        why = f" ({error})"
    if not count:
        raise PerfmodelError(
            f"expected a CUDA GPU; got none{why}; check nvidia-smi and CUDA_VISIBLE_DEVICES, or "
            "measure the CPU with --device cpu"
        )
    return cupy


CHAINS: Final = 8
"""Independent accumulators of a thread: more than the latency of an FMA needs at full occupancy."""
UNROLLED: Final = 32
THREADS: Final = 256
BLOCKS_OF_AN_SM: Final = 8

ARITHMETIC_SOURCE: Final = r"""
#ifdef HALF
#include <cuda_fp16.h>
typedef __half2 T;
__device__ __forceinline__ T multiply_add(T x, T a, T b) { return __hfma2(x, a, b); }
#elif defined(DOUBLE)
typedef double T;
__device__ __forceinline__ T multiply_add(T x, T a, T b) { return fma(x, a, b); }
#else
typedef float T;
__device__ __forceinline__ T multiply_add(T x, T a, T b) { return fmaf(x, a, b); }
#endif

// every thread keeps CHAINS numbers in registers, and takes each to b - x again and again (a is
// -1, which the compiler does not know): bits change in every step, and nothing overflows
extern "C" __global__ void multiply_adds(const T *start, T *out, const int rounds) {
    const T a = start[0], b = start[1];
    T x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) x[c] = start[2 + (threadIdx.x * CHAINS + c) % STARTS];
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int u = 0; u < UNROLLED; ++u) {
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) x[c] = multiply_add(x[c], a, b);
        }
    }
    T sum = x[0];
#pragma unroll
    for (int c = 1; c < CHAINS; ++c) sum = multiply_add(sum, a, x[c]);
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""
STARTS: Final = 1024
MACROS: Final = {"float64": "-DDOUBLE", "float32": "-DSINGLE", "float16": "-DHALF"}
_LANES: Final = {"float64": 1, "float32": 1, "float16": 2}
"""Numbers that one instruction works on."""
_ARITHMETIC_ROUNDS: Final = {"float64": 400, "float32": 800, "float16": 800}


def arithmetic(device: Device, dtype: str) -> Found:
    """Measure fused multiply-adds of a data type without the tensor cores, 2 FLOP each."""
    cupy = device.cupy
    macros = {"CHAINS": CHAINS, "UNROLLED": UNROLLED, "STARTS": STARTS}
    options = ("--std=c++17", MACROS[dtype], *(f"-D{k}={v}" for k, v in macros.items()))
    kernel = cupy.RawKernel(ARITHMETIC_SOURCE, "multiply_adds", options=options)
    lanes, rounds = _LANES[dtype], np.int32(_ARITHMETIC_ROUNDS[dtype])
    blocks = BLOCKS_OF_AN_SM * int(device.properties["multiProcessorCount"])
    start = device.random((2 + STARTS) * lanes, dtype)
    start[:lanes] = -1
    out = cupy.empty(blocks * THREADS * lanes, dtype)
    spread = device.queued(lambda: kernel((blocks,), (THREADS,), (start, out, rounds)))
    flops = 2.0 * lanes * CHAINS * UNROLLED * int(rounds) * blocks * THREADS
    how = f"{'packed pairs of ' if lanes > 1 else ''}fused multiply-adds in registers"
    return Found({("peak_flops_per_s", dtype): spread.rate(flops, how)})


_THREADS: Final = 512
_BLOCKS_OF_AN_SM: Final = 4
_ROUNDS: Final = 50

MEMORY_SOURCE: Final = r"""
__device__ __forceinline__ float4 load(const float4 *p) {  // from L2 or beyond, never from L1
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
// every thread has AT_ONCE loads under way
#define STEP ((size_t)gridDim.x * blockDim.x)
#define FIRST ((size_t)blockIdx.x * blockDim.x + threadIdx.x)
#define AT_ONCE 4

extern "C" __global__ void copy_all(const float4 *a, float4 *out, const size_t n,
                                    const int rounds) {
    for (int r = 0; r < rounds; ++r) {
        size_t i = FIRST;
        for (; i + (AT_ONCE - 1) * STEP < n; i += AT_ONCE * STEP) {
            float4 v[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) v[u] = load(a + i + u * STEP);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) __stcg(out + i + u * STEP, v[u]);
        }
        for (; i < n; i += STEP) __stcg(out + i, load(a + i));
    }
}
__device__ __forceinline__ float4 plus(const float4 x, const float s, const float4 y) {
    return make_float4(x.x + s * y.x, x.y + s * y.y, x.z + s * y.z, x.w + s * y.w);
}
extern "C" __global__ void triad_all(const float4 *a, const float4 *b, float4 *out, const size_t n,
                                 const float s) {
    size_t i = FIRST;
    for (; i + STEP < n; i += 2 * STEP) {
        const float4 x = load(a + i), y = load(b + i);
        const float4 z = load(a + i + STEP), w = load(b + i + STEP);
        __stcg(out + i, plus(x, s, y));
        __stcg(out + i + STEP, plus(z, s, w));
    }
    for (; i < n; i += STEP) __stcg(out + i, plus(load(a + i), s, load(b + i)));
}
extern "C" __global__ void read_all(const float4 *a, float4 *out, const size_t n,
                                    const int rounds) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int r = 0; r < rounds; ++r) {
        size_t i = FIRST;
        for (; i + (AT_ONCE - 1) * STEP < n; i += AT_ONCE * STEP) {
            float4 v[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) v[u] = load(a + i + u * STEP);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) sum = plus(sum, 1, v[u]);
        }
        for (; i < n; i += STEP) sum = plus(sum, 1, load(a + i));
    }
    if (sum.x + sum.y + sum.z + sum.w == 1.2345e30f) out[0] = sum;  // keeps the loads
}
extern "C" __global__ void nothing() {}
"""


def device_memory(device: Device, array_bytes: int) -> Found:
    """Measure copy, triad and reading of arrays far larger than L2 (STREAM's counting).

    J. D. McCalpin, *Memory Bandwidth and Machine Balance in Current High Performance Computers*,
    IEEE TCCA Newsletter, 1995: copy moves two arrays, a = b + s c three.
    """
    free, _ = device.cupy.cuda.runtime.memGetInfo()
    count = min(array_bytes, int(free) // 8) // 16
    arrays = [device.random(4 * count) for _ in range(3)]
    size, blocks, one = np.uint64(count), _blocks(device), np.int32(1)
    # in turns, so that L2 holds nothing of what is next
    turns = cycle([arrays, [*arrays[1:], arrays[0]], [arrays[2], *arrays[:2]]])
    kernels = (device.cupy.RawKernel(MEMORY_SOURCE, f"{n}_all") for n in ("copy", "triad", "read"))
    copy, triad, read = kernels

    def copied() -> None:
        a, out, _ = next(turns)
        copy(blocks, (_THREADS,), (a, out, size, one))

    def added() -> None:
        a, b, out = next(turns)
        triad(blocks, (_THREADS,), (a, b, out, size, np.float32(1e-3)))

    def taken() -> None:
        a, out, _ = next(turns)
        read(blocks, (_THREADS,), (a, out, size, one))

    runs = {"hbm_copy": (2, copied), "hbm_triad": (3, added), "hbm_read": (1, taken)}
    figures = {
        ("bandwidth_bytes_per_s", key): device.queued(run).rate(
            16.0 * moved * count, f"{key.removeprefix('hbm_')} of {16 * count} B arrays"
        )
        for key, (moved, run) in runs.items()
    }
    best = max(figures.values(), key=lambda figure: figure.value)
    total = int(device.properties["totalGlobalMem"])
    figures["bandwidth_bytes_per_s", "hbm"] = best
    figures["capacity_bytes", "hbm"] = Figure(float(total), "cudaGetDeviceProperties")
    return Found(figures)


def second_level_cache(device: Device) -> Found:
    """Measure copying and reading arrays that stay in L2, past L1."""
    capacity = int(device.properties["l2CacheSize"])
    count = max(1, capacity // 8 // 16)
    a, out = (device.random(4 * count) for _ in range(2))
    size, rounds, blocks = np.uint64(count), np.int32(_ROUNDS), _blocks(device)
    copy, read = (device.cupy.RawKernel(MEMORY_SOURCE, name) for name in ("copy_all", "read_all"))
    moved = 16.0 * count * _ROUNDS
    copied = device.queued(lambda: copy(blocks, (_THREADS,), (a, out, size, rounds)))
    taken = device.queued(lambda: read(blocks, (_THREADS,), (a, out, size, rounds)))
    return Found({
        ("bandwidth_bytes_per_s", "l2"): copied.rate(2 * moved, f"copy of {16 * count} B"),
        ("bandwidth_bytes_per_s", "l2_read"): taken.rate(moved, f"reading {16 * count} B"),
        ("capacity_bytes", "l2"): Figure(float(capacity), "cudaGetDeviceProperties"),
    })  # fmt: skip


def copies(device: Device, ranks: Ranks, sizes: tuple[int, ...]) -> Found:
    """Measure copies between host and device by size, direction and kind of host memory.

    Alone, the device's clock is read too, and the largest sizes give the bus's ceilings.
    """
    series = []
    for memory in ("pinned", "pageable"):
        for direction in ("h2d", "d2h"):
            found = {n: _copy(device, ranks, memory, direction, n) for n in sizes}
            series.append(Series.of("copy", memory, direction, "host", ranks.size, found))
            if memory == "pinned" and ranks.size == 1:
                queued = {n: _queued_copy(device, direction, n) for n in sizes}
                series.append(Series.of("copy", memory, direction, "device", 1, queued))
    if ranks.size > 1:
        return Found(series=tuple(series))
    figures = {}
    for one in series:
        if one.memory == "pageable" or one.clock == "device":
            key = f"pcie_{one.direction}" + ("_pageable" if one.memory == "pageable" else "")
            how = f"{one.memory} memory, {one.bytes[-1]} B at a time, {one.clock} clock"
            figures["bandwidth_bytes_per_s", key] = one.at(-1).rate(one.bytes[-1], how)
    return Found(figures, tuple(series))


def _copy(device: Device, ranks: Ranks, memory: str, direction: str, size: int) -> Spread:
    """Return host seconds of one cudaMemcpy, which waits for its end."""
    where, _kept = _transfer(device, memory, direction, size)
    device.wait()
    return ranks.slowest(lambda: device.cupy.cuda.runtime.memcpy(*where), device.repeats)


def _queued_copy(device: Device, direction: str, size: int) -> Spread:
    where, _kept = _transfer(device, "pinned", direction, size)
    stream = device.stream.ptr
    return device.queued(lambda: device.cupy.cuda.runtime.memcpyAsync(*where, stream))


def _transfer(
    device: Device, memory: str, direction: str, size: int
) -> tuple[tuple[int, int, int, int], Any]:
    """Return where to, where from, size and kind of a copy, and its buffers, to be kept."""
    runtime = device.cupy.cuda.runtime
    host, there = _buffers(device, memory, size)
    if direction == "h2d":
        ends = there.data.ptr, host.ctypes.data
        return (*ends, size, runtime.memcpyHostToDevice), (host, there)
    ends = host.ctypes.data, there.data.ptr
    return (*ends, size, runtime.memcpyDeviceToHost), (host, there)


def _buffers(device: Device, memory: str, size: int) -> tuple[np.ndarray, Any]:
    there = device.random(size // 4)
    values = device.cupy.asnumpy(there)
    if memory == "pageable":
        return values, there
    pinned = device.cupy.cuda.alloc_pinned_memory(size)
    host = np.frombuffer(pinned, np.float32, size // 4)
    host[:] = values
    return host, there


def _blocks(device: Device) -> tuple[int]:
    return (_BLOCKS_OF_AN_SM * int(device.properties["multiProcessorCount"]),)


_WORKSPACE_BYTES: Final = 32 << 20
"""cuBLAS's recommendation for Hopper."""
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
                f"expected cublas{what} to succeed; got status {code} (cublasStatus_t); this part "
                "is left out"
            )


def products(
    device: Device, dtype: str, name: str, layout: str, shapes: Iterable[tuple[int, int, int]]
) -> Products:
    """Measure products of shapes (m, n, k)."""
    found = {s: device.queued(device.cublas.product(*s, dtype, layout)) for s in shapes}
    return Products.of(name, dtype, layout, found)


def squares(device: Device, dtype: str, sizes: Iterable[int]) -> Found:
    """Measure large square products of a data type; the best of them is the ceiling."""
    found = products(device, dtype, "square", "nn", [(n, n, n) for n in sizes])
    return best_product(found, "cuBLAS", tensor=device.has_tensor_cores(dtype))


def trainer_products(device: Device, dtype: str, effort: Effort) -> Found:
    """Measure the trainer's products in a data type."""
    wanted = products_of_the_trainer(effort.hidden, effort.batches)
    return Found(products=tuple(starmap(partial(products, device, dtype), wanted)))


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
            f"expected the cuBLAS library; got none ({error}); install the CUDA toolkit or "
            "pip install nvidia-cublas"
        ) from error
