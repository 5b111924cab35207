"""The probe tells apart every way a GPU can be missing; arrays here and on a device."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tiledask.errors import KernelError
from tiledask.tile import backend

# -- stand-ins for the driver's library and for CuPy ---------------------------------------------


def cupy(count=1, no_device=None, no_memory=None, returned=None):
    """CuPy on a machine where the steps named fail with the text given."""

    def fail(text, value):
        if text:
            raise RuntimeError(text)
        return value

    facts = {"name": b"NVIDIA A100", "major": 8, "minor": 0, "totalGlobalMem": 40 * 10**9}
    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: 13000,
        getDeviceCount=lambda: fail(no_device, count),
        getDeviceProperties=lambda i: facts | {"integrated": i},
    )
    return SimpleNamespace(
        __name__="cupy",
        __version__="14.2.0",
        cuda=SimpleNamespace(runtime=runtime),
        asarray=lambda x: SimpleNamespace(
            get=lambda: fail(no_memory, x if returned is None else returned)
        ),
    )


@pytest.fixture
def machine(monkeypatch):
    """Sets up a machine from its CuPy, or the error that importing it raises."""

    def build(library, **environment):
        def load():
            if isinstance(library, Exception):
                raise library
            return library

        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(backend, "cupy_module", load)
        monkeypatch.setattr(backend, "nvrtc_reason", lambda: "")
        backend.probe.cache_clear()
        return backend.probe()

    yield build
    backend.probe.cache_clear()


NO_CUPY = ModuleNotFoundError("No module named 'cupy'", name="cupy")
OLD = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"


# -- the probe -----------------------------------------------------------------------------------


def test_a_usable_machine(machine):
    found = machine(cupy(count=2))
    assert found.usable
    assert found.reason == found.nvrtc_reason == ""
    assert (found.cupy, found.cuda, found.driver) == ("14.2.0", "13.2", "13.0")
    assert found.devices[1] == backend.GpuInfo(1, "NVIDIA A100", "8.0", 40 * 10**9, True)
    assert not found.devices[0].integrated
    assert backend.namespace("cupy").__version__ == "14.2.0"


UNUSABLE = {
    "no CuPy": (NO_CUPY, r"CuPy is not installed; on a machine with an NVIDIA GPU: pip .*\[gpu\]'"),
    "an old driver": (
        cupy(no_device=OLD),
        "InsufficientDriver: .*nvidia-smi says whether one is old",
    ),
    "a full device": (cupy(no_memory="out of memory"), r"no device is usable \(out of memory\)"),
    "other numbers": (
        cupy(returned=np.arange(4)),
        r"sent \[2, 3, 5, 7\] .* came back",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_machine_is_told_why(machine, case):
    library, reason = UNUSABLE[case]
    found = machine(library)
    assert not found.usable
    with pytest.raises(KernelError, match=reason):
        backend.namespace("cupy")


def test_devices_hidden_by_the_environment_are_named(machine):
    found = machine(cupy(no_device="cudaErrorNoDevice"), CUDA_VISIBLE_DEVICES="")
    assert "CUDA_VISIBLE_DEVICES='' says which to use" in found.reason


# -- arrays --------------------------------------------------------------------------------------


def test_round_trip_through_the_namespace(xp):
    x = xp.arange(6.0).reshape(2, 3)
    assert backend.array_namespace(x, x) is xp
    assert type(backend.to_numpy(x)) is np.ndarray
    np.testing.assert_array_equal(backend.to_numpy(x), np.arange(6.0).reshape(2, 3))
    backend.synchronize(x)
    with backend.on_device(x):
        assert xp.zeros(2).device == x.device


# -- the layer -----------------------------------------------------------------------------------


def test_importing_the_low_level_loads_neither_cupy_nor_dask():
    code = (
        "import sys, numpy as np, tiledask as td; td.tile.matmul(np.ones((2, 2)), np.ones((2, 2)));"
        "print(sorted({'cupy', 'pynvml', 'dask', 'distributed'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
