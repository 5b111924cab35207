"""What `td.tile.matmul` really allocates beside its arrays, as tracemalloc counts it."""

import json

from oracles.finished import python

# a process of its own: tracemalloc counts what every thread allocates, a cluster's too
_MEASURE = """
import json, sys, tracemalloc
import numpy as np
import tiledask as td
peaks = []
(m, n, k), cases = json.loads(sys.argv[1])
for kernel, tile, *types, end in cases:
    rng = np.random.default_rng(0)
    kind, out_kind = map(td.tile.as_dtype, types)
    a, b = (rng.standard_normal(s).astype(kind) for s in ((m, k), (k, n)))
    out = np.zeros((m, n), out_kind)
    tile = tuple(tile) if isinstance(tile, list) else tile
    td.tile.matmul(a, b, kernel, tile, out, **end)  # what is imported is not the kernel's
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    td.tile.matmul(a, b, kernel, tile, out, **end)
    peaks.append(tracemalloc.get_traced_memory()[1] - start)
    tracemalloc.stop()
print(json.dumps(peaks))
"""


def allocated(sizes, cases):
    """Bytes at most at one time for each case, of products of these m, n, k.

    A case: kernel, tile, type, out's type, options of the product.
    """
    return json.loads(python("-c", _MEASURE, json.dumps([sizes, cases]), check=True).stdout)
