// out = alpha a b + beta out; a (m x k), b (k x n), out (m x n). The handout's Algorithm 2.
//
// A block of 32 x 32 threads computes a 32 x 32 tile of the output, one element a thread. It walks
// along k in steps of 32: all threads together load one tile of a and one of b into shared memory,
// each thread one element of both, then each thread multiplies its row of the one by its column of
// the other. An element that was loaded from global memory once is used 32 times: 32 times less
// global traffic than Algorithm 1. What remains are two shared-memory loads for each multiply-add.
//
// A matrix may be transposed: then its columns are contiguous, and the tile is loaded column by
// column (the threads' x and y change their roles) so that neighbouring threads still read
// neighbouring elements. Rows of a tile are 33 apart so that writing a column meets 32 banks.
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col]. Beyond the edges
// tiles hold zeros. With beta = 0 the output is not read.

#define TILE 32

__device__ __forceinline__ void load_tile(REAL (&tile)[TILE][TILE + 1], const REAL* __restrict__ x,
                                          int top, int left, int rows, int columns,
                                          long long x_row, long long x_col)
{
    const bool by_columns = x_row < x_col;
    const int i = by_columns ? threadIdx.x : threadIdx.y;
    const int j = by_columns ? threadIdx.y : threadIdx.x;
    const bool inside = top + i < rows && left + j < columns;
    tile[i][j] = inside ? x[(top + i) * x_row + (left + j) * x_col] : REAL(0);
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
gemm_tiled(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
           double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
           long long b_row, long long b_col, long long out_row)
{
    __shared__ REAL a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int left = blockIdx.x * TILE;

    for (int top = blockIdx.y * TILE; top < m; top += gridDim.y * TILE) {
        REAL sum = 0;
        for (int start = 0; start < k; start += TILE) {
            load_tile(a_tile, a, top, start, m, k, a_row, a_col);
            load_tile(b_tile, b, start, left, k, n, b_row, b_col);
            __syncthreads();
            #pragma unroll
            for (int l = 0; l < TILE; ++l) sum += a_tile[y][l] * b_tile[l][x];
            __syncthreads();
        }
        if (top + y < m && left + x < n) {
            REAL* const target = out + (top + y) * out_row + left + x;
            const REAL product = REAL(alpha) * sum;
            *target = beta == 0 ? product : product + REAL(beta) * *target;
        }
    }
}
