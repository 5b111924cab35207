"""GPU workers: how many, which device each has, how much of it; products where there is a GPU."""

from types import SimpleNamespace

import pytest

from tiledask.distributed.cluster import gpus as on_gpus
from tiledask.tile.backend import GpuInfo

GB = 10**9


@pytest.mark.parametrize(
    ("memory", "integrated", "sharers", "share"),
    [
        (141 * GB, False, 1, 126_900_000_000),
        (141 * GB, False, 2, 63_450_000_000),
        (4 * GB, False, 1, 3_600_000_000),
        (128 * GB, True, 4, 27 * GB),  # as much of the host's
    ],
)
def test_workers_plan_with_their_share_of_a_gpu(memory, integrated, sharers, share):
    assert on_gpus.share_of(on_gpus.OwnGpu("", memory, integrated), sharers, 30 * GB) == share


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
    monkeypatch.setattr(
        on_gpus,
        "probe",
        lambda: SimpleNamespace(devices=[GpuInfo(i, "H200", "9.0", 141 * GB) for i in range(gpus)]),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert on_gpus._visible_gpus() == names
