// What a block of the two kernels without a copy engine does besides multiplying: find its tile of C,
// and bring panels of A and B, the parts that one step along k needs, into shared memory.
//
//                     TURNED 0: contiguous along k         TURNED 1: contiguous along m, or n
//
//                      a line: TILE_K elements                a line: EXTENT elements
//                     .-----------------------.              .-----------------------.
//   line 0            | piece | piece |  ...  |              | piece | piece |  ...  |
//   line 1            |       |       |       |              |       |       |       |
//   ...               '-----------------------'              '-----------------------'
//                      EXTENT lines                           TILE_K lines
//
// A piece is what one instruction copies: 16 bytes, for every line starts at a multiple of those, or
// one float of a line that is transposed on the way. What lies beyond the matrix becomes 0 in shared
// memory and is not read, so that ragged edges need no special case in the product.
//
// On the compiler's command line: TILE_M, TILE_N, TILE_K, STAGES. A kernel says WARP_ROWS: of a tile of
// 128 rows or more, those of one warp.

#pragma once

#include "epilogue.cuh"

const int WARP_M = TILE_M < 128 ? 32 : WARP_ROWS, WARP_N = TILE_N < 128 ? 32 : 64;  // of C, for one
const int WARPS_DOWN = TILE_M / WARP_M, WARPS_ACROSS = TILE_N / WARP_N;
const int THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
const int BLOCKS = TILE_M * TILE_N > 128 * 128 ? 1 : 2;  // per multiprocessor: sums fill registers

static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "TILE_M, TILE_N: 32, 64, 128, 192...");
static_assert(STAGES >= 2, "one stage is multiplied while others are filled");

// The corner of this warp's part within the block's tile.
__device__ inline Place place_of_warp() {
    const int warp = threadIdx.x / 32;
    return Place{warp / WARPS_ACROSS * WARP_M, warp % WARPS_ACROSS * WARP_N};
}

// This thread's share of copying one operand, panel after panel. Layout::at(e, p) says where in
// shared memory element e of the extent (a row of A, a column of B), p of k, of a panel is kept.
template <class T, int EXTENT, int TURNED, class Layout> struct Copier {
    // a line of the matrix becomes a line in shared memory, or its elements go to as many lines
    static constexpr bool STRAIGHT = TURNED == Layout::LINES_OF_K;
    static constexpr int BYTES = STRAIGHT ? 16 : sizeof(T);
    static constexpr int LINES = TURNED ? TILE_K : EXTENT, LENGTH = TURNED ? EXTENT : TILE_K;
    static constexpr int PIECE = BYTES / sizeof(T);  // elements
    // threads on one line; those of a warp read whole sectors of 32 bytes at least
    static constexpr int MOST = STRAIGHT ? 32 : 8;
    static constexpr int ACROSS = LENGTH / PIECE < MOST ? LENGTH / PIECE : MOST;
    static constexpr int DOWN = THREADS / ACROSS;
    static_assert(LINES % DOWN == 0 && LENGTH % (ACROSS * PIECE) == 0, "a whole number of pieces");

    const T* from;       // this thread's first piece of the next panel
    stride_t line;       // elements from one line to the next
    int first, element;  // the line of that piece, and its first element
    int extent;          // rows of A, or columns of B, from the panel's first on

    __device__ inline Copier(const T* data, stride_t line, int start, int end)
        : line(line), extent(end - start) {
        first = threadIdx.x / ACROSS;
        element = threadIdx.x % ACROSS * PIECE;
        from = data + (TURNED ? start + element : element) +
               (TURNED ? first : start + first) * line;
    }

    // Begins to copy the next panel; `left` elements along k are still to come, it included.
    __device__ inline void next(T* to, int left) {
        if (extent >= EXTENT && left >= TILE_K) copy<true>(to, left);
        else copy<false>(to, left);
        from += TURNED ? TILE_K * line : TILE_K;
    }

    // How many elements of the piece `i` lines and `j` elements from this thread's first are inside.
    __device__ inline int inside(int i, int j, int left) const {
        const int lines = TURNED ? left : extent, length = TURNED ? extent : left;
        return first + i < lines ? max(0, min(PIECE, length - element - j)) : 0;
    }

    template <bool WHOLE> __device__ inline void copy(T* to, int left) const {
        const T* piece = from;
        // the longer, the more addresses are kept in registers, which the sums and fragments fill
#pragma unroll WHOLE || BYTES == 16 ? LINES / DOWN : 2
        for (int i = 0; i < LINES; i += DOWN, piece += DOWN * line) {
#pragma unroll
            for (int j = 0; j < LENGTH; j += ACROSS * PIECE) {
                const int bytes = (WHOLE ? PIECE : inside(i, j, left)) * sizeof(T);
                if (BYTES == 16) copy16_async(at(to, i, j), piece + j, bytes);
                else copy4_async(at(to, i, j), piece + j, bytes);
            }
        }
    }

    __device__ inline T* at(T* to, int i, int j) const {
        if (Layout::LINEAR) {  // one address for all, and a constant for each
            return to + place(first, element) + place(i, j);
        }
        return to + place(first + i, element + j);
    }

    __device__ static inline int place(int line, int i) {
        return TURNED ? Layout::at(i, line) : Layout::at(line, i);
    }
};

// ROWS rows of a warp's part of C, every STEP from `corner` on, that its lanes have put into shared
// memory. The warp writes them line by line, whatever the places of its sums are. The code for all rows
// of a tile would outgrow the cache of instructions: it is in a loop, in which the sums that come next
// move to where the first were, as a register cannot be chosen at run time.
template <int ROWS, int STEP, int PITCH>
__device__ inline void store_rows(float beta, const Result<OUT>& c, Place corner,
                                  int m, int n, const float* rows) {
    const int ACROSS = WARP_N / 2, DOWN = 32 / ACROSS;  // lanes
    const int AT_ONCE = ROWS / DOWN < 8 ? ROWS / DOWN : 8;            // rows of a lane
    const int row = threadIdx.x % 32 / ACROSS, col = threadIdx.x % ACROSS * 2;
    __syncwarp();  // all lanes have put theirs
#pragma unroll
    for (int first = row; first < row + ROWS; first += AT_ONCE * DOWN) {
        float y[2 * AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const Pair<float> x = shared_read<Pair<float>>(rows + (first + i * DOWN) * PITCH + col);
            y[2 * i] = x.x;
            y[2 * i + 1] = x.y;
        }
        const Share<OUT, AT_ONCE, DOWN * STEP, 1, 0> share(
            c, corner.row + first * STEP, corner.col + col, m, n);
        share.finish(beta, y);
        share.store(y);
    }
    __syncwarp();  // all lanes have read them, the next may come
}
