// What becomes of a sum on its way into C: sum + beta C, computed in float32 and rounded once, to C's
// type. beta = 0 does not read C, which may be uninitialised memory: 0 * NaN is NaN. What lies beyond
// C's edges is neither read nor written, by a predicate of each access: no branches.
//
// A value of C is a round trip to memory away, a thousand cycles and more. A thread therefore asks for
// all that it needs before it touches any of it (Share), and waits once instead of once for each.
//
// On the compiler's command line, 1 or 0: HAS_BETA (C is read). Rows of C start at multiples of two
// elements and end there: it moves by two neighbours.

#pragma once

#include "gpu.cuh"

typedef long long stride_t;  // a product of two ints overflows 32 bits from 46341 x 46341 on

// Element (i, j) lies at data[i * row + j].
template <class T> struct Result {
    T* data;
    stride_t row;

    __device__ inline T* at(int i, int j) const { return data + i * row + j; }
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

template <class T> struct __align__(2 * sizeof(T)) Pair { T x, y; };

// What a thread has of C: pairs of neighbours in a row, in ROWS rows, ROW_STEP from one to the next,
// and COLS of them across, COL_STEP columns from one to the next. Pair p of row r is in
// y[2 (p ROWS + r)] and the next: as wgmma leaves its sums.
template <class T, int ROWS, int ROW_STEP, int COLS, int COL_STEP> struct Share {
    static constexpr int N = ROWS * COLS;
    stride_t row;     // elements from one row to the next
    int down, right;  // rows and columns from its first element to the edges of C
    T* first;

    __device__ inline Share(const Result<T>& c, int i, int j, int m, int n)
        : row(c.row), down(m - i), right(n - j), first(c.at(i, j)) {}

    // Whether pair p of row r is inside of C, and where it is.
    __device__ inline bool inside(int r, int p) const {
        return r * ROW_STEP < down && p * COL_STEP < right;
    }
    __device__ inline Pair<T>* at(int r, int p) const {
        return reinterpret_cast<Pair<T>*>(first + r * ROW_STEP * row + p * COL_STEP);
    }

    // Sums -> what goes to C.
    __device__ inline void finish(float beta, float* y) const {
        if (!HAS_BETA) return;
        Pair<T> held[N];
#pragma unroll
        for (int q = 0; q < N; ++q) {
            held[q] = global_read_if(inside(q % ROWS, q / ROWS), at(q % ROWS, q / ROWS));
        }
#pragma unroll
        for (int q = 0; q < 2 * N; ++q) y[q] += beta * to_float(q % 2 ? held[q / 2].y : held[q / 2].x);
    }

    __device__ inline void store(const float* y) const {
#pragma unroll
        for (int q = 0; q < N; ++q) {
            const Pair<T> x = {from_float<T>(y[2 * q]), from_float<T>(y[2 * q + 1])};
            if (inside(q % ROWS, q / ROWS)) *at(q % ROWS, q / ROWS) = x;
        }
    }
};
