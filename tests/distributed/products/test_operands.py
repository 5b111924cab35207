"""What two operands of a distributed product must have in common, and their kernel."""

import dask.array as da
import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.errors import KernelError, PlacementError
from tiledask.tile import kernels

SINGLE, DOUBLE, INTEGER = map(np.dtype, ("f4", "f8", "i4"))


@pytest.mark.parametrize("kernel", kernels)
def test_a_kernel_goes_where_its_arrays_are_whether_or_not_the_client_can_run_it(kernel):
    own = kernels[kernel].arrays
    check_kernel(kernel, own)
    if kernel == "blas":  # means cublas there
        check_kernel(kernel, "cupy")
        return
    other, runs = {"cupy": ("numpy", "GPUs"), "numpy": ("cupy", "CPUs")}[own]
    with pytest.raises(KernelError, match=f"'{kernel}' runs on {runs}, .*blas, or .*device="):
        check_kernel(kernel, other)


def test_types_must_be_equal_and_what_the_kernel_takes():
    check_types(SINGLE, SINGLE, "smem_tiled")
    for words, error, given in (
        ("A is float32 and B is float64, must be equal", PlacementError, (SINGLE, DOUBLE, "blas")),
        (r"x is float64 .* 'smem_tiled' takes float32; store with astype", PlacementError,
         (DOUBLE, DOUBLE, "smem_tiled", ("x", "y"), "store")),
        ("B is int32, the kernel", PlacementError, (INTEGER, INTEGER, "blas")),
        ("no kernel 'fast'", KernelError, (SINGLE, SINGLE, "fast")),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            check_types(*given)


@pytest.mark.cluster
@pytest.mark.parametrize("kernel", ["smem_tiled", "cublas"])
def test_a_gpu_kernel_on_cpu_workers_is_refused_before_anything_runs(cluster, tmp_path, kernel):
    x = np.zeros((4, 4), "f4")
    a = td.distribute(x, td.Mesh(cluster, (2, 2)), (td.Shard(0), td.Shard(1)))
    np.save(tmp_path / "a.npy", x)
    stored, lazy = td.open_array(tmp_path / "a.npy"), da.from_array(x, chunks=2)
    for product in (
        lambda: td.matmul(a, a, kernel=kernel),
        lambda: td.explain(a, a, kernel=kernel),
        lambda: td.matmul(lazy, lazy, kernel=kernel),
        lambda: td.matmul(stored, stored, kernel=kernel, out=tmp_path / "c.npy", cluster=cluster),
    ):
        with pytest.raises(KernelError, match=f"'{kernel}' runs on GPUs, and the blocks are numpy"):
            product()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
