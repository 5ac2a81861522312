"""What the GPU's arithmetic reaches: fused multiply-adds in registers."""

from __future__ import annotations

from typing import Final

import numpy as np

from perfmodel.machines.measure.device import Device
from perfmodel.machines.measure.measurement import Found

CHAINS: Final = 8
"""Independent accumulators of a thread: more than the latency of an FMA needs at full occupancy."""
UNROLLED: Final = 32
THREADS: Final = 256
BLOCKS_OF_AN_SM: Final = 8

SOURCE: Final = r"""
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
_ROUNDS: Final = {"float64": 400, "float32": 800, "float16": 800}


def arithmetic(device: Device, dtype: str) -> Found:
    """Measure fused multiply-adds of a data type without the tensor cores, 2 FLOP each."""
    cupy = device.cupy
    options = tuple(
        f"-D{name}={value}"
        for name, value in (("CHAINS", CHAINS), ("UNROLLED", UNROLLED), ("STARTS", STARTS))
    )
    options = ("--std=c++17", MACROS[dtype], *options)
    kernel = cupy.RawKernel(SOURCE, "multiply_adds", options=options)
    lanes, rounds = _LANES[dtype], np.int32(_ROUNDS[dtype])
    blocks = BLOCKS_OF_AN_SM * int(device.properties["multiProcessorCount"])
    start = device.random((2 + STARTS) * lanes, dtype)
    start[:lanes] = -1
    out = cupy.empty(blocks * THREADS * lanes, dtype)
    spread = device.queued(lambda: kernel((blocks,), (THREADS,), (start, out, rounds)))
    flops = 2.0 * lanes * CHAINS * UNROLLED * int(rounds) * blocks * THREADS
    how = f"{'packed pairs of ' if lanes > 1 else ''}fused multiply-adds in registers"
    return Found({("peak_flops_per_s", dtype): spread.rate(flops, how)})
