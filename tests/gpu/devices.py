"""Cases on either kind of arrays, large on a GPU and small without."""

from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from tiledask.tile.backend import namespace

__all__ = ["GPU", "LESS", "memory_of", "on"]

LESS = {"cupy": 1, "numpy": 64}
"""What extents are divided by."""


GPU = (pytest.mark.gpu, pytest.mark.slow)
"""Marks of what `make gpu` runs, and no other run."""


def on(cupy: Iterable[tuple[Any, ...]], numpy: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameters of ("numpy", *case) for `make test`, of ("cupy", *case) for `make gpu`."""
    small = [pytest.param("numpy", *case) for case in numpy]
    return small + [pytest.param("cupy", *case, marks=GPU) for case in cupy]


def memory_of(arrays: str) -> int:
    """Bytes of the GPU in use; of this machine for "numpy"."""
    if arrays == "numpy":
        return int(psutil.virtual_memory().total)
    return int(namespace("cupy").cuda.runtime.memGetInfo()[1])
