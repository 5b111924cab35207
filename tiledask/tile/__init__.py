"""The low level: one device computes one product, tile by tile, on NumPy or CuPy arrays.

product.py          matmul: checks, then the kernel one names
  table.py          the kernels by name, and whether this machine can run them
    numpy_kernels.py    loops, tiled, blas; cublas
      gemm.py           C += A B in place, by the CPU's BLAS or cuBLAS
    launch.py           our CUDA kernels through CuPy (sources in cuda/)
  levels.py         the bytes that a tile level moves
functions.py        what layers are made of, each with its gradient
training.py         a stage of a decoder in training, all that it holds counted
  decoder.py          its layers, and what they keep
  flat_states.py      its weights, gradients and optimizer states, and the step
  pool.py             a device's memory: counts arrays, refuses the next
backend.py          NumPy or CuPy, the one place that imports CuPy, and only when needed; halves
"""

from tiledask.tile import functions
from tiledask.tile.backend import (
    Backend,
    Device,
    accumulator,
    array_namespace,
    as_dtype,
    namespace,
    on_device,
    probe,
    synchronize,
    to_numpy,
)
from tiledask.tile.levels import Tile, TileTraffic, as_tile, traffic
from tiledask.tile.product import count_traffic, matmul, workspace
from tiledask.tile.table import KernelInfo, KernelTable, kernels

__all__ = [
    "Backend",
    "Device",
    "KernelInfo",
    "KernelTable",
    "Tile",
    "TileTraffic",
    "accumulator",
    "array_namespace",
    "as_dtype",
    "as_tile",
    "count_traffic",
    "functions",
    "kernels",
    "matmul",
    "namespace",
    "on_device",
    "probe",
    "synchronize",
    "to_numpy",
    "traffic",
    "workspace",
]
