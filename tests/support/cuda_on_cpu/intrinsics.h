// The CUDA built-in functions that cuda_on_cpu.h gives a CPU: barriers, warp operations, atomics,
// loads with hints, mathematics. Included by it; add here what a kernel needs.
#pragma once

// --- barriers and fences

#define __syncthreads() cuda_on_cpu::sync_threads(__LINE__)
#define __syncthreads_count(p) cuda_on_cpu::block_vote((p), 0, __LINE__)
#define __syncthreads_and(p) cuda_on_cpu::block_vote((p), 1, __LINE__)
#define __syncthreads_or(p) cuda_on_cpu::block_vote((p), 2, __LINE__)
#define __syncwarp(...) cuda_on_cpu::sync_warp(cuda_on_cpu::full_mask(__VA_ARGS__), __LINE__)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
#define __trap() cuda_on_cpu::fail("__trap()", __LINE__)

// --- warp operations; `width` parts a warp into groups as in CUDA

namespace cuda_on_cpu {

inline unsigned full_mask(unsigned mask = ~0u) { return mask; }

inline int group(int width) { return lane() & ~(width - 1); } // its first lane

template <class T>
T shuffle_up(unsigned mask, T value, unsigned delta, int line, int width = WARP) {
    const int source = lane() - int(delta);
    return shuffle(mask, value, source < group(width) ? lane() : source, line);
}
template <class T>
T shuffle_down(unsigned mask, T value, unsigned delta, int line, int width = WARP) {
    const int source = lane() + int(delta);
    return shuffle(mask, value, source >= group(width) + width ? lane() : source, line);
}
template <class T>
T shuffle_xor(unsigned mask, T value, int with, int line, int width = WARP) {
    const int source = lane() ^ with;
    return shuffle(mask, value, source >= group(width) + width ? lane() : source, line);
}
template <class T>
T shuffle_from(unsigned mask, T value, int source, int line, int width = WARP) {
    return shuffle(mask, value, group(width) + (source & (width - 1)), line);
}

template <class T>
T reduce_add(unsigned mask, T value, int line) {
    bring(mask, value, line);
    T sum = 0;
    for (int i = 0; i < WARP; ++i) {
        if (mask >> i & 1) sum += from_lane<T>(mask, i);
    }
    return sum;
}

}  // namespace cuda_on_cpu

#define __shfl_sync(mask, value, source, ...) \
    cuda_on_cpu::shuffle_from((mask), (value), (source), __LINE__, ##__VA_ARGS__)
#define __shfl_up_sync(mask, value, delta, ...) \
    cuda_on_cpu::shuffle_up((mask), (value), (delta), __LINE__, ##__VA_ARGS__)
#define __shfl_down_sync(mask, value, delta, ...) \
    cuda_on_cpu::shuffle_down((mask), (value), (delta), __LINE__, ##__VA_ARGS__)
#define __shfl_xor_sync(mask, value, with, ...) \
    cuda_on_cpu::shuffle_xor((mask), (value), (with), __LINE__, ##__VA_ARGS__)
#define __ballot_sync(mask, p) cuda_on_cpu::ballot((mask), (p), __LINE__)
#define __any_sync(mask, p) (cuda_on_cpu::ballot((mask), (p), __LINE__) != 0)
#define __all_sync(mask, p) (cuda_on_cpu::ballot((mask), (p), __LINE__) == (mask))
#define __reduce_add_sync(mask, value) cuda_on_cpu::reduce_add((mask), (value), __LINE__)
#define __activemask() cuda_on_cpu::active()

// --- atomics: fibers never interrupt each other

template <class T, class V>
T atomicAdd(T* at, V value) { const T old = *at; *at = old + T(value); return old; }
template <class T, class V>
T atomicSub(T* at, V value) { const T old = *at; *at = old - T(value); return old; }
template <class T, class V>
T atomicExch(T* at, V value) { const T old = *at; *at = T(value); return old; }
template <class T, class V>
T atomicMax(T* at, V value) { const T old = *at; if (T(value) > old) *at = T(value); return old; }
template <class T, class V>
T atomicMin(T* at, V value) { const T old = *at; if (T(value) < old) *at = T(value); return old; }
template <class T, class V>
T atomicOr(T* at, V value) { const T old = *at; *at = old | T(value); return old; }
template <class T, class C, class V>
T atomicCAS(T* at, C compare, V value) {
    const T old = *at;
    if (old == T(compare)) *at = T(value);
    return old;
}
inline unsigned atomicInc(unsigned* at, unsigned most) {
    const unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}
inline unsigned atomicDec(unsigned* at, unsigned most) {
    const unsigned old = *at;
    *at = old == 0 || old > most ? most : old - 1;
    return old;
}

// --- loads and stores with hints

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldca(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> T __ldcv(const T* at) { return *at; }
template <class T> T __ldlu(const T* at) { return *at; }
template <class T, class V> void __stcg(T* at, V value) { *at = value; }
template <class T, class V> void __stcs(T* at, V value) { *at = value; }
template <class T, class V> void __stwb(T* at, V value) { *at = value; }
template <class T, class V> void __stwt(T* at, V value) { *at = value; }

// --- numbers

template <class A, class B> constexpr auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr auto max(A a, B b) { return a < b ? b : a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

namespace cuda_on_cpu {
template <class To, class From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace cuda_on_cpu

inline int __float_as_int(float x) { return cuda_on_cpu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_cpu::bits<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_on_cpu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_cpu::bits<double>(x); }
inline size_t __cvta_generic_to_shared(const void* at) { return size_t(at); }
