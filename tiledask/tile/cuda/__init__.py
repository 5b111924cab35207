"""Our own kernels: CUDA C++ beside the Python that compiles and launches it (../README.md).

launch.py        a launch: which variant of a kernel, with what arguments
  operands.py    how a matrix lies; copies of those that no kernel can read; tensor maps
  build.py       compiles a kernel for a GPU, once, with or without that GPU; loads through CuPy
*.cu, *.cuh      the kernels, and the headers that they share
"""
