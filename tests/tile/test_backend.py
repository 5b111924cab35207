"""The probe tells apart every way a GPU can be missing; arrays here and on a device."""

from types import SimpleNamespace

import numpy as np
import pytest
from oracles.finished import python

from tiledask.errors import KernelError
from tiledask.tile import backend

FACTS = {"name": b"NVIDIA A100", "major": 8, "minor": 0, "totalGlobalMem": 40 * 10**9}
OLD = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"


def raised(error):
    raise error if isinstance(error, Exception) else RuntimeError(error)


def cupy(count=lambda: 2, received=lambda sent: sent):
    """CuPy on a machine where the driver counts devices so, and this comes back from the first."""
    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: 13000,
        getDeviceCount=count,
        getDeviceProperties=lambda i: FACTS | {"integrated": i},
    )
    return SimpleNamespace(
        __name__="cupy",
        __version__="14.2.0",
        cuda=SimpleNamespace(runtime=runtime),
        asarray=lambda x: SimpleNamespace(get=lambda: received(x)),
    )


@pytest.fixture
def machine(monkeypatch):
    """Sets up a machine from how it imports CuPy."""

    def build(load):
        monkeypatch.setattr(backend, "cupy_module", load)
        monkeypatch.setattr(backend, "nvrtc_reason", lambda: "")
        backend.probe.cache_clear()
        return backend.probe()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield build
    backend.probe.cache_clear()


def test_a_usable_machine(machine):
    found = machine(cupy)
    assert found.usable
    assert found.reason == found.nvrtc_reason == ""
    assert (found.cupy, found.cuda, found.driver) == ("14.2.0", "13.2", "13.0")
    assert found.devices[1] == backend.GpuInfo(1, "NVIDIA A100", "8.0", 40 * 10**9, True)
    assert not found.devices[0].integrated
    assert backend.namespace("cupy").__version__ == "14.2.0"


NO_CUPY = ModuleNotFoundError("No module named 'cupy'", name="cupy")
UNUSABLE = [
    (lambda: raised(NO_CUPY), r"CuPy is not installed; on a machine with .* GPU: pip .*\[gpu\]'"),
    (
        lambda: cupy(lambda: raised(OLD)),
        r"InsufficientDriver: .*\); CUDA_VISIBLE_DEVICES='' says which to use; nvidia-smi says",
    ),
    (
        lambda: cupy(received=lambda _: raised("out of memory")),
        r"no device is usable \(out of memory\)",
    ),
    (lambda: cupy(received=lambda _: np.arange(4)), r"sent \[2, 3, 5, 7\] .* came back"),
]


@pytest.mark.parametrize(("load", "reason"), UNUSABLE)
def test_an_unusable_machine_is_told_why(machine, monkeypatch, load, reason):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not machine(load).usable
    with pytest.raises(KernelError, match=reason):
        backend.namespace("cupy")


def test_round_trip_through_the_namespace(xp):
    x = xp.arange(6.0).reshape(2, 3)
    assert backend.array_namespace(x, x) is xp
    assert type(backend.to_numpy(x)) is np.ndarray
    np.testing.assert_array_equal(backend.to_numpy(x), np.arange(6.0).reshape(2, 3))
    backend.synchronize(x)
    with backend.on_device(x):
        assert xp.zeros(2).device == x.device


def test_importing_the_low_level_loads_neither_cupy_nor_dask():
    code = (
        "import sys, numpy as np, tiledask as td; td.tile.matmul(np.ones((2, 2)), np.ones((2, 2)));"
        "print(sorted({'cupy', 'pynvml', 'dask', 'distributed'} & set(sys.modules)))"
    )
    assert python("-c", code).stdout.strip() == "[]"
