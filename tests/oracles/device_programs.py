"""Rank functions whose arrays are of GPUs where there are any, for test_ranks_nccl*.py."""

import numpy as np

from tiledask.tile.backend import as_dtype, to_numpy

ALGORITHMS = "ring", "tree", "direct"


def host(results):
    """Each in host memory, or None."""
    return [None if x is None else to_numpy(x) for x in results]


def assert_same(results, reference):
    """By rank, the same arrays to the bit."""
    for mine, theirs in zip(results, reference, strict=True):
        for a, b in zip(host(mine), theirs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def everything(rank, dtype="float64"):
    """Each collective by each algorithm, ragged; all that a rank has in the end."""
    g, n, r = rank.group(), rank.ranks, rank.index
    x = np.random.default_rng(r).standard_normal((7, 5)).astype(as_dtype(dtype))
    x, made = rank.on_device(x), []
    for name in ALGORITHMS:
        made += [g.all_reduce(x, algorithm=name), g.all_reduce(x[:1, :1], "max", algorithm=name)]
        made += [g.reduce(x, n - 1, algorithm=name), g.broadcast(x, n - 1, algorithm=name)]
        made += [g.reduce_scatter(x, 1, algorithm=name), g.reduce_scatter(x, algorithm=name)]
        made += [g.all_gather(x[: r % 3, 1:4], algorithm=name), g.all_gather(x, 1, algorithm=name)]
        made += [g.all_to_all(x, algorithm=name), g.all_to_all(x[:r], 1, 0, algorithm=name)]
    rows = [1 + k % 2 for k in range(n)]
    wide = g.halo_exchange(x[: rows[r]], 0, 1, 2, extents=rows)
    made += [wide, g.halo_reduce(wide, 0, 1, 2, extents=rows)]
    made += [g.sendrecv(x, (r + 1) % n, (r - 1) % n)]
    g.barrier()
    return made


def own(rank, dtype="float32"):
    g, n, r = rank.group(), rank.ranks, rank.index
    whole = np.random.default_rng(r).integers(-9, 9, (2 * n, 3, n)).astype(as_dtype(dtype))
    x = rank.on_device(whole)
    name = {"algorithm": "nccl"}
    return [g.all_reduce(x, **name), g.all_reduce(x, "max", **name)]


def own_by_ring(rank, dtype="float32"):
    """`own`, with our ring in place of NCCL's algorithms."""

    class Ring:
        """The group, whose algorithm is ring whatever one asks for."""

        def __getattr__(self, kind):
            method = getattr(rank.group(), kind)
            return lambda *args, **options: method(*args, **(options | {"algorithm": "ring"}))

    class AsRing:
        group, index, ranks = staticmethod(Ring), rank.index, rank.ranks
        on_device = staticmethod(rank.on_device)

    return own(AsRing, dtype)


def add_ones(rank):
    return to_numpy(rank.group().all_reduce(rank.on_device(np.ones(3)))).tolist()
