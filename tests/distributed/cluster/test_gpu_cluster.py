"""GPU workers: how many, which device each has, how much of it; products where there is a GPU."""

from types import SimpleNamespace

import pytest

from tiledask.distributed.cluster import gpus as on_gpus
from tiledask.tile.backend import GpuInfo

GB, ID = 10**9, "GPU-00000000-5747-a17d-0000-000000000000"


@pytest.mark.parametrize(
    ("memory", "integrated", "sharers", "share", "pool"),
    [
        (141 * GB, False, 1, 126_900_000_000, None),
        (141 * GB, False, 2, 63_450_000_000, 66_975_000_000),
        (4 * GB, False, 1, 3_600_000_000, None),
        (128 * GB, True, 4, 27 * GB, 27 * GB),  # as much of the host's
    ],
)
def test_workers_plan_with_their_share_of_a_gpu(memory, integrated, sharers, share, pool):
    gpu = on_gpus.OwnGpu("", memory, integrated)
    assert on_gpus.share_of(gpu, sharers, 30 * GB) == share
    assert on_gpus.pool_of([gpu] * sharers, sharers, share) == pool


@pytest.mark.parametrize(
    ("named", "gpus", "names"),
    [
        ("", 2, ["0", "1"]),
        ("3,1", 2, ["3", "1"]),
        ("3, 1", 2, ["3", "1"]),
        ("1,-1,0", 1, ["1"]),  # CUDA sees none from an unknown one on
        (f"{ID},MIG-{ID[4:]}", 2, [ID, f"MIG-{ID[4:]}"]),
    ],
)
def test_gpus_go_by_the_names_that_cuda_knows_them_by(monkeypatch, named, gpus, names):
    devices = [GpuInfo(i, "H200", "9.0", 141 * GB) for i in range(gpus)]
    monkeypatch.setattr(on_gpus, "probe", lambda: SimpleNamespace(devices=devices))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert on_gpus._visible_gpus() == names
