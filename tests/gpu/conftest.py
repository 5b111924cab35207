"""GPU checks: `make gpu` runs them on CuPy and records what they note; `make test` runs each of
them on small NumPy arrays, so that none rots where there is no GPU.

    note(key, state, **measures)     a row of the record
    on_workers(arrays, 2)            GPU workers; the session's CPU workers for "numpy"
"""

import json
import re
import subprocess
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version

import pytest
from gpu.devices import release

import tiledask as td
from tiledask.files import atomic_write
from tiledask.lab.doctor import ask_gpu
from tiledask.tile import probe

collect_ignore = ["conftest.py"]
HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "gpu"
ORDER = ("kernels", "speed", "product", "fit", "train")
"""Of the files here, by what is learnt per minute; the other tests that need a GPU come last."""
GOALS = {"bf16": 1.00, "fp32": 0.95, "two-level": 0.95, "host": 0.80}
"""What a run ends with: rows with ``goal=`` one of these, and how near they came to it: at 8192
cubed beside cuBLAS, at 32768 cubed beside cupy.matmul, from host memory beside its bound."""
DECIDE = ("tiledask", "dask", "distributed", "numpy", "cupy-cuda13x", "dask-cuda", "matplotlib")
"""The packages whose versions decide the results."""


def part_of(path):
    """The part of the record that a test's rows belong to."""
    stem = Path(path.partition("::")[0]).stem
    return stem.removeprefix("test_gpu_") if f"gpu/{stem}.py" in path else "tests"


@pytest.fixture
def note(request, record_property):
    """Note one measurement, right, wrong, timed, skipped or failed; a test may note several."""

    def add(key, state, **measures):
        row = {"part": part_of(request.node.nodeid), "key": key, "state": state, **measures}
        # numbers of NumPy's as Python's, which go from process to process
        record_property("row", json.loads(json.dumps(row, default=lambda x: x.item())))

    return add


@pytest.fixture(autouse=True)
def _usable(request):
    if request.node.get_closest_marker("gpu") and not probe().usable:
        pytest.skip(f"no usable GPU: {probe().reason}")


@pytest.fixture(scope="session")
def on_workers(request):
    """Start GPU workers, unless the last test left as many."""
    held = {}

    def start(arrays, workers, per_gpu=None):
        if arrays == "numpy":
            return request.getfixturevalue("cluster")
        release(arrays)
        if (workers, per_gpu) not in held:
            while held:
                held.popitem()[1].close()
            how = {"device": "cuda", "per_gpu": per_gpu, "quiet": True, "timeout": 120}
            held[workers, per_gpu] = td.start_cluster(workers=workers, **how)
        return held[workers, per_gpu]

    yield start
    for cluster in held.values():
        cluster.close()


# -- the record of a run with -m gpu ---------------------------------------------------------------


class Recorder:
    """Writes the record anew after each test: whatever ends a run, it is there."""

    def __init__(self, device, folder):
        git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        commit = subprocess.run(git, cwd=HERE, capture_output=True, text=True).stdout.strip()
        name = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
        versions = {each.name: each.version for each in distributions() if each.name in DECIDE}
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = folder / f"{name}.json", []
        self.facts = {
            "command": "make gpu",
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "device": {"kind": "GPU", **device},
            "versions": {"Python": python_version(), **versions},
            "code": {"commit": commit},
            "rows": self.rows,
        }

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        noted = [value for name, value in report.user_properties if name == "row"]
        explained = {row["state"] for row in noted} & {"wrong", "failed"}
        if not noted or (report.failed and not explained):
            text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            why = "" if report.passed else str(text).strip().splitlines()[-1]
            row = {"part": part_of(report.nodeid), "key": report.nodeid, "took": report.duration}
            state = "right" if report.passed else report.outcome
            noted.append({**row, "state": state, "why": why})
        self.rows += noted
        atomic_write(self.path, (json.dumps(self.facts, indent=1) + "\n").encode())

    def pytest_terminal_summary(self, terminalreporter):
        for row in self.rows:
            if row.get("goal") in GOALS:
                goal = f"{row['reached']:.3f} of {GOALS[row['goal']]:.2f}"
                terminalreporter.write_line(f"{row['key']}: {goal}")
        terminalreporter.write_line(f"all of it: {self.path}")


def pytest_sessionstart(session):
    config = session.config
    if config.option.markexpr != "gpu" or hasattr(config, "workerinput"):
        return
    found = ask_gpu()
    if not found["usable"]:
        pytest.exit(
            f"`make gpu` measures an NVIDIA GPU and finds none that it could use: "
            f"{found['reason']}. `tiledask doctor` says what of it is here; `tiledask tour` runs "
            f"the whole story on this machine's cores.",
            returncode=1,
        )
    device = found["devices"][0] | {"GPUs": len(found["devices"])}
    device |= {name: found[name] for name in ("driver", "cuda", "cupy")}
    config.pluginmanager.register(Recorder(device, FOLDER), "gpu-record")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    yield
    if config.option.markexpr == "gpu":  # make test has an order of its own
        place = {name: i for i, name in enumerate(ORDER)}
        items.sort(key=lambda item: place.get(part_of(item.nodeid), len(ORDER)))
