// All-reduce over the GPUs of one host through memory they can all reach, fused with the step.
//
//   p <- p - rate (sum over ranks of g + decay p)
//
// Every rank writes its g into the other ranks' inboxes (NVLink, no copy engine, no host) and adds
// what it finds in its own in the order of the ranks: every rank computes the same bits.
//
//   sum_and_step          a block writes its range, tells the others that it has (a flag for each
//                         block and sender, released after the data) and waits for theirs: the
//                         bytes of g and two latencies. With one rank it is the step alone.
//   sum_and_step_packets  16-byte packets of numbers and a flag, which arrive whole: a thread waits
//                         for its own packets only. A third more bytes, one latency; for messages
//                         of a few megabytes.
//
// Inboxes are used in turns: a sender writes one again only two launches later, after it has heard
// from the receiver's next launch, so no second barrier is needed.
//
// Macros: REAL, RANKS. Inbox of a rank: [2][RANKS][count, rounded up to 4] numbers, or
// [2][RANKS][count / CARRIED, rounded up] packets; flags: [blocks][RANKS].

#define PATIENCE_NS 60000000000ull  // a rank that has died must not hang the others

struct Layout { int w1_end, b1_end, w2_end; };  // where the weights end: biases do not decay

struct Peers {
    REAL* inbox[RANKS];
    unsigned* flags[RANKS];
};

#ifdef __CUDACC__
__device__ __forceinline__ void tell(unsigned* flag, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned ask(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
template <typename Q>
__device__ __forceinline__ Q read_past_l1(const Q* p) {  // another GPU wrote it
    Q q;
    #pragma unroll
    for (int i = 0; i < int(sizeof(Q) / 16); ++i)
        reinterpret_cast<float4*>(&q)[i] = __ldcg(reinterpret_cast<const float4*>(p) + i);
    return q;
}
__device__ __forceinline__ void give_up() { asm("trap;"); }
typedef unsigned long long Half;
__device__ __forceinline__ void send(void* to, Half low, Half high) {  // 16 bytes at once
    asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.sys.global.b128 [%0], q; }"
        :: "l"(to), "l"(low), "l"(high) : "memory");
}
__device__ __forceinline__ void receive(const void* from, Half& low, Half& high) {
    asm volatile("{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
        : "=l"(low), "=l"(high) : "l"(from) : "memory");
}
#else
__device__ void tell(unsigned* flag, unsigned value) { *flag = value; }
__device__ unsigned ask(const unsigned* flag) { return *flag; }
__device__ unsigned long long now_ns() { return 0; }
template <typename Q>
__device__ Q read_past_l1(const Q* p) { return *p; }
__device__ void give_up() {}
typedef unsigned long long Half;
__device__ void send(void* to, Half low, Half high) { ((Half*)to)[0] = low; ((Half*)to)[1] = high; }
__device__ void receive(const void* from, Half& low, Half& high) { low = ((Half*)from)[0]; high = ((Half*)from)[1]; }
#endif

__device__ __forceinline__ REAL descend(int e, REAL p, REAL sum, REAL rate, REAL decay, Layout layout) {
    const bool weight = e < layout.w1_end || (e >= layout.b1_end && e < layout.w2_end);
    return p - rate * (sum + (weight ? decay : REAL(0)) * p);
}

struct __align__(16) Quad { REAL v[4]; };

extern "C" __global__ void __launch_bounds__(512) sum_and_step(
    int count, int each, int rank, REAL* __restrict__ p, const REAL* __restrict__ g,
    REAL rate, REAL decay, Layout layout, Peers peers, unsigned* launches)
{
    const int first = blockIdx.x * each, end = min(count, first + each);  // each: a multiple of 4
    const int whole = first + (end - first) / 4 * 4, mine = first + 4 * threadIdx.x;
    const int rest = whole + threadIdx.x;        // fewer than four elements remain
    const long long slot = (count + 3) / 4 * 4;  // of one sender in an inbox
    const unsigned launch = RANKS > 1 ? launches[blockIdx.x] + 1 : 0;
    const long long turn = (launch & 1) * RANKS * slot;
    auto quad = [](auto* at) -> auto& { return *reinterpret_cast<Quad*>(const_cast<REAL*>(at)); };
    // what this thread needs of its own memory first, so that nothing but the inbox is waited for
    Quad own = {}, old = {};
    if (mine < whole) {
        own = quad(g + mine);
        old = quad(p + mine);
    }
    if (RANKS > 1) {
        #pragma unroll
        for (int r = 0; r < RANKS; ++r) {
            if (r == rank) continue;
            REAL* inbox = peers.inbox[r] + turn + rank * slot;
            if (mine < whole) quad(inbox + mine) = own;
            for (int e = mine + 4 * blockDim.x; e < whole; e += 4 * blockDim.x) quad(inbox + e) = quad(g + e);
            if (rest < end) inbox[rest] = g[rest];
        }
        __syncthreads();  // the release below covers what the whole block has written before
        if (threadIdx.x < RANKS && threadIdx.x != rank) {
            tell(peers.flags[threadIdx.x] + blockIdx.x * RANKS + rank, launch);
            const unsigned* theirs = peers.flags[rank] + blockIdx.x * RANKS + threadIdx.x;
            const unsigned long long start = now_ns();
            while ((int)(ask(theirs) - launch) < 0)
                if (now_ns() - start > PATIENCE_NS) give_up();
        }
        if (threadIdx.x == rank) launches[blockIdx.x] = launch;
        __syncthreads();
    }
    const REAL* inbox = peers.inbox[rank] + turn;
    for (int e = mine; e < whole; e += 4 * blockDim.x) {
        if (e != mine) {
            own = quad(g + e);
            old = quad(p + e);
        }
        Quad sum = {};
        #pragma unroll
        for (int r = 0; r < RANKS; ++r) {  // in the order of the ranks, here and everywhere
            const Quad part = r == rank ? own : read_past_l1(&quad(inbox + r * slot + e));
            #pragma unroll
            for (int i = 0; i < 4; ++i) sum.v[i] += part.v[i];
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) sum.v[i] = descend(e + i, old.v[i], sum.v[i], rate, decay, layout);
        quad(p + e) = sum;
    }
    if (rest < end) {
        REAL sum = REAL(0);
        #pragma unroll
        for (int r = 0; r < RANKS; ++r)
            sum += r == rank ? g[rest] : *reinterpret_cast<const volatile REAL*>(inbox + r * slot + rest);
        p[rest] = descend(rest, p[rest], sum, rate, decay, layout);
    }
}

#define CARRIED int(16 / sizeof(REAL) - 1)  // numbers in a packet: three float, or one double

union Packet {
    struct { REAL v[CARRIED]; unsigned flag; } part;  // behind a double the flag has 8 bytes, 4 unused
    Half half[2];
};

extern "C" __global__ void __launch_bounds__(512) sum_and_step_packets(
    int count, int each, int rank, REAL* __restrict__ p, const REAL* __restrict__ g,
    REAL rate, REAL decay, Layout layout, Peers peers, unsigned* launches)
{
    const int packets = (count + CARRIED - 1) / CARRIED;
    const unsigned launch = launches[blockIdx.x] + 1;
    __syncthreads();  // all have read it
    if (threadIdx.x == 0) launches[blockIdx.x] = launch;
    const long long turn = (launch & 1) * RANKS * (long long)packets;
    auto packet = [&](int owner, int sender, int i) {
        return reinterpret_cast<Packet*>(peers.inbox[owner]) + turn + (long long)sender * packets + i;
    };
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < packets; i += stride) {
        Packet mine = {};
        mine.part.flag = launch;
        #pragma unroll
        for (int v = 0; v < CARRIED; ++v)
            if (i * CARRIED + v < count) mine.part.v[v] = g[i * CARRIED + v];
        #pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (r != rank) send(packet(r, rank, i), mine.half[0], mine.half[1]);
    }
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < packets; i += stride) {
        REAL old[CARRIED], own[CARRIED], sum[CARRIED] = {};
        #pragma unroll
        for (int v = 0; v < CARRIED; ++v) {
            const bool inside = i * CARRIED + v < count;
            own[v] = inside ? g[i * CARRIED + v] : REAL(0);
            old[v] = inside ? p[i * CARRIED + v] : REAL(0);
        }
        #pragma unroll
        for (int r = 0; r < RANKS; ++r) {
            Packet theirs;
            if (r != rank) {
                const Packet* from = packet(rank, r, i);
                const unsigned long long start = now_ns();
                do {
                    receive(from, theirs.half[0], theirs.half[1]);
                    if (now_ns() - start > PATIENCE_NS) give_up();
                } while (theirs.part.flag != launch);
            }
            #pragma unroll
            for (int v = 0; v < CARRIED; ++v) sum[v] += r == rank ? own[v] : theirs.part.v[v];
        }
        #pragma unroll
        for (int v = 0; v < CARRIED; ++v) {
            const int e = i * CARRIED + v;
            if (e < count) p[e] = descend(e, old[v], sum[v], rate, decay, layout);
        }
    }
}
