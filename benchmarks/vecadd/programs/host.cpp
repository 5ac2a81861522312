// Adds two arrays of K million floats on the CPU: host K
// Prints the seconds of the addition and of the whole (without making the numbers) as JSON.
#include <chrono>
#include <cstdio>
#include <cstdlib>

using Clock = std::chrono::steady_clock;

static double since(Clock::time_point began)
{
    return std::chrono::duration<double>(Clock::now() - began).count();
}

static void add(long long n, const float *x, const float *y, float *sum)
{
    for (long long i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

int main(int count, char **words)
{
    const double millions = count > 1 ? std::atof(words[1]) : 1.0;
    const long long n = (long long)(millions * 1e6);
    float *x = (float *)std::malloc(n * sizeof(float));
    float *y = (float *)std::malloc(n * sizeof(float));
    float *sum = (float *)std::malloc(n * sizeof(float));
    if (!x || !y || !sum) {
        std::fprintf(stderr, "expected memory for 3 x %lld floats; got none\n", n);
        return 1;
    }
    for (long long i = 0; i < n; ++i) {
        x[i] = float(i % 1024);
        y[i] = float(i % 512) + 0.5f;
        sum[i] = 0.0f;
    }
    auto began = Clock::now();
    add(n, x, y, sum);
    const double spent = since(began);
    long long wrong = 0;
    for (long long i = 0; i < n; ++i) wrong += sum[i] != x[i] + y[i];
    began = Clock::now();
    std::free(x);
    std::free(y);
    std::free(sum);
    const double released = since(began);
    std::printf("{\"add_s\": %.9f, \"free_s\": %.9f, \"total_s\": %.9f, \"wrong\": %lld}\n", spent,
                released, spent + released, wrong);
    return wrong != 0;
}
