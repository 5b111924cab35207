// One CUDA kernel as the host calls it. Compile with -DKERNEL_FILE="path.cu", which defines KERNEL as
// the kernel's name, and whatever else would be on the GPU compiler's command line; link with the
// object of machine.cpp.

#include "thread.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
// variables are collected in a section of their own, whose ends the linker names
#define __shared__ static __attribute__((section("shared_memory")))

#include KERNEL_FILE

extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace host {

int chosen[8];

struct Call {
    template <class... A> Call(void (*kernel)(A...), A... arguments) { kernel(arguments...); }
};

// Between braces, the arguments are taken from the first to the last.
template <class... A> inline void call(void (*kernel)(A...), void** arguments) {
    Call{kernel, *static_cast<A*>(*arguments++)...};
}

void run_kernel(void** arguments) { call(KERNEL, arguments); }

bool has_static_shared() { return __start_shared_memory; }

void forget_static_shared() {
    if (__start_shared_memory) {
        memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    }
}

}  // namespace host
