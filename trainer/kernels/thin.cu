// out = alpha a b + beta out for a thin matrix a (m x k, m of about 10) and a wide b (k x n): with
// C = 10 classes W2 a1, dz2 a1^T, and sums of rows (a = ones). One launch, no scratch memory, sums
// in a fixed order. thin.py picks the macros, and exchanges a and b where n is the smaller one.
//
// Such a product reads b once and does little with it: it is as fast as b streams, and, at a few
// microseconds, as its longest chain of loads. So k is parted among the threads of a block, which
// each hold ROWS x COLUMNS sums in registers and walk along k in steps of DEPTH: all loads of
// a step are independent, of up to 16 bytes, and each element is used COLUMNS or ROWS times. Blocks
// take so many columns that there is one for every multiprocessor, and a, which each block reads
// in full, costs less than b.
//
//   a warp's lanes:  LANES of them lie along n, the others along k;
//   a block's warps: GROUPS of them lie along n, the others along k.
//
// ALONG_K = 1 is for a b whose columns are contiguous (a1^T): LANES = 1, and a lane reads vectors
// of VK elements along k, of a and of b. ALONG_K = 0 is for a b whose rows are contiguous (W2 a1):
// a lane reads vectors of VN elements along n, and of VK of a. Lanes always read neighbouring
// vectors. VK and VN divide k and n, so no vector is cut at an edge.
//
// In the end the lanes of a warp that share outputs fold their sums: they give away one half of
// their values, add what they get to the other, and hold half as many, until each owns different
// outputs (a butterfly of every sum would take log2 32 shuffles a value, folding takes about one).
// The warps' sums then meet in shared memory.
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col]; strides along
// a vector of more than one element are 1. EXACT says that ROWS divides m. With beta = 0 the output
// is not read. STEPS of the walk along k have their loads in flight together.

#define DEPTH 4

constexpr int THREADS = WARPS * 32;
constexpr int K_LANES = 32 / LANES;
constexpr int K_THREADS = WARPS / GROUPS * K_LANES;
constexpr int WIDTH = LANES * COLUMNS;   // columns of a warp
constexpr int TILE = GROUPS * WIDTH;     // columns of a block
constexpr int VALUES = ROWS * COLUMNS;   // sums of a thread,
constexpr int KEPT = (VALUES + K_LANES - 1) / K_LANES; // and those it has after folding
constexpr int STEPS = UNROLL;            // so many steps' loads in flight

template <int N> struct alignas(N * sizeof(REAL)) Vector { REAL at[N]; };

// Read N elements that are neighbours, or one.
template <int N, int SIZE>
__device__ __forceinline__ void load(REAL (&to)[SIZE], int first, const REAL* __restrict__ from)
{
    const Vector<N> v = *reinterpret_cast<const Vector<N>*>(from);
    #pragma unroll
    for (int i = 0; i < N; ++i) to[first + i] = v.at[i];
}

// Lanes that differ in BIT share out their COUNT values: a lane keeps [first, end) of all VALUES.
template <int COUNT, int BIT>
__device__ __forceinline__ void fold(REAL (&values)[VALUES], int lane, int& first, int& end)
{
    if constexpr (BIT >= LANES) {
        constexpr int HALF = (COUNT + 1) / 2;
        const bool upper = lane & BIT;
        #pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const REAL low = values[i], high = HALF + i < COUNT ? values[HALF + i] : REAL(0);
            values[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, BIT);
        }
        end = upper ? end : min(end, first + HALF);
        first += upper ? HALF : 0;
        fold<HALF, BIT / 2>(values, lane, first, end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_thin(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
          double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
          long long b_row, long long b_col, long long out_row, long long out_col)
{
    __shared__ REAL partial[WARPS][LANES][VALUES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x = lane % LANES, y = warp / GROUPS * K_LANES + lane / LANES;
    const int top = blockIdx.y * ROWS, block_left = blockIdx.x * TILE;
    const int left = block_left + warp % GROUPS * WIDTH;

    a += top * a_row;
    const REAL* columns[COLUMNS / VN]; // the thread's vectors of columns; beyond the edge, the last
    #pragma unroll
    for (int r = 0; r < COLUMNS; r += VN) {
        columns[r / VN] = b + min(left + r * LANES + x * VN, n - VN) * b_col;
    }

    REAL sums[VALUES] = {};
    #pragma unroll STEPS
    for (int start = y * VK; start < k; start += DEPTH * K_THREADS) {
        REAL a_piece[ROWS][DEPTH], b_piece[DEPTH][COLUMNS];
        #pragma unroll
        for (int d = 0; d < DEPTH; d += VK) {
            const int l = start + d * K_THREADS;
            const bool inside = d == 0 || l < k;
            #pragma unroll
            for (int c = 0; c < ROWS; ++c) {
                const int row = EXACT ? c : min(c, m - 1 - top);
                const REAL* const from = a + row * a_row + (VK > 1 ? l : l * a_col);
                if (inside) load<VK>(a_piece[c], d, from);
                else for (int i = 0; i < VK; ++i) a_piece[c][d + i] = 0;
            }
            #pragma unroll
            for (int r = 0; r < COLUMNS; r += VN) {
                REAL along[VK];
                if (ALONG_K && inside) load<VK>(along, 0, columns[r] + (VK > 1 ? l : l * b_row));
                #pragma unroll
                for (int i = 0; i < VK; ++i) {
                    if (!inside) for (int j = 0; j < VN; ++j) b_piece[d + i][r + j] = 0;
                    else if (ALONG_K) b_piece[d + i][r] = along[i];
                    else load<VN>(b_piece[d + i], r, columns[r / VN] + (l + i) * b_row);
                }
            }
        }
        #pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            #pragma unroll
            for (int v = 0; v < VALUES; ++v) {
                sums[v] += a_piece[v / COLUMNS][d] * b_piece[d][v % COLUMNS];
            }
        }
    }

    int first = 0, end = VALUES;
    fold<VALUES, 16>(sums, lane, first, end);
    #pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        if (first + i < end) partial[warp][x][first + i] = sums[i];
    }
    __syncthreads();

    for (int i = threadIdx.x; i < ROWS * TILE; i += THREADS) {
        const int row = i / TILE, column = i % TILE;
        const int group = column / WIDTH, in_warp = column % WIDTH;
        const int r = in_warp / (LANES * VN) * VN + in_warp % VN; // as the loads dealt columns out
        const int lane_x = in_warp % (LANES * VN) / VN;
        if (top + row >= m || block_left + column >= n) continue;
        REAL sum = 0;
        #pragma unroll
        for (int w = group; w < WARPS; w += GROUPS) sum += partial[w][lane_x][row * COLUMNS + r];
        REAL* const target = out + (top + row) * out_row + (block_left + column) * out_col;
        const REAL product = REAL(alpha) * sum;
        *target = beta == 0 ? product : product + REAL(beta) * *target;
    }
}
