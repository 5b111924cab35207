// Operations of every GPU since sm_80 by name: numbers, asynchronous copies, tensor cores of a warp.
//
// The kernels call these and hold no PTX themselves, so that the same kernel text also compiles for
// the host, against functions of the same names that do the same to ordinary memory.
// PTX ISA: docs.nvidia.com/cuda/parallel-thread-execution, sections by instruction name.

#pragma once

// -- numbers --------------------------------------------------------------------------------------

struct bf16 { unsigned short bits; };

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

template <class T> __device__ T from_float(float x);  // rounds to nearest, ties to even
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// -- addresses ------------------------------------------------------------------------------------

__device__ inline unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// The block's dynamic shared memory; its start is a multiple of 1024, as swizzled tiles need it.
__device__ inline char* dynamic_shared() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
}

// A number that all lanes of a warp share, told to the compiler as one: it then lives in a register of
// the warp, where addresses of tiles must be in the end.
__device__ inline int warp_uniform(int x) { return __shfl_sync(0xFFFFFFFF, x, 0); }

// One value of 4 or 8 bytes of global memory, or 0 where it is not `there`. Asked for at this place
// of the program: the compiler puts off a read as it is written in C++ to where its value is wanted,
// and each of many then waits for the one before it. The 0 also tells that no earlier value is wanted:
// without it every register here would be taken since the kernel began.
template <class T> __device__ inline T global_read_if(bool there, const T* p) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "");
    union { unsigned words[2]; T value; } x = {{0, 0}};
    if constexpr (sizeof(T) == 4) {
        asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n"
                     "@there ld.global.u32 %0, [%1];\n}"
                     : "+r"(x.words[0]) : "l"(p), "r"(int(there)) : "memory");
    } else {
        asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\n"
                     "@there ld.global.v2.u32 {%0, %1}, [%2];\n}"
                     : "+r"(x.words[0]), "+r"(x.words[1]) : "l"(p), "r"(int(there)) : "memory");
    }
    return x.value;
}

// Lets the line at `p` come from memory into L2, where a later read finds it; nobody waits.
__device__ inline void fetch_into_l2_if(bool there, const void* p) {
    if (there) asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

// One value of shared memory in one instruction; `p` is a multiple of its size, of 16 bytes at most.
template <class T> __device__ inline T shared_read(const void* p) {
    return *static_cast<const T*>(p);
}
template <class T> __device__ inline void shared_write(void* p, T x) { *static_cast<T*>(p) = x; }

struct __align__(16) Four { float x[4]; };

// -- copies from global to shared memory that overlap arithmetic (cp.async) -------------------------

// Copies the first `bytes` of 16 and makes the rest 0; both addresses are multiples of 16.
__device__ inline void copy16_async(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// The same for 4 bytes.
__device__ inline void copy4_async(void* to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Closes this thread's group of copies.
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `N` of this thread's groups are still under way. What others copied is there
// only after a barrier.
template <int N> __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

// -- tensor cores of one warp ------------------------------------------------------------------------
//
// A fragment is a small matrix shared out over the 32 lanes: g = lane / 4, t = lane % 4.
//
//   A, 16 rows        a[0] (g, 2t..)   a[2] (g, 2t+8..)     B   b[0] (2t.., g)    D   d[0,1] (g, 2t..)
//   x 16 of k         a[1] (g+8, 2t..) a[3] (g+8, 2t+8..)       b[1] (2t+8.., g)      d[2,3] (g+8, 2t..)

// Four 8 x 8 matrices of 2-byte elements: lane i gives the address of row i % 8 of matrix i / 8 and
// gets elements (g, 2t), (g, 2t+1) of each.
__device__ inline void ldmatrix(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}

// The same, each matrix transposed on the way: elements (2t, g), (2t+1, g).
__device__ inline void ldmatrix_transposed(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}

// d (16 x 8, float32) += a b, of bf16.
__device__ inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
