// out = x + y, and what its time is made of where nothing runs beside it: one load after another.

extern "C" __global__ void add(const float* x, const float* y, float* out, long long n)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads)
        out[i] = x[i] + y[i];
}

// Every load has to wait for the one before: the time over `hops` is the latency.
extern "C" __global__ void chase(const unsigned* next, unsigned* out, long long hops)
{
    unsigned at = 0;
    for (long long i = 0; i < hops; ++i) at = next[at];
    *out = at;
}
