"""What the GPU's memories, its bus to the host and its launches reach."""

from __future__ import annotations

import time
from itertools import cycle
from typing import Any, Final

import numpy as np

from perfmodel.machines.machine import Figure
from perfmodel.machines.measure.device import Device
from perfmodel.machines.measure.measurement import Found, Series, Spread
from perfmodel.machines.measure.ranks import Ranks

_THREADS: Final = 512
_BLOCKS_OF_AN_SM: Final = 4
_ROUNDS: Final = 50
_LAUNCHES: Final = 200

SOURCE: Final = r"""
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
    kernels = (device.cupy.RawKernel(SOURCE, f"{n}_all") for n in ("copy", "triad", "read"))
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
    figures["capacity_bytes", "hbm"] = _said(total)
    return Found(figures)


def second_level_cache(device: Device) -> Found:
    """Measure copying and reading arrays that stay in L2, past L1."""
    capacity = int(device.properties["l2CacheSize"])
    count = max(1, capacity // 8 // 16)
    a, out = (device.random(4 * count) for _ in range(2))
    size, rounds, blocks = np.uint64(count), np.int32(_ROUNDS), _blocks(device)
    copy, read = (device.cupy.RawKernel(SOURCE, name) for name in ("copy_all", "read_all"))
    moved = 16.0 * count * _ROUNDS
    copied = device.queued(lambda: copy(blocks, (_THREADS,), (a, out, size, rounds)))
    taken = device.queued(lambda: read(blocks, (_THREADS,), (a, out, size, rounds)))
    return Found({
        ("bandwidth_bytes_per_s", "l2"): copied.rate(2 * moved, f"copy of {16 * count} B"),
        ("bandwidth_bytes_per_s", "l2_read"): taken.rate(moved, f"reading {16 * count} B"),
        ("capacity_bytes", "l2"): _said(capacity),
    })  # fmt: skip


def launches(device: Device) -> Found:
    """Measure an empty kernel: the host's share of a launch, the device's, and the round trip."""
    kernel = device.cupy.RawKernel(SOURCE, "nothing")

    def launch() -> None:
        kernel((1,), (1,), ())

    queued, trips = [], []
    for _ in range(device.repeats + 1):
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            launch()
        queued.append((time.perf_counter() - began) / _LAUNCHES)
        device.wait()
        began = time.perf_counter()
        launch()
        device.wait()
        trips.append(time.perf_counter() - began)
    return Found({
        ("latency_s", "launch"): Spread.of(queued[1:]).figure("host, per CuPy RawKernel launch"),
        ("latency_s", "launch_and_wait"): Spread.of(trips[1:]).figure("host, launch to its end"),
        ("latency_s", "empty_kernel"): device.queued(launch).figure(
            "device, per empty kernel behind another"
        ),
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
        n, q = one.bytes[-1], Spread(one.median_s[-1], one.q1_s[-1], one.q3_s[-1], one.repeats)
        if one.memory == "pageable" or one.clock == "device":
            key = f"pcie_{one.direction}" + ("_pageable" if one.memory == "pageable" else "")
            how = f"{one.memory} memory, {n} B at a time, {one.clock} clock"
            figures["bandwidth_bytes_per_s", key] = q.rate(n, how)
    return Found(figures, tuple(series))


def _copy(device: Device, ranks: Ranks, memory: str, direction: str, size: int) -> Spread:
    """Return host seconds of one cudaMemcpy, which waits for its end."""
    runtime = device.cupy.cuda.runtime
    host, there = _buffers(device, memory, size)
    to, source, kind = (
        (there.data.ptr, host.ctypes.data, runtime.memcpyHostToDevice)
        if direction == "h2d"
        else (host.ctypes.data, there.data.ptr, runtime.memcpyDeviceToHost)
    )
    device.wait()
    return ranks.slowest(lambda: runtime.memcpy(to, source, size, kind), device.repeats)


def _queued_copy(device: Device, direction: str, size: int) -> Spread:
    runtime = device.cupy.cuda.runtime
    host, there = _buffers(device, "pinned", size)
    to, source, kind = (
        (there.data.ptr, host.ctypes.data, runtime.memcpyHostToDevice)
        if direction == "h2d"
        else (host.ctypes.data, there.data.ptr, runtime.memcpyDeviceToHost)
    )
    return device.queued(lambda: runtime.memcpyAsync(to, source, size, kind, device.stream.ptr))


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


def _said(value: int) -> Figure:
    return Figure(float(value), "cudaGetDeviceProperties")
