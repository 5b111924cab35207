"""Our own kernels: CUDA C++ beside the Python that compiles and launches it (README.md).

launch.py        a function per kernel: which variant of it, with what arguments
  operands.py    what a kernel is told of an array; copies those that no kernel can read
  tensor_map.py  what the copy engine is told of an array
  build.py       compiles for a GPU, once, with or without that GPU; loads through CuPy
    source.py    a kernel and its headers as one text
*.cu, *.cuh      the kernels, and the headers that they share
"""
