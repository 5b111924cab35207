"""The low level: one device computes one product, tile by tile, on NumPy or CuPy arrays.

product.py       matmul by the kernel one names, and what it refuses
  table.py       the kernels: numpy_kernels.py (loops, tiled, blas), gemm.py under it, cuda/
levels.py        the bytes that a level of tiles moves
choice/          how kernels tile, and which tile: predicted level by level
elementwise.py   GELU, and pieces that stay in the cache
layers/          the layers of one device: attention, MLP, norms, loss, convolution; and back
optimizers.py    steps of weights: rules, mixed precision, loss scales, clipping
datasets.py      a text and pictures for small models
memory.py        a pool that counts a device's arrays, and refuses the next
ipc.py           arrays from GPU to GPU: by CUDA's handles between processes
backend.py       NumPy or CuPy, the one place that imports CuPy, and only when needed; halves
progress.py      a bar for long calls, here and on clusters
"""

from tiledask.tile import datasets, layers, optimizers
from tiledask.tile.backend import (
    accumulator,
    array_namespace,
    as_dtype,
    namespace,
    on_device,
    probe,
    synchronize,
    to_numpy,
)
from tiledask.tile.choice.bound import predict, ridge
from tiledask.tile.choice.config import Config, candidates, config_of, configs, occupancy
from tiledask.tile.elementwise import gelu
from tiledask.tile.levels import Tile, TileCount, TileTraffic, traffic
from tiledask.tile.product import matmul, workspace
from tiledask.tile.table import kernels

__all__ = ["Config", "Tile", "TileCount", "TileTraffic", "accumulator", "array_namespace"]
__all__ += ["as_dtype", "candidates", "config_of", "configs", "datasets", "gelu"]
__all__ += ["kernels", "layers", "matmul", "namespace", "occupancy", "on_device"]
__all__ += ["optimizers", "predict", "probe", "ridge", "synchronize", "to_numpy"]
__all__ += ["traffic", "workspace"]
