// The output layer of the network, fused around its C = CLASSES rows.
//
//   output_layer:    z2 = W2 a1 + b2, softmax, loss and dz2 = scale (softmax - y) in one pass over a1
//   backward_hidden: d1 = (W2^T dz2) a1 (1 - a1), dW2 = dz2 a1^T, db1 = d1 1 and db2 = dz2 1 in one
//                    pass over a1: three thin products and two element-wise passes read it once
//
// With SIGMOID the products' a1 is z1 = W1 x, and both compute a1 = sigmoid(z1 + b1) as they read it.
// a1 and d1 are H x B', z2, dz2 and y are C x B', W2 is C x H, all row-major; rows of all but y and W2
// are `stride` elements apart, what lies between them and B' is 0 and stays 0. Sums run in a fixed
// order: every run gives the same bits.
//
// These kernels are short: what counts is how few times a thread waits for memory. So all loads of
// a round are begun before the first is used, and there are few rounds.
//
// Macros: REAL, CLASSES, ROWS (hidden rows a block of backward_hidden owns), VECTOR (images a thread
// of it reads at a time: 4 where the stride allows it, else 1), SIGMOID (0, 1).

#define COLUMNS 16   // images a block of output_layer owns
#define SLICES 32    // parts of H it sums beside each other
#define THREADS (COLUMNS * SLICES)
#define WIDTH (CLASSES + (4 - CLASSES % 4) % 4)
#define STAGE (WIDTH * int(sizeof(REAL)) <= 48 ? 512 : WIDTH * int(sizeof(REAL)) <= 96 ? 128 : 64)  // hidden rows whose weights are shared
#define BACKWARD_THREADS 256

__device__ __forceinline__ REAL activation(REAL z, REAL bias) {
#if SIGMOID
    return REAL(1) / (REAL(1) + exp(-(z + bias)));
#else
    return z;
#endif
}

// A block owns COLUMNS images; a thread sums one image over every SLICES-th hidden row.
// Without y (null): z2 only, for predictions.
extern "C" __global__ void __launch_bounds__(THREADS) output_layer(
    int hidden, int columns, int stride, const REAL* __restrict__ b1, const REAL* __restrict__ w2,
    const REAL* __restrict__ b2, const REAL* __restrict__ a1, const REAL* __restrict__ y, REAL scale,
    REAL* __restrict__ z2, REAL* __restrict__ loss)
{
    __shared__ __align__(16) REAL weights[STAGE * WIDTH];
    __shared__ REAL biases[SIGMOID ? STAGE : 1];
    __shared__ REAL sums[SLICES / 2][CLASSES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
    const int j = blockIdx.x * COLUMNS + column;
    REAL z[CLASSES];
    #pragma unroll
    for (int c = 0; c < CLASSES; ++c) z[c] = REAL(0);
    for (int start = 0; start < hidden; start += STAGE) {
        const int rows = min(STAGE, hidden - start);
        REAL a[STAGE / SLICES];
        #pragma unroll
        for (int i = 0; i < STAGE / SLICES; ++i) {
            const int h = i * SLICES + slice;
            a[i] = h < rows && j < columns ? a1[(long long)(start + h) * stride + j] : REAL(0);
        }
        __syncthreads();
        for (int h = threadIdx.x; h < STAGE; h += THREADS) {  // beyond the last row: 0 times a = 0
            REAL w[CLASSES];
            #pragma unroll
            for (int c = 0; c < CLASSES; ++c) w[c] = h < rows ? w2[(long long)c * hidden + start + h] : REAL(0);
            #pragma unroll
            for (int c = 0; c < CLASSES; ++c) weights[h * WIDTH + c] = w[c];
            if (SIGMOID) biases[h] = h < rows ? b1[start + h] : REAL(0);
        }
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < STAGE / SLICES; ++i) {
            const int h = i * SLICES + slice;
            const REAL value = activation(a[i], SIGMOID ? biases[h] : REAL(0));
            #pragma unroll
            for (int c = 0; c < CLASSES; ++c) z[c] += weights[h * WIDTH + c] * value;
        }
    }
    // halve the slices with their neighbours in the warp, then sum the rest in order
    #pragma unroll
    for (int c = 0; c < CLASSES; ++c) {
        z[c] += __shfl_xor_sync(0xffffffffu, z[c], COLUMNS);
        if (slice % 2 == 0) sums[slice / 2][c][column] = z[c];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < CLASSES * COLUMNS; at += THREADS) {
        const int c = at / COLUMNS, k = at % COLUMNS;
        REAL total = REAL(0);
        #pragma unroll
        for (int s = 0; s < SLICES / 2; ++s) total += sums[s][c][k];
        sums[0][c][k] = total + b2[c];
    }
    __syncthreads();
    if (threadIdx.x >= COLUMNS || j >= columns) return;
    REAL top = sums[0][0][column];
    #pragma unroll
    for (int c = 0; c < CLASSES; ++c) {
        z[c] = sums[0][c][column];
        top = max(top, z[c]);
    }
    if (y == nullptr) {
        #pragma unroll
        for (int c = 0; c < CLASSES; ++c) z2[(long long)c * stride + j] = z[c];
        return;
    }
    REAL total = REAL(0), own = REAL(0);
    #pragma unroll
    for (int c = 0; c < CLASSES; ++c) {
        z[c] -= top;
        own += y[(long long)c * columns + j] * z[c];
        z[c] = exp(z[c]);
        total += z[c];
    }
    loss[j] = log(total) - own;
    #pragma unroll
    for (int c = 0; c < CLASSES; ++c)
        z2[(long long)c * stride + j] = (z[c] / total - y[(long long)c * columns + j]) * scale;
}

// Sum VALUES numbers of each thread over the block; thread v gets the v-th sum.
template <int VALUES>
__device__ __forceinline__ REAL block_sum(REAL (&values)[VALUES]) {
    __shared__ REAL parts[VALUES][BACKWARD_THREADS / 32];
    #pragma unroll
    for (int v = 0; v < VALUES; ++v) {
        #pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            values[v] += __shfl_xor_sync(0xffffffffu, values[v], distance);
        if (threadIdx.x % 32 == 0) parts[v][threadIdx.x / 32] = values[v];
    }
    __syncthreads();
    REAL total = REAL(0);
    if (threadIdx.x < VALUES) {
        #pragma unroll
        for (int w = 0; w < BACKWARD_THREADS / 32; ++w) total += parts[threadIdx.x][w];
    }
    return total;
}

struct __align__(VECTOR * sizeof(REAL) >= 16 ? 16 : VECTOR * sizeof(REAL)) Vector { REAL v[VECTOR]; };

// A block owns ROWS hidden rows; block c sums dz2's row c besides, for db2. There are at least
// CLASSES blocks: those without rows of their own only do that.
extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS) backward_hidden(
    int hidden, int columns, int stride, const REAL* __restrict__ b1, const REAL* __restrict__ w2,
    const REAL* __restrict__ a1, const REAL* __restrict__ dz2, REAL* __restrict__ d1,
    REAL* __restrict__ dw2, REAL* __restrict__ db1, REAL* __restrict__ db2)
{
    const int h0 = blockIdx.x * ROWS;
    REAL w[ROWS][CLASSES], bias[ROWS], sums[ROWS * (CLASSES + 1) + 1];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        bias[r] = SIGMOID && h0 + r < hidden ? b1[h0 + r] : REAL(0);
        #pragma unroll
        for (int c = 0; c < CLASSES; ++c)
            w[r][c] = h0 + r < hidden ? w2[(long long)c * hidden + h0 + r] : REAL(0);
    }
    #pragma unroll
    for (int v = 0; v < ROWS * (CLASSES + 1) + 1; ++v) sums[v] = REAL(0);
    for (int j = VECTOR * threadIdx.x; j < columns; j += VECTOR * BACKWARD_THREADS) {
        Vector dz[CLASSES], a[ROWS], d[ROWS];
        #pragma unroll
        for (int c = 0; c < CLASSES; ++c)
            dz[c] = *reinterpret_cast<const Vector*>(dz2 + (long long)c * stride + j);
        #pragma unroll
        for (int r = 0; r < ROWS; ++r)
            a[r] = h0 + r < hidden ? *reinterpret_cast<const Vector*>(a1 + (long long)(h0 + r) * stride + j) : Vector{};
        #pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const REAL value = activation(a[r].v[i], bias[r]);
                REAL sum = REAL(0);
                #pragma unroll
                for (int c = 0; c < CLASSES; ++c) {
                    sum += w[r][c] * dz[c].v[i];
                    sums[r * (CLASSES + 1) + c] += dz[c].v[i] * value;
                }
                d[r].v[i] = sum * value * (REAL(1) - value);
                sums[r * (CLASSES + 1) + CLASSES] += d[r].v[i];
            }
            #pragma unroll
            for (int c = 0; c < CLASSES; ++c)
                if (blockIdx.x == c) sums[ROWS * (CLASSES + 1)] += dz[c].v[i];
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (h0 + r < hidden) *reinterpret_cast<Vector*>(d1 + (long long)(h0 + r) * stride + j) = d[r];
    }
    const REAL total = block_sum(sums);
    const int r = threadIdx.x / (CLASSES + 1), c = threadIdx.x % (CLASSES + 1);
    if (r < ROWS && h0 + r < hidden) {
        if (c < CLASSES) dw2[(long long)c * hidden + h0 + r] = total;
        else db1[h0 + r] = total;
    }
    if (threadIdx.x == ROWS * (CLASSES + 1) && blockIdx.x < CLASSES) db2[blockIdx.x] = total;
}
