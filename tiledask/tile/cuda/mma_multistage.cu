// C = A B + beta C on the tensor cores of a warp, from sm_80 on: bf16, summed in float32,
// copies several stages ahead of the arithmetic.
//
//                          n                      level      what it is           what it owns
//                 .-----+-----+-----.             grid       blockIdx.x: a tile   C, by tiles in a
//                 |     |/////|     |                                             raster
//               k |-----+-----+-----|
//                 |     |/////|     |  B          block      128 threads, at      one tile of C,
//                 '-----+-----+-----'                        128 x 128            TILE_M x TILE_N
//            k                                    stage      one of STAGES in     TILE_M x TILE_K of A,
//   .-----+-----.  .-----+-----+-----.                       shared memory        TILE_K x TILE_N of B
//   |     |     |  |     |     |     |            warp       32 threads           64 x 64 of C
// m |/////|/////|  |-----+XXXXX+-----| m          mma        one instruction      16 x 8 of C,
//   |     |     |  |     |     |     |                                            32 bytes of k
//   '-----+-----'  '-----+-----+-----'            thread     a lane of each       4 sums of 16 x 8,
//     A              C                                                            32 times over
//
// Time goes to the right; panels of A and B for step s are
//
//   copied       s+3 |  s+4 |  s+5 |      into the stage that step s-1 has left (STAGES = 4)
//   multiplied    s  |  s+1 |  s+2 |      each in TILE_K / STEP_K steps; while one is multiplied, the
//                                         next one's fragments are read into registers
//
// On the compiler's command line: TYPE (bf16), OUT (TYPE, or float), TILE_M, TILE_N,
// TILE_K, STAGES, A_TURNED (1: A is contiguous along m), B_TURNED (1: along n).

#define WARP_ROWS 64
#include "panels.cuh"

const int STEP_K = 16;   // of k, for one mma
const int IN_CHUNK = 8;  // elements of the 16 bytes that ldmatrix takes of a line
const int MMA_ROWS = WARP_M / 16, MMA_COLS = WARP_N / 16;  // a warp's fragments of A, and of B
const int STEPS = TILE_K / STEP_K;
static_assert(STEPS % 2 == 0, "fragments alternate between two sets of registers");

// Lines lie in shared memory as they do in the matrix, but the chunks of a line change places.
//
// ldmatrix reads the same chunk of 8 lines at a time, a copy writes 8 neighbouring chunks at a time:
// both should touch all 8 groups of 4 banks. Lines of 128 bytes or more keep chunk c at c ^ line,
// another group in each of 8 lines. Two lines of 64 bytes fill all groups once: such pairs exchange.
template <int EXTENT, int TURNED> struct Swizzled {
    static constexpr int LINES_OF_K = TURNED;
    static constexpr bool LINEAR = false;
    static constexpr int LENGTH = TURNED ? EXTENT : TILE_K, SIZE = EXTENT * TILE_K;
    static constexpr int CHUNKS = LENGTH / IN_CHUNK;
    static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "lines of 64 bytes, or of 128 times any number");

    __device__ static inline int at(int e, int p) {
        const int line = TURNED ? p : e, i = TURNED ? e : p;
        const int twist = CHUNKS == 4 ? line / 2 % 4 : line % 8;
        return line * LENGTH + (i / IN_CHUNK ^ twist) * IN_CHUNK + i % IN_CHUNK;
    }
};

typedef Swizzled<TILE_M, A_TURNED> LayoutA;
typedef Swizzled<TILE_N, B_TURNED> LayoutB;
const int STAGE = LayoutA::SIZE + LayoutB::SIZE;  // elements
const int ROW_PITCH = WARP_N + 8;  // of sums on their way out: 4 rows of 4 pairs are written at a time
static_assert(THREADS / 32 * 16 * ROW_PITCH * 4 <= STAGES * STAGE * int(sizeof(TYPE)), "they fit");

// Registers of 16 rows of A, or 16 columns of B, by STEP_K of k: four quarters of 8 by half of k. An
// mma takes those of A with the rows' halves first, those of B with the halves of k first.
template <class Layout, int K_FIRST>
__device__ inline void load(unsigned (&r)[4], const TYPE* panel, int start, int p) {
    // this lane's address is for line lane % 8 of quarter lane / 8
    const int lane = threadIdx.x % 32, q = lane / 8;
    const int e = (K_FIRST ? q / 2 : q % 2) * 8, d = (K_FIRST ? q % 2 : q / 2) * IN_CHUNK;
    if (Layout::LINES_OF_K) {
        ldmatrix_transposed(r, panel + Layout::at(start + e, p + d + lane % 8));
    } else {
        ldmatrix(r, panel + Layout::at(start + e + lane % 8, p + d));
    }
}

// What a warp reads of one stage for one step along k.
struct Fragments {
    unsigned a[MMA_ROWS][4], b[MMA_COLS][4];

    __device__ inline void read(const TYPE* stage, const Place& warp, int p) {
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) load<LayoutA, 0>(a[i], stage, warp.row + 16 * i, p);
#pragma unroll
        for (int j = 0; j < MMA_COLS; ++j) {
            load<LayoutB, 1>(b[j], stage + LayoutA::SIZE, warp.col + 16 * j, p);
        }
    }
};

typedef float Sums[MMA_ROWS][2 * MMA_COLS][4];

__device__ inline void multiply(Sums& sums, const Fragments& f) {
#pragma unroll
    for (int j = 0; j < 2 * MMA_COLS; ++j) {
        const unsigned b[2] = {f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]};
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) mma(sums[i][j], f.a[i], b);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma_multistage(int m, int n, int k,
               const TYPE* a, stride_t a_row, stride_t a_col,
               const TYPE* b, stride_t b_row, stride_t b_col,
               OUT* c, stride_t c_row, float beta) {
    TYPE* memory = reinterpret_cast<TYPE*>(dynamic_shared());
    const Place tile = place_of<TILE_M, TILE_N>(blockIdx.x, m, n), warp = place_of_warp();
    const int steps = (k + TILE_K - 1) / TILE_K;
    Copier<TYPE, TILE_M, A_TURNED, LayoutA> copy_a(a, A_TURNED ? a_col : a_row, tile.row, m);
    Copier<TYPE, TILE_N, B_TURNED, LayoutB> copy_b(b, B_TURNED ? b_row : b_col, tile.col, n);

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
    copies_wait<STAGES - 2>();
    __syncthreads();  // the first stage is there

    Sums sums = {};
    Fragments fragments[2];
    int from = 0;  // the stage that is read
    fragments[0].read(memory, warp, 0);
    for (int s = 0; s < steps; ++s) {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            if (i + 1 == STEPS) {
                copies_wait<STAGES - 2>();
                __syncthreads();  // the next stage is there, and everyone has read this one
                from = from + 1 < STAGES ? from + 1 : 0;
            }
            if (i == 0) copy_next();
            // after the last step this reads what nobody multiplies
            fragments[(i + 1) % 2].read(memory + from * STAGE, warp, (i + 1) % STEPS * STEP_K);
            multiply(sums, fragments[i % 2]);
        }
    }

    const Result<OUT> result = {c, c_row};
    const int lane = threadIdx.x % 32;
    float* rows = reinterpret_cast<float*>(memory) + threadIdx.x / 32 * 16 * ROW_PITCH;
    // since the last barrier only what nobody multiplies is read: the stages are free for sums
#pragma unroll 1
    for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * MMA_COLS; ++j) {
            float* to = rows + lane / 4 * ROW_PITCH + 8 * j + lane % 4 * 2;
            const float (&d)[4] = sums[0][j];
            shared_write(to, Pair<float>{d[0], d[1]});
            shared_write(to + 8 * ROW_PITCH, Pair<float>{d[2], d[3]});
        }
#pragma unroll
        for (int q = 0; q < (MMA_ROWS - 1) * 8 * MMA_COLS; ++q) {  // the next rows become the first
            const int r = q / (8 * MMA_COLS), j = q / 4 % (2 * MMA_COLS);
            sums[r][j][q % 4] = sums[r + 1][j][q % 4];
        }
        const Place corner = {tile.row + warp.row + 16 * i, tile.col + warp.col};
        store_rows<16, 1, ROW_PITCH>(beta, result, corner, m, n, rows);
    }
}
