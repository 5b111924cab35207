// The operations of tiledask/tile/cuda/gpu.cuh on the host, as unfriendly as the hardware may be.
//
//   cp.async     what lies at the destination is gone at once; the copy is made at the wait
//   ldmatrix,    all 32 lanes must come; each shows what it has to the others
//   mma
//   global       copies and reads of operands stay within them, if they are told: `may_read`
//   memory
//   shared       addresses are checked, and how many different words of a bank an instruction wants
//   memory       is counted: `worst_conflict`
//
// How it is all done: gpu.cpp.

#pragma once

#include "thread.h"

struct bf16 { unsigned short bits; };

inline float bits_to_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned float_to_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return bits_to_float(unsigned(x.bits) << 16); }

template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) {
    if (x != x) return bf16{0x7FFF};
    const unsigned bits = float_to_bits(x);  // rounded to nearest, ties to even
    return bf16{static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline char* dynamic_shared() { return host::shared(); }

inline int warp_uniform(int x) {
    if (host::show_warp("warp_uniform", x)[0] != x) host::fail("lanes of a warp differ in it");
    return x;
}

namespace host {

void within_shared(const char* what, const void* p, long bytes);

enum Kind { READ, WRITE, COPY, LDMATRIX, KINDS };  // of instructions on shared memory

// One lane's share of an instruction of all 32 on shared memory.
void note_access(Kind kind, const char* what, const void* p, int bytes);

void within_lines(const void* p, long bytes);  // of arrays that the kernel was given
void on_boundary(const void* p, long bytes);
void copy_async(void* to, const void* from, int bytes, int size);
void wait_for_copies(size_t left);
void load_fragments(unsigned (&r)[4], const void* row, bool turned);

}  // namespace host

// -- shared and global memory -----------------------------------------------------------------------

template <class T> inline T shared_read(const void* p) {
    host::note_access(host::READ, "a read", p, sizeof(T));
    T x;
    memcpy(&x, p, sizeof(T));
    return x;
}
template <class T> inline void shared_write(void* p, T x) {
    host::note_access(host::WRITE, "a write", p, sizeof(T));
    memcpy(p, &x, sizeof(T));
}

struct alignas(16) Four { float x[4]; };

template <class T> inline T global_read_if(bool there, const T* p) {
    T x;
    memset(&x, 0, sizeof(T));
    if (!there) return x;
    host::on_boundary(p, sizeof(T));
    host::within_lines(p, sizeof(T));
    return *p;
}
inline void fetch_into_l2_if(bool there, const void* p) {
    if (there) host::within_lines(p, 1);
}

// -- cp.async -------------------------------------------------------------------------------------

inline void copy16_async(void* to, const void* from, int bytes) {
    host::copy_async(to, from, bytes, 16);
}
inline void copy4_async(void* to, const void* from, int bytes) {
    host::copy_async(to, from, bytes, 4);
}
void copies_commit();
template <int N> inline void copies_wait() { host::wait_for_copies(N); }

// -- tensor cores of one warp -----------------------------------------------------------------------

inline void ldmatrix(unsigned (&r)[4], const void* row) { host::load_fragments(r, row, false); }
inline void ldmatrix_transposed(unsigned (&r)[4], const void* row) {
    host::load_fragments(r, row, true);
}

namespace host {

struct Fragments { float a[4][2], b[2][2]; };  // [register][element]

inline float element(unsigned r, int e) {
    return to_float(bf16{static_cast<unsigned short>(r >> 16 * e)});
}

}  // namespace host

inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    host::Fragments mine;
    for (int e = 0; e < 2; ++e) {
        for (int i = 0; i < 4; ++i) mine.a[i][e] = host::element(a[i], e);
        for (int i = 0; i < 2; ++i) mine.b[i][e] = host::element(b[i], e);
    }
    const host::Fragments* all = host::show_warp("mma", mine);
    const int g = host::lane() / 4, t = host::lane() % 4;
    for (int q = 0; q < 4; ++q) {
        const int row = g + q / 2 * 8, col = 2 * t + q % 2;
        float sum = 0;
        for (int high = 0; high < 2; ++high) {
            for (int s = 0; s < 4; ++s) {
                const float* x = all[row % 8 * 4 + s].a[row / 8 + 2 * high];
                const float* y = all[col * 4 + s].b[high];
                sum += x[0] * y[0] + x[1] * y[1];
            }
        }
        d[q] += sum;
    }
}
