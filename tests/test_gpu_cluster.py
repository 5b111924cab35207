"""GPU workers: Dask-CUDA's wiring on any Linux machine, the real thing where there is a GPU.

Dask-CUDA has switches for its own tests with which LocalCUDACluster starts without a GPU. With
them the slots, their pins and their devices are tried; that a device computes is not.
"""

import subprocess
import sys

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.precision import acceptable
from tiledask.tile import probe

pytestmark = pytest.mark.cluster

WIRING = """
import os
from tiledask.tile import backend
from tiledask.dist import start

found = backend.Backend(True, "", devices=tuple(
    backend.Device(i, f"pretended GPU {i}", "9.0", 10**9) for i in range(2)))
start.probe = lambda: found

def where():
    from distributed import get_worker
    return get_worker().name, os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]

if __name__ == "__main__":
    import tiledask as td
    with td.start_cluster(per_gpu=2) as cluster:
        print(cluster)
        for round in range(2):
            futures = [cluster.submit(i % 4, where) for i in range(20)]
            print(cluster.gather(futures, "pins") ==
                  [(i % 4, str(i % 4 // 2)) for i in range(20)])
            if round == 0:
                import signal
                pid = cluster.run(os.getpid)[2]
                os.kill(pid, signal.SIGKILL)
        print(sorted(p["nthreads"] for p in cluster._workers().values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Dask-CUDA is for Linux")
def test_slots_and_devices_of_gpu_workers(tmp_path, monkeypatch):
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed: pip install -e .[test]")
    monkeypatch.setenv("DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC", "1")
    monkeypatch.setenv("DASK_CUDA_TEST_SINGLE_GPU", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script = tmp_path / "wiring.py"
    script.write_text(WIRING)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert "4 GPU workers, 1 BLAS thread each: pretended GPU 0, pretended GPU 1" in lines[0]
    assert lines[3:] == ["True", "True", "[2, 2, 2, 2]"]


@pytest.mark.gpu
@pytest.mark.skipif(not probe().usable, reason=f"no usable GPU: {probe().reason}")
@pytest.mark.parametrize("kernel", ["cublas", "smem_tiled"])
@pytest.mark.parametrize("per_gpu", [1, 2])
def test_a_product_on_gpu_workers(kernel, per_gpu):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((700, 500), np.float32)
    b = rng.standard_normal((500, 600), np.float32)
    with td.start_cluster(device="cuda", per_gpu=per_gpu, quiet=True) as cluster:
        mesh = td.Mesh(cluster, (cluster.slots,))
        A = td.distribute(a, mesh, (td.Shard(0),))
        B = td.distribute(b, mesh, (td.Shard(0),))
        C = td.matmul(A, B, kernel=kernel)
        np.testing.assert_allclose(td.to_numpy(C), a @ b, rtol=1e-4, atol=1e-3)
        assert C.traffic.predicted == C.traffic.measured


@pytest.mark.gpu
@pytest.mark.skipif(not probe().usable, reason=f"no usable GPU: {probe().reason}")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=str)
def test_a_training_on_gpu_workers(shape, dtype):
    """The losses of NumPy, the bytes that are planned."""
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=32, layers=2, heads=4, sequence=16)
    options = {"steps": 4, "batch": 8, "microbatches": 2, "dtype": dtype, "clip": 1.0}
    host = td.train(model, text, shape, **options)
    per_gpu = -(-2 // len(probe().devices))
    with td.start_cluster(device="cuda", per_gpu=per_gpu, quiet=True) as cluster:
        got = td.train(model, text, td.Mesh(cluster, shape), **options)
    for step, (a, b) in enumerate(zip(host.losses, got.losses, strict=True), 1):
        assert acceptable(a, b, step, dtype, 2, 2), f"step {step}"
    assert not len(got.records.mismatches)
    assert got.held == host.held


def test_a_gpu_that_was_insisted_on_and_is_not_there():
    if probe().usable:
        pytest.skip("there is a usable GPU")
    with pytest.raises(ConfigError, match=r"device='cuda' needs a usable GPU: .+"):
        td.start_cluster(device="cuda")
