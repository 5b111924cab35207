"""The doctor answers on any machine, names what brings what is missing, and never hangs."""

import io

import pytest

from tiledask.distributed.cluster import start
from tiledask.lab import doctor
from tiledask.lab.doctor import MachineCheck, examine, shown
from tiledask.plan.tables import print_parts

NAMES = "Python|memory|temporary disk|NumPy|JupyterLab|Dask panels|CuPy|Dask-CUDA|RMM|GPU|workers"
DEVICE = {"index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "memory": 150 * 10**9}
NO_GPU = doctor._unusable("no NVIDIA driver answers")
FOUND = {"cupy": "14.2.0", "devices": [DEVICE, DEVICE], "driver": "580.1", "cuda": "13.0"}
GPU = NO_GPU | FOUND | {"usable": True, "reason": ""}
NO_CUPY = {**GPU, "usable": False, "reason": "CuPy is not installed", "cupy": ""}


@pytest.fixture(scope="module")
def here() -> list[MachineCheck]:
    return examine()


def with_gpu(monkeypatch, gpu: dict) -> dict[str, MachineCheck]:
    monkeypatch.setattr(doctor, "ask_gpu", lambda: gpu)
    return {finding.name: finding for finding in examine()}


def test_every_question_is_answered_in_order_and_what_is_missing_has_a_fix(here):
    assert "|".join(finding.name for finding in here) == NAMES
    assert not [f for f in here if f.found.startswith("could not be found out")]
    assert all(f.fix for f in here if f.state == "missing")
    out = io.StringIO()
    print_parts(*shown(here), file=out, width=160)
    assert all(name in out.getvalue() for name in NAMES.split("|"))
    assert out.getvalue().splitlines()[-1] == f"will be used: {here[-1].found}"


def test_one_broken_question_leaves_the_others(monkeypatch):
    def broken():
        raise OSError("libopenblas\nis gone")

    monkeypatch.setattr(doctor, "_disk", broken)
    findings = with_gpu(monkeypatch, NO_GPU)
    assert "|".join(findings) == NAMES
    assert (
        findings["temporary disk"].found == "could not be found out: OSError: libopenblas is gone"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "status -6"),
        ("raise RuntimeError('driver/library version mismatch')", "version mismatch"),
        ("print('PROBE {not json')", "status 0"),
        ("import time; time.sleep(900)", "the NVIDIA driver did not answer within 0.5 s"),
        (None, "no process could be started"),
    ],
)
def test_a_driver_that_crashes_or_hangs_is_a_reason(monkeypatch, code, said):
    if code is None:
        monkeypatch.setattr(doctor.sys, "executable", "/nonexistent/python")
    limit = {"deadline": 0.5} if "sleep" in f"{code}" else {}
    answer = doctor.ask_gpu(code or "", **limit)
    assert not answer["usable"]
    assert said in answer["reason"]


SHARED = {**DEVICE, "name": "NVIDIA GB10", "memory": 0, "integrated": True}


@pytest.mark.parametrize(
    ("gpu", "traces", "state", "said"),
    [
        (GPU, True, "ok", {"GPU": "NVIDIA H200 (150 GB)", "workers": "^2 GPU workers"}),
        (GPU | {"devices": [SHARED]}, True, "ok", {"GPU": "NVIDIA GB10 (the host memory)"}),
        (GPU | {"nvrtc_reason": "no NVRTC"}, True, "missing", {"GPU": "no NVRTC"}),
        (NO_CUPY, True, "missing", {"workers": "CPU workers"}),
        (NO_GPU, True, "missing", {}),  # the driver does not answer
    ],
    ids=["two", "of the host's memory", "no NVRTC", "no CuPy", "a driver alone"],
)
def test_what_a_gpu_is_to_the_machine(monkeypatch, gpu, traces, state, said):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/x" if traces else None)
    found = with_gpu(monkeypatch, gpu)
    assert found["GPU"].state == state
    assert all(words in f"^{found[name].found}" for name, words in said.items())
    assert (".[gpu]" in found["GPU"].fix) == (gpu is NO_CUPY)


def test_what_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "_version", lambda distribution: "")
    found = with_gpu(monkeypatch, NO_GPU)
    missing = {name: f.fix for name, f in found.items() if f.state == "missing"}
    lab, run = (doctor.install(extra) for extra in ("lab", "run"))
    assert missing == {"NumPy": run, "JupyterLab": lab, "Dask panels": lab}
    assert "3 missing" in [*shown([*found.values()])]


def test_the_workers_it_promises_are_the_ones_that_would_start(here, monkeypatch):
    slots = start._slots

    def stop(workers, gpus, *more):
        raise RuntimeError(f"{slots(workers, gpus, *more)} {'GPU' if gpus else 'CPU'} workers")

    monkeypatch.setattr(start, "_slots", stop)
    with pytest.raises(RuntimeError) as found:
        start.start_cluster(quiet=True)
    assert here[-1].found.startswith(str(found.value))
