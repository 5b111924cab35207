// CUDA threads on the host: a fiber each, in thread blocks, in clusters of thread blocks.
//
//   launch        up to three clusters at a time, drawn from all that are left: blocks of a grid start
//                 in any order, beside each other or one after the other
//   run_threads   poison shared memory -> start every thread -> resume them in random order
//                 a thread gives up control only where it has to wait, or when it ends
//                 nobody can go on -> one thing that is under way lands (a bulk copy, say)
//                 nothing is under way either -> everybody waits for ever: a fault, by name
//
// The order is an adversary: some threads are drawn to be slow and run only when no other can, what is
// under way lands at the last moment, or at any, by the seed, and a block that has told others of its
// work may stand still until they have done all that they can.

#pragma once

#include "thread.h"

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
#include <setjmp.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

namespace host {

const size_t kStack = 96 * 1024;

struct Block;

struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf left;        // where it gave up control
    std::unique_ptr<char[]> stack{new char[kStack]};
    Block* block;
    Index index;
    int thread;  // within its block
    bool started, ended, slow;
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
    int rank;    // in its cluster
    int number;  // among the blocks that run
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
    std::vector<std::unique_ptr<Block>> blocks;  // of the clusters that run, one after another
    int cluster;                                 // blocks of one
    std::vector<Event> under_way;
    std::vector<std::function<void()>> at_start;  // of clusters: what operations have to forget
    std::vector<Meeting> cluster_meetings;
    jmp_buf scheduler;
    Fiber* current;
    void** arguments;  // of the kernel
    size_t shared_bytes;
    bool in_fiber;
    bool eager;  // things under way land at any moment
    uint64_t random_state;
    char fault[512];
};

extern Machine machine;

struct AtStart {
    explicit AtStart(std::function<void()> forget) { machine.at_start.push_back(std::move(forget)); }
};

// What each thread that runs keeps for an operation; new when others run.
template <class T> struct PerThread {
    std::deque<T> all;  // what it holds stays where it is while it grows
    AtStart forget{[this] { all.clear(); }};
    T& mine();
};

unsigned random_below(unsigned n);

inline Block& here() { return *machine.current->block; }
inline Block& beside(int rank) {  // the block of that rank in this cluster
    return *machine.blocks[here().number - here().rank + rank];
}
template <class T> inline T& PerThread<T>::mine() {
    const size_t me = here().number * 1024 + machine.current->thread;
    if (all.size() <= me) all.resize(me + 1);
    return all[me];
}

void yield();

// Gives up control until `condition` holds.
void wait_until(const char* where, std::function<bool()> condition);

// Waits until that many threads have come.
void meet(const char* where, Meeting& meeting, int threads);

}  // namespace host
