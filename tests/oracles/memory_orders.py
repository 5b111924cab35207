"""Arrays in every memory order and type that a block can have."""

import numpy as np

import tiledask as td


def arrays():
    """(name, array) of each."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 9, 5))
    yield "row-major", x
    yield "column-major", np.asfortranarray(x)
    yield "transposed", x.transpose(2, 0, 1)
    yield "every second row", x[::2]
    yield "upside down", x[::-1]
    yield "a slice of columns", x[:, 2:8, 1:4]
    yield "one extent of 1", x[:, :1]
    yield "a matrix", x[0].astype("f4")
    yield "a vector", x[0, 0]
    yield "a number", np.array(2.5)
    yield "half", x.astype("f2")
    yield "bfloat16", x.astype(td.tile.as_dtype("bfloat16"))
    yield "bytes", rng.integers(0, 255, (50, 3), dtype="u1")
