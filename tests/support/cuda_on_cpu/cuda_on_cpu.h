// Runs CUDA kernels on a CPU, unmodified, to test them where there is no GPU. Linux, GCC or Clang.
//
// Include this header, then the .cu files, then list the kernels to be called:
//
//     #include "cuda_on_cpu.h"
//     #include "trainer/kernels/tiled.cu"
//     CUDA_ON_CPU_KERNEL(gemm_tiled)         // a __global__ function that is no template
//     CUDA_ON_CPU_DYNAMIC_SHARED(panel)      // if it has: extern __shared__ float panel[];
//
// and compile that into a shared library (tests/support/cuda_on_cpu/__init__.py writes it, compiles it and
// calls it: `Emulator(folder).load("tiled", REAL="float").get_function("gemm_tiled")` gives what
// `kernel(grid, block, args, shared_mem=0)` is in CuPy, on NumPy arrays).
//
// What it does
// - Every thread of a block is a fiber on one OS thread; it runs until it waits at a barrier.
//   Blocks run one after another. `order` shuffles both: 0 ascending, 1 descending, else random.
//   A kernel whose result depends on the order lacks a barrier, or assumes something about blocks.
// - Shared memory is filled with bytes 0xFF (NaN, -1) before each block, static and dynamic.
// - It stops with a message at: threads of a block that wait at different barriers, a barrier never
//   reached by all, a warp operation whose mask lacks its caller, a write behind the dynamic shared
//   memory asked for, and any trap: memory that is not there, misaligned vectors, an index beyond
//   an array (the latter with -fsanitize=undefined -fsanitize-undefined-trap-on-error).
// - __CUDACC__ is not defined and CUDA_ON_CPU is: guard inline PTX with `#ifdef __CUDACC__` and
//   give an #else of plain C++. NVRTC and nvcc define __CUDACC__.
//
// What it does not do: blocks that wait for each other (grid barriers, spinning flags), clusters,
// textures, streams, memory ordering (fences do nothing), warps that run in lockstep (without
// __syncwarp, lanes run one after another). Shared variables must be of types without constructors.
#pragma once

#include <link.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#define CUDA_ON_CPU 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
// Block-scope thread_local is static, may be declared extern, and lies in one segment per library:
// all fibers are one OS thread, so they share it, and the segment can be found and poisoned.
#define __shared__ thread_local

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
    unsigned x, y, z;
};

#define CUDA_ON_CPU_VECTOR(type, name)                                                            \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                      \
    struct name##3 { type x, y, z; };                                                             \
    struct alignas(sizeof(type) < 8 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; };        \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                              \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                   \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTOR(float, float)
CUDA_ON_CPU_VECTOR(double, double)
CUDA_ON_CPU_VECTOR(int, int)
CUDA_ON_CPU_VECTOR(long long, longlong)
#undef CUDA_ON_CPU_VECTOR
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#include "fibers.h"
#include "launch.h"
#include "intrinsics.h"
