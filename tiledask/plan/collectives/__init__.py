"""The arithmetic of collectives: who sends what to whom, the bytes of it, and the seconds.

algorithms.py   every algorithm as rounds of moves of chunks
formulas.py     the bytes of each rank in closed form, from the literature
  cost.py       what the moves carry: bytes, messages and rounds of every rank
    seconds.py  how long they take where messages have a latency and links a bandwidth
halo.py         which rows neighbours need of each other
layers.py       what tensor-parallel layers call, forward and backward
  shards.py       which heads every rank holds, and which columns of fused matrices
panels.py       of a product on a grid, the pieces of its inner dimension
convolution.py  what convolutions call when they are split, and whole networks of them
  rows.py         who makes which rows of an image, and which rows it borrows
data_parallel.py  what averaging gradients and ZeRO call, and who keeps which numbers
  expected.py     one call, with its label and the bytes of every rank
"""

from importlib import import_module
from typing import Any

__all__ = ["convolution", "data_parallel", "formulas", "layers", "shards"]


def __getattr__(name: str) -> Any:
    """A file of the room, loaded when it is first used: a plan of one device needs none."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"tiledask.collectives has no {name!r}; it has {', '.join(__all__)}")
