"""The emulator itself: it runs what CUDA runs, and stops at what CUDA would not forgive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cuda_on_cpu import Emulator, KernelError, device_array

PROGRAMS = r"""
// Sums of 64 elements, reversed through static and dynamic shared memory, then over each warp.
extern "C" __global__ void __launch_bounds__(2 * 32)
sums(const float* a, float* out, int n, double scale, long long stride)
{
    __shared__ float turned[64];
    extern __shared__ float4 dynamic[];
    float* const room = reinterpret_cast<float*>(dynamic);
    const int i = threadIdx.x;
    turned[63 - i] = i < n ? a[i * stride] : 0;
    room[63 - i] = 1;
    __syncthreads();
    float v = turned[i] + room[i];
    for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(~0u, v, far);
    if (i % 32 == 0) out[blockIdx.x * 2 + i / 32] = v * scale;
}

// The last block to arrive adds up what all have written: the usual deterministic reduction.
extern "C" __global__ void last_block(const double* a, double* part, double* out, unsigned* done)
{
    __shared__ bool last;
    part[blockIdx.x] = a[2 * blockIdx.x] + a[2 * blockIdx.x + 1];
    __threadfence();
    if (threadIdx.x == 0) last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    double sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += part[i];
    *out = sum;
}

template <int WIDTH> __device__ float neighbour(float v)
{
    __shared__ float row[WIDTH];
    row[threadIdx.x] = v;
    __syncthreads();
    return row[(threadIdx.x + 1) % WIDTH];
}

extern "C" __global__ void warps(float* out)
{
    const int lane = threadIdx.x % 32;
    float* const mine = out + 8 * threadIdx.x;
    mine[0] = __shfl_sync(~0u, float(lane), lane + 1);
    mine[1] = __shfl_up_sync(~0u, float(lane), 3);
    mine[2] = __shfl_down_sync(~0u, float(lane), 3, 8);
    mine[3] = __ballot_sync(~0u, lane < 4);
    if (lane < 16) mine[4] = __shfl_xor_sync(0xffff, float(lane), 15); // only half of them
    __syncwarp();
    mine[5] = __shfl_xor_sync(~0u, float(lane), 31);
    mine[6] = neighbour<64>(threadIdx.x);
    mine[7] = __syncthreads_count(threadIdx.x < 40);
}

extern "C" __global__ void wrong(float* out, int what)
{
    __shared__ float row[64];
    extern __shared__ float room[];
    const int i = threadIdx.x;
    row[i] = 1;
    if (what == 1) out[1024] = 1;
    if (what == 2) row[i + 1] = 2;
    if (what == 3) *reinterpret_cast<float4*>(out + 1) = make_float4(1, 2, 3, 4);
    if (what == 4) { if (i < 3) __syncthreads(); else __syncwarp(); }
    if (what == 5) {
        if (i < 3) __syncthreads();
        else
            __syncthreads();
    }
    if (what == 6 && i > 3) out[i] = __shfl_down_sync(7, 1.0f, 1);
    if (what == 7) room[i + 1] = 1;
    if (what == 8) out[i] = i / (i - 5);
    out[i] = row[63 - i]; // there is no barrier before this
}
"""


@pytest.fixture(scope="module")
def emulator(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulator"))


@pytest.fixture(params=(0, 1, 5), ids=("ascending", "descending", "random"))
def kernels(request: pytest.FixtureRequest, emulator: Emulator) -> Any:
    emulator.order = request.param
    return emulator.compile(PROGRAMS).get_function


def test_barriers_shuffles_and_shared_memory(kernels: Any) -> None:
    a = device_array(np.arange(128, dtype=np.float32))
    out = device_array(np.full(6, np.nan, np.float32))
    kernels("sums")((3,), (64,), (a, out, np.int32(63), 0.5, 2), shared_mem=256)
    low, high = sum(range(0, 64, 2)) + 32, sum(range(64, 126, 2)) + 32
    assert out.tolist() == [high / 2, low / 2] * 3


def test_the_last_block_sees_all_others(kernels: Any) -> None:
    a = np.random.default_rng(0).standard_normal(200)
    part, out, done = np.full(100, np.nan), np.zeros(1), np.zeros(1, np.uint32)
    kernels("last_block")((100,), (32,), (a, part, out, done))
    assert out[0] == np.cumsum(a[::2] + a[1::2])[-1]
    assert done[0] == 0


def test_warp_operations(kernels: Any) -> None:
    out = np.full((64, 8), -1, np.float32)
    kernels("warps")((1,), (64,), (out,))
    lanes = np.arange(64) % 32
    assert (out[:, 0] == (lanes + 1) % 32).all()
    assert (out[:, 1] == np.where(lanes < 3, lanes, lanes - 3)).all()
    assert (out[:, 2] == np.where(lanes % 8 < 5, lanes + 3, lanes)).all()
    assert (out[:, 3] == 15).all()
    assert (out[:, 4] == np.where(lanes < 16, lanes ^ 15, -1)).all()
    assert (out[:, 5] == 31 - lanes).all()
    assert (out[:, 6] == (np.arange(64) + 1) % 64).all()
    assert (out[:, 7] == 40).all()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (1, "memory that is not there"),
        (2, "beyond an array"),
        (3, "misaligned"),
        (4, "deadlock"),
        (5, "different barriers"),
        (6, "a lane that its mask lacks"),
        (7, "behind the dynamic shared memory"),
        (8, "division by zero|a trap"),
    ],
)
def test_what_a_gpu_would_not_forgive_is_told(kernels: Any, what: int, says: str) -> None:
    out = device_array(np.zeros(1024, np.float32), at_the_end=True)
    with pytest.raises(KernelError, match=says) as error:
        kernels("wrong")((1,), (64,), (out, np.int32(what)), shared_mem=256)
    assert "block 0 0 0" in str(error.value)


def test_a_missing_barrier_shows_as_poison_or_as_a_dependence_on_the_order(
    emulator: Emulator,
) -> None:
    results = []
    for emulator.order in (0, 1):
        out = np.zeros(64, np.float32)
        emulator.compile(PROGRAMS).get_function("wrong")((1,), (64,), (out, np.int32(0)))
        results.append(out)
    assert np.isnan(results[0]).any()
    assert not np.array_equal(*results, equal_nan=True)


def test_arguments_of_another_type_are_refused(emulator: Emulator) -> None:
    kernel = emulator.compile(PROGRAMS).get_function("sums")
    a = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"wanted .*'i4', 'f8', 'i8'.* found .*'i8', 'f8', 'i8'"):
        kernel((1,), (64,), (a, a, 63, 0.5, 2), shared_mem=256)


def test_a_tiled_kernel_without_its_barriers_is_caught(emulator: Emulator, tmp_path: Path) -> None:
    """The check that guards our kernels does so: drop a barrier and it fails."""
    from support.cuda_on_cpu import KERNELS
    from support.kernel_cases import Case, check
    from trainer.kernels.plain import TiledGemm

    text = (KERNELS / "tiled.cu").read_text(encoding="utf-8")
    assert text.count("__syncthreads();") == 2

    class Broken(Emulator):
        def load(self, name: str, **macros: str | int) -> Any:
            broken = text.replace("__syncthreads();", "", 1)
            return self.compile(broken, name, **macros)

    with pytest.raises(AssertionError, match="bounds"):
        check(TiledGemm(Broken(tmp_path)), Case(40, 40, 40), "float32", device_array)
