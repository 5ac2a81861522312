// out = alpha a b + beta out; a (m x k), b (k x n), out (m x n). Section 4.2 of the handout, and
// what makes it fast.
//
// A block of 16 x 4 threads computes a piece of 64 EACH rows and 16 columns of the output; each of
// its 64 threads computes EACH rows of 16 elements, in registers. The block walks along k in steps
// of STEP: the threads load a STEP x 16 piece of b into shared memory, and each thread loads STEP
// elements of its own rows of a. Then it multiplies its EACH x STEP by the STEP x 16.
//
// The handout's kernel is EACH 1, STEP 4, WIDE 1, STAGED 0: a in registers only ("not into shared
// memory"), because nobody else needs that row. Where a's columns are contiguous, as in the
// handout, a warp's 32 rows are neighbours and a load is one cache line. Where its rows are, a
// warp reads 32 lines for 32 elements, and L1 looks up one line after the other. And each
// multiply-add reads its element of b from shared memory again. Three macros remove one limit each:
//
// WIDE    elements of a load: b is read from shared memory, and a from global memory, WIDE elements
//         at a time (a only if A_WIDE says that its rows are contiguous and aligned).
// STAGED  1: a passes through shared memory, too, loaded along its rows and read down its columns.
// EACH    rows of a thread: an element of b in a register is used EACH times.
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col]. Beyond the edges
// the pieces hold zeros. With beta = 0 the output is not read.

#define THREADS 64
#define COLUMNS 16
#define ROWS (THREADS * EACH)
#define ACROSS (STEP / WIDE)  // threads along a row of a, where it passes through shared memory

struct alignas(WIDE * sizeof(REAL)) Wide {
    REAL x[WIDE];
};

// Elements l ... l + WIDE - 1 of a row of a, zeros beyond its end.
__device__ __forceinline__ Wide load_a(const REAL* __restrict__ a, int row, int l, int m, int k,
                                       long long a_row, long long a_col)
{
    Wide found = {};
    if (row >= m) return found;
#if A_WIDE
    if (l + WIDE <= k) return *reinterpret_cast<const Wide*>(a + row * a_row + l);
#endif
    #pragma unroll
    for (int i = 0; i < WIDE; ++i)
        if (l + i < k) found.x[i] = a[row * a_row + (l + i) * a_col];
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_register(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
              double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
              long long b_row, long long b_col, long long out_row)
{
    __shared__ Wide b_piece[STEP][COLUMNS / WIDE];
#if STAGED
    __shared__ REAL a_tile[STEP][ROWS + 2];  // + 2: the four loads of a row meet different banks
#endif
    const int x = threadIdx.x, y = threadIdx.y, thread = y * COLUMNS + x;
    const int left = blockIdx.x * COLUMNS;

    for (int top = blockIdx.y * ROWS; top < m; top += gridDim.y * ROWS) {
        REAL sums[EACH][COLUMNS] = {};
        for (int start = 0; start < k; start += STEP) {
            #pragma unroll
            for (int first = 0; first < STEP; first += THREADS / COLUMNS) {
                const int l = first + y;
                const bool inside = start + l < k && left + x < n;
                REAL& target = b_piece[l][x / WIDE].x[x % WIDE];
                target = inside ? b[(start + l) * b_row + (left + x) * b_col] : REAL(0);
            }
            REAL a_piece[EACH][STEP];
#if STAGED
            #pragma unroll
            for (int first = 0; first < ROWS; first += THREADS / ACROSS) {
                const int row = first + thread / ACROSS, l = thread % ACROSS * WIDE;
                const Wide some = load_a(a, top + row, start + l, m, k, a_row, a_col);
                #pragma unroll
                for (int i = 0; i < WIDE; ++i) a_tile[l + i][row] = some.x[i];
            }
#else
            #pragma unroll
            for (int r = 0; r < EACH; ++r) {
                #pragma unroll
                for (int l = 0; l < STEP; l += WIDE) {
                    const int row = top + r * THREADS + thread;
                    const Wide some = load_a(a, row, start + l, m, k, a_row, a_col);
                    #pragma unroll
                    for (int i = 0; i < WIDE; ++i) a_piece[r][l + i] = some.x[i];
                }
            }
#endif
            __syncthreads();
#if STAGED
            #pragma unroll
            for (int r = 0; r < EACH; ++r) {
                #pragma unroll
                for (int l = 0; l < STEP; ++l) a_piece[r][l] = a_tile[l][r * THREADS + thread];
            }
#endif
            #pragma unroll
            for (int l = 0; l < STEP; ++l) {
                #pragma unroll
                for (int j = 0; j < COLUMNS; j += WIDE) {
                    const Wide some = b_piece[l][j / WIDE];
                    #pragma unroll
                    for (int r = 0; r < EACH; ++r) {
                        #pragma unroll
                        for (int i = 0; i < WIDE; ++i) sums[r][j + i] += a_piece[r][l] * some.x[i];
                    }
                }
            }
            __syncthreads();
        }
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const int row = top + r * THREADS + thread;
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                if (row >= m || left + j >= n) break;
                REAL* const target = out + row * out_row + left + j;
                const REAL product = REAL(alpha) * sums[r][j];
                *target = beta == 0 ? product : product + REAL(beta) * *target;
            }
        }
    }
}
