// Adds two arrays of K million floats on a GPU in unified memory (cudaMallocManaged):
//     unified K thread|block|grid       1 x 1, 1 x 256, or as many threads as floats
// The host writes the numbers first and reads the sums last, so that pages move both ways.
// Prints the seconds of every part as JSON. CUDA is started before the clock.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

using Clock = std::chrono::steady_clock;

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

static double lap(Clock::time_point &last)
{
    const auto now = Clock::now();
    const double spent = std::chrono::duration<double>(now - last).count();
    last = now;
    return spent;
}

__global__ void add(long long n, const float *x, const float *y, float *sum)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        sum[i] = x[i] + y[i];
}

int main(int count, char **words)
{
    const double millions = count > 1 ? std::atof(words[1]) : 1.0;
    const char *way = count > 2 ? words[2] : "grid";
    const long long n = (long long)(millions * 1e6);
    const size_t size = n * sizeof(float);
    const int threads = std::strcmp(way, "thread") ? 256 : 1;
    const int blocks = std::strcmp(way, "grid") ? 1 : int((n + threads - 1) / threads);
    add<<<1, 1>>>(0, nullptr, nullptr, nullptr);  // starts CUDA and loads the kernel
    check(cudaDeviceSynchronize(), "start");

    float *x, *y, *sum;
    auto last = Clock::now();
    check(cudaMallocManaged(&x, size), "cudaMallocManaged");
    check(cudaMallocManaged(&y, size), "cudaMallocManaged");
    check(cudaMallocManaged(&sum, size), "cudaMallocManaged");
    const double allocated = lap(last);
    for (long long i = 0; i < n; ++i) {
        x[i] = float(i % 1024);
        y[i] = float(i % 512) + 0.5f;
    }
    const double touched = lap(last);
    add<<<blocks, threads>>>(n, x, y, sum);
    check(cudaDeviceSynchronize(), "add");
    const double added = lap(last);
    long long wrong = 0;
    for (long long i = 0; i < n; ++i) wrong += sum[i] != float(i % 1024) + (float(i % 512) + 0.5f);
    const double read = lap(last);
    check(cudaFree(x), "cudaFree");
    check(cudaFree(y), "cudaFree");
    check(cudaFree(sum), "cudaFree");
    const double released = lap(last);
    std::printf("{\"allocate_s\": %.9f, \"first_touch_s\": %.9f, \"kernel_s\": %.9f, "
                "\"read_back_s\": %.9f, \"free_s\": %.9f, \"total_s\": %.9f, \"wrong\": %lld}\n",
                allocated, touched, added, read, released,
                allocated + touched + added + read + released, wrong);
    return wrong != 0;
}
