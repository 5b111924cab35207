// What a kernel sees of the machine in fibers.h: which thread it is, and where it meets others.
//
// Nothing here needs the C++ library, whose templates take most of the time to compile a kernel. The
// machine, and what operations do in it, are compiled once: fibers.cpp, gpu.cpp, hopper.cpp.

#pragma once

#include <stdint.h>
#include <string.h>

struct Index { unsigned x, y, z; };
extern Index threadIdx, blockIdx, blockDim, gridDim;

template <class T> inline T min(T x, T y) { return y < x ? y : x; }
template <class T> inline T max(T x, T y) { return x < y ? y : x; }

namespace host {

// What the macros of these numbers say, in a kernel that is built once for all that they may say.
extern "C" int chosen[8];

const int kWarp = 32;
const int kPayload = 64;  // bytes that a lane shows to its warp

// Defined with the kernel: calls it; whether it has shared variables; makes them NaN.
void run_kernel(void** arguments);
bool has_static_shared();
void forget_static_shared();

int lane();
char* shared();  // of this block

// Notes a fault, the first one only. A thread that fails never goes on.
void fail(const char* format, ...);

// Shows `bytes` at `payload` to the warp; returns what each of its 32 lanes showed, one after another.
const void* show_bytes(const char* where, const void* payload, int bytes);

template <class T> inline const T* show_warp(const char* where, const T& payload) {
    static_assert(sizeof(T) <= kPayload, "");
    return static_cast<const T*>(show_bytes(where, &payload, sizeof(T)));
}

}  // namespace host

void __syncthreads();
inline void __syncwarp() { host::show_warp("__syncwarp", 0); }
