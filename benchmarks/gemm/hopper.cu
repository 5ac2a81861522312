// out = a b^T by Hopper's own instructions; a (m x k), b (n x k), out (m x n), all row-major float32.
//
// One thread of the first warp group asks the tensor memory accelerator (TMA) for slabs of a and b,
// 32 elements along k, which arrive in shared memory in the 128-byte swizzle that wgmma reads; an
// mbarrier a stage counts their bytes. Two further warp groups multiply, 64 rows and BN columns
// each, by wgmma.mma_async on TF32: both factors come from shared memory, so neither passes through
// registers. They give a stage back by a second mbarrier. m, n are multiples of 128 and BN, k of 32.
//
// PARTS 1: the factors as they are; tensor cores ignore the low bits.
// PARTS 3: a and b are given as two TF32 numbers each, high and low (kernel `split`), and
// a_low b_high + a_high b_low + a_high b_high has float32's accuracy. Tensor cores truncate as they
// accumulate: every slab starts from 0 and is added to the sums by ordinary additions.

#include <stdint.h>

struct alignas(64) CUtensorMap {  // as cuda.h has it: opaque, made by cuTensorMapEncodeTiled
    uint64_t words[16];
};

#define BM 128
#define BK 32
#define GROUP 128  // threads of a warp group
#define A_BYTES (BM * BK * 4)
#define B_BYTES (BN * BK * 4)
#define FACTORS (PARTS == 1 ? 1 : 2)
#define STAGE_BYTES (FACTORS * (A_BYTES + B_BYTES))
#define SUMS (BN / 2)  // of a thread: 64 rows, BN columns, 128 threads

__device__ __forceinline__ uint32_t shared_address(const void* p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni over;\nbra.uni again;\nover:\n}"
                 :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ __forceinline__ void load(const CUtensorMap* map, void* to, uint64_t* barrier, int along_k,
                                     int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(along_k),
                    "r"(row) : "memory");
}

// Rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart (PTX ISA, "Matrix
// descriptor format" of wgmma).
__device__ __forceinline__ uint64_t descriptor(const void* tile)
{
    const uint64_t address = shared_address(tile);
    return (address & 0x3FFFF) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32
           | uint64_t(1) << 62;
}

#define R8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
              "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// d = a b + (add ? d : 0) for 8 elements along k.
__device__ __forceinline__ void multiply(float (&d)[SUMS], uint64_t a, uint64_t b, int add)
{
#if BN == 128
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1;\n}"
        : R8(0), R8(8), R8(16), R8(24), R8(32), R8(40), R8(48), R8(56)
        : "l"(a), "l"(b), "r"(add));
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127}, %128, %129, p, 1, 1;\n}"
        : R8(0), R8(8), R8(16), R8(24), R8(32), R8(40), R8(48), R8(56),
          R8(64), R8(72), R8(80), R8(88), R8(96), R8(104), R8(112), R8(120)
        : "l"(a), "l"(b), "r"(add));
#endif
}

// One slab: 32 elements along k, a step of 8 is 32 bytes further in every row.
__device__ __forceinline__ void slab(float (&d)[SUMS], const char* a, const char* b, int add)
{
    const uint64_t first_a = descriptor(a), first_b = descriptor(b);
    #pragma unroll
    for (int step = 0; step < BK / 8; ++step)
        multiply(d, first_a + 2 * step, first_b + 2 * step, add || step);
}

extern "C" __global__ void __launch_bounds__(3 * GROUP)
gemm_hopper(const __grid_constant__ CUtensorMap a_high, const __grid_constant__ CUtensorMap a_low,
            const __grid_constant__ CUtensorMap b_high, const __grid_constant__ CUtensorMap b_low,
            float* __restrict__ out, int m, int n, int k)
{
    extern __shared__ char raw[];
    char* const stages = raw + (1024 - shared_address(raw) % 1024) % 1024;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int group = threadIdx.x / GROUP, slabs = k / BK;
    // blocks that run together share columns of b: 16 rows of tiles, column by column
    const int rows = m / BM, band = blockIdx.x / (16 * (n / BN)) * 16, high = min(16, rows - band);
    const int within = blockIdx.x - band * (n / BN);
    const int top = (band + within % high) * BM, left = within / high * BN;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(shared_address(&empty[s])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 0) return;
        for (int i = 0; i < slabs; ++i) {
            const int s = i % STAGES;
            char* const to = stages + s * STAGE_BYTES;
            if (i >= STAGES) wait(&empty[s], (i / STAGES - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         :: "r"(shared_address(&full[s])), "r"(STAGE_BYTES) : "memory");
            load(&a_high, to, &full[s], i * BK, top);
            load(&b_high, to + FACTORS * A_BYTES, &full[s], i * BK, left);
#if PARTS == 3
            load(&a_low, to + A_BYTES, &full[s], i * BK, top);
            load(&b_low, to + 2 * A_BYTES + B_BYTES, &full[s], i * BK, left);
#endif
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int mine = (group - 1) * 64, thread = threadIdx.x % GROUP;
    float sums[SUMS] = {};
    for (int i = 0; i < slabs; ++i) {
        const int s = i % STAGES;
        const char* const a = stages + s * STAGE_BYTES + mine * BK * 4;
        const char* const b = stages + s * STAGE_BYTES + FACTORS * A_BYTES;
        wait(&full[s], i / STAGES & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if PARTS == 1
        slab(sums, a, b, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // the slab before is done when at most this one is under way
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        const int done = (i + STAGES - 1) % STAGES;
        if (thread == 0 && i > 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                         :: "r"(shared_address(&empty[done])) : "memory");
#else
        float part[SUMS];
        slab(part, a + A_BYTES, b, 0);
        slab(part, a, b + B_BYTES, 1);
        slab(part, a, b, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (thread == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                         :: "r"(shared_address(&empty[s])) : "memory");
        #pragma unroll
        for (int j = 0; j < SUMS; ++j) sums[j] += part[j];
#endif
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

    const int lane = thread % 32, row = top + mine + thread / 32 * 16 + lane / 4;
    float* const target = out + (long long)row * n + left + lane % 4 * 2;
    #pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
        *reinterpret_cast<float2*>(target + 8 * j) = make_float2(sums[4 * j], sums[4 * j + 1]);
        *reinterpret_cast<float2*>(target + 8ll * n + 8 * j)
            = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
}

__device__ __forceinline__ float rounded(float v)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return __uint_as_float(bits);
}

// x as the sum of two TF32 numbers.
extern "C" __global__ void split(const float4* __restrict__ x, float4* __restrict__ high,
                                 float4* __restrict__ low, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float4 v = x[i];
    const float4 h = make_float4(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w));
    high[i] = h;
    low[i] = make_float4(rounded(v.x - h.x), rounded(v.y - h.y), rounded(v.z - h.z),
                         rounded(v.w - h.w));
}
