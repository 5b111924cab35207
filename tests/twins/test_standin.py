"""GPU code on a machine without one: standin/checks, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
CHECKS = sorted((HERE / "twins" / "standin" / "checks").glob("*.py"))
WITH_WORKERS = ("client", "connect")


def on_gpus(*args, tmp_path, gpus=2, **environ):
    """pytest with the stand-in for CuPy; the end of what it said if a test fails."""
    standin = HERE / "twins" / "standin"
    paths = [
        str(standin / "driver"),
        str(standin),
        str(HERE),
        str(HERE.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "STANDIN_GPUS": str(gpus),
        "STANDIN_GPU_FOLDER": str(tmp_path / "gpus"),
        "TILEDASK_CACHE": str(tmp_path / "cache"),
        "DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC": "1",
        "DASK_CUDA_TEST_SINGLE_GPU": "1",
        **environ,
    }
    env.pop("CUDA_VISIBLE_DEVICES", None)
    plain = ["-p", "no:cacheprovider", "-p", "no:nbval"]
    command = [sys.executable, "-m", "pytest", "-q", *plain, *map(str, args)]
    done = subprocess.run(
        command, env=env, cwd=HERE.parent, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in maps memory as Linux does")
@pytest.mark.parametrize("workers", [False, pytest.param(True, marks=pytest.mark.cluster)])
def test_on_the_stand_in(workers, tmp_path):
    if workers:
        pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")
    on_gpus(*(p for p in CHECKS if (p.stem in WITH_WORKERS) == workers), tmp_path=tmp_path)
