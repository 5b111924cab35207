// The operations of tiledask/tile/cuda/hopper.cuh on the host, as unfriendly as the hardware may be.
//
//   bulk copy     what lies at the destination is gone at once; the bytes land when nobody else can
//                 go on, or at any moment
//   bulk store    reads its tile at the wait, and finds NaN where no fence followed the writes
//   wgmma         reads its operands at the wait; the sums are NaN until then, and after it too if
//                 no fence came before
//   setmaxnreg    a warp group waits until others have given the registers that it takes
//
// How it is all done: hopper.cpp.

#pragma once

#include "gpu.cuh"

// -- clusters ---------------------------------------------------------------------------------------

int cluster_rank();
void cluster_sync();
void group_sync(int id, int threads);

// -- registers --------------------------------------------------------------------------------------

namespace host {

void set_registers(int to, bool up);

}  // namespace host

template <int N> inline void registers_down_to() { host::set_registers(N, false); }
template <int N> inline void registers_up_to() { host::set_registers(N, true); }

// -- mbarrier -----------------------------------------------------------------------------------------

struct Barrier {
    short expected, pending;  // arrivals in a phase, those still to come
    int phase : 1, bytes : 31;  // bytes still to come
};
static_assert(sizeof(Barrier) == 8, "");

void barrier_init(Barrier* barrier, int arrivals);
inline void barriers_made() {}
void barrier_arrive_expecting(Barrier* barrier, int bytes);
void barrier_arrive_at(Barrier* barrier, int rank);
void barrier_wait(Barrier* barrier, int parity);

// -- bulk copies ----------------------------------------------------------------------------------

struct alignas(64) TensorMap {
    char* base;
    unsigned size[3];
    unsigned element;              // bytes
    unsigned long long stride[2];  // bytes from one to the next in the second and third dimension
    unsigned box[3];
    unsigned unused[17];
};
static_assert(sizeof(TensorMap) == 128, "");

inline void fetch_map(const TensorMap&) {}
void tile_load(void* to, const TensorMap& map, Barrier* barrier, int x, int y, int z);
void tile_load_to(unsigned short blocks, void* to, const TensorMap& map, Barrier* barrier,
                  int x, int y, int z);

namespace host {

void write_word(void* to, const void* word);  // of 4 bytes, of a tile

}  // namespace host

template <class T> inline void tile_write(void* to, T x, T y) {
    T both[2] = {x, y};
    static_assert(sizeof both == 4, "");
    host::write_word(to, both);
}
void tile_writes_done();
void tile_store(const TensorMap& map, const void* from, int x, int y, int z);
void stores_commit();
void stores_have_read();
void stores_are_done();

// -- wgmma ------------------------------------------------------------------------------------------

unsigned long long descriptor(const void* tile, int leading, int stride);
inline unsigned long long descriptor_at(unsigned long long d, int bytes) { return d + (bytes >> 4); }

void wgmma_begin();
void wgmma_commit();

namespace host {

struct Product {
    float* sums;
    unsigned long long a, b;
    bool add, turn_a, turn_b;
    int columns;
    size_t number;  // among those of this thread
};

void issue(Product product);
void wait_for_products(size_t left);

}  // namespace host

template <int N> inline void wgmma_wait() { host::wait_for_products(N); }

template <bool TurnA, bool TurnB, int R> struct Wgmma {
    static void issue(float (&d)[R], unsigned long long a, unsigned long long b, bool add) {
        host::issue(host::Product{d, a, b, add, TurnA, TurnB, 2 * R, 0});
    }
};
