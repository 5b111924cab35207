// C = A B + beta C in float32, tile by tile through shared memory.
//
//                       n                       One thread block owns one TILE x TILE tile of C and
//              .------+-----+-----.             walks along k. At each step its threads copy one
//              |      |/////|     |             tile of A and one of B from global memory into
//            k |------+-----+-----|             shared memory, wait for each other, and multiply
//              |      |/////|     |  B          the two tiles there.
//              '------+-----+-----'
//         k                                     level     what it is         what it owns
//   .-----+-----.     .------+-----+-----.      grid      (n/T) x (m/T)      all of C
//   |     |     |     |      |     |     |      block     T x T threads      one tile of C
// m |/////|/////|     |------+-----+-----|      step      k/T of them        one tile of A, one of B
//   |     |     |     |      |XXXXX|     | m    thread    (x, y)             one element of C
//   '-----+-----'     '------+-----+-----'
//     A                          C              T = TILE; the last tiles may be ragged
//
// Why tiles: each element of A is read from global memory n/T times and each element of B m/T
// times, instead of n and m times. That is T/4 FLOP per byte loaded, whatever m, n and k are.
//
// Element (i, j) of a matrix lies at data[i * row_stride + j * col_stride], strides in elements:
// row-major, column-major, transposed and sliced operands all work without a copy.
//
// TILE is given by the compiler's command line (-DTILE=16 or 32). It must be a power of two,
// because the swizzle below needs one, and 1024 threads per block are the most a GPU has.

#include "epilogue.cuh"

static_assert(TILE <= 32 && (TILE & (TILE - 1)) == 0, "TILE: a power of two of at most 32");

// Where element (row, col) of a tile is kept. Exchanging columns by `col ^ row` spreads a column
// of the tile over all the banks of shared memory: rows and columns both move without conflicts.
__device__ inline float& at(float* tile, int row, int col) {
    return tile[row * TILE + (col ^ row)];
}

// Copies the tile whose corner is (row0, col0) from global into shared memory; what lies outside
// the matrix is 0, so that ragged edges need no special case in the product.
__device__ inline void load_tile(float* tile, const float* data, int row0, int col0,
                                 int rows, int cols, stride_t row_stride, stride_t col_stride) {
    // Coalescing: threads of consecutive x should read consecutive addresses. In a column-major
    // matrix those are consecutive rows.
    const bool column_major = row_stride == 1 && col_stride != 1;
    const int row = column_major ? threadIdx.x : threadIdx.y;
    const int col = column_major ? threadIdx.y : threadIdx.x;
    const bool inside = row < rows - row0 && col < cols - col0;
    at(tile, row, col) =
        inside ? data[(row0 + row) * row_stride + (col0 + col) * col_stride] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
smem_tiled(int m, int n, int k,
           const float* a, stride_t a_row, stride_t a_col,                  // m x k
           const float* b, stride_t b_row, stride_t b_col,                  // k x n
           float* c, stride_t c_row, stride_t c_col, float beta) {          // m x n
    __shared__ float a_tile[TILE * TILE];
    __shared__ float b_tile[TILE * TILE];

    const int row0 = blockIdx.y * TILE;  // this block's tile of C starts at (row0, col0)
    const int col0 = blockIdx.x * TILE;
    const int y = threadIdx.y;  // this thread's element of it is (y, x)
    const int x = threadIdx.x;

    float sum = 0.0f;  // stays in a register for the whole walk along k
    for (int step = 0; step < k; step += TILE) {
        load_tile(a_tile, a, row0, step, m, k, a_row, a_col);  // TILE x TILE of A
        load_tile(b_tile, b, step, col0, k, n, b_row, b_col);  // TILE x TILE of B
        __syncthreads();  // both tiles are complete before anyone reads them
        for (int p = 0; p < TILE; ++p) {
            sum += at(a_tile, y, p) * at(b_tile, p, x);
        }
        __syncthreads();  // everyone has read them before the next step overwrites
    }

    if (y < m - row0 && x < n - col0) {
        float* to = c + (row0 + y) * c_row + (col0 + x) * c_col;
        *to = HAS_BETA ? sum + beta * *to : sum;
    }
}
