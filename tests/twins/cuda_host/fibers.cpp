// How the threads of clusters run, one fiber at a time, and how a kernel is launched.

#include "fibers.h"

Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {

Machine machine;

unsigned random_below(unsigned n) {  // xorshift64
    uint64_t& s = machine.random_state;
    s ^= s << 13; s ^= s >> 7; s ^= s << 17;
    return unsigned((s >> 16) % n);
}

int lane() { return machine.current->thread % kWarp; }
char* shared() { return here().shared; }

// The first start of a fiber is by its context; after that jumps do, which call no operating system.
void yield() {
    if (!_setjmp(machine.current->left)) _longjmp(machine.scheduler, 1);
}

void fail(const char* format, ...) {
    if (!machine.fault[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(machine.fault, sizeof machine.fault, format, arguments);
        va_end(arguments);
    }
    if (machine.in_fiber) yield();
}

void wait_until(const char* where, std::function<bool()> condition) {
    Fiber& me = *machine.current;
    me.waits_for = std::move(condition);
    me.waiting_at = where;
    yield();
}

void meet(const char* where, Meeting& meeting, int threads) {
    const unsigned mine = meeting.generation;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        ++meeting.generation;
    } else {
        wait_until(where, [&meeting, mine] { return meeting.generation != mine; });
    }
}

const void* show_bytes(const char* where, const void* payload, int bytes) {
    Warp& warp = here().warps[machine.current->thread / kWarp];
    const unsigned mine = warp.meeting.generation & 1;
    char* slots = warp.slots[mine][0];
    memcpy(slots + lane() * bytes, payload, bytes);
    meet(where, warp.meeting, kWarp);
    return slots;
}

static void fiber_body() {
    run_kernel(machine.arguments);
    Fiber& me = *machine.current;
    me.ended = true;
    ++me.block->ended;
    yield();
}

static void start(Fiber& fiber, Block& block, int thread) {
    fiber.block = &block;
    fiber.thread = thread;
    fiber.index = Index{thread % blockDim.x, thread / blockDim.x % blockDim.y,
                        thread / (blockDim.x * blockDim.y)};
    fiber.started = fiber.ended = false;
    fiber.waits_for = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_body, 0);
}

static void resume(Fiber& fiber) {
    machine.current = &fiber;
    threadIdx = fiber.index;
    blockIdx = fiber.block->index;
    machine.in_fiber = true;
    if (!_setjmp(machine.scheduler)) {
        if (fiber.started) _longjmp(fiber.left, 1);
        fiber.started = true;
        setcontext(&fiber.context);
    }
    machine.in_fiber = false;
}

static bool try_to_run(Fiber& fiber) {
    if (fiber.ended) return false;
    if (fiber.waits_for) {
        if (!fiber.waits_for()) return false;
        fiber.waits_for = nullptr;
    }
    resume(fiber);
    return true;
}

static bool land_one() {
    auto& under_way = machine.under_way;
    if (under_way.empty()) return false;
    const unsigned i = random_below(under_way.size());
    Event event = std::move(under_way[i]);
    under_way.erase(under_way.begin() + i);
    event.land();
    return true;
}

static void shuffle(std::vector<int>& order) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
}

// Until all threads have ended, or a fault.
static void run_threads(int count) {
    std::vector<int> order(count);
    for (int i = 0; i < count; ++i) order[i] = i;
    const unsigned slow_of_8 = random_below(4);  // none, or up to three eighths of the warps
    for (int i = 0; i < count; i += kWarp) {
        const bool slow = random_below(8) < slow_of_8;
        for (int t = i; t < count && t < i + kWarp; ++t) machine.fibers[t]->slow = slow;
    }
    for (;;) {
        if (machine.fault[0]) return;
        int left = 0;
        bool moved = false;
        shuffle(order);
        for (const bool slow : {false, true}) {
            if (moved) break;  // the slow ones only when nobody else could go on
            for (int i : order) {
                Fiber& fiber = *machine.fibers[i];
                if (fiber.slow == slow) moved |= try_to_run(fiber);
                if (machine.fault[0]) return;
            }
        }
        for (int i = 0; i < count; ++i) left += !machine.fibers[i]->ended;
        if (left == 0) return;
        if (moved && machine.eager && random_below(2)) land_one();
        if (!moved && !land_one()) {
            for (int i = 0; i < count; ++i) {
                const Fiber& fiber = *machine.fibers[i];
                if (fiber.ended) continue;
                fail("all wait for ever: thread %d of block %d at %s, and %d more",
                     fiber.thread, fiber.block->rank, fiber.waiting_at, left - 1);
            }
        }
    }
}

static void open_clusters(const int* clusters, int count, int threads, int registers) {
    machine.blocks.clear();
    machine.under_way.clear();
    machine.cluster_meetings.assign(count, Meeting());
    for (auto& forget : machine.at_start) forget();
    for (int i = 0; i < count * machine.cluster; ++i) {
        const int rank = i % machine.cluster;
        const unsigned b = clusters[i / machine.cluster] * machine.cluster + rank;
        auto block = std::make_unique<Block>();
        block->index = Index{b % gridDim.x, b / gridDim.x % gridDim.y,
                             b / (gridDim.x * gridDim.y)};
        block->rank = rank;
        block->number = i;
        block->threads = threads;
        block->ended = 0;
        block->warps.resize((threads + kWarp - 1) / kWarp);
        block->registers.assign((threads + 127) / 128, registers);
        block->spare_registers = 65536 - long(registers) * threads;
        block->shared = static_cast<char*>(aligned_alloc(1024, machine.shared_bytes + 1024));
        // 0xFF in every byte is a NaN: what is read before it is written shows in the result
        memset(block->shared, 0xFF, machine.shared_bytes + 1024);
        machine.blocks.push_back(std::move(block));
    }
    forget_static_shared();
}

static void close_clusters() {
    while (!machine.fault[0] && land_one()) {}
    for (auto& block : machine.blocks) free(block->shared);
}

}  // namespace host

void __syncthreads() {
    host::meet("__syncthreads", host::here().barriers[0], host::here().threads);
}

// 0, or 1 and why in `fault` (at least 512 bytes).
extern "C" int launch(unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned cluster, unsigned shared_bytes,
                      unsigned registers, uint64_t seed, void** arguments, char* fault) {
    using namespace host;
    gridDim = Index{grid_x, grid_y, grid_z};
    blockDim = Index{block_x, block_y, 1};
    const int threads = block_x * block_y;
    const unsigned blocks = grid_x * grid_y * grid_z;
    machine.arguments = arguments;
    machine.random_state = seed * 2654435761u + 88172645463325252ull;
    for (int i = 0; i < 8; ++i) random_below(2);
    machine.eager = random_below(2);
    machine.shared_bytes = shared_bytes;
    machine.fault[0] = 0;
    if (shared_bytes > 227 * 1024) fail("%u bytes of shared memory, a block has 232448", shared_bytes);
    if (blocks % cluster) fail("a grid of %u blocks is no multiple of clusters of %u", blocks, cluster);
    machine.cluster = cluster;
    std::vector<int> left(blocks / cluster);
    for (size_t i = 0; i < left.size(); ++i) left[i] = int(i);
    shuffle(left);
    // variables in shared memory are one for all that run
    const int most = has_static_shared() ? 1 : 1 + random_below(3);
    while (!left.empty() && !machine.fault[0]) {
        const int together = min(most, int(left.size())), running = threads * cluster * together;
        while (machine.fibers.size() < running) machine.fibers.push_back(std::make_unique<Fiber>());
        open_clusters(&left[left.size() - together], together, threads, registers);
        left.resize(left.size() - together);
        for (int i = 0; i < running; ++i) {
            start(*machine.fibers[i], *machine.blocks[i / threads], i % threads);
        }
        run_threads(running);
        close_clusters();
    }
    strncpy(fault, machine.fault, 512);
    return machine.fault[0] != 0;
}
