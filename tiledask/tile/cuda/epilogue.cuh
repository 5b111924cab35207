// What becomes of a sum on its way into C: activation(alpha * sum + beta * C + bias).
//
// Everything is computed in float32 and rounded once, to C's type. beta = 0 does not read C, which
// may be uninitialised memory: 0 * NaN is NaN.

#pragma once

#include "gpu.cuh"

// What a kernel never does is left out of it: 0 on the compiler's command line, all of it unless told.
#ifndef HAS_BETA
#define HAS_BETA 1
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 1
#endif
#ifndef HAS_GELU
#define HAS_GELU 1
#endif
#ifndef HAS_BEFORE
#define HAS_BEFORE 1
#endif

typedef long long stride_t;  // a product of two ints overflows 32 bits from 46341 x 46341 on

struct Epilogue {
    float alpha, beta;
    const float* bias;  // one per column, or per row; null: none
    int bias_by_row;
    int gelu;
};

// Element (i, j) of matrix z lies at data[z * batch + i * row + j * col], strides in elements.
template <class T> struct Result {
    T* data;
    T* before;  // null, or where the values before the activation go, laid out as C is
    stride_t row, col, batch;

    __device__ inline stride_t at(int z, int i, int j) const {
        return z * batch + i * row + j * col;
    }
};

// GELU by its tanh form, as tiledask.tile.functions.gelu has it: 0.7978845608 = sqrt(2 / pi).
__device__ inline float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// The value that goes to element `at` of C, and the one before the activation to `before`.
template <class T>
__device__ inline float finished(const Epilogue& e, const Result<T>& c, stride_t at,
                                 int i, int j, float sum) {
    float y = e.alpha * sum;
    if (HAS_BETA && e.beta != 0.0f) y += e.beta * to_float(c.data[at]);
    if (HAS_BIAS && e.bias) y += e.bias[e.bias_by_row ? i : j];
    if (HAS_BEFORE && c.before) c.before[at] = from_float<T>(y);
    return HAS_GELU && e.gelu ? gelu(y) : y;
}

template <class T>
__device__ inline void store(const Epilogue& e, const Result<T>& c, int z, int i, int j, float sum) {
    const stride_t at = c.at(z, i, j);
    c.data[at] = from_float<T>(finished(e, c, at, i, j, sum));
}

template <class T> struct __align__(2 * sizeof(T)) Pair { T x, y; };

// Elements (i, j) and (i, j + 1), in one write where they are neighbours on a boundary of two.
template <class T>
__device__ inline void store_pair(const Epilogue& e, const Result<T>& c, int z, int i, int j, int n,
                                  float first, float second) {
    if (j >= n) return;
    const stride_t at = c.at(z, i, j);
    const T x = from_float<T>(finished(e, c, at, i, j, first));
    if (j + 1 == n) {
        c.data[at] = x;
        return;
    }
    const T y = from_float<T>(finished(e, c, at + c.col, i, j + 1, second));
    T* to = c.data + at;
    if (c.col == 1 && reinterpret_cast<unsigned long long>(to) % sizeof(Pair<T>) == 0) {
        *reinterpret_cast<Pair<T>*>(to) = Pair<T>{x, y};
    } else {
        to[0] = x;
        to[c.col] = y;
    }
}
