"""What `td.tile.matmul` really allocates beside its arrays, as tracemalloc counts it."""

import json
import subprocess
import sys

# a process of its own: tracemalloc counts what every thread allocates, a cluster's too
_MEASURE = """
import json, sys, tracemalloc
import numpy as np
import tiledask as td
peaks = []
(m, n, k), cases = json.load(sys.stdin)
for kernel, tile, dtype, out, alpha, beta, bias, activation, keep in cases:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(td.tile.as_dtype(dtype)) for s in ((m, k), (k, n)))
    out = np.zeros((m, n), td.tile.as_dtype(out))
    tile = tuple(tile) if isinstance(tile, list) else tile
    bias = None if bias is None else np.ones(n, td.tile.as_dtype(bias))
    before = np.empty_like(out) if keep else None
    def run():
        td.tile.matmul(a, b, kernel, tile, out, alpha=alpha, beta=beta, bias=bias,
                       activation=activation, preactivation=before)
    run()  # what is imported on the way is not the kernel's
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run()
    peaks.append(tracemalloc.get_traced_memory()[1] - start)
    tracemalloc.stop()
print(json.dumps(peaks))
"""


def allocated(sizes, cases):
    """Bytes at most at one time for each case, of products of these m, n, k.

    A case: kernel, tile, type, out's type, alpha, beta, bias's type, activation, whether the
    preactivation is kept.
    """
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE],
        input=json.dumps([sizes, cases]),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(done.stdout)
