// Runs one CUDA kernel on the host. Compile with -DKERNEL_FILE="path.cu", which defines KERNEL as the
// kernel's name, and whatever else would be on the GPU compiler's command line.
//
// Shared memory and registers of a multiprocessor of sm_90: a kernel that wants more is refused.

#include <fibers.h>  // the first of all, so that its compiled form is found

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
// variables are collected in a section of their own, whose ends the linker names
#define __shared__ static __attribute__((section("shared_memory")))

#include KERNEL_FILE

extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace host {

static void** arguments;

template <class... A, size_t... I>
inline void call(void (*kernel)(A...), std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <class... A>
inline void call(void (*kernel)(A...)) { call(kernel, std::index_sequence_for<A...>()); }

inline void fiber_body() {
    call(KERNEL);
    Fiber& me = *machine.current;
    me.ended = true;
    ++me.block->ended;
    yield();
}

inline void open_cluster(unsigned first, int size, int threads, int registers) {
    machine.blocks.clear();
    machine.under_way.clear();
    machine.cluster_meeting = Meeting();
    for (auto& forget : machine.at_start) forget();
    for (int rank = 0; rank < size; ++rank) {
        const unsigned b = first + rank;
        auto block = std::make_unique<Block>();
        block->index = Index{b % gridDim.x, b / gridDim.x % gridDim.y,
                             b / (gridDim.x * gridDim.y)};
        block->rank = rank;
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
    if (__start_shared_memory) {
        memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    }
}

inline void close_cluster() {
    while (!machine.fault[0] && land_one()) {}
    for (auto& block : machine.blocks) free(block->shared);
}

}  // namespace host

// 0, or 1 and why in `fault` (at least 512 bytes).
extern "C" int launch(unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned cluster, unsigned shared_bytes,
                      unsigned registers, uint64_t seed, void** arguments, char* fault) {
    using namespace host;
    gridDim = Index{grid_x, grid_y, grid_z};
    blockDim = Index{block_x, block_y, 1};
    const int threads = block_x * block_y;
    const unsigned blocks = grid_x * grid_y * grid_z;
    host::arguments = arguments;
    machine.random_state = seed * 2654435761u + 88172645463325252ull;
    for (int i = 0; i < 8; ++i) random_below(2);
    machine.eager = random_below(2);
    machine.shared_bytes = shared_bytes;
    machine.fault[0] = 0;
    if (shared_bytes > 227 * 1024) fail("%u bytes of shared memory, a block has 232448", shared_bytes);
    if (blocks % cluster) fail("a grid of %u blocks is no multiple of clusters of %u", blocks, cluster);
    while (machine.fibers.size() < threads * cluster) {
        machine.fibers.push_back(std::make_unique<Fiber>());
    }
    for (unsigned first = 0; first < blocks && !machine.fault[0]; first += cluster) {
        open_cluster(first, cluster, threads, registers);
        for (unsigned i = 0; i < threads * cluster; ++i) {
            start(*machine.fibers[i], *machine.blocks[i / threads], i % threads);
        }
        run_threads(threads * cluster);
        close_cluster();
    }
    strncpy(fault, machine.fault, 512);
    return machine.fault[0] != 0;
}
