// What becomes of a sum on its way into C: sum + beta C, computed in float32 and rounded once, to C's
// type. beta = 0 does not read C, which may be uninitialised memory: 0 * NaN is NaN. What lies beyond
// C's edges is neither read nor written, by a predicate of each access: no branches.
//
// A value of C is a round trip to memory away, a thousand cycles and more. A thread therefore asks for
// all that it needs before it touches any of it (Share), and waits once instead of once for each.
//
// On the compiler's command line, 1 or 0: HAS_BETA (C is read), PAIRS (C moves by two neighbours of a
// row: rows start at multiples of two elements and end there).

#pragma once

#include "gpu.cuh"

typedef long long stride_t;  // a product of two ints overflows 32 bits from 46341 x 46341 on

// Element (i, j) lies at data[i * row + j * col], strides in elements.
template <class T> struct Result {
    T* data;
    stride_t row, col;

    __device__ inline stride_t at(int i, int j) const { return i * row + j * col; }
};

// The corner of a tile of C.
struct Place { int row, col; };

const int RASTER = 8;  // rows of tiles that are walked column by column, for the sake of L2

// Tiles are numbered in bands of RASTER rows of tiles, in a band column by column: blocks that run at
// the same time share rows of A and columns of B.
template <int ROWS, int COLS> __device__ inline Place place_of(int tile, int m, int n) {
    const int down = (m + ROWS - 1) / ROWS, across = (n + COLS - 1) / COLS;
    const int band = tile / (RASTER * across), within = tile - band * RASTER * across;
    const int rows = min(RASTER, down - band * RASTER);
    return Place{(band * RASTER + within % rows) * ROWS, within / rows * COLS};
}

// One element of C.
template <class T>
__device__ inline void store(float beta, const Result<T>& c, int i, int j, float sum) {
    T* to = c.data + c.at(i, j);
    *to = from_float<T>(HAS_BETA ? sum + beta * to_float(*to) : sum);
}

template <class T> struct __align__(2 * sizeof(T)) Pair { T x, y; };

// What a thread has of C: pairs of neighbours in a row, in ROWS rows, ROW_STEP from one to the next,
// and COLS of them across, COL_STEP columns from one to the next. Pair p of row r is in
// y[2 (p ROWS + r)] and the next: as wgmma leaves its sums.
template <class T, int ROWS, int ROW_STEP, int COLS, int COL_STEP> struct Share {
    static constexpr int N = ROWS * COLS;
    const Result<T>& c;
    int down, right;  // rows and columns from its first element to the edges of C
    stride_t first;   // elements from where C begins to there

    __device__ inline Share(const Result<T>& c, int i, int j, int m, int n)
        : c(c), down(m - i), right(n - j), first(c.at(i, j)) {}

    // Whether element q of pair p of row r is inside of C.
    __device__ inline bool inside(int r, int p, int q) const {
        return r * ROW_STEP < down && p * COL_STEP + q < right;
    }
    __device__ inline stride_t at(int r, int p) const {
        return first + r * ROW_STEP * c.row + p * COL_STEP * col();
    }
    __device__ inline stride_t col() const { return PAIRS ? 1 : c.col; }

    // Sums -> what goes to C.
    __device__ inline void finish(float beta, float* y) const {
        Pair<T> held[N];
        if (HAS_BETA) read(held);
        // 0 too is added: of a sum that is only converted the compiler makes wgmma wait (C7514)
#pragma unroll
        for (int q = 0; q < 2 * N; ++q) {
            y[q] += HAS_BETA ? beta * to_float(q % 2 ? held[q / 2].y : held[q / 2].x) : 0.0f;
        }
    }

    __device__ inline void read(Pair<T> (&held)[N]) const {
#pragma unroll
        for (int q = 0; q < N; ++q) {
            const int r = q % ROWS, p = q / ROWS;
            const T* from = c.data + at(r, p);
            if (PAIRS) {
                held[q] = global_read_if(inside(r, p, 0), reinterpret_cast<const Pair<T>*>(from));
            } else {
                held[q].x = global_read_if(inside(r, p, 0), from);
                held[q].y = global_read_if(inside(r, p, 1), from + col());
            }
        }
    }

    __device__ inline void store(const float* y) const {
#pragma unroll
        for (int q = 0; q < N; ++q) {
            const int r = q % ROWS, p = q / ROWS;
            T* to = c.data + at(r, p);
            const Pair<T> x = {from_float<T>(y[2 * q]), from_float<T>(y[2 * q + 1])};
            if (PAIRS) {
                global_write_if(inside(r, p, 0), reinterpret_cast<Pair<T>*>(to), x);
            } else {
                global_write_if(inside(r, p, 0), to, x.x);
                global_write_if(inside(r, p, 1), to + col(), x.y);
            }
        }
    }
};
