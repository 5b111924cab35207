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


class NVMLError(Exception):
    pass


def nvml(count=1, failure=None):
    """pynvml on a machine with ``count`` GPUs, or whose driver fails with ``failure``."""

    def init():
        if failure:
            raise NVMLError(failure)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.10",
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=141 * 10**9),
    )


def cupy(count=1, no_device=None, no_memory=None, returned=None):
    """CuPy on a machine where the steps named fail with the text given."""

    def fail(text, value):
        if text:
            raise RuntimeError(text)
        return value

    def properties(i):
        return {"name": b"NVIDIA A100", "major": 8, "minor": 0, "totalGlobalMem": 40 * 10**9}

    def asarray(x):
        return SimpleNamespace(get=lambda: fail(no_memory, x if returned is None else returned))

    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: 13020,
        getDeviceCount=lambda: fail(no_device, count),
        getDeviceProperties=properties,
    )
    cuda = SimpleNamespace(runtime=runtime)
    return SimpleNamespace(__name__="cupy", __version__="14.2.0", cuda=cuda, asarray=asarray)


@pytest.fixture
def machine(monkeypatch):
    """Sets up a machine from the two libraries, or the errors that importing them raises."""

    def importing(what):
        def load():
            if isinstance(what, Exception):
                raise what
            return what

        return load

    def build(driver, library, no_nvrtc="", **environment):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(backend, "_import_nvml", importing(driver))
        monkeypatch.setattr(backend, "_import_cupy", importing(library))
        monkeypatch.setattr(backend, "nvrtc_reason", lambda: no_nvrtc)
        backend.probe.cache_clear()
        return backend.probe()

    yield build
    backend.probe.cache_clear()


NO_CUPY = ModuleNotFoundError("No module named 'cupy'", name="cupy")
NO_NVML = ImportError("No module named 'pynvml'")
NO_DRIVER = nvml(failure="NVML Shared Library Not Found")
OLD = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"


# -- the probe -----------------------------------------------------------------------------------


def test_a_usable_machine(machine):
    found = machine(nvml(), cupy(count=2))
    assert found.usable
    assert found.reason == found.nvrtc_reason == ""
    assert (found.cupy, found.cuda, found.driver) == ("14.2.0", "13.2", "580.10")
    assert found.devices[1] == backend.GpuInfo(1, "NVIDIA A100", "8.0", 40 * 10**9)
    assert backend.namespace("cupy").__version__ == "14.2.0"


def test_a_gpu_without_memory_of_its_own_is_found_with_and_without_cupy(machine):
    class NotSupported(NVMLError):
        pass

    def no_memory(handle):
        raise NotSupported("Not Supported")

    driver = nvml()
    driver.nvmlDeviceGetMemoryInfo, driver.NVMLError_NotSupported = no_memory, NotSupported
    assert machine(driver, NO_CUPY).devices == (
        backend.GpuInfo(0, "NVIDIA H200", "9.0", 0, integrated=True),
    )
    library = cupy()
    ask = library.cuda.runtime.getDeviceProperties
    library.cuda.runtime.getDeviceProperties = lambda i: ask(i) | {"integrated": 1}
    assert machine(driver, library).devices[0].integrated


UNUSABLE = {
    "nothing at all": (
        (NO_DRIVER, NO_CUPY),
        r"no NVIDIA driver answers \(NVML Shared Library Not Found\), and CuPy is not installed",
    ),
    "GPU without CuPy": (
        (nvml(count=4), NO_CUPY),
        r"reports 4 GPU\(s\), the first a NVIDIA H200, and CuPy is not installed: pip .*\[gpu\]'",
    ),
    "nothing to ask the driver with": (
        (NO_NVML, NO_CUPY),
        "NVML's Python bindings .*, and CuPy is not installed: pip",
    ),
    "CuPy with an old driver": (
        (nvml(), cupy(no_device=OLD)),
        "the driver 580.10 reports 1 GPU.*: the driver may be older than CuPy's CUDA",
    ),
    "a full device": (
        (nvml(), cupy(no_memory="out of memory")),
        r"no device is usable \(out of memory\); .* or the device full",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_machine_is_told_why(machine, case):
    libraries, reason = UNUSABLE[case]
    found = machine(*libraries)
    assert not found.usable
    with pytest.raises(KernelError, match=reason):
        backend.namespace("cupy")


def test_devices_hidden_by_the_environment_are_named(machine):
    found = machine(nvml(), cupy(no_device="cudaErrorNoDevice"), CUDA_VISIBLE_DEVICES="")
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
