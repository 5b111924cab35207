// C = A B + beta C in float32 on CUDA cores, from sm_80 on: tiles within tiles, down to 64 sums in
// the registers of a thread, copies a stage ahead of the arithmetic.
//
//                          n                      level      what it is           what it owns
//                 .-----+-----+-----.             grid       blockIdx.x: a tile   C, by tiles in a
//                 |     |/////|     |                                             raster
//               k |-----+-----+-----|
//                 |     |/////|     |  B          block      8 warps, four by     one tile of C,
//                 '-----+-----+-----'                        two, or 4            TILE_M x TILE_N
//            k                                    stage      one of STAGES in     TILE_M x TILE_K of A,
//   .-----+-----.  .-----+-----+-----.                       shared memory        TILE_K x TILE_N of B
//   |     |     |  |     |     |     |            warp       32 threads, 8 by 4   32 x 64 of C, or
// m |/////|/////|  |-----+XXXXX+-----| m                                          32 x 32
//   |     |     |  |     |     |     |            patch      the 32 threads,      32 x 16 of it
//   '-----+-----'  '-----+-----+-----'                       each with 4 x 4
//     A              C                            thread     4 x 4 of each patch  64 sums, or 32
//
// What this is for: a block's tile of 128 x 128 reads A and B from L2 once for 128 rows and columns
// of C, 32 FLOP a byte. Within the block every float that a warp reads from shared memory serves 32 or
// 64, and every float in a register 4 or 16: per step of k a thread reads 20 floats, in 5 instructions,
// for 64 multiplications. Twice the sums in a thread would read less, and leave two warps to a quarter
// of the multiprocessor instead of four: on an H200 that was slower, as something else had to run while
// one of them waits at a barrier or for its copies. The longer a step along k, the fewer barriers.
//
// On the compiler's command line: TYPE and OUT (float), TILE_M, TILE_N (64 or 128), TILE_K (8, 16, 32),
// STAGES, A_TURNED (1: A is contiguous along m), B_TURNED (1: along n).

#define WARP_ROWS 32
#include "panels.cuh"

const int PATCH_M = 32, PATCH_N = 16;  // of C, for 8 x 4 lanes with 4 x 4 each
const int PATCHES_DOWN = WARP_M / PATCH_M, PATCHES_ACROSS = WARP_N / PATCH_N;  // of a warp

// Panels lie in shared memory with their lines along the extent, whichever way the matrix lies, so
// that one instruction reads 4 neighbours of a line.
//
// Reads are of one line at a time, and 16 bytes of it a lane: no two different words in one bank.
// Copies from a turned matrix write along a line too. Copies from the others transpose: a warp brings
// 8 of k from 4 rows, which go to 4 neighbours in 8 lines. Lines longer by 4 than a multiple of 32
// banks put these next to each other.
template <int EXTENT> struct Padded {
    static constexpr int LINES_OF_K = 1;
    static constexpr bool LINEAR = true;
    static constexpr int PITCH = EXTENT + 4, SIZE = TILE_K * PITCH;
    static_assert(EXTENT % 32 == 0, "of 32 banks");
    __device__ static inline int at(int e, int p) { return p * PITCH + e; }
};

typedef Padded<TILE_M> LayoutA;
typedef Padded<TILE_N> LayoutB;
const int STAGE = LayoutA::SIZE + LayoutB::SIZE;  // floats
const int ROW_PITCH = WARP_N + 16;  // of sums on their way out: 2 rows of 16 are written at a time
static_assert(THREADS / 32 * 8 * ROW_PITCH <= STAGES * STAGE, "they fit");

// The matrix of 8 x 4 lanes. The bits of a lane's number: row, row, column, row, column, so that each
// lane i reads the same of A as lane i ^ 1, and the same of B as lane i ^ 2. Reads of 16 bytes by such
// pairs take half the time; pairs further apart do not count (NVIDIA's developer forum, topic 77228).
struct Lane {
    int row, col;
    __device__ inline Lane() {
        const int lane = threadIdx.x % 32;
        row = lane >> 1 & 1 | lane >> 2 & 6;
        col = lane & 1 | lane >> 1 & 2;
    }
};

// What a thread reads of one stage for one step along k: 4 of a column of A for each patch below
// another, 4 of a row of B for each beside another.
struct Fragments {
    Four a[PATCHES_DOWN], b[PATCHES_ACROSS];

    __device__ inline void read(const float* stage, int row, int col, int p) {
        const float* at_a = stage + row;
        const float* at_b = stage + LayoutA::SIZE + col;
#pragma unroll
        for (int i = 0; i < PATCHES_DOWN; ++i) {
            a[i] = shared_read<Four>(at_a + LayoutA::at(i * PATCH_M, p));
        }
#pragma unroll
        for (int j = 0; j < PATCHES_ACROSS; ++j) {
            b[j] = shared_read<Four>(at_b + LayoutB::at(j * PATCH_N, p));
        }
    }
};

typedef float Sums[PATCHES_DOWN][PATCHES_ACROSS][4][4];

// Adds the outer product of a column of A and a row of B.
__device__ inline void multiply(Sums& sums, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < PATCHES_DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < PATCHES_ACROSS; ++j) {
#pragma unroll
            for (int q = 0; q < 16; ++q) {
                sums[i][j][q / 4][q % 4] += f.a[i].x[q / 4] * f.b[j].x[q % 4];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm_warptiled(int m, int n, int k,
                const TYPE* a, stride_t a_row, stride_t a_col,
                const TYPE* b, stride_t b_row, stride_t b_col,
                OUT* c, stride_t c_row, float beta) {
    float* memory = reinterpret_cast<float*>(dynamic_shared());
    const Place tile = place_of<TILE_M, TILE_N>(blockIdx.x, m, n), warp = place_of_warp();
    const Lane lane;
    const int steps = (k + TILE_K - 1) / TILE_K;
    Copier<float, TILE_M, A_TURNED, LayoutA> copy_a(a, A_TURNED ? a_col : a_row, tile.row, m);
    Copier<float, TILE_N, B_TURNED, LayoutB> copy_b(b, B_TURNED ? b_row : b_col, tile.col, n);

    int copied = 0, into = 0;  // steps, and the stage that the next of them goes to
    const auto copy_next = [&] {
        if (copied < steps) {
            copy_a.next(memory + into * STAGE, k - copied * TILE_K);
            copy_b.next(memory + into * STAGE + LayoutA::SIZE, k - copied * TILE_K);
        }
        copies_commit();  // with nothing in it at the end, so that counting groups counts steps
        ++copied;
        into = into + 1 < STAGES ? into + 1 : 0;
    };
    for (int s = 0; s < STAGES - 1; ++s) copy_next();

    Sums sums = {};
    int from = 0;  // the stage that is multiplied
    for (int s = 0; s < steps; ++s) {
        copies_wait<STAGES - 2>();
        __syncthreads();  // this stage is there, and everyone has read the one before
        copy_next();      // over the one before
        const float* stage = memory + from * STAGE;
        const int row = warp.row + lane.row * 4, col = warp.col + lane.col * 4;
        Fragments fragments[2];
        fragments[0].read(stage, row, col, 0);
        // one step's fragments are read while the one before is multiplied; unrolled as a whole, the
        // compiler puts the reads where their values are wanted, and the code outgrows its cache
#pragma unroll 4
        for (int p = 0; p < TILE_K; ++p) {
            if (p + 1 < TILE_K) fragments[(p + 1) % 2].read(stage, row, col, p + 1);
            multiply(sums, fragments[p % 2]);
        }
        from = from + 1 < STAGES ? from + 1 : 0;
    }

    const Result<OUT> result = {c, c_row};
    float* rows = memory + threadIdx.x / 32 * 8 * ROW_PITCH;
    __syncthreads();  // everyone has read the last stage
#pragma unroll 1
    for (int r = 0; r < 4; ++r) {  // row r of every lane: 8 rows, 4 apart
#pragma unroll
        for (int i = 0; i < PATCHES_DOWN; ++i) {
#pragma unroll
            for (int j = 0; j < PATCHES_ACROSS; ++j) {
                float (&x)[4][4] = sums[i][j];
                shared_write(rows + lane.row * ROW_PITCH + j * PATCH_N + lane.col * 4,
                             Four{x[0][0], x[0][1], x[0][2], x[0][3]});
#pragma unroll
                for (int q = 0; q < 12; ++q) x[q / 4][q % 4] = x[q / 4 + 1][q % 4];  // the next row
            }
            const Place corner = {tile.row + warp.row + i * PATCH_M + r, tile.col + warp.col};
            store_rows<8, 4, ROW_PITCH>(beta, result, corner, m, n, rows);
        }
    }
}
