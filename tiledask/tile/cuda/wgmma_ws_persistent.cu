// C = A B + beta C on Hopper's tensor cores, in bf16, summed in float32: tiles brought by the
// copy engine, multiplied by two warp groups, one block per SM for good.
//
//                          n                      level      what it is              what it owns
//                 .-----+-----+-----.             grid       one block per SM,       tiles 0, p, 2p...
//                 |     |/////|     |                        in clusters of CLUSTER  of C, in a raster
//               k |-----+-----+-----|             cluster    CLUSTER blocks, the     CLUSTER tiles, one
//                 |     |/////|     |  B                     same columns            above the other
//                 '-----+-----+-----'             block      1 warp group copies,    one tile of C,
//            k                                               2 multiply              128 x TILE_N
//   .-----+-----.  .-----+-----+-----.            stage      one of STAGES places    128 x 64 of A,
//   |     |     |  |     |     |     |                       in shared memory        64 x TILE_N of B
//   |/////|/////|  |-----+XXXXX+-----| tile 0     warp group 128 threads             64 x TILE_N of C,
// m |-----+-----|  |-----+XXXXX+-----|   of                                          TILE_N / 2 sums
//   |/////|/////|  |     |     |     | tile 1                                        a thread
//   '-----+-----'  '-----+-----+-----'   a cluster
//     A              C
//
// The ring of stages, each with two barriers:
//
//   producer    wait empty, announce bytes, load A and B ------.   empty: both consumers of every
//                 ^                                            |          block of the cluster
//                 | arrive                        bytes arrive v          have read the stage
//   consumers   multiply <------------------------------ wait full  full: all bytes are there
//
// Both blocks of a cluster need the same part of B. Each loads half of it and the copy engine writes
// that into both, so that a tile of B leaves L2 once for two tiles of C. That is why a stage is empty
// only when the consumers of both blocks say so.
//
// On the compiler's command line: TYPE (bf16), OUT (the same, or float), TILE_N (128, 256),
// STAGES (2 or more), CLUSTER (1, 2), A_TURNED (1: A is contiguous along m), B_TURNED (1: along n),
// STAGED (1: C goes through shared memory and out by the copy engine; it is of TYPE and not read), and
// what epilogue.cuh has. Rows of C start and end at multiples of 16 bytes.

#include "epilogue.cuh"
#include "hopper.cuh"

const int TILE_M = 128, TILE_K = 64;  // 64 elements are the 128 bytes of a swizzled row
const int ROW_BYTES = 128;
const int CONSUMERS = 2, ROWS = TILE_M / CONSUMERS;  // of C, for one warp group
const int GROUP_THREADS = 128;
const int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_K * TILE_N * 2;
const int STAGE_BYTES = A_BYTES + B_BYTES;
const int PANEL_BYTES = ROWS * ROW_BYTES;

const int LINE_COLS = ROW_BYTES / sizeof(OUT);  // of C

const int AT_ONCE = 64;  // columns of C that are asked for: as many as there are registers for

static_assert(STAGES >= 2, "one stage is multiplied while others are filled");
static_assert(TILE_N % (64 * CLUSTER) == 0, "each block loads its share of B by 64 columns");
static_assert(!STAGED || (sizeof(OUT) == 2 && !HAS_BETA), "halves, as made");

struct Shared {
    char* base;
    __device__ inline char* a(int stage) const { return base + stage * STAGE_BYTES; }
    __device__ inline char* b(int stage) const { return a(stage) + A_BYTES; }
    __device__ inline char* c(int consumer) const {
        return base + STAGES * STAGE_BYTES + consumer * (TILE_N / 64) * PANEL_BYTES;
    }
    __device__ inline Barrier* full(int stage) const {
        return reinterpret_cast<Barrier*>(c(STAGED ? CONSUMERS : 0)) + stage;
    }
    __device__ inline Barrier* empty(int stage) const { return full(stage) + STAGES; }
};

// Which stage of the ring comes next, and in which phase its barriers are.
struct Ring {
    int stage, parity;
    __device__ inline void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The tile of C of this block in the cluster's tile number `t`.
__device__ inline Place place_of_block(int t, int m, int n) {
    Place at = place_of<TILE_M * CLUSTER, TILE_N>(t, m, n);
    at.row += cluster_rank() * TILE_M;
    return at;
}

__device__ inline void load_a(const Shared& s, int stage, const TensorMap& map, int row, int k0) {
    if (A_TURNED) {  // boxes of 64 of m, 64 of k
        for (int half = 0; half < CONSUMERS; ++half) {
            tile_load(s.a(stage) + half * PANEL_BYTES, map, s.full(stage), row + half * ROWS, k0, 0);
        }
    } else {  // one box of 64 of k, 128 of m
        tile_load(s.a(stage), map, s.full(stage), k0, row, 0);
    }
}

// This block's share of the tile of B, into every block of the cluster.
__device__ inline void load_b(const Shared& s, int stage, const TensorMap& map, int col, int k0) {
    const unsigned short everyone = (1 << CLUSTER) - 1;
    const int share = TILE_N / CLUSTER, first = cluster_rank() * share;
    char* to = s.b(stage) + first * ROW_BYTES;
    if (B_TURNED) {  // boxes of 64 of n, 64 of k
        for (int j = 0; j < share; j += 64) {
            tile_load_to(everyone, to + j * ROW_BYTES, map, s.full(stage), col + first + j, k0, 0);
        }
    } else {  // one box of 64 of k, the share of n
        tile_load_to(everyone, to, map, s.full(stage), k0, col + first, 0);
    }
}

__device__ inline void produce(const Shared& s, const TensorMap& map_a, const TensorMap& map_b,
                               int m, int n, int k, int first, int tiles, int step) {
    Ring ring = {0, 0};
    for (int tile = first; tile < tiles; tile += step) {
        const Place at = place_of_block(tile, m, n);
        for (int k0 = 0; k0 < k; k0 += TILE_K) {
            barrier_wait(s.empty(ring.stage), ring.parity ^ 1);
            barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES);
            load_a(s, ring.stage, map_a, at.row, k0);
            load_b(s, ring.stage, map_b, at.col, k0);
            ring.next();
        }
    }
}

// One stage into the sums of this consumer: 4 instructions of 16 steps of k.
__device__ inline void multiply(const Shared& s, int stage, int consumer, bool add,
                                float (&sums)[TILE_N / 2]) {
    const unsigned long long a =
        descriptor(s.a(stage) + consumer * PANEL_BYTES, PANEL_BYTES, 8 * ROW_BYTES);
    const unsigned long long b = descriptor(s.b(stage), TILE_K * ROW_BYTES, 8 * ROW_BYTES);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; ++i) {
        Wgmma<A_TURNED, B_TURNED, TILE_N / 2>::issue(
            sums, descriptor_at(a, i * (A_TURNED ? 16 * ROW_BYTES : 32)),
            descriptor_at(b, i * (B_TURNED ? 16 * ROW_BYTES : 32)), add || i > 0);
    }
    wgmma_commit();
}

// Tells every block of the cluster that this consumer has read the stage.
__device__ inline void release(const Shared& s, int stage, int thread) {
    if (thread < CLUSTER) barrier_arrive_at(s.empty(stage), thread);
}

// C, which will be added to, on its way from memory to L2 while the tile is multiplied: each thread
// asks for every other line of 128 bytes of a row.
__device__ inline void fetch_c(const Result<OUT>& c, const Place& at, int consumer, int m, int n) {
    const int thread = threadIdx.x % GROUP_THREADS, i = at.row + consumer * ROWS + thread % ROWS;
#pragma unroll
    for (int j = thread / ROWS * LINE_COLS; j < TILE_N; j += 2 * LINE_COLS) {
        fetch_into_l2_if(i < m && at.col + j < n, c.at(i, at.col + j));
    }
}

// What a thread has of AT_ONCE columns of C: two rows, 8 apart, and a pair in every 8 columns.
typedef Share<OUT, 2, 8, AT_ONCE / 8, 8> Part;

#if STAGED
// Sums -> shared memory, in panels of 128 bytes by ROWS -> C by the copy engine, which works on while
// the next tile is multiplied.
__device__ inline void store_tile(float, const Result<OUT>&, const TensorMap& map_c,
                                  const Shared& s, const Place& at, int consumer, int m, int n,
                                  float (&sums)[TILE_N / 2]) {
    const int thread = threadIdx.x % GROUP_THREADS, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4, col = lane % 4 * 2;  // of this consumer's part
    char* panels = s.c(consumer);
    if (thread == 0) stores_have_read();  // the tile before this one
    group_sync(1 + consumer, GROUP_THREADS);
#pragma unroll
    for (int q = 0; q < TILE_N / 4; ++q) {
        const int r = row + q % 2 * 8, byte = (q / 2 * 8 + col) * sizeof(OUT);
        tile_write(panels + byte / ROW_BYTES * PANEL_BYTES + r * ROW_BYTES +
                       (byte % ROW_BYTES / 16 ^ r % 8) * 16 + byte % 16,
                   from_float<OUT>(sums[2 * q]), from_float<OUT>(sums[2 * q + 1]));
    }
    tile_writes_done();
    group_sync(1 + consumer, GROUP_THREADS);
    if (thread == 0) {
        for (int j = 0; j < TILE_N / 64; ++j) {
            tile_store(map_c, panels + j * PANEL_BYTES, at.col + j * 64, at.row + consumer * ROWS, 0);
        }
        stores_commit();
    }
}
#else
// Sums -> C, wherever its elements lie.
__device__ inline void store_tile(float beta, const Result<OUT>& c, const TensorMap&,
                                  const Shared&, const Place& at, int consumer, int m, int n,
                                  float (&sums)[TILE_N / 2]) {
    const int thread = threadIdx.x % GROUP_THREADS, lane = thread % 32;
    const int row = at.row + consumer * ROWS + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < TILE_N; j += AT_ONCE) {
        const Part part(c, row, at.col + j + lane % 4 * 2, m, n);
        part.finish(beta, sums + j / 2);
        part.store(sums + j / 2);
    }
}
#endif

__device__ inline void consume(const Shared& s, const TensorMap& map_c, const Result<OUT>& c,
                               float beta, int m, int n, int k, int consumer, int first,
                               int tiles, int step) {
    const int thread = threadIdx.x % GROUP_THREADS;
    Ring ring = {0, 0};
    for (int tile = first; tile < tiles; tile += step) {
        const Place at = place_of_block(tile, m, n);
        if (HAS_BETA) fetch_c(c, at, consumer, m, n);
        float sums[TILE_N / 2];
        int before = 0;  // the stage multiplied last
        for (int k0 = 0; k0 < k; k0 += TILE_K) {
            barrier_wait(s.full(ring.stage), ring.parity);
            multiply(s, ring.stage, consumer, k0 > 0, sums);
            // one step stays under way, so that the tensor cores never wait for the next to be issued
            wgmma_wait<1>();
            if (k0 > 0) release(s, before, thread);
            before = ring.stage;
            ring.next();
        }
        wgmma_wait<0>();
        release(s, before, thread);
        store_tile(beta, c, map_c, s, at, consumer, m, n, sums);
    }
#if STAGED
    if (thread == 0) stores_are_done();
#endif
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
wgmma_ws_persistent(int m, int n, int k,
                    const __grid_constant__ TensorMap map_a,
                    const __grid_constant__ TensorMap map_b,
                    const __grid_constant__ TensorMap map_c,  // STAGED only
                    OUT* c, stride_t c_row, float beta) {
    const Shared s = {dynamic_shared()};
    const int group = warp_uniform(threadIdx.x / GROUP_THREADS);  // 0 produces, 1 and 2 consume
    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        if (STAGED) fetch_map(map_c);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(s.full(stage), 1);
            barrier_init(s.empty(stage), CONSUMERS * CLUSTER);
        }
        barriers_made();
    }
    cluster_sync();

    const int down = (m + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER);
    const int tiles = down * ((n + TILE_N - 1) / TILE_N);  // of clusters
    const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    if (group == 0) {
        registers_down_to<40>();
        if (threadIdx.x == 0) produce(s, map_a, map_b, m, n, k, first, tiles, step);
    } else {
        registers_up_to<232>();
        const Result<OUT> result = {c, c_row};
        consume(s, map_c, result, beta, m, n, k, group - 1, first, tiles, step);
    }
    cluster_sync();  // nobody leaves while others still write into its shared memory
}
