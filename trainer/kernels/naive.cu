// out = alpha a b + beta out; a (m x k), b (k x n), out (m x n). The handout's Algorithm 1.
//
// One thread computes one element of the output: it walks along a row of a and down a column of b.
// Threads of a warp are neighbours along a row of the output, so they read the same element of a
// (one broadcast) and neighbouring elements of b (one coalesced load), if b's rows are contiguous.
//
// Nothing is kept for others: every element of a is read n times and every element of b m times,
// two loads for each multiply-add. The loads, not the arithmetic, take the time.
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col], so that transposed
// and sliced matrices are only other strides. With beta = 0 the output is not read.

extern "C" __global__ void __launch_bounds__(256)
gemm_naive(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
           double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
           long long b_row, long long b_col, long long out_row)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    for (int i = blockIdx.y * blockDim.y + threadIdx.y; i < m; i += gridDim.y * blockDim.y) {
        REAL sum = 0;
        for (int l = 0; l < k; ++l) sum += a[i * a_row + l * a_col] * b[l * b_row + j * b_col];

        REAL* const target = out + i * out_row + j;
        const REAL product = REAL(alpha) * sum;
        *target = beta == 0 ? product : product + REAL(beta) * *target;
    }
}
