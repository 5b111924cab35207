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
// run.cpp includes fibers.h before it.

#pragma once


using std::min;
using std::max;

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

inline float bits_to_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned float_to_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return bits_to_float(unsigned(x.bits) << 16); }
inline float to_float(f16 x) { _Float16 y; memcpy(&y, &x, 2); return float(y); }

// float32 with the last `dropped` bits rounded to nearest, ties to even or away from 0
inline unsigned rounded(float x, int dropped, bool even) {
    unsigned bits = float_to_bits(x);
    if (std::isnan(x)) return 0x7FFFFFFF;
    const unsigned half = 1u << (dropped - 1);
    bits += even ? half - 1 + (bits >> dropped & 1) : half;
    return bits >> dropped << dropped;
}

template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) {
    return bf16{static_cast<unsigned short>(rounded(x, 16, true) >> 16)};
}
template <> inline f16 from_float<f16>(float x) {
    const _Float16 y = static_cast<_Float16>(x);
    f16 z;
    memcpy(&z, &y, 2);
    return z;
}
inline unsigned to_tf32(float x) { return rounded(x, 13, false); }
inline unsigned rounded_for_tf32(unsigned bits) { return to_tf32(bits_to_float(bits)); }

inline char* dynamic_shared() { return host::here().shared; }

inline int warp_uniform(int x) {
    if (host::show_warp("warp_uniform", x)[0] != x) host::fail("lanes of a warp differ in it");
    return x;
}

// -- shared memory --------------------------------------------------------------------------------

namespace host {

inline void within_shared(const char* what, const void* p, size_t bytes) {
    const char* at = static_cast<const char*>(p);
    const char* base = here().shared;
    if (at < base || at + bytes > base + machine.shared_bytes) {
        fail("%s of %zu bytes at %td of %zu of shared memory", what, bytes, at - base,
             machine.shared_bytes);
    }
}

enum Kind { READ, WRITE, COPY, LDMATRIX, KINDS };
const int kSizes = 17;  // bytes of a lane: at most 16

// One instruction of a warp is served 128 bytes at a time, to as many lanes as take them; among these
// each different word of the same one of 32 banks takes a turn. The most turns so far:
static int worst[KINDS][kSizes];
// Instructions in which not every lane i wants the same as lane i ^ 1, nor every one as lane i ^ 2.
static int unpaired[KINDS][kSizes];

inline void count_turns(Kind kind, const char* const* lanes, int bytes) {
    bool next = true, second = true;
    for (int i = 0; i < kWarp; ++i) {
        next &= lanes[i] == lanes[i ^ 1];
        second &= lanes[i] == lanes[i ^ 2];
    }
    unpaired[kind][bytes] += !next && !second;
    const int together = min(kWarp, 128 / bytes);
    for (int first = 0; first < kWarp; first += together) {
        long words[32][kWarp];
        int found[32] = {};
        for (int i = first; i < first + together; ++i) {
            for (int b = 0; b < bytes; b += 4) {
                const long word = (lanes[i] - here().shared + b) / 4, bank = word % 32;
                bool is_new = true;
                for (int f = 0; f < found[bank]; ++f) is_new &= words[bank][f] != word;
                if (is_new) words[bank][found[bank]++] = word;
            }
        }
        for (int turns : found) worst[kind][bytes] = max(worst[kind][bytes], turns);
    }
}

// What the lanes of a warp do one after the other here is one instruction there: the n-th of a kind.
struct Lanes { const char* at[kWarp]; int seen; };
struct Instructions {
    std::deque<Lanes> begun;
    long first = 0, next[kWarp] = {};  // number of the first begun; of what each lane does next
};
static std::vector<Instructions> instructions;
static AtStart none_begun{[] { instructions.clear(); }};

inline void note_access(Kind kind, const char* what, const void* p, int bytes) {
    within_shared(what, p, bytes);
    if (reinterpret_cast<uintptr_t>(p) % bytes) fail("%s of %d bytes at no multiple", what, bytes);
    const int warp = here().rank * 32 + machine.current->thread / kWarp;
    const size_t which = (warp * KINDS + kind) * kSizes + bytes;
    if (instructions.size() <= which) instructions.resize(which + 1);
    Instructions& all = instructions[which];
    const size_t n = all.next[lane()]++ - all.first;
    if (all.begun.size() <= n) all.begun.resize(n + 1);
    all.begun[n].at[lane()] = static_cast<const char*>(p);
    if (++all.begun[n].seen < kWarp) return;
    count_turns(kind, all.begun[n].at, bytes);
    all.begun.pop_front();
    ++all.first;
}

}  // namespace host

// The kinds by number, 0 for reads; 0 turns: nothing of the kind was done.
extern "C" int unpaired(int kind, int bytes) { return host::unpaired[kind][bytes]; }
extern "C" int worst_conflict(int kind, int bytes) { return host::worst[kind][bytes]; }

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

// -- global memory --------------------------------------------------------------------------------

namespace host {

struct Line { const char* start; long bytes; };
static std::vector<Line> lines;  // by their start; none: anything may be read

inline void within_lines(const void* p, long bytes) {
    const char* from = static_cast<const char*>(p);
    if (lines.empty() || bytes == 0) return;
    auto after = std::upper_bound(lines.begin(), lines.end(), from,
                                  [](const char* x, const Line& line) { return x < line.start; });
    if (after == lines.begin() || from + bytes > after[-1].start + after[-1].bytes) {
        fail("%ld bytes read that are in no operand", bytes);
    }
}

}  // namespace host

// From now on only these lines of `bytes` each may be read, besides those told before.
extern "C" void may_read(const long* starts, int count, long bytes) {
    for (int i = 0; i < count; ++i) {
        host::lines.push_back({reinterpret_cast<const char*>(starts[i]), bytes});
    }
    std::sort(host::lines.begin(), host::lines.end(),
              [](const host::Line& x, const host::Line& y) { return x.start < y.start; });
}
extern "C" void may_read_anything() { host::lines.clear(); }

template <class T> inline T global_read(const T* p) {
    host::within_lines(p, sizeof(T));
    return *p;
}

// -- cp.async -------------------------------------------------------------------------------------

namespace host {

struct Copy { char* to; const char* from; int bytes, size; };

// Groups of copies, the last one still open.
struct Copies { std::vector<std::vector<Copy>> groups{1}; };
static PerThread<Copies> copies;

inline void copy_async(void* to, const void* from, int bytes, int size) {
    note_access(COPY, "a copy", to, size);
    if (reinterpret_cast<uintptr_t>(from) % size) {
        fail("a copy of %d bytes from no multiple of %d", size, size);
    }
    within_lines(from, bytes);
    if (bytes < 0 || bytes > size) fail("a copy of %d bytes in %d", bytes, size);
    memset(to, 0xFF, size);
    copies.mine().groups.back().push_back(
        Copy{static_cast<char*>(to), static_cast<const char*>(from), bytes, size});
}

}  // namespace host

inline void copy16_async(void* to, const void* from, int bytes) {
    host::copy_async(to, from, bytes, 16);
}
inline void copy4_async(void* to, const void* from, int bytes) {
    host::copy_async(to, from, bytes, 4);
}
inline void copies_commit() { host::copies.mine().groups.push_back({}); }
template <int N> inline void copies_wait() {
    auto& groups = host::copies.mine().groups;
    while (groups.size() > N + 1) {  // the open one does not count
        for (const host::Copy& copy : groups.front()) {
            memset(copy.to, 0, copy.size);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        groups.erase(groups.begin());
    }
}

// -- tensor cores of one warp -----------------------------------------------------------------------

namespace host {

inline unsigned short half_at(const char* row, int i) {
    unsigned short x;
    memcpy(&x, row + 2 * i, 2);
    return x;
}

inline void load_fragments(unsigned (&r)[4], const void* row, bool turned) {
    within_shared("ldmatrix", row, 16);
    if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix from no multiple of 16");
    const char* const* rows = show_warp("ldmatrix", static_cast<const char*>(row));
    if (lane() == 0) count_turns(LDMATRIX, rows, 16);
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const char* const* matrix = rows + 8 * i;
        const unsigned low = turned ? half_at(matrix[2 * t], g) : half_at(matrix[g], 2 * t);
        const unsigned high =
            turned ? half_at(matrix[2 * t + 1], g) : half_at(matrix[g], 2 * t + 1);
        r[i] = low | high << 16;
    }
}

struct Fragments { unsigned a[4], b[2]; };

// Element e of a register that holds 4 / sizeof(T) of them.
template <class T> inline float element(unsigned r, int e) {
    return to_float(T{static_cast<unsigned short>(r >> 16 * e)});
}
template <> inline float element<float>(unsigned r, int) { return bits_to_float(r); }

}  // namespace host

inline void ldmatrix(unsigned (&r)[4], const void* row) { host::load_fragments(r, row, false); }
inline void ldmatrix_transposed(unsigned (&r)[4], const void* row) {
    host::load_fragments(r, row, true);
}

template <class T>
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const host::Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const host::Fragments* all = host::show_warp("mma", mine);
    const int each = sizeof(T) == 4 ? 1 : 2;  // elements of a register
    const int g = host::lane() / 4, t = host::lane() % 4;
    for (int q = 0; q < 4; ++q) {
        const int row = g + q / 2 * 8, col = 2 * t + q % 2;
        float sum = 0;
        for (int high = 0; high < 2; ++high) {
            for (int s = 0; s < 4; ++s) {
                for (int e = 0; e < each; ++e) {
                    const unsigned x = all[row % 8 * 4 + s].a[row / 8 + 2 * high];
                    const unsigned y = all[col * 4 + s].b[high];
                    sum += host::element<T>(x, e) * host::element<T>(y, e);
                }
            }
        }
        d[q] += sum;
    }
}
