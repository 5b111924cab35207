"""`make gpu` end to end on a stand-in for CuPy: every part starts, reports, survives the others.

What the stand-in computes is right, and its times mean nothing. Minutes; make gpu-rehearsal.

Holds `tiledask.lab.gpu.parts.machine`.
"""

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiledask.lab.gpu.runner import MODULES, find_parts

HERE = Path(__file__).parents[2]
NAMES = ("machine", "first", "kernels", "speed", "sweep", "product", "fit", "train", "tests")

pytestmark = pytest.mark.slow


def rehearse(folder: Path, *options: str, minutes: float) -> dict:
    """The record of `make gpu` with ``options``, on two GPUs that are not there."""
    out = folder / "out"
    stand_in = {
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "twins" / "standin", HERE.parent, HERE))),
        "STANDIN_GPUS": "2",
        "TILEDASK_CACHE": str(folder / "cache"),
        "SURVIVORS": str(folder),
        "DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC": "1",
        "DASK_CUDA_TEST_SINGLE_GPU": "1",
    }
    faulthandler.cancel_dump_traceback_later()  # its patience is shorter than this takes
    command = [sys.executable, "-m", "tiledask.lab.gpu", "--out", str(out), *options]
    done = subprocess.run(
        [*command, "--minutes", str(minutes)],
        env={**os.environ, **stand_in},
        timeout=60 * minutes + 600,
    )
    assert done.returncode in (0, 1)
    (record,) = out.glob("*.json")
    assert len(list(out.iterdir())) <= 8
    return json.loads(record.read_text()) | {"page": record.with_suffix(".md").read_text()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return rehearse(tmp_path_factory.mktemp("gpu"), minutes=5)


def test_all_parts_are_there_in_the_order_of_what_is_learnt():
    assert [part.name for _, part in find_parts(MODULES)] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_part_is_reported_within_five_minutes(whole, name):
    (end,) = (row for row in whole["parts"] if row["part"] == name)
    assert end["state"] in ("done", "cut off", "left out"), end
    assert end["state"] != "left out" or "minutes or more" in end["why"]
    bad = [row for row in whole["rows"] if row["part"] == name and row["state"] == "failed"]
    assert not [row for row in bad if row.get("how") in ("died", "raised")], bad
    assert f"\n| {name} | {end['state']} |" in whole["page"]


def test_nothing_that_the_stand_in_computes_is_wrong(whole):
    assert [row for row in whole["rows"] if row["state"] == "wrong"] == []
    assert "cannot be made" not in whole["page"]
    assert "cannot be drawn" not in whole["page"]


def test_three_disasters_between_real_parts_cost_their_own_rows(tmp_path):
    ours = "tiledask.lab.gpu.parts."
    modules = (f"{ours}machine", "twins.gpu_parts", f"{ours}kernels")
    given = [word for module in modules for word in ("--parts", module)]
    found = rehearse(
        tmp_path,
        *given,
        "--only",
        "machine,crashes,hangs,wrong,first",
        minutes=4,
    )
    ends = {row["part"]: row["state"] for row in found["parts"]}
    assert ends.pop("first") in ("done", "cut off")
    assert ends == dict.fromkeys(("machine", "crashes", "hangs", "wrong"), "done")
    states = {(row["part"], row["key"]): row["state"] for row in found["rows"]}
    assert states["crashes", "illegal address"] == states["hangs", "never ends"] == "failed"
    assert states["wrong", "product"] == "wrong"
    assert {state for (part, _), state in states.items() if part == "machine"} == {"timed"}
    assert "right" in {state for (part, _), state in states.items() if part == "first"}
