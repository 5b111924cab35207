"""Many devices: Dask workers as ranks, sharded arrays, products and pipelines over them."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
