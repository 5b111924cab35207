"""Kernels go where their arrays are, whoever asks for them."""

import dask.array as da
import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.products.operands import check_kernel
from tiledask.errors import KernelError
from tiledask.tile import kernels


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
