"""The low level: one device computes one product, tile by tile, on NumPy or CuPy arrays.

product.py          matmul: checks, then the kernel one names
  checks.py         what of operands, outputs and epilogues is refused
  table.py          the kernels by name, and whether this machine can run them
    kernel.py           what a kernel is, and which GPUs it runs on
    numpy_kernels.py    loops, tiled, blas; cublas
      gemm.py           C = alpha A B + beta C in place, by the CPU's BLAS or cuBLAS
    epilogue.py         what is done to a product before it is stored
    pieces.py           long arrays piece by piece, in the cache
    cuda/               our CUDA kernels, compiled and launched
  levels.py         the bytes that a tile level moves
choice/             which tile: predicted level by level, measured, remembered
functions.py        what layers are made of, each with its gradient
layers/             the layers of one device: attention, MLP, norms, loss, convolution; and back
optimizers/         steps of weights: rules, mixed precision, loss scales, clipping
datasets/           what small models are trained on: a text, pictures
training.py         a stage of a decoder in training, all that it holds counted
  decoder.py          its layers, and what they keep
  flat_states.py      its weights, gradients and optimizer states, and the step
  pool.py             a device's memory: counts arrays, refuses the next
nccl.py             arrays from GPU to GPU, by NCCL through CuPy
backend.py          NumPy or CuPy, the one place that imports CuPy, and only when needed; halves
"""

from tiledask.tile import datasets, functions, layers, optimizers
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
from tiledask.tile.choice import (
    Config,
    candidates,
    carry,
    config_of,
    configs,
    extents,
    levels_of,
    occupancy,
    order,
    predict,
    ridge,
    ridge_extent,
    tune,
    tuned,
    waves,
)
from tiledask.tile.levels import Tile, TileCount, TileTraffic, as_tile, traffic
from tiledask.tile.product import count_traffic, matmul, workspace
from tiledask.tile.table import KernelInfo, KernelTable, kernels

__all__ = [
    "Backend",
    "Config",
    "Device",
    "KernelInfo",
    "KernelTable",
    "Tile",
    "TileCount",
    "TileTraffic",
    "accumulator",
    "array_namespace",
    "as_dtype",
    "as_tile",
    "candidates",
    "carry",
    "config_of",
    "configs",
    "count_traffic",
    "datasets",
    "extents",
    "functions",
    "kernels",
    "layers",
    "levels_of",
    "matmul",
    "namespace",
    "occupancy",
    "on_device",
    "optimizers",
    "order",
    "predict",
    "probe",
    "ridge",
    "ridge_extent",
    "synchronize",
    "to_numpy",
    "traffic",
    "tune",
    "tuned",
    "waves",
    "workspace",
]
