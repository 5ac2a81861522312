// out = alpha a b + beta out for a short k (a is m x k, b is k x n, k of about 10): with C = 10
// classes W2^T dz2, a sum of 10 outer products. thin.py picks the macros.
//
// The product reads little and writes much: it is as fast as the output streams out. A lane holds
// all K elements of COLUMNS columns of b in registers, loaded once; each row of a then costs K
// loads that a whole warp shares, and the outputs leave as vectors of VN neighbouring elements,
// a warp's 32 side by side. A warp computes ROWS rows, and a block WARPS times as many; vectors of
// VM elements of a are read down a column where a is transposed (W2^T). VN and VM divide n and m.
//
// REAL is float or double. Element (i, j) of x lies at x[i * x_row + j * x_col]; strides along
// a vector of more than one element are 1. K is k, or 1 for a k of 0. With beta = 0 the output is
// not read. STREAM marks what is written as the first to leave L2.

constexpr int WIDTH = 32 * COLUMNS;

template <int N> struct alignas(N * sizeof(REAL)) Vector { REAL at[N]; };

template <int N> __device__ __forceinline__ void store(Vector<N>* to, const Vector<N>& v)
{
    if constexpr (STREAM && sizeof(v) == 16) {
        __stcs(reinterpret_cast<float4*>(to), reinterpret_cast<const float4&>(v));
    } else {
        *to = v;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
gemm_thin_outer(const REAL* __restrict__ a, const REAL* __restrict__ b, REAL* __restrict__ out,
                double alpha, double beta, int m, int n, int k, long long a_row, long long a_col,
                long long b_row, long long b_col, long long out_row)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int left = blockIdx.x * WIDTH + lane * VN;

    REAL b_piece[K][COLUMNS] = {};
    #pragma unroll
    for (int l = 0; l < K; ++l) {
        #pragma unroll
        for (int r = 0; r < COLUMNS; r += VN) {
            if (k == 0) break;
            const int column = min(left + r * 32, n - VN); // beyond the edge, the last
            const REAL* const from = b + l * b_row + column * b_col;
            const Vector<VN> v = *reinterpret_cast<const Vector<VN>*>(from);
            #pragma unroll
            for (int i = 0; i < VN; ++i) b_piece[l][r + i] = v.at[i];
        }
    }
    for (int top = (blockIdx.y * WARPS + warp) * ROWS; top < m; top += gridDim.y * WARPS * ROWS) {
        REAL a_piece[K][ROWS] = {};
        #pragma unroll
        for (int c = 0; c < ROWS; c += VM) {
            #pragma unroll
            for (int l = 0; l < K; ++l) {
                if (k == 0) break;
                const REAL* const from = a + min(top + c, m - VM) * a_row + l * a_col;
                const Vector<VM> v = *reinterpret_cast<const Vector<VM>*>(from);
                #pragma unroll
                for (int i = 0; i < VM; ++i) a_piece[l][c + i] = v.at[i];
            }
        }
        #pragma unroll
        for (int c = 0; c < ROWS; ++c) {
            if (top + c >= m) break;
            #pragma unroll
            for (int r = 0; r < COLUMNS; r += VN) {
                const int column = left + r * 32;
                if (column >= n) break;
                Vector<VN>* const target =
                    reinterpret_cast<Vector<VN>*>(out + (top + c) * out_row + column);
                Vector<VN> v;
                if (beta != 0) v = *target;
                #pragma unroll
                for (int i = 0; i < VN; ++i) {
                    REAL sum = 0;
                    #pragma unroll
                    for (int l = 0; l < K; ++l) sum += a_piece[l][c] * b_piece[l][r + i];
                    const REAL product = REAL(alpha) * sum;
                    v.at[i] = beta == 0 ? product : product + REAL(beta) * v.at[i];
                }
                store(target, v);
            }
        }
    }
}
