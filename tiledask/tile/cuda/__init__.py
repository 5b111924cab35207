"""Our own kernels: CUDA C++ beside the Python that compiles and launches it (../README.md).

launch.py        a function per kernel: which variant of it, with what arguments
  operands.py    what a kernel is told of an array; copies those that no kernel can read
  tensor_map.py  what the copy engine is told of an array
  build.py       a kernel and its headers as one text; compiles it for a GPU, once, with or without
                 that GPU; loads through CuPy
*.cu, *.cuh      the kernels, and the headers that they share

To look at them on any machine: file_text gives a file, compile_for machine code and the
compiler's log, nvrtc_reason why nothing can be compiled.
"""

from tiledask.tile.backend import nvrtc_reason
from tiledask.tile.cuda.build import compile_for, file_text

__all__ = ["compile_for", "file_text", "nvrtc_reason"]
