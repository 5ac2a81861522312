// Adds two arrays of K million floats on a GPU with cudaMalloc and cudaMemcpy:
//     explicit K thread|block|grid      1 x 1, 1 x 256, or as many threads as floats
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
    float *x = (float *)std::malloc(size), *y = (float *)std::malloc(size);
    float *sum = (float *)std::malloc(size);
    if (!x || !y || !sum) {
        std::fprintf(stderr, "expected memory for 3 x %lld floats; got none\n", n);
        return 1;
    }
    for (long long i = 0; i < n; ++i) {
        x[i] = float(i % 1024);
        y[i] = float(i % 512) + 0.5f;
        sum[i] = 0.0f;
    }
    add<<<1, 1>>>(0, nullptr, nullptr, nullptr);  // starts CUDA and loads the kernel
    check(cudaDeviceSynchronize(), "start");

    float *dx, *dy, *dsum;
    auto last = Clock::now();
    check(cudaMalloc(&dx, size), "cudaMalloc");
    check(cudaMalloc(&dy, size), "cudaMalloc");
    check(cudaMalloc(&dsum, size), "cudaMalloc");
    const double allocated = lap(last);
    check(cudaMemcpy(dx, x, size, cudaMemcpyHostToDevice), "copy in");
    check(cudaMemcpy(dy, y, size, cudaMemcpyHostToDevice), "copy in");
    check(cudaDeviceSynchronize(), "copy in");
    const double copied_in = lap(last);
    add<<<blocks, threads>>>(n, dx, dy, dsum);
    check(cudaDeviceSynchronize(), "add");
    const double added = lap(last);
    check(cudaMemcpy(sum, dsum, size, cudaMemcpyDeviceToHost), "copy out");
    const double copied_out = lap(last);
    check(cudaFree(dx), "cudaFree");
    check(cudaFree(dy), "cudaFree");
    check(cudaFree(dsum), "cudaFree");
    const double released = lap(last);

    long long wrong = 0;
    for (long long i = 0; i < n; ++i) wrong += sum[i] != x[i] + y[i];
    std::free(x);
    std::free(y);
    std::free(sum);
    std::printf("{\"allocate_s\": %.9f, \"copy_in_s\": %.9f, \"kernel_s\": %.9f, \"copy_out_s\": %.9f, "
                "\"free_s\": %.9f, \"total_s\": %.9f, \"wrong\": %lld}\n",
                allocated, copied_in, added, copied_out, released,
                allocated + copied_in + added + copied_out + released, wrong);
    return wrong != 0;
}
