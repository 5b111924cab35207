"""The base install, NumPy and rich, plans, simulates and judges; and it says what is missing."""

import tomllib

import pytest
from oracles.finished import ROOT, python
from packaging.requirements import Requirement

from tiledask.extras import install, needed_for

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT = {"numpy", "rich", "pygments", "markdown_it", "mdurl"}
"""The base, with what rich needs in turn."""

ONLY_BASE = f"""
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        posix = top in ("fcntl", "resource")
        if posix or top not in sys.stdlib_module_names | {BROUGHT | {"tiledask"}!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in ("fcntl", "resource"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Nothing())
import tiledask as td
"""
"""What comes before code that runs as if nothing else was installed, on a system without them."""

PLANNED = """
from tiledask.cli import main

model, cluster = td.load_model("llama-2-7b"), td.load_cluster("8xA100-80GB")
plans = td.search(model, cluster, global_batch=64)
layout = plans.best.layout
assert td.fits(model, layout, cluster).verdict == "fits"
assert td.estimate_memory(model, layout).peak > 0 < td.estimate_step(model, layout, cluster).total
print(plans, td.critique(model, layout, cluster), td.sensitivity(model, cluster, 64))
assert td.partition([1.0] * 24, stages=4).sizes == (6, 6, 6, 6)
for name in ("naive", "gpipe", "1f1b", "zb-h1", "zb-auto"):
    order = td.schedule(name, stages=4, microbatches=8)
    timeline = td.simulate(order, forward=1.0, backward=2.0)
    assert 0 <= timeline.bubble_fraction < 1, name
    td.program(order, block_bytes=32).check()
td.diagnose(timeline)
for name in td.tasks.puzzle_names():
    td.tasks.load_puzzle(name).check(None)
td.tasks.idle_level(3, seed=7).check(None)
for words in (
    "--version", "doctor", "fit gpt2 1xA100-40GB --critique", "partition 24 4", "idle 1f1b 4 8",
    "puzzle", "puzzle 12 --answer 8", "puzzle idle-3", "plan llama-2-7b 8xA100-80GB 64 --json",
):
    try:
        status = main(words.split())
    except SystemExit as end:
        status = end.code
    assert status == (words == "puzzle 12 --answer 8"), words
"""

MISSING = {
    "td.start_cluster": "run",
    "td.matmul": "run",
    "td.tile.as_dtype('bfloat16')": "run",
    "td.simulate(td.schedule('1f1b', 4, 8)).to_frame()": "plots",
    "td.plots.gantt(td.simulate(td.schedule('1f1b', 4, 8)))": "plots",
    "td.create_array('x.zarr', (4, 4), 'f4')": "files",
    "td.optimal_schedule(2, 3, forward=1.0, backward=2.0)": "optimum",
}
"""What is asked for, and the extra that it needs."""


def test_the_base_install_is_numpy_and_rich_and_all_has_what_needs_no_gpu():
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"numpy", "rich"}
    (line,) = PROJECT["optional-dependencies"]["all"]
    rest = {"all", "test", "tls", "gpu", "site"}
    assert Requirement(line).extras == set(PROJECT["optional-dependencies"]) - rest


def test_the_planner_works_with_the_base_alone_and_without_fcntl():
    loaded = "print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = python("-c", f"{ONLY_BASE}{PLANNED}{loaded}", timeout=240)
    assert done.returncode == 0, done.stderr
    there = set(done.stdout.splitlines()[-1].split()[1:])
    assert "numpy" in there
    assert not there & {"dask", "distributed", "matplotlib", "pandas", "scipy", "ortools", "zarr"}


def test_each_thing_that_needs_more_says_what_brings_it(tmp_path):
    """Never that there is no module of some name, and never after work that is lost."""
    tried = "\n    try: eval(what)\n    except ModuleNotFoundError as error: print(error)"
    ask = f"for what in {list(MISSING)!r}:{tried}"
    done = python("-c", f"{ONLY_BASE.replace('posix or', 'not posix and')}{ask}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said, what in zip(done.stdout.splitlines(), MISSING, strict=True):
        assert said.endswith(install(MISSING[what])), (what, said)
    with pytest.raises(ModuleNotFoundError, match=r"^No module"), needed_for("td.x"):
        raise ModuleNotFoundError("No module named 'tiledask.x'", name="tiledask.x")
