"""td.matmul beside NumPy in one process and beside dask.array, from memory and from files."""

import dask.array as da
import numpy as np
import pytest
from dask.distributed import wait
from dask.graph_manipulation import clone

import tiledask as td
from tiledask.plan.units import format_bytes


def drawn(n, dtype):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, n)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize(("n", "dtype"), [(8192, "f4"), (4096, "f4"), (2048, "f4")])
def test_product(two_workers, plain_dask, in_turns, n, dtype):
    a, b = drawn(n, dtype)
    mesh, grid = td.Mesh(two_workers, (2, 1)), (td.Shard(0), td.Shard(1))
    A, B = (td.distribute(x, mesh, grid) for x in (a, b))
    x, y = (plain_dask.persist(da.from_array(each, chunks=n // 2)) for each in (a, b))
    wait([x, y])

    def ours():
        made = td.matmul(A, B)
        moved = made.traffic.measured.total
        return f"{made.made_by}, moved {format_bytes(moved)}"

    def dask_array():
        wait(plain_dask.persist(clone(x @ y, omit=[x, y])))  # by other names, or it is there

    in_turns(
        {"numpy, all cores": lambda: a @ b, "td.matmul": ours, "dask.array": dask_array},
        base="numpy, all cores",
    )


def test_product_of_files(two_workers, plain_dask, in_turns, tmp_path):
    """Two of the three matrices are more than a worker may hold."""
    n, limit = 4096, 70_000_000
    for name, x in zip("ab", drawn(n, "f4"), strict=True):
        np.save(tmp_path / f"{name}.npy", x)
    a, b = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab")

    def alone():
        out = np.lib.format.open_memmap(tmp_path / "alone.npy", "w+", np.float32, (n, n))
        np.matmul(a, b, out=out)
        out.flush()

    def ours():
        files = [td.open_array(tmp_path / f"{name}.npy") for name in "ab"]
        made = td.matmul(
            *files,
            out=tmp_path / "ours.npy",
            cluster=two_workers,
            memory_limit=limit,
            overwrite=True,
        )
        read, peak = made.bytes_read.measured, made.memory.measured.peak
        return f"read {format_bytes(read)}, held at most {format_bytes(peak)}"

    def dask_array():
        files = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab")
        x, y = (da.from_array(each, chunks=2048) for each in files)
        out = np.lib.format.open_memmap(tmp_path / "dask.npy", "w+", np.float32, (n, n))
        out[:] = plain_dask.compute(x @ y).result()
        out.flush()

    in_turns(
        {"numpy, memory maps": alone, "td.matmul": ours, "dask.array": dask_array},
        base="numpy, memory maps",
        rounds=1,
    )
    rows = np.linspace(0, n - 1, 16).astype(int)
    for name in ("ours", "dask"):
        found = np.load(tmp_path / f"{name}.npy", mmap_mode="r")[rows]
        np.testing.assert_allclose(found, a[rows] @ b, atol=1e-2)
