// Operations of Hopper (sm_90a) by name: barriers that count bytes, bulk copies of tiles, tensor
// cores of a warp group, clusters. As in gpu.cuh, the host has functions of the same names.

#pragma once

#include "gpu.cuh"

// -- clusters: thread blocks that run at the same time and reach each other's shared memory -----------

__device__ inline int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}

// All threads of all blocks of the cluster; what they wrote before is seen after.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::: "memory");
}

// The 128 threads of one warp group, or any other number, that use the same `id` from 1 to 15.
__device__ inline void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// -- registers: a warp group that needs few gives them to those that need many (setmaxnreg) ------------

template <int N> __device__ inline void registers_down_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> __device__ inline void registers_up_to() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

// -- mbarrier: a phase ends when all have arrived and all bytes they announced are there ---------------

struct Barrier { unsigned long long state; };

__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Lets bulk copies and the cluster see freshly made barriers; before a cluster_sync.
__device__ inline void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and announces bytes that bulk copies will bring in this phase.
__device__ inline void barrier_arrive_expecting(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Arrives at the barrier in the same place of block `rank` of the cluster.
__device__ inline void barrier_arrive_at(Barrier* barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
                 :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}

// Waits for the end of the phase of this parity; that of a new barrier is 0, the one before it 1.
__device__ inline void barrier_wait(Barrier* barrier, int parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra OVER;\n"
                 "bra AGAIN;\n"
                 "OVER:\n}"
                 :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// -- bulk copies of tiles (TMA) --------------------------------------------------------------------
//
// A TensorMap is made on the host (cuTensorMapEncodeTiled) and passed as a __grid_constant__
// parameter. It describes a matrix of three dimensions, the innermost contiguous, and a box of it.
// Coordinates count elements from the innermost on. What lies outside the matrix is 0 when read and
// dropped when written. Here every box is 128 bytes wide and swizzled: of a box that starts at a
// multiple of 1024, the 16 bytes number c of row r lie at r * 128 + (c ^ r % 8) * 16.

struct __align__(64) TensorMap { unsigned long long words[16]; };

// Lets the copy engine read a map before the first copy wants it; nobody waits.
__device__ inline void fetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

// One thread asks; the bytes land in `to` and are counted by `barrier`.
__device__ inline void tile_load(void* to, const TensorMap& map, Barrier* barrier,
                                 int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(barrier)),
                    "r"(x), "r"(y), "r"(z) : "memory");
}

// The same tile into the same place of every block of the cluster whose bit of `blocks` is set,
// counted by the barrier in the same place there: read from L2 once.
__device__ inline void tile_load_to(unsigned short blocks, void* to, const TensorMap& map,
                                    Barrier* barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(barrier)),
                    "r"(x), "r"(y), "r"(z), "h"(blocks) : "memory");
}

// Writes two neighbours, at a multiple of both together, into a tile that a bulk copy reads next.
// Between them: tile_writes_done by every writer, then a barrier.
template <class T> __device__ inline void tile_write(void* to, T x, T y) {
    const unsigned both = unsigned(x.bits) | unsigned(y.bits) << 16;
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(shared_address(to)), "r"(both) : "memory");
}
__device__ inline void tile_writes_done() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void tile_store(const TensorMap& map, const void* from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(&map), "r"(shared_address(from)), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ inline void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// This thread's stores have read their tiles, which may be written again; or are done altogether.
__device__ inline void stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void stores_are_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// -- tensor cores of a warp group (wgmma) -----------------------------------------------------------
//
// A descriptor tells the tensor cores where an operand's 16 steps of k lie in shared memory, in rows
// of 128 bytes swizzled as above (asynchronous warpgroup level matrix operations, "Matrix
// descriptor"). Two ways to lie, c = contiguous direction, 64 elements of it per row:
//
//   c = k          row r of 8 rows, then the next 8 rows `stride` bytes on
//   c = m or n     row r of 8 steps of k, the next 8 steps `stride` on; the next 64 of m or n
//                  `leading` bytes on
//
// 16 more steps of k: descriptor_at(d, 32) in the first way, descriptor_at(d, 2048) in the second.

__device__ inline unsigned long long descriptor(const void* tile, int leading, int stride) {
    const unsigned long long swizzle_128 = 1ull << 62;
    return swizzle_128 | static_cast<unsigned long long>(stride >> 4) << 32 |
           static_cast<unsigned long long>(leading >> 4) << 16 |
           (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ inline unsigned long long descriptor_at(unsigned long long d, int bytes) {
    return d + (bytes >> 4);
}

// Before the first wgmma after the accumulators were touched otherwise.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// At most `N` groups are still under way; the others have read their tiles and made their sums.
template <int N> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
// d (64 x 2 R) = a b, or d += a b if `add`, of bf16, over 16 steps of k, by 128 threads, later. Thread t has
// rows 16 (t / 32) + t % 32 / 4 and that + 8, columns 8 j + 2 (t % 4) and the next, j < R / 4:
// d[4 j], d[4 j + 1] in the first row, d[4 j + 2], d[4 j + 3] in the second.
// TurnA, TurnB: the operand is contiguous in m, in n, instead of k.
template <bool TurnA, bool TurnB, int R> struct Wgmma;

#define NAMES_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_256 NAMES_128 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
    "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define SUMS_128 SUMS_32(0), SUMS_32(32)
#define SUMS_256 SUMS_128, SUMS_32(64), SUMS_32(96)

// N columns; A, B, ADD, TA, TB are the numbers of the operands after the N / 2 sums
#define WGMMA(N, A, B, ADD, TA, TB)                                                               \
    template <bool TurnA, bool TurnB> struct Wgmma<TurnA, TurnB, N / 2> {                         \
        __device__ static inline void issue(float (&d)[N / 2], unsigned long long a,              \
                                            unsigned long long b, bool add) {                     \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n"                      \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16"               \
                         " {" NAMES_##N "}, " A ", " B ", add, 1, 1, " TA ", " TB ";\n}"           \
                         : SUMS_##N                                                               \
                         : "l"(a), "l"(b), "r"(int(add)), "n"(int(TurnA)), "n"(int(TurnB)));  \
        }                                                                                         \
    };
WGMMA(128, "%64", "%65", "%66", "%67", "%68")
WGMMA(256, "%128", "%129", "%130", "%131", "%132")
