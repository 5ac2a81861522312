// Threads of a block as fibers: barriers, operations of a warp, and who runs next. Part of
// cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

constexpr int WARP = 32;
constexpr int MOST_THREADS = 1024;
constexpr size_t STACK = 256 << 10;           // bytes of a fiber; pages are taken when touched
constexpr size_t MOST_SHARED = 227 << 10;     // dynamic shared memory of a block on Hopper
constexpr unsigned char POISON = 0xFF;

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
    jmp_buf here;
    uint3 thread;
    State state;
    int line;           // of the barrier it waits at
    unsigned mask;      // of the warp operation it waits at
    bool predicate;     // what it brought to a block-wide vote
    bool started;
    alignas(16) unsigned char brought[16];   // to a warp operation
    alignas(16) unsigned char published[16]; // the same once all lanes have arrived
};

// One translation unit a library, so static: libraries must not share these.
static Fiber fibers[MOST_THREADS];
static Fiber* current;
static unsigned char* stacks;
static jmp_buf scheduler;
static ucontext_t starter;
static sigjmp_buf fault;
static char message[400];
static void (*body)(void**);
static void** arguments;
static int votes, voters; // of the last block-wide vote
static unsigned char* (*dynamic_shared_of)();
static unsigned char* dynamic_shared;

}  // namespace cuda_on_cpu

static dim3 gridDim, blockDim;
static uint3 blockIdx;
#define threadIdx (cuda_on_cpu::current->thread)
constexpr int warpSize = 32;

namespace cuda_on_cpu {

[[noreturn]] inline void fail(const char* what, int line = 0) {
    const uint3 t = current ? current->thread : uint3{};
    snprintf(message, sizeof message, "%s (line %d; block %u %u %u, thread %u %u %u)", what, line,
             blockIdx.x, blockIdx.y, blockIdx.z, t.x, t.y, t.z);
    siglongjmp(fault, 1);
}

inline int index(const Fiber* f) { return int(f - fibers); }
inline int lane() { return index(current) % WARP; }

__attribute__((noinline)) inline void wait() {
    if (!_setjmp(current->here)) _longjmp(scheduler, 1);
    asm volatile("" ::: "memory"); // others have written since
}

inline void sync_threads(int line) {
    current->state = AT_BLOCK;
    current->line = line;
    wait();
}

inline int block_vote(bool predicate, int kind, int line) { // 0 count, 1 and, 2 or
    current->predicate = predicate;
    sync_threads(line);
    return kind == 0 ? votes : kind == 1 ? votes == voters : votes > 0;
}

inline void sync_warp(unsigned mask, int line) {
    if (!(mask >> lane() & 1)) fail("a lane that its mask lacks at a warp operation", line);
    current->state = AT_WARP;
    current->line = line;
    current->mask = mask;
    wait();
}

template <class T>
void bring(unsigned mask, T value, int line) {
    static_assert(sizeof(T) <= 16);
    memcpy(current->brought, &value, sizeof value);
    sync_warp(mask, line);
}

template <class T>
T from_lane(unsigned mask, int source) {
    T value;
    memset(&value, POISON, sizeof value); // what a lane outside the mask gives is undefined
    if (mask >> source & 1) {
        memcpy(&value, fibers[index(current) - lane() + source].published, sizeof value);
    }
    return value;
}

template <class T>
T shuffle(unsigned mask, T value, int source, int line) {
    bring(mask, value, line);
    return from_lane<T>(mask, source);
}

inline unsigned ballot(unsigned mask, bool predicate, int line) {
    bring(mask, int(predicate), line);
    unsigned found = 0;
    for (int i = 0; i < WARP; ++i) {
        if (mask >> i & 1 && from_lane<int>(mask, i) == 1) found |= 1u << i;
    }
    return found;
}

inline unsigned active() {
    unsigned mask = 0;
    const int first = index(current) - lane();
    const int threads = int(blockDim.x * blockDim.y * blockDim.z);
    for (int i = 0; i < WARP && first + i < threads; ++i) {
        if (fibers[first + i].state != DONE) mask |= 1u << i;
    }
    return mask;
}

inline void run_fiber() { // for all blocks: a fiber never returns
    for (;;) {
        body(arguments);
        current->state = DONE;
        wait();
    }
}

inline void start(Fiber& f) {
    getcontext(&starter);
    starter.uc_stack.ss_sp = stacks + index(&f) * STACK;
    starter.uc_stack.ss_size = STACK;
    starter.uc_link = nullptr;
    makecontext(&starter, run_fiber, 0);
    f.started = true;
    setcontext(&starter);
}

__attribute__((noinline)) inline void resume(Fiber& f) {
    current = &f;
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.here, 1);
    start(f);
}

inline void release_warps(int threads) {
    for (int i = 0; i < threads; ++i) {
        Fiber& f = fibers[i];
        if (f.state != AT_WARP) continue;
        const int first = i - i % WARP;
        bool all = true;
        for (int j = first; j < first + WARP && j < threads; ++j) {
            const Fiber& other = fibers[j];
            if (!(f.mask >> (j - first) & 1) || other.state == DONE) continue;
            all &= other.state == AT_WARP && other.mask == f.mask;
            if (all && other.line != f.line) {
                current = &f;
                fail("lanes of a warp wait at different operations", f.line);
            }
        }
        if (!all) continue;
        const unsigned mask = f.mask;
        for (int j = first; j < first + WARP; ++j) {
            if (!(mask >> (j - first) & 1)) continue;
            Fiber& other = fibers[j];
            if (j < threads && other.state == AT_WARP) {
                memcpy(other.published, other.brought, sizeof other.brought);
                other.state = READY;
            } else { // exited, or beyond the block
                memset(other.published, POISON, sizeof other.published);
            }
        }
    }
}

inline bool release_block(int threads) {
    int line = 0;
    votes = voters = 0;
    for (int i = 0; i < threads; ++i) {
        Fiber& f = fibers[i];
        if (f.state == DONE) continue;
        if (f.state != AT_BLOCK) return false;
        if (line && f.line != line) {
            current = &f;
            fail("threads of a block wait at different barriers", f.line);
        }
        line = f.line;
        votes += f.predicate;
        ++voters;
    }
    for (int i = 0; i < threads; ++i) {
        if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
    }
    return true;
}

static uint64_t random_state;
inline unsigned random_below(unsigned n) { // xorshift; its bias does not matter here
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return unsigned(random_state >> 32) % n;
}

// The i-th of n things in this order; random ones start somewhere and walk with a coprime stride.
struct Order {
    unsigned n, first, stride;
    Order(unsigned n, unsigned kind) : n(n), first(0), stride(1) {
        if (kind == 1) first = n - 1, stride = n - 1;
        if (kind < 2 || n < 3) return;
        first = random_below(n);
        do stride = 1 + random_below(n - 1); while (gcd(stride, n) != 1);
    }
    static unsigned gcd(unsigned a, unsigned b) { return b ? gcd(b, a % b) : a; }
    unsigned operator[](unsigned i) const { return unsigned((first + uint64_t(i) * stride) % n); }
};

inline void run_block(int threads, unsigned order) {
    for (int i = 0; i < threads; ++i) {
        Fiber& f = fibers[i];
        f.state = READY;
        f.predicate = false;
        const unsigned t = unsigned(i), row = t / blockDim.x;
        f.thread = {t % blockDim.x, row % blockDim.y, row / blockDim.y};
    }
    for (;;) {
        int done = 0;
        const Order walk(unsigned(threads), order);
        for (int i = 0; i < threads; ++i) {
            Fiber& f = fibers[walk[unsigned(i)]];
            if (f.state == READY) resume(f);
            done += f.state == DONE;
        }
        if (done == threads) return;
        release_warps(threads);
        bool ready = false;
        for (int i = 0; i < threads; ++i) ready |= fibers[i].state == READY;
        if (!ready && !release_block(threads)) {
            for (int i = 0; i < threads; ++i) {
                if (fibers[i].state == AT_WARP) current = &fibers[i];
            }
            fail("a deadlock: this lane waits for lanes that wait elsewhere", current->line);
        }
    }
}

}  // namespace cuda_on_cpu
