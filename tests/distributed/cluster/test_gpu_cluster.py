"""GPU workers: how many, which device each has, how much of it; products where there is a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.cluster import gpus as on_gpus
from tiledask.errors import ConfigError
from tiledask.lab.precision import acceptable
from tiledask.tile import probe
from tiledask.tile.backend import GpuInfo

GB = 10**9
BIG, SMALL = GpuInfo(0, "H200", "9.0", 141 * GB), GpuInfo(1, "T400", "7.5", 4 * GB)


@pytest.mark.parametrize(
    ("devices", "per_gpu", "share", "words"),
    [
        ([BIG], 1, 126_900_000_000, "126.9 GB of its GPU"),
        ([BIG] * 2, 2, 63_450_000_000, "63.45 GB of its GPU"),
        ([BIG, SMALL], 1, 3_600_000_000, "its GPU, as much as GPU 1 gives (T400, the smallest)"),
        ([GpuInfo(0, "GB10", "12.1", 128 * GB, True)], 4, 27 * GB, "its GPU shares with the host"),
    ],
)
def test_workers_plan_with_what_the_least_of_them_has(devices, per_gpu, share, words):
    got, said = on_gpus.gpu_share(devices, per_gpu, 30 * GB)
    assert got == share
    assert said.endswith(words)


WHOLE = "GPU-00000000-5747-a17d-0000-000000000000"


@pytest.mark.parametrize(
    ("named", "gpus", "names"),
    [
        (None, 2, ["0", "1"]),
        ("3,1", 2, ["3", "1"]),
        ("3, 1", 2, ["3", "1"]),
        ("1,-1,0", 1, ["1"]),  # CUDA sees none from an unknown one on
        (f"{WHOLE},MIG-{WHOLE[4:]}", 2, [WHOLE, f"MIG-{WHOLE[4:]}"]),
    ],
)
def test_gpus_go_by_the_names_that_cuda_knows_them_by(monkeypatch, named, gpus, names):
    monkeypatch.setattr(on_gpus, "probe", lambda: SimpleNamespace(devices=(BIG, SMALL)[:gpus]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert on_gpus._visible_gpus() == names


@pytest.mark.gpu
@pytest.mark.cluster
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
@pytest.mark.cluster
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


@pytest.mark.cluster
def test_a_gpu_that_was_insisted_on_and_is_not_there():
    if probe().usable:
        pytest.skip("there is a usable GPU")
    with pytest.raises(ConfigError, match=r"device='cuda' needs a usable GPU: .+"):
        td.start_cluster(device="cuda")
