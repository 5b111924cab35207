// How the operations of gpu.cuh are done.

#include "fibers.h"
#include "gpu.cuh"

// -- shared memory --------------------------------------------------------------------------------

namespace host {

void within_shared(const char* what, const void* p, long bytes) {
    const char* at = static_cast<const char*>(p);
    const char* base = here().shared;
    if (at < base || at + bytes > base + machine.shared_bytes) {
        fail("%s of %ld bytes at %td of %zu of shared memory", what, bytes, at - base,
             machine.shared_bytes);
    }
}

const int kSizes = 17;  // bytes of a lane: at most 16

// One instruction of a warp is served 128 bytes at a time, to as many lanes as take them; among these
// each different word of the same one of 32 banks takes a turn. The most turns so far:
static int worst[KINDS][kSizes];
// Instructions in which not every lane i wants the same as lane i ^ 1, nor every one as lane i ^ 2.
static int unpaired[KINDS][kSizes];

static void count_turns(Kind kind, const char* const* lanes, int bytes) {
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

void note_access(Kind kind, const char* what, const void* p, int bytes) {
    within_shared(what, p, bytes);
    if (reinterpret_cast<uintptr_t>(p) % bytes) fail("%s of %d bytes at no multiple", what, bytes);
    const int warp = here().number * 32 + machine.current->thread / kWarp;
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

// -- global memory --------------------------------------------------------------------------------

namespace host {

struct Line { const char* start; long bytes; };
static std::vector<Line> lines;  // by their start; none: anything may be read

void within_lines(const void* p, long bytes) {
    const char* from = static_cast<const char*>(p);
    if (lines.empty() || bytes == 0) return;
    auto after = std::upper_bound(lines.begin(), lines.end(), from,
                                  [](const char* x, const Line& line) { return x < line.start; });
    if (after == lines.begin() || from + bytes > after[-1].start + after[-1].bytes) {
        fail("%ld bytes read that are in no operand", bytes);
    }
}

void on_boundary(const void* p, long bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes) fail("%ld bytes at no multiple of them", bytes);
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

// -- cp.async -------------------------------------------------------------------------------------

namespace host {

struct Copy { char* to; const char* from; int bytes, size; };

// Groups of copies, the last one still open.
struct Copies { std::vector<std::vector<Copy>> groups{1}; };
static PerThread<Copies> copies;

void copy_async(void* to, const void* from, int bytes, int size) {
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

void wait_for_copies(size_t left) {
    auto& groups = copies.mine().groups;
    while (groups.size() > left + 1) {  // the open one does not count
        for (const Copy& copy : groups.front()) {
            memset(copy.to, 0, copy.size);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        groups.erase(groups.begin());
    }
}

}  // namespace host

void copies_commit() { host::copies.mine().groups.push_back({}); }

// -- tensor cores of one warp -----------------------------------------------------------------------

namespace host {

static unsigned short half_at(const char* row, int i) {
    unsigned short x;
    memcpy(&x, row + 2 * i, 2);
    return x;
}

void load_fragments(unsigned (&r)[4], const void* row, bool turned) {
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

}  // namespace host
