// How the operations of hopper.cuh are done.

#include "fibers.h"
#include "hopper.cuh"

// -- clusters ---------------------------------------------------------------------------------------

int cluster_rank() { return host::here().rank; }

void cluster_sync() {
    const int threads = host::machine.cluster * host::here().threads;
    auto& meetings = host::machine.cluster_meetings;
    host::meet("cluster_sync", meetings[host::here().number / host::machine.cluster], threads);
}

void group_sync(int id, int threads) {
    host::meet("group_sync", host::here().barriers[id], threads);
}

// -- registers --------------------------------------------------------------------------------------

namespace host {

void set_registers(int to, bool up) {
    Block& block = here();
    const int group = machine.current->thread / 128;
    if (machine.current->thread % 128) return;  // one thread stands for its group
    const int from = block.registers[group];
    if (up ? to < from : to > from) fail("registers from %d %s to %d", from, up ? "up" : "down", to);
    const long more = 128L * (to - from);
    wait_until("setmaxnreg", [&block, more] { return block.spare_registers >= more; });
    block.spare_registers -= more;
    block.registers[group] = to;
}

}  // namespace host

// -- mbarrier -----------------------------------------------------------------------------------------

namespace host {

static void check(const Barrier* barrier) {
    if (barrier->expected < 1) fail("a barrier is used that was never made");
}

static void settle(Barrier* barrier) {
    check(barrier);
    if (barrier->pending < 0) fail("more arrivals at a barrier than its %d", barrier->expected);
    if (barrier->pending == 0 && barrier->bytes == 0) {
        barrier->phase = ~barrier->phase;
        barrier->pending = barrier->expected;
    }
}

template <class T> static T* in_block(T* p, int rank) {
    const char* mine = reinterpret_cast<const char*>(p);
    return reinterpret_cast<T*>(beside(rank).shared + (mine - here().shared));
}

}  // namespace host

void barrier_init(Barrier* barrier, int arrivals) {
    host::within_shared("a barrier", barrier, sizeof *barrier);
    barrier->expected = barrier->pending = short(arrivals);
    barrier->phase = 0;
    barrier->bytes = 0;
}

void barrier_arrive_expecting(Barrier* barrier, int bytes) {
    host::check(barrier);
    barrier->bytes += bytes;
    --barrier->pending;
    host::settle(barrier);
    host::yield();
}
void barrier_arrive_at(Barrier* barrier, int rank) {
    if (host::beside(rank).ended == host::beside(rank).threads) {
        host::fail("an arrival at a barrier of a block that has ended");
    }
    Barrier* there = host::in_block(barrier, rank);
    --there->pending;
    host::settle(there);
}
void barrier_wait(Barrier* barrier, int parity) {
    host::check(barrier);
    host::wait_until("barrier_wait", [barrier, parity] {
        return (barrier->phase & 1) != parity;
    });
}

// -- bulk copies ----------------------------------------------------------------------------------

namespace host {

// The swizzle is made of the address itself, as the hardware makes it.
static char* swizzled(char* at) {
    const uintptr_t bits = reinterpret_cast<uintptr_t>(at);
    return reinterpret_cast<char*>(bits ^ (bits >> 3 & 0x70));
}

// Calls use(address in the matrix or null outside, address in shared memory) for each element. A
// line ends where the map says or, `whole` bytes at a time, at the next multiple of them.
template <class Use>
static void for_each(const TensorMap& map, char* tile, int x, int y, int z, Use use,
                     int whole = 1) {
    const int length = (map.size[0] * map.element + whole - 1) / whole * whole / map.element;
    for (int j = 0; j < int(map.box[1]); ++j) {
        for (int i = 0; i < int(map.box[0]); ++i) {
            const bool inside = x + i >= 0 && x + i < length && y + j >= 0 &&
                                y + j < int(map.size[1]) && z >= 0 && z < int(map.size[2]);
            char* at = inside ? map.base + size_t(x + i) * map.element + (y + j) * map.stride[0] +
                                    z * map.stride[1]
                              : nullptr;
            use(at, swizzled(tile + j * 128 + i * map.element));
        }
    }
}

static int bytes_of(const TensorMap& map) {
    return map.box[0] * map.box[1] * map.element;
}

// Bytes that the copy engine has taken out of the matrices: once, into however many blocks.
static long long taken = 0;

static void take(const TensorMap& map, int x, int y, int z) {
    for_each(map, nullptr, x, y, z, [&](const char* from, char*) { taken += from ? map.element : 0; });
}

static void check_tile(const TensorMap& map, const void* tile) {
    within_shared("a tile", tile, bytes_of(map));
    if (reinterpret_cast<uintptr_t>(tile) % 1024) fail("a swizzled tile at no multiple of 1024");
    if (map.box[0] * map.element != 128) fail("a box of %u bytes, not 128", map.box[0] * map.element);
}

static void load(int rank, void* to, const TensorMap& map, Barrier* barrier, int x, int y, int z) {
    check_tile(map, to);
    char* tile = in_block(static_cast<char*>(to), rank);
    Barrier* there = in_block(barrier, rank);
    Block* block = &beside(rank);
    memset(tile, 0xFF, bytes_of(map));
    machine.under_way.push_back({[=] {
        if (block->ended == block->threads) return fail("a tile lands in a block that has ended");
        for_each(map, tile, x, y, z, [map](const char* from, char* at) {
            if (from) memcpy(at, from, map.element);
            else memset(at, 0, map.element);
        });
        there->bytes -= bytes_of(map);
        settle(there);
    }});
}

struct Store { TensorMap map; char* tile; int x, y, z; };
struct Stores { std::vector<Store> open, committed; };
static PerThread<Stores> stores;

// By block, for each 4 bytes of shared memory: the thread that wrote them without a fence since.
static std::vector<int> unfenced[8];
static AtStart forget_unfenced([] { for (auto& words : unfenced) words.clear(); });
static PerThread<std::vector<size_t>> written;  // the words of each thread's since its last fence

static void make_stores() {
    for (const Store& store : stores.mine().committed) {
        const char* base = here().shared;
        const std::vector<int>& hidden = unfenced[here().number];
        for_each(store.map, store.tile, store.x, store.y, store.z,
                 [&](char* to, const char* from) {
                     if (!to) return;
                     const size_t word = (from - base) / 4;
                     if (word < hidden.size() && hidden[word]) memset(to, 0xFF, store.map.element);
                     else memcpy(to, from, store.map.element);
                 }, 16);  // an H200 wrote up to the next 16 bytes beyond the last column
    }
    stores.mine().committed.clear();
}

}  // namespace host

void tile_load(void* to, const TensorMap& map, Barrier* barrier, int x, int y, int z) {
    host::take(map, x, y, z);
    host::load(host::here().rank, to, map, barrier, x, y, z);
    host::yield();
}
void tile_load_to(unsigned short blocks, void* to, const TensorMap& map, Barrier* barrier,
                  int x, int y, int z) {
    host::take(map, x, y, z);
    for (int rank = 0; rank < host::machine.cluster; ++rank) {
        if (blocks >> rank & 1) host::load(rank, to, map, barrier, x, y, z);
    }
    host::yield();
}

extern "C" long long bytes_taken() { return host::taken; }

void host::write_word(void* to, const void* word) {
    within_shared("a write", to, 4);
    if (reinterpret_cast<uintptr_t>(to) % 4) fail("a write of 4 bytes at no multiple of 4");
    memcpy(to, word, 4);
    std::vector<int>& hidden = unfenced[here().number];
    hidden.resize(machine.shared_bytes / 4);
    const size_t at = (static_cast<char*>(to) - here().shared) / 4;
    hidden[at] = machine.current->thread + 1;
    written.mine().push_back(at);
}
void tile_writes_done() {
    std::vector<size_t>& mine = host::written.mine();
    for (const size_t at : mine) {  // unless another thread wrote there since
        int& thread = host::unfenced[host::here().number][at];
        if (thread == host::machine.current->thread + 1) thread = 0;
    }
    mine.clear();
}
void tile_store(const TensorMap& map, const void* from, int x, int y, int z) {
    host::check_tile(map, from);
    host::stores.mine().open.push_back(
        {map, const_cast<char*>(static_cast<const char*>(from)), x, y, z});
}
void stores_commit() {
    host::Stores& mine = host::stores.mine();
    for (const host::Store& store : mine.open) mine.committed.push_back(store);
    mine.open.clear();
}
void stores_have_read() { host::make_stores(); }
void stores_are_done() { host::make_stores(); }

// -- wgmma ------------------------------------------------------------------------------------------

namespace host {

struct Products {
    bool begun = false;
    std::vector<std::vector<size_t>> groups{1};  // numbers of products; the last one open
    std::vector<float> kept;                      // the sums, while those of the kernel are NaN
    float* sums = nullptr;
    size_t issued = 0;
};
static PerThread<Products> products;

// One instruction of a warp group. It begins when all 128 threads have issued it, and when one of
// them has waited for it, it is done for all.
struct Issued {
    unsigned long long a, b;
    std::vector<std::pair<int, Product>> threads;
    bool done;
};
static std::deque<Issued> issued_by_group[8][8];
static AtStart forget_issued([] {
    for (auto& groups : issued_by_group) {
        for (auto& issued : groups) issued.clear();
    }
});

// Element `i` of m or n, `k` of k < 16, where a descriptor says that it lies.
static float operand(unsigned long long d, int i, int k, bool turned) {
    const size_t start = size_t(d & 0x3FFF) << 4, leading = size_t(d >> 16 & 0x3FFF) << 4;
    const size_t stride = size_t(d >> 32 & 0x3FFF) << 4;
    const size_t at = turned ? start + i / 64 * leading + i % 64 * 2 + k / 8 * stride + k % 8 * 128
                             : start + i / 8 * stride + i % 8 * 128 + k * 2;
    const char* p = swizzled(here().shared + at);
    unsigned short bits;
    memcpy(&bits, p, 2);
    return to_float(bf16{bits});
}

const int kMostColumns = 256;

// All rows of a times all columns of b, `made` row by row.
__attribute__((optimize("O3")))  // whole vectors of columns at a time
static void multiply(const float (*a)[16], const float (*b)[kMostColumns], int columns,
                     float (*made)[kMostColumns]) {
    for (int i = 0; i < 64; ++i) {
        for (int j = 0; j < columns; ++j) made[i][j] = 0;
        for (int k = 0; k < 16; ++k) {
            for (int j = 0; j < columns; ++j) made[i][j] += a[i][k] * b[k][j];
        }
    }
}

// What an instruction adds to the sums of all its threads.
static void make_product(const Issued& issued) {
    static float a[64][16], b[16][kMostColumns], made[64][kMostColumns];
    const Product& p = issued.threads[0].second;
    for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 64; ++i) a[i][k] = operand(p.a, i, k, p.turn_a);
        for (int j = 0; j < p.columns; ++j) b[k][j] = operand(p.b, j, k, p.turn_b);
    }
    multiply(a, b, p.columns, made);
    for (const auto& [t, product] : issued.threads) {
        for (int r = 0; r < p.columns / 2; ++r) {
            const int row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8;
            const int col = r / 4 * 8 + t % 4 * 2 + r % 2;
            product.sums[r] = (product.add ? product.sums[r] : 0.0f) + made[row][col];
        }
    }
}

static void poison(float* sums, int count) { memset(sums, 0xFF, count * sizeof(float)); }

void issue(Product p) {
    Products& mine = products.mine();
    const int count = p.columns / 2;
    if (p.a >> 62 != 1 || p.b >> 62 != 1) fail("a descriptor without the swizzle of 128 bytes");
    auto& issued = issued_by_group[here().number][machine.current->thread / 128];
    if (mine.issued == issued.size()) issued.push_back({p.a, p.b, {}, false});
    p.number = mine.issued++;
    if (issued[p.number].a != p.a || issued[p.number].b != p.b) {
        fail("threads of a warp group issue different products");
    }
    if (!mine.sums) {
        mine.sums = p.sums;
        mine.kept.assign(p.sums, p.sums + count);
    }
    if (!mine.begun) poison(mine.kept.data(), count);
    poison(p.sums, count);
    p.sums = mine.kept.data();
    issued[p.number].threads.push_back({machine.current->thread % 128, p});
    mine.groups.back().push_back(p.number);
}

void wait_for_products(size_t left) {
    Products& mine = products.mine();
    while (mine.groups.size() > left + 1) {  // the open one does not count
        for (const size_t number : mine.groups.front()) {
            Issued& issued = issued_by_group[here().number][machine.current->thread / 128][number];
            wait_until("wgmma_wait", [&issued] { return issued.threads.size() == 128; });
            if (issued.done) continue;
            make_product(issued);
            issued.done = true;
        }
        mine.groups.erase(mine.groups.begin());
    }
    if (mine.groups.size() == 1 && mine.groups[0].empty() && mine.sums) {
        std::copy(mine.kept.begin(), mine.kept.end(), mine.sums);
        mine.sums = nullptr;
        mine.begun = false;
    }
}

}  // namespace host

unsigned long long descriptor(const void* tile, int leading, int stride) {
    const size_t offset = static_cast<const char*>(tile) - host::here().shared;
    return 1ull << 62 | static_cast<unsigned long long>(stride >> 4) << 32 |
           static_cast<unsigned long long>(leading >> 4) << 16 | (offset & 0x3FFFF) >> 4;
}

void wgmma_begin() { host::products.mine().begun = true; }
void wgmma_commit() { host::products.mine().groups.push_back({}); }
