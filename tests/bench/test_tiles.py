"""Our tile kernels beside the library, on whatever this machine computes with.

On a GPU `make gpu` has more: products of many shapes, each kernel beside its bound."""

import numpy as np
import pytest

import tiledask as td


@pytest.mark.parametrize("n", [512, 2048])
def test_kernels(in_turns, n):
    arrays = "cupy" if td.tile.probe().usable else "numpy"
    xp = td.tile.namespace(arrays)
    a, b = (xp.asarray(np.random.default_rng(i).random((n, n), np.float32)) for i in range(2))
    out = xp.empty_like(a)

    def way(call):
        def run():
            call()
            td.tile.synchronize(out)

        return run

    names = [
        name
        for name, kernel in td.tile.kernels.items()
        if kernel.arrays == arrays and not kernel.why_not and name != "loops"
    ]
    ours = {name: way(lambda name=name: td.tile.matmul(a, b, name, out=out)) for name in names}
    library = f"{arrays}.matmul"
    in_turns({library: way(lambda: xp.matmul(a, b, out=out)), **ours}, base=library)
