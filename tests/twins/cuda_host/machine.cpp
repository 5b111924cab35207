// All that runs a kernel but the kernel, compiled once. In this order: the operations of the others
// tell the machine what they have to forget, and it must be there.

#include "fibers.cpp"
#include "gpu.cpp"
#include "hopper.cpp"
