// Hierarchical tiling (CUTLASS's structure): C = alpha A B + beta C, or sigmoid(A B + bias).
//
// A block owns BM x BN of C and walks along k in slabs of BK. Slabs of A and B are copied to shared
// memory asynchronously (cp.async), STAGES - 1 of them ahead of the one that is multiplied: one
// barrier a slab. A warp owns WM x WN of the block's tile and multiplies
//   MATH 0 (ieee)    on the ordinary units: a thread owns groups of four rows and of four columns, and
//                    reads the fragments of the next k while it multiplies those of this one;
//   MATH 1 (tf32)    on tensor cores, 16 x 8 x 8 at a time (mma.sync), the factors rounded to TF32
//                    (10 bits of mantissa);
//   MATH 3 (tf32x3)  the same with float32's accuracy: a factor is split into two TF32 numbers,
//                    v = high + low, and C = A_low B_high + A_high B_low + A_high B_high. With
//                    B_EXACT the B_low are known to be 0 (small integers, such as raw pixels).
// With `splits` > 1 several blocks share a tile and each walks a part of k. Each leaves its sum in
// `partial`; the last to arrive adds them in the order of k, so every run gives the same bits.
//
// Macros: REAL; BM, BN, BK, WM, WN, STAGES; MATH, B_EXACT; A_ALONG_K, B_ALONG_K (1: neighbours in k
// are neighbours in memory; 0: neighbours in m or n are); A_ALIGNED, B_ALIGNED, C_ALIGNED (1: rows
// start on 16 bytes); SIGMOID (1: C = sigmoid(A B + bias), bias by rows).

#define THREADS (32 * (BM / WM) * (BN / WN))
#define ACCUMULATORS (WM * WN / 32)
#define CHUNK int(16 / sizeof(REAL))  // elements of the widest copy
#define LANES_M 8                     // FFMA: how a warp's lanes share its tile
#define LANES_N 4
#define TM (WM / LANES_M)
#define TN (WN / LANES_N)

// How a slab lies in shared memory. ByK: [k][w], a row of m or n for every k. Swizzled: [w][k] with
// BK = 32, 16-byte words exchanged within a row so that eight rows' words of the same k lie in
// different banks; for tensor cores and factors whose k is contiguous.
#define A_SWIZZLED (MATH != 0 && A_ALONG_K)
#define B_SWIZZLED (MATH != 0 && B_ALONG_K)
#define PAD (MATH == 0 ? 4 : 8)
#define A_SIZE (A_SWIZZLED ? BM * BK : BK * (BM + PAD))
#define B_SIZE (B_SWIZZLED ? BN * BK : BK * (BN + PAD))

static_assert(MATH == 0 || (BK == 32 && sizeof(REAL) == 4), "tensor cores: float32 and slabs of 32");

#ifdef __CUDACC__
template <int BYTES>
__device__ __forceinline__ void copy_async(REAL* to, const REAL* from, int valid) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(valid));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(at), "l"(from), "n"(BYTES), "r"(valid));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
__device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
__device__ __forceinline__ REAL read_past_l1(const REAL* p) { return __ldcg(p); }
#else
template <int BYTES>
__device__ void copy_async(REAL* to, const REAL* from, int valid) {
    for (int i = 0; i < int(BYTES / sizeof(REAL)); ++i)
        to[i] = i * int(sizeof(REAL)) < valid ? from[i] : REAL(0);
}
__device__ void commit() {}
template <int PENDING>
__device__ void wait() {}
__device__ REAL read_past_l1(const REAL* p) { return *p; }
#endif

// One factor's way into shared memory; what lies outside the matrix becomes 0. `across` and `along`
// are the strides in m or n ("w") and in k; `width` and `left` the elements from here on.
template <bool ALONG_K, bool ALIGNED, bool SWIZZLED, int WIDTH>
struct Loader {
    // a copy is of CHUNK elements where memory and shared memory have the same neighbours
    static constexpr int EACH = SWIZZLED || !ALONG_K ? CHUNK : 1;
    static constexpr int ROUNDS = WIDTH * BK / (EACH * THREADS);
    static_assert(ROUNDS * EACH * THREADS == WIDTH * BK, "every thread copies as often");
    const REAL* __restrict__ slab;
    long long across, along;
    int width, left;

    // The copies that are `at` places behind the first one: where in the slab. A warp's copies of
    // single elements are 8 of k by 4 rows: whole sectors in memory, all banks in shared memory.
    static __device__ __forceinline__ void place(int at, int& w, int& k) {
        if (SWIZZLED) {
            w = at / (BK / CHUNK);
            k = at % (BK / CHUNK) * CHUNK;
        } else if (ALONG_K) {
            w = at / 8 % WIDTH;
            k = at % 8 + at / (8 * WIDTH) * 8;
        } else {
            w = at % (WIDTH / CHUNK) * CHUNK;
            k = at / (WIDTH / CHUNK);
        }
    }
    static __device__ __forceinline__ int shared_place(int w, int k) {
        return SWIZZLED ? w * BK + ((k / CHUNK) ^ (w & 7)) * CHUNK : k * (WIDTH + PAD) + w;
    }
    // Whether a thread's i-th place is its first plus a constant: then addresses cost one addition.
    static constexpr bool REGULAR =
        SWIZZLED ? THREADS / (BK / CHUNK) % 8 == 0
                 : ALONG_K ? WIDTH % (THREADS / 8) == 0 : THREADS % (WIDTH / CHUNK) == 0;

    __device__ __forceinline__ Loader(
        const REAL* p, long long across, long long along, int w0, int k0, int width, int depth)
        : slab(p + w0 * across + k0 * along), across(across), along(along), width(width - w0), left(depth - k0)
    {}

    // Begin to copy the next slab.
    __device__ __forceinline__ void copy(REAL* shared) {
        if (REGULAR && (ALIGNED || EACH == 1) && left >= BK && width >= WIDTH) copy_whole(shared);
        else copy_part(shared, slab, across, along, width, left);
        slab += BK * along;
        left -= BK;
    }

    // A slab inside the matrix.
    __device__ __forceinline__ void copy_whole(REAL* shared) {
        int w, k;
        place(threadIdx.x, w, k);
        REAL* to = shared + shared_place(w, k);
        const REAL* from = slab + w * across + k * along;
        #pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            int wi, ki;
            place(i * THREADS, wi, ki);
            copy_async<EACH * int(sizeof(REAL))>(
                to + (SWIZZLED ? wi * BK : ki * (WIDTH + PAD) + wi), from + wi * across + ki * along,
                EACH * int(sizeof(REAL)));
        }
    }

    // A slab that may cross the matrix's edge, or whose rows are not aligned.
    static __device__ __noinline__ void copy_part(
        REAL* shared, const REAL* slab, long long across, long long along, int width, int left)
    {
        for (int i = 0; i < ROUNDS; ++i) {
            int w, k;
            place(threadIdx.x + i * THREADS, w, k);
            REAL* to = shared + shared_place(w, k);
            const REAL* from = slab + w * across + k * along;
            const int inside = ALONG_K ? (w < width ? left - k : 0) : (k < left ? width - w : 0);
            if (EACH == 1 || ALIGNED) {
                const int valid = max(0, min(EACH, inside)) * int(sizeof(REAL));
                copy_async<EACH * int(sizeof(REAL))>(to, valid ? from : slab, valid);
            } else {
                for (int j = 0; j < EACH; ++j)
                    copy_async<int(sizeof(REAL))>(
                        to + j, j < inside ? from + j * (ALONG_K ? along : across) : slab,
                        j < inside ? int(sizeof(REAL)) : 0);
            }
        }
    }
};

#if MATH == 0

struct Quad { REAL v[4]; };
__device__ __forceinline__ void read_quad(Quad& q, const float* p) {
    const float4 f = *reinterpret_cast<const float4*>(p);
    q.v[0] = f.x; q.v[1] = f.y; q.v[2] = f.z; q.v[3] = f.w;
}
__device__ __forceinline__ void read_quad(Quad& q, const double* p) {
    const double2 f = reinterpret_cast<const double2*>(p)[0];
    const double2 g = reinterpret_cast<const double2*>(p)[1];
    q.v[0] = f.x; q.v[1] = f.y; q.v[2] = g.x; q.v[3] = g.y;
}

// Accumulator e of a lane: groups of four rows, 32 apart, and of four columns, 16 apart.
#define GROUP 4  // accumulators that are neighbours in a row of C
__device__ __forceinline__ void position(int e, int lane, int& row, int& column) {
    const int i = e / TN, j = e % TN;
    row = i / 4 * (4 * LANES_M) + 4 * (lane % LANES_M) + i % 4;
    column = j / 4 * (4 * LANES_N) + 4 * (lane / LANES_M) + j % 4;
}

__device__ __forceinline__ void multiply(
    REAL (&c)[ACCUMULATORS], const REAL* a, const REAL* b, int wm, int wn, int lane)
{
    a += wm + 4 * (lane % LANES_M);
    b += wn + 4 * (lane / LANES_M);
    Quad fa[2][TM / 4], fb[2][TN / 4];
    auto read = [&](int k) {
        #pragma unroll
        for (int i = 0; i < TM / 4; ++i) read_quad(fa[k & 1][i], a + k * (BM + PAD) + i * (4 * LANES_M));
        #pragma unroll
        for (int j = 0; j < TN / 4; ++j) read_quad(fb[k & 1][j], b + k * (BN + PAD) + j * (4 * LANES_N));
    };
    read(0);
    #pragma unroll
    for (int k = 0; k < BK; ++k) {
        if (k + 1 < BK) read(k + 1);
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j)
                c[i * TN + j] += fa[k & 1][i / 4].v[i % 4] * fb[k & 1][j / 4].v[j % 4];
    }
}

#else

#define MI (WM / 16)
#define NJ (WN / 8)
static_assert(WM % 16 == 0 && WN % 16 == 0, "pieces of B are read in pairs");

// Accumulator e of a lane (PTX ISA, "Matrix fragments for mma.m16n8k8").
#define GROUP 2
__device__ __forceinline__ void position(int e, int lane, int& row, int& column) {
    const int piece = e / 4, part = e % 4;
    row = piece / NJ * 16 + lane / 4 + 8 * (part / 2);
    column = piece % NJ * 8 + 2 * (lane % 4) + part % 2;
}

// Four 8 x 4 pieces of a swizzled slab, one row's address from each lane: lane l then holds element
// (l / 4, l % 4) of each.
__device__ __forceinline__ void read_pieces(unsigned (&f)[4], const REAL* shared, int w, int chunk) {
#ifdef __CUDACC__
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared + w * BK + (chunk ^ (w & 7)) * CHUNK);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at));
#endif
}

// C += A B for one 16 x 8 x 8 piece.
__device__ __forceinline__ void mma(REAL* d, const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The tensor cores read the upper 19 bits: half a unit of the last of them makes that rounding.
__device__ __forceinline__ unsigned rounded(unsigned v) { return v + 0x1000u; }

// Split v into the nearest TF32 number and what is missing, rounded alike.
__device__ __forceinline__ void split(unsigned v, unsigned& high, unsigned& low) {
    high = rounded(v) & 0xffffe000u;
    low = rounded(__float_as_uint(__uint_as_float(v) - __uint_as_float(high)));
}

// Tensor cores truncate when they accumulate, so a long sum in them drifts: a slab's sum starts from
// 0 and is added to C by an ordinary, rounded addition. For TF32, whose factors err more, c itself.
__device__ __forceinline__ void multiply(
    REAL (&total)[ACCUMULATORS], const REAL* a, const REAL* b, int wm, int wn, int lane)
{
    const int g = lane / 4, t = lane % 4;
#if MATH == 1
    REAL (&c)[ACCUMULATORS] = total;
#else
    REAL c[ACCUMULATORS];
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; ++e) c[e] = REAL(0);
#endif
    #pragma unroll
    for (int k = 0; k < BK; k += 8) {
        unsigned fa[MI][4], fb[NJ][2];
        #pragma unroll
        for (int i = 0; i < MI; ++i) {
            if (A_SWIZZLED) {  // pieces (rows 0-7, k 0-3), (8-15, 0-3), (0-7, 4-7), (8-15, 4-7)
                read_pieces(fa[i], a, wm + 16 * i + lane % 16, k / CHUNK + lane / 16);
            } else {
                const REAL* at = a + (k + t) * (BM + PAD) + wm + 16 * i + g;
                fa[i][0] = __float_as_uint(at[0]);
                fa[i][1] = __float_as_uint(at[8]);
                fa[i][2] = __float_as_uint(at[4 * (BM + PAD)]);
                fa[i][3] = __float_as_uint(at[4 * (BM + PAD) + 8]);
            }
        }
        #pragma unroll
        for (int j = 0; j < NJ; j += B_SWIZZLED ? 2 : 1) {
            if (B_SWIZZLED) {  // pieces (columns 0-7, k 0-3), (0-7, 4-7), (8-15, 0-3), (8-15, 4-7)
                unsigned f[4];
                read_pieces(f, b, wn + 8 * j + lane % 8 + lane / 16 * 8, k / CHUNK + lane / 8 % 2);
                fb[j][0] = f[0];
                fb[j][1] = f[1];
                fb[j + 1][0] = f[2];
                fb[j + 1][1] = f[3];
            } else {
                const REAL* at = b + (k + t) * (BN + PAD) + wn + 8 * j + g;
                fb[j][0] = __float_as_uint(at[0]);
                fb[j][1] = __float_as_uint(at[4 * (BN + PAD)]);
            }
        }
#if MATH == 1
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e) fa[i][e] = rounded(fa[i][e]);
        #pragma unroll
        for (int j = 0; j < NJ; ++j) {
            fb[j][0] = rounded(fb[j][0]);
            fb[j][1] = rounded(fb[j][1]);
        }
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int j = 0; j < NJ; ++j) mma(&c[4 * (i * NJ + j)], fa[i], fb[j]);
#else
        unsigned high_b[NJ][2], low_b[NJ][2];
        #pragma unroll
        for (int j = 0; j < NJ; ++j)
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (B_EXACT) high_b[j][e] = fb[j][e];
                else split(fb[j][e], high_b[j][e], low_b[j][e]);
            }
        #pragma unroll
        for (int i = 0; i < MI; ++i) {
            unsigned high[4], low[4];
            #pragma unroll
            for (int e = 0; e < 4; ++e) split(fa[i][e], high[e], low[e]);
            #pragma unroll
            for (int j = 0; j < NJ; ++j) mma(&c[4 * (i * NJ + j)], low, high_b[j]);  // the small first
            if (!B_EXACT) {
                #pragma unroll
                for (int j = 0; j < NJ; ++j) mma(&c[4 * (i * NJ + j)], high, low_b[j]);
            }
            #pragma unroll
            for (int j = 0; j < NJ; ++j) mma(&c[4 * (i * NJ + j)], high, high_b[j]);
        }
#endif
    }
#if MATH == 3
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; ++e) total[e] += c[e];
#endif
}

#endif

// Add the partial sums of all splits of this tile in order; false for all blocks but the last.
__device__ __forceinline__ bool gather(
    REAL (&c)[ACCUMULATORS], REAL* partial, unsigned* arrived, int tile, int split, int splits)
{
    __shared__ bool last;
    REAL* mine = partial + (long long)(tile * splits + split) * (ACCUMULATORS * THREADS) + threadIdx.x;
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; ++e) mine[e * THREADS] = c[e];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&arrived[tile], 1u) == unsigned(splits - 1);
        if (last) arrived[tile] = 0;  // ready for the next launch
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; ++e) c[e] = REAL(0);
    for (int s = 0; s < splits; ++s) {
        const REAL* other = partial + (long long)(tile * splits + s) * (ACCUMULATORS * THREADS) + threadIdx.x;
        #pragma unroll
        for (int e = 0; e < ACCUMULATORS; ++e) c[e] += read_past_l1(other + e * THREADS);
    }
    return true;
}

// Neighbouring blocks share slabs of both factors: walk the tiles in bands of 8 rows.
__device__ __forceinline__ void tile_of(int tile, int rows, int columns, int& row, int& column) {
    const int band = tile / (8 * columns), first = 8 * band;
    const int height = min(8, rows - first), within = tile - band * 8 * columns;
    row = first + within % height;
    column = within / height;
}

extern __shared__ __align__(16) unsigned char slabs[];

extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    int m, int n, int depth, REAL alpha,
    const REAL* __restrict__ a, long long a_row, long long a_col,
    const REAL* __restrict__ b, long long b_row, long long b_col,
    REAL beta, REAL* __restrict__ c, long long c_row,
    int splits, REAL* partial, unsigned* arrived, const REAL* __restrict__ bias)
{
    REAL* shared = reinterpret_cast<REAL*>(slabs);  // [STAGES][A_SIZE + B_SIZE]
    const int tile = blockIdx.x / splits, split = blockIdx.x % splits;
    int tile_row, tile_column;
    tile_of(tile, (m + BM - 1) / BM, (n + BN - 1) / BN, tile_row, tile_column);
    const int m0 = tile_row * BM, n0 = tile_column * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN;
    const int all = (depth + BK - 1) / BK;
    const int first = (long long)all * split / splits, count = (long long)all * (split + 1) / splits - first;

    Loader<A_ALONG_K, A_ALIGNED, A_SWIZZLED, BM> load_a(a, a_row, a_col, m0, first * BK, m, depth);
    Loader<B_ALONG_K, B_ALIGNED, B_SWIZZLED, BN> load_b(b, b_col, b_row, n0, first * BK, n, depth);
    auto begin = [&](int slab) {  // an empty group keeps the count of groups right
        if (slab < count) {
            REAL* to = shared + slab % STAGES * (A_SIZE + B_SIZE);
            load_a.copy(to);
            load_b.copy(to + A_SIZE);
        }
        commit();
    };
    REAL acc[ACCUMULATORS];
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; ++e) acc[e] = REAL(0);
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) begin(s);
    for (int slab = 0; slab < count; ++slab) {
        wait<STAGES - 2>();
        __syncthreads();  // this slab is here for all, and all are done with the one before
        begin(slab + STAGES - 1);
        const REAL* here = shared + slab % STAGES * (A_SIZE + B_SIZE);
        multiply(acc, here, here + A_SIZE, wm, wn, lane);
    }
    if (splits > 1 && !gather(acc, partial, arrived, tile, split, splits)) return;
    #pragma unroll
    for (int e = 0; e < ACCUMULATORS; e += GROUP) {
        int row, column;
        position(e, lane, row, column);
        row += m0 + wm;
        column += n0 + wn;
        if (row >= m || column >= n) continue;
        REAL* out = c + row * c_row + column;
        REAL v[GROUP];
        #pragma unroll
        for (int j = 0; j < GROUP; ++j) {
#if SIGMOID
            v[j] = REAL(1) / (REAL(1) + exp(-(acc[e + j] + bias[row])));
#else
            v[j] = alpha * acc[e + j];
            if (beta != REAL(0) && column + j < n) v[j] += beta * out[j];
#endif
        }
        if (C_ALIGNED && GROUP * sizeof(REAL) == 16) {
            *reinterpret_cast<float4*>(out) = *reinterpret_cast<float4*>(v);
        } else if (C_ALIGNED && GROUP * sizeof(REAL) == 8) {
            *reinterpret_cast<float2*>(out) = *reinterpret_cast<float2*>(v);
        } else {
            #pragma unroll
            for (int j = 0; j < GROUP; ++j)
                if (column + j < n) out[j] = v[j];
        }
    }
}
