// out = alpha a b + beta out; a (m x k), b (k x n), out (m x n). Section 4.2 of the handout.
//
// A block of 16 x 4 threads computes a 64 x 16 piece of the output; each of its 64 threads computes
// one row of 16 elements, in registers. The block walks along k in steps of 4: the threads load
// a 4 x 16 piece of b into shared memory, each one element, and each thread loads 4 elements of its
// own row of a into registers (shared memory would not help: nobody else needs that row). Then it
// multiplies its 1 x 4 by the 4 x 16.
//
// A thread's element of a is used 16 times from a register, and an element of b, the same for all
// threads of a warp, is one broadcast from shared memory: per multiply-add there is one
// shared-memory load, of half the traffic of Algorithm 2, and 1/16 load of a. The price: 64 threads
// and few loads in flight, two barriers for 64 multiply-adds a thread, and, if rows of a are
// contiguous, threads of a warp that read 32 rows apart (the cache lines last for 8 steps).
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col]. Beyond the edges
// the pieces hold zeros. With beta = 0 the output is not read.

#define ROWS 64
#define COLUMNS 16
#define STEP 4

extern "C" __global__ void __launch_bounds__(ROWS)
gemm_register(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
              double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
              long long b_row, long long b_col, long long out_row)
{
    __shared__ REAL b_piece[STEP][COLUMNS];
    const int x = threadIdx.x, y = threadIdx.y;
    const int left = blockIdx.x * COLUMNS;

    for (int top = blockIdx.y * ROWS; top < m; top += gridDim.y * ROWS) {
        const int row = top + y * COLUMNS + x;
        REAL sums[COLUMNS] = {};
        for (int start = 0; start < k; start += STEP) {
            const bool inside = start + y < k && left + x < n;
            b_piece[y][x] = inside ? b[(start + y) * b_row + (left + x) * b_col] : REAL(0);
            REAL a_piece[STEP];
            #pragma unroll
            for (int l = 0; l < STEP; ++l) {
                const bool there = row < m && start + l < k;
                a_piece[l] = there ? a[row * a_row + (start + l) * a_col] : REAL(0);
            }
            __syncthreads();
            #pragma unroll
            for (int l = 0; l < STEP; ++l) {
                #pragma unroll
                for (int j = 0; j < COLUMNS; ++j) sums[j] += a_piece[l] * b_piece[l][j];
            }
            __syncthreads();
        }
        if (row >= m) continue;
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            if (left + j >= n) break;
            REAL* const target = out + row * out_row + left + j;
            const REAL product = REAL(alpha) * sums[j];
            *target = beta == 0 ? product : product + REAL(beta) * *target;
        }
    }
}
