// A launch: a grid of blocks, poisoned shared memory, traps caught; and what a library exports.
// Part of cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

static thread_local char anchor; // tells this library's thread-local segment from others'

inline int poison_segment(dl_phdr_info* info, size_t, void*) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        char* const begin = static_cast<char*>(info->dlpi_tls_data);
        if (header.p_type != PT_TLS || !begin) continue;
        if (&anchor < begin || &anchor >= begin + header.p_memsz) continue;
        memset(begin, POISON, header.p_memsz);
        return 1;
    }
    return 0;
}

inline bool untouched(size_t from) {
    for (size_t i = from; i < MOST_SHARED; ++i) {
        if (dynamic_shared[i] != POISON) return false;
    }
    return true;
}

inline void on_signal(int number, siginfo_t*, void*) {
    fail(number == SIGSEGV || number == SIGBUS ? "an access to memory that is not there"
         : number == SIGFPE                    ? "an integer division by zero"
                                               : "a trap: misaligned, or beyond an array");
}

struct Signals { // catches what a kernel does wrong, for the time of a launch
    static constexpr int NUMBERS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    struct sigaction before[5];
    stack_t stack_before;
    alignas(16) char stack[64 << 10];
    Signals() {
        stack_t own{};
        own.ss_sp = stack;
        own.ss_size = sizeof stack;
        sigaltstack(&own, &stack_before);
        struct sigaction action{};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 5; ++i) sigaction(NUMBERS[i], &action, &before[i]);
    }
    ~Signals() {
        for (int i = 0; i < 5; ++i) sigaction(NUMBERS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

inline void run_grid(size_t shared_bytes, unsigned order) {
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    const int threads = int(blockDim.x * blockDim.y * blockDim.z);
    const Order walk(blocks, order);
    for (unsigned i = 0; i < blocks; ++i) {
        const unsigned b = walk[i];
        blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
        anchor = 1; // the segment is made at the first touch
        dl_iterate_phdr(poison_segment, nullptr);
        run_block(threads, order);
        current = nullptr;
        if (dynamic_shared && !untouched(shared_bytes)) {
            fail("a write behind the dynamic shared memory that the launch asked for");
        }
    }
}

// As cuLaunchKernel, on the caller's thread; returns an error message, or nullptr.
inline const char* launch(void (*kernel)(void**), dim3 grid, dim3 block, size_t shared_bytes,
                          void** args, unsigned order) {
    static Signals* signals; // outlives the jump out of a failing kernel
    dynamic_shared = dynamic_shared_of ? dynamic_shared_of() : nullptr;
    if (size_t(block.x) * block.y * block.z > MOST_THREADS || block.x * block.y * block.z == 0) {
        return "wanted 1 to 1024 threads in a block";
    }
    if (uint64_t(grid.x) * grid.y * grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        return "wanted a grid of at least one block, and at most 65535 in y and z";
    }
    if (shared_bytes > (dynamic_shared ? MOST_SHARED : 0)) return "too much dynamic shared memory";
    if (!stacks) {
        void* const room = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) return "no memory for the threads' stacks";
        stacks = static_cast<unsigned char*>(room);
    }
    gridDim = grid, blockDim = block, body = kernel, arguments = args;
    random_state = 0x9E3779B97F4A7C15ull + order;
    signals = new Signals;
    const bool failed = sigsetjmp(fault, 1);
    if (!failed) run_grid(shared_bytes, order);
    delete signals;
    current = nullptr;
    if (failed) { // fibers stopped in the middle of the kernel: start them afresh
        for (Fiber& f : fibers) f.started = false;
    }
    return failed ? message : nullptr;
}

template <class... A, size_t... I>
void unpack(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(args[I])...);
}

template <class... A>
void call(void (*kernel)(A...), void** args) {
    unpack(kernel, args, std::index_sequence_for<A...>{});
}

// One letter an argument, so that a caller that passes another type is told: p pointer, i and f
// integer and floating point with their bytes, s a structure.
template <class... A>
const char* signature(void (*)(A...)) {
    static char text[8 * sizeof...(A) + 1];
    char* at = text;
    ((at += sprintf(at, "%c%zu ",
                    std::is_pointer_v<A> ? 'p' : std::is_integral_v<A> ? 'i'
                    : std::is_floating_point_v<A> ? 'f' : 's', sizeof(A))), ...);
    return text;
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_EXPORT __attribute__((visibility("default")))
#define CUDA_ON_CPU_KERNEL(kernel)                                                                \
    static void kernel##_on_cpu_body(void** args) { cuda_on_cpu::call(kernel, args); }            \
    extern "C" CUDA_ON_CPU_EXPORT const char* kernel##_on_cpu_signature()                         \
    {                                                                                             \
        return cuda_on_cpu::signature(kernel);                                                    \
    }                                                                                             \
    extern "C" CUDA_ON_CPU_EXPORT const char* kernel##_on_cpu(                                    \
        const unsigned* grid, const unsigned* block, size_t shared, void** args, unsigned order)  \
    {                                                                                             \
        return cuda_on_cpu::launch(kernel##_on_cpu_body, {grid[0], grid[1], grid[2]},             \
                                   {block[0], block[1], block[2]}, shared, args, order);          \
    }

// Memory under the array's own symbol, whatever the type it is declared with.
#define CUDA_ON_CPU_DYNAMIC_SHARED(array)                                                          \
    alignas(1024) thread_local unsigned char array##_on_cpu[cuda_on_cpu::MOST_SHARED] asm(#array); \
    static const bool array##_is_dynamic =                                                         \
        (cuda_on_cpu::dynamic_shared_of = []() -> unsigned char* { return array##_on_cpu; }, true);
