// What becomes of a sum on its way into C: activation(alpha * sum + beta * C + bias).
//
//   C    ---.       .---> before        Everything is computed in float32 and rounded once, to C's
//            v      |                   type. beta = 0 does not read C, which may be uninitialised
//   sum ---> y -----+---> C             memory: 0 * NaN is NaN. What lies beyond C's edges is neither
//            ^        gelu              read nor written, by a predicate of each access: no branches.
//   bias ---'
//
// A value of C is a round trip to memory away, a thousand cycles and more. A thread therefore asks for
// all that it needs before it touches any of it (Share), and waits once instead of once for each.
//
// On the compiler's command line, 1 or 0: HAS_BETA, HAS_BIAS, HAS_GELU, HAS_BEFORE (what there is of
// this), BIAS_BY_ROW (the bias has a value per row, else per column), PAIRS (C moves by two neighbours
// of a row: rows start at multiples of two elements and end there).

#pragma once

#include "gpu.cuh"

typedef long long stride_t;  // a product of two ints overflows 32 bits from 46341 x 46341 on

struct Epilogue {
    float alpha, beta;
    const float* bias;
};

// Element (i, j) lies at data[i * row + j * col], strides in elements.
template <class T> struct Result {
    T* data;
    T* before;  // where the values before the activation go, laid out as C is
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

// GELU by its tanh form, as tiledask.tile.gelu has it, without tanh, which has branches:
//
//   x/2 (1 + tanh u) = x / (1 + e^-2u),  u = sqrt(2 / pi) (x + 0.044715 x^3)
//
// e^-2u = 2^(-2u / ln 2), and 2 sqrt(2 / pi) / ln 2 = 2.302208198. For x far below 0 the power is
// infinite and its reciprocal 0: the result is -0.
__device__ inline float gelu(float x) {
    const float slope = 2.302208198f;
    return x * reciprocal(1.0f + power_of_2(-x * (slope + slope * 0.044715f * x * x)));
}

// One element of C.
template <class T>
__device__ inline void store(const Epilogue& e, const Result<T>& c, int i, int j, float sum) {
    const stride_t at = c.at(i, j);
    float y = e.alpha * sum;
    if (HAS_BETA) y += e.beta * to_float(c.data[at]);
    if (HAS_BIAS) y += e.bias[BIAS_BY_ROW ? i : j];
    if (HAS_BEFORE) c.before[at] = from_float<T>(y);
    c.data[at] = from_float<T>(HAS_GELU ? gelu(y) : y);
}

template <class T> struct __align__(2 * sizeof(T)) Pair { T x, y; };

// What a thread has of C: pairs of neighbours in a row, in ROWS rows, ROW_STEP from one to the next,
// and COLS of them across, COL_STEP columns from one to the next. Pair p of row r is in
// y[2 (p ROWS + r)] and the next: as wgmma leaves its sums.
template <class T, int ROWS, int ROW_STEP, int COLS, int COL_STEP> struct Share {
    static constexpr int N = ROWS * COLS;
    const Result<T>& c;
    int i, j;         // the first element
    int down, right;  // rows and columns from there to the edges of C
    stride_t first;   // elements from where C begins

    __device__ inline Share(const Result<T>& c, int i, int j, int m, int n)
        : c(c), i(i), j(j), down(m - i), right(n - j), first(c.at(i, j)) {}

    // Whether element q of pair p of row r is inside of C.
    __device__ inline bool inside(int r, int p, int q) const {
        return r * ROW_STEP < down && p * COL_STEP + q < right;
    }
    __device__ inline stride_t at(int r, int p) const {
        return first + r * ROW_STEP * c.row + p * COL_STEP * col();
    }
    __device__ inline stride_t col() const { return PAIRS ? 1 : c.col; }

    // Sums -> what goes to C, and the values before the activation to where they are wanted.
    __device__ inline void finish(const Epilogue& e, float* y) const {
        Pair<T> held[N];
        float bias[2 * COLS], row_bias[ROWS];
        if (HAS_BETA) read(held);
        if (HAS_BIAS && BIAS_BY_ROW) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                row_bias[r] = global_read_if(r * ROW_STEP < down, e.bias + i + r * ROW_STEP);
            }
        }
        if (HAS_BIAS && !BIAS_BY_ROW) {
#pragma unroll
            for (int q = 0; q < 2 * COLS; ++q) {
                const int column = q / 2 * COL_STEP + q % 2;
                bias[q] = global_read_if(column < right, e.bias + j + column);
            }
        }
#pragma unroll
        for (int q = 0; q < 2 * N; ++q) {
            const int r = q / 2 % ROWS, p = q / 2 / ROWS;
            y[q] *= e.alpha;
            if (HAS_BETA) y[q] += e.beta * to_float(q % 2 ? held[q / 2].y : held[q / 2].x);
            if (HAS_BIAS) y[q] += BIAS_BY_ROW ? row_bias[r] : bias[2 * p + q % 2];
        }
        if (HAS_BEFORE) write(c.before, y);
        if (HAS_GELU) {
#pragma unroll
            for (int q = 0; q < 2 * N; ++q) y[q] = gelu(y[q]);
        }
    }

    __device__ inline void store(const float* y) const { write(c.data, y); }

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

    __device__ inline void write(T* data, const float* y) const {
#pragma unroll
        for (int q = 0; q < N; ++q) {
            const int r = q % ROWS, p = q / ROWS;
            T* to = data + at(r, p);
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
