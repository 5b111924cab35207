// CUDA threads on the host: a fiber each, in thread blocks, in clusters of thread blocks.
//
//   run_cluster   poison shared memory -> start every thread -> resume them in random order
//                 a thread gives up control only where it has to wait, or when it ends
//                 nobody can go on -> one thing that is under way lands (a bulk copy, say)
//                 nothing is under way either -> everybody waits for ever: a fault, by name
//
// The order is an adversary: some threads are drawn to be slow and run only when no other can, and
// what is under way lands at the last moment, or at any, by the seed.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {

const size_t kStack = 96 * 1024;
const int kWarp = 32;
const size_t kPayload = 64;  // bytes that a lane shows to its warp

struct Block;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    Block* block;
    Index index;
    int thread;  // within its block
    bool ended, slow;
    std::function<bool()> waits_for;  // empty: it can go on
    const char* waiting_at;
};

struct Meeting {  // of a number of threads that all must come
    int arrived = 0;
    unsigned generation = 0;
};

struct Warp {
    Meeting meeting;
    alignas(16) char slots[2][kWarp][kPayload];
};

struct Block {
    Index index;
    int rank;  // in its cluster
    int threads;
    int ended;
    char* shared;
    Meeting barriers[16];
    std::vector<Warp> warps;
    long spare_registers;
    std::vector<int> registers;  // of a thread, by warp group
};

struct Event { std::function<void()> land; };

struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
    std::vector<Event> under_way;
    std::vector<std::function<void()>> at_start;  // of a cluster: what operations have to forget
    Meeting cluster_meeting;
    ucontext_t scheduler;
    Fiber* current;
    size_t shared_bytes;
    bool in_fiber;
    bool eager;  // things under way land at any moment
    uint64_t random_state;
    char fault[512];
};

static Machine machine;

struct AtStart {
    explicit AtStart(std::function<void()> forget) { machine.at_start.push_back(std::move(forget)); }
};

// What each thread of a cluster keeps for an operation; new for each cluster.
template <class T> struct PerThread {
    std::deque<T> all;  // what it holds stays where it is while it grows
    AtStart forget{[this] { all.clear(); }};
    T& mine();
};

inline unsigned random_below(unsigned n) {  // xorshift64
    uint64_t& s = machine.random_state;
    s ^= s << 13; s ^= s >> 7; s ^= s << 17;
    return unsigned((s >> 16) % n);
}

inline Block& here() { return *machine.current->block; }
template <class T> inline T& PerThread<T>::mine() {
    const size_t me = here().rank * 1024 + machine.current->thread;
    if (all.size() <= me) all.resize(me + 1);
    return all[me];
}
inline int lane() { return machine.current->thread % kWarp; }

inline void yield() { swapcontext(&machine.current->context, &machine.scheduler); }

// Notes a fault, the first one only. A thread that fails never goes on.
inline void fail(const char* format, ...) {
    if (!machine.fault[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(machine.fault, sizeof machine.fault, format, arguments);
        va_end(arguments);
    }
    if (machine.in_fiber) yield();
}

// Gives up control until `condition` holds.
inline void wait_until(const char* where, std::function<bool()> condition) {
    Fiber& me = *machine.current;
    me.waits_for = std::move(condition);
    me.waiting_at = where;
    yield();
}

inline void meet(const char* where, Meeting& meeting, int threads) {
    const unsigned mine = meeting.generation;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        ++meeting.generation;
    } else {
        wait_until(where, [&meeting, mine] { return meeting.generation != mine; });
    }
}

// Shows `payload` to the warp; returns what each of its 32 lanes showed.
template <class T>
inline const T* show_warp(const char* where, const T& payload) {
    static_assert(sizeof(T) <= kPayload, "");
    Warp& warp = here().warps[machine.current->thread / kWarp];
    const unsigned mine = warp.meeting.generation & 1;
    char (&slots)[kWarp][kPayload] = warp.slots[mine];
    T* shown = reinterpret_cast<T*>(slots);
    shown[lane()] = payload;
    meet(where, warp.meeting, kWarp);
    return shown;
}

inline void fiber_body();

inline void start(Fiber& fiber, Block& block, int thread) {
    fiber.block = &block;
    fiber.thread = thread;
    fiber.index = Index{thread % blockDim.x, thread / blockDim.x % blockDim.y,
                        thread / (blockDim.x * blockDim.y)};
    fiber.ended = false;
    fiber.waits_for = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_body, 0);
}

inline void resume(Fiber& fiber) {
    machine.current = &fiber;
    threadIdx = fiber.index;
    blockIdx = fiber.block->index;
    machine.in_fiber = true;
    swapcontext(&machine.scheduler, &fiber.context);
    machine.in_fiber = false;
}

inline bool try_to_run(Fiber& fiber) {
    if (fiber.ended) return false;
    if (fiber.waits_for) {
        if (!fiber.waits_for()) return false;
        fiber.waits_for = nullptr;
    }
    resume(fiber);
    return true;
}

inline bool land_one() {
    auto& under_way = machine.under_way;
    if (under_way.empty()) return false;
    const unsigned i = random_below(under_way.size());
    Event event = std::move(under_way[i]);
    under_way.erase(under_way.begin() + i);
    event.land();
    return true;
}

inline void shuffle(std::vector<int>& order) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
}

// Until all threads of the cluster have ended, or a fault.
inline void run_threads(int count) {
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

}  // namespace host

static inline void __syncthreads() {
    host::meet("__syncthreads", host::here().barriers[0], host::here().threads);
}

static inline void __syncwarp() { host::show_warp("__syncwarp", 0); }
