// CUDA's words for a host compiler. Threads of a block run one after the other; those of a cooperative kernel are fibers
// that change places at barriers and shuffles.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct HostDim { unsigned x, y, z; };
static thread_local HostDim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned __float_as_uint(float x) { unsigned out; memcpy(&out, &x, 4); return out; }
static inline float __uint_as_float(unsigned x) { float out; memcpy(&out, &x, 4); return out; }
static inline long long __double_as_longlong(double x) { long long out; memcpy(&out, &x, 8); return out; }
static inline double __longlong_as_double(long long x) { double out; memcpy(&out, &x, 8); return out; }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }

namespace hlo_host {

enum Wait { RUNNING, AT_WARP, AT_BLOCK, ENDED };

#if defined(__SANITIZE_ADDRESS__)
const size_t STACK_BYTES = 1 << 18;
#else
const size_t STACK_BYTES = 1 << 16;
#endif

#if defined(__x86_64__) && defined(__linux__)
// Saves the registers that a call keeps on the old stack, and takes those of the new one.
extern "C" void hlo_host_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.type hlo_host_switch, @function
hlo_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size hlo_host_switch, .-hlo_host_switch
)");
struct Context {
    void* stack_pointer;
    void prepare(char* stack, void (*entry)()) {
        uintptr_t top = ((uintptr_t)stack + STACK_BYTES) & ~(uintptr_t)15;
        void** slots = (void**)top;
        slots[-1] = nullptr;
        slots[-2] = (void*)entry;
        for (int i = 3; i <= 8; ++i) slots[-i] = nullptr;
        stack_pointer = slots - 8;
    }
    static void change(Context& from, Context& to) { hlo_host_switch(&from.stack_pointer, to.stack_pointer); }
};
#else
#include <ucontext.h>
struct Context {
    ucontext_t context;
    void prepare(char* stack, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    static void change(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
};
#endif

struct Fiber {
    Context context;
    char* stack;
    Wait wait;
    unsigned round;
    bool counted;
    unsigned long long slots[2];
    unsigned fragments[2][6];
};

struct Scheduler {
    Fiber* fibers = nullptr;
    unsigned capacity = 0;
    unsigned current = 0;
    Context home;
    void (*body)(void**) = nullptr;
    void** args = nullptr;
    ~Scheduler() {
        for (unsigned i = 0; i < capacity; ++i) free(fibers[i].stack);
        free(fibers);
    }
};
static thread_local Scheduler scheduler;

static void stop(const char* why) {
    fprintf(stderr, "host executor: %s in block %u, thread %u\n", why, blockIdx.x, threadIdx.x);
    abort();
}

static void wait_for_others(Wait wait) {
    Scheduler& s = scheduler;
    Fiber& fiber = s.fibers[s.current];
    fiber.wait = wait;
    Context::change(fiber.context, s.home);
}

static void fiber_main() {
    Scheduler& s = scheduler;
    s.body(s.args);
    wait_for_others(ENDED);
    stop("a thread went on after its end");
}

static void go_on(unsigned thread) {
    Scheduler& s = scheduler;
    s.current = thread;
    threadIdx.x = thread;
    s.fibers[thread].wait = RUNNING;
    Context::change(s.home, s.fibers[thread].context);
}

// Runs a warp until all its threads are at the block's barrier or at their end.
static Wait run_warp(unsigned first, unsigned end) {
    Scheduler& s = scheduler;
    for (;;) {
        for (unsigned t = first; t < end; ++t) go_on(t);
        Wait wait = s.fibers[first].wait;
        for (unsigned t = first; t < end; ++t) {
            if (s.fibers[t].wait != wait) stop("threads of a warp wait for different things");
        }
        if (wait != AT_WARP) return wait;
    }
}

static void run_cooperative_block(unsigned block) {
    Scheduler& s = scheduler;
    if (s.capacity < block) {
        s.fibers = (Fiber*)realloc((void*)s.fibers, sizeof(Fiber) * block);
        if (!s.fibers) stop("no memory for threads");
        for (unsigned i = s.capacity; i < block; ++i) {
            s.fibers[i].stack = (char*)malloc(STACK_BYTES);
            if (!s.fibers[i].stack) stop("no memory for stacks");
        }
        s.capacity = block;
    }
    for (unsigned i = 0; i < block; ++i) {
        s.fibers[i].round = 0;
        s.fibers[i].context.prepare(s.fibers[i].stack, fiber_main);
    }
    for (;;) {
        Wait all = ENDED;
        for (unsigned first = 0; first < block; first += 32) {
            Wait wait = run_warp(first, first + 32 < block ? first + 32 : block);
            if (first == 0) all = wait;
            if (wait != all) stop("warps of a block wait for different things");
        }
        if (all == ENDED) return;
    }
}

static void run(void (*body)(void**), void** args, unsigned grid, unsigned block, bool is_cooperative) {
    gridDim = HostDim{grid, 1, 1};
    blockDim = HostDim{block, 1, 1};
    threadIdx = HostDim{0, 0, 0};
    blockIdx = HostDim{0, 0, 0};
    scheduler.body = body;
    scheduler.args = args;
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx.x = b;
        if (is_cooperative) {
            run_cooperative_block(block);
            continue;
        }
        for (unsigned t = 0; t < block; ++t) {
            threadIdx.x = t;
            body(args);
        }
    }
}

template <class... A, size_t... I>
static inline void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel((A)args[I]...);
}
template <class... A> static inline void call(void (*kernel)(A...), void** args) {
    call(kernel, args, std::index_sequence_for<A...>());
}

template <class T> static T exchange(T value, unsigned lane) {
    Scheduler& s = scheduler;
    unsigned me = s.current, first = me & ~31u;
    Fiber& fiber = s.fibers[me];
    unsigned parity = fiber.round & 1;
    fiber.round += 1;
    fiber.slots[parity] = 0;
    memcpy(&fiber.slots[parity], &value, sizeof(T));
    wait_for_others(AT_WARP);
    T out;
    memcpy(&out, &s.fibers[first + lane].slots[parity], sizeof(T));
    return out;
}

// Four words of one factor and two of the other, for all lanes of the warp to read until the next but one are given.
[[maybe_unused]] static void give_fragments(const unsigned* a, const unsigned* b) {
    Fiber& fiber = scheduler.fibers[scheduler.current];
    unsigned* words = fiber.fragments[fiber.round & 1];
    fiber.round += 1;
    memcpy(words, a, 4 * sizeof(unsigned));
    memcpy(words + 4, b, 2 * sizeof(unsigned));
    wait_for_others(AT_WARP);
}

[[maybe_unused]] static const unsigned* fragments_of(unsigned lane) {
    Scheduler& s = scheduler;
    return s.fibers[(s.current & ~31u) + lane].fragments[(s.fibers[s.current].round - 1) & 1];
}

// Which lanes of the warp hold true.
static unsigned ballot(bool holds) {
    Scheduler& s = scheduler;
    unsigned me = s.current, first = me & ~31u, out = 0;
    Fiber& fiber = s.fibers[me];
    unsigned parity = fiber.round & 1;
    fiber.round += 1;
    fiber.slots[parity] = holds;
    wait_for_others(AT_WARP);
    for (unsigned lane = 0; lane < 32 && first + lane < blockDim.x; ++lane)
        out |= (unsigned)(s.fibers[first + lane].slots[parity] != 0) << lane;
    return out;
}

// How many threads of the block hold true.
static int count_block(bool holds) {
    Scheduler& s = scheduler;
    s.fibers[s.current].counted = holds;
    wait_for_others(AT_BLOCK);
    int out = 0;
    for (unsigned t = 0; t < blockDim.x; ++t) out += s.fibers[t].counted ? 1 : 0;
    // The next count waits until all have read.
    wait_for_others(AT_BLOCK);
    return out;
}

} // namespace hlo_host

static inline unsigned __ballot_sync(unsigned, bool holds) { return hlo_host::ballot(holds); }
static inline int __syncthreads_count(bool holds) { return hlo_host::count_block(holds); }
static inline void __syncthreads() { hlo_host::wait_for_others(hlo_host::AT_BLOCK); }
template <class T> static inline T __shfl_sync(unsigned, T value, int lane, int = 32) {
    return hlo_host::exchange(value, (unsigned)lane & 31u);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, int distance, int = 32) {
    unsigned lane = threadIdx.x & 31u;
    return hlo_host::exchange(value, lane + (unsigned)distance < 32u ? lane + (unsigned)distance : lane);
}

#define HLO_HOST_KERNEL(name, is_cooperative)                                              \
    static void name##_call(void** args) { hlo_host::call(name, args); }                   \
    extern "C" void name##_run(void** args, unsigned grid, unsigned block) {               \
        hlo_host::run(name##_call, args, grid, block, is_cooperative);                     \
    }
