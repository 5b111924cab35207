// Runs one CUDA kernel on the host, one fiber per CUDA thread and one thread block at a time.
//
//   run_block:   poison shared memory -> start every thread -> resume them in random order
//                a thread gives up control only at __syncthreads() or when it ends
//                all threads waiting -> the barrier opens; some waiting, some ended -> an error
//
// Compile with -DKERNEL_FILE="path.cu" -DTILE=n. Linux and GNU-compatible linkers only: shared
// variables are collected in a section of their own, whose ends the linker names.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shared_memory")))
static void __syncthreads();

#include KERNEL_FILE

extern "C" char __start_shared_memory[], __stop_shared_memory[];

namespace {

enum State { READY, WAITING, ENDED };
const int kThreads = TILE * TILE;
const size_t kStack = 32 * 1024;

struct Fiber {
    ucontext_t context;
    State state;
    Index index;
};

struct Arguments {
    int m, n, k;
    float alpha;
    const float* a; stride_t a_row, a_col;
    const float* b; stride_t b_row, b_col;
    float beta;
    float* c; stride_t c_row, c_col;
};

Fiber fibers[kThreads];
char stacks[kThreads][kStack];
ucontext_t scheduler;
Fiber* current;
Arguments arguments;
uint64_t random_state;

unsigned next_random(unsigned below) {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

void thread_body() {
    const Arguments& g = arguments;
    smem_tiled(g.m, g.n, g.k, g.alpha, g.a, g.a_row, g.a_col, g.b, g.b_row, g.b_col,
               g.beta, g.c, g.c_row, g.c_col);
    current->state = ENDED;
    swapcontext(&current->context, &scheduler);
}

void start_threads() {
    for (int t = 0; t < kThreads; ++t) {
        Fiber& fiber = fibers[t];
        fiber.state = READY;
        fiber.index = Index{unsigned(t % TILE), unsigned(t / TILE), 0};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks[t];
        fiber.context.uc_stack.ss_size = kStack;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, thread_body, 0);
    }
}

void resume(Fiber& fiber) {
    current = &fiber;
    threadIdx = fiber.index;
    swapcontext(&scheduler, &fiber.context);
}

// Resumes every thread once, up to the next barrier or its end, in random order.
void run_phase() {
    int order[kThreads];
    for (int i = 0; i < kThreads; ++i) {
        const int j = next_random(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int t : order) {
        if (fibers[t].state == READY) resume(fibers[t]);
    }
}

int count(State state) {
    int n = 0;
    for (const Fiber& fiber : fibers) n += fiber.state == state;
    return n;
}

// 0, or 1 if some threads ended while others still waited at a barrier.
int run_block() {
    // 0xFF in every byte is a NaN: what is read before it is written shows in the result
    memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    start_threads();
    while (count(ENDED) < kThreads) {
        run_phase();
        const int waiting = count(WAITING);
        if (waiting != 0 && waiting != kThreads) return 1;
        for (Fiber& fiber : fibers) {
            if (fiber.state == WAITING) fiber.state = READY;
        }
    }
    return 0;
}

}  // namespace

// What a kernel keeps in local variables, threadIdx included, is its own across a barrier.
static void __syncthreads() {
    current->state = WAITING;
    swapcontext(&current->context, &scheduler);
}

extern "C" int launch(unsigned grid_x, unsigned grid_y, uint64_t seed,
                      int m, int n, int k, float alpha,
                      const float* a, long long a_row, long long a_col,
                      const float* b, long long b_row, long long b_col,
                      float beta, float* c, long long c_row, long long c_col) {
    arguments = {m, n, k, alpha, a, a_row, a_col, b, b_row, b_col, beta, c, c_row, c_col};
    random_state = seed * 2654435761u + 88172645463325252ull;
    gridDim = Index{grid_x, grid_y, 1};
    blockDim = Index{TILE, TILE, 1};
    for (unsigned i = 0; i < grid_x * grid_y; ++i) {
        blockIdx = Index{i % grid_x, i / grid_x, 0};
        if (run_block() != 0) return 1;
    }
    return 0;
}
