"""The record of `make gpu` and its page: what was noted, what failed, what pages read."""

import json
from types import SimpleNamespace

from gpu.conftest import Recorder
from gpu.page import page

from tiledask.plan.data import data_file


def report(name, outcome, *rows, why="", part="speed"):
    return SimpleNamespace(
        nodeid=f"tests/gpu/test_gpu_{part}.py::{name}",
        when="call",
        outcome=outcome,
        passed=outcome == "passed",
        failed=outcome == "failed",
        user_properties=[("cpu", 1.0), *(("row", row) for row in rows)],
        longrepr=why,
        duration=1.0,
    )


def test_rows_are_recorded_as_they_come_and_what_dies_is_a_row(tmp_path):
    kept = Recorder({"name": "NVIDIA H200", "memory": 10**9}, tmp_path / "gpu")
    fast = {"part": "speed", "key": "bf16 8192 cubed: x", "state": "timed", "goal": "bf16",
            "reached": 0.97, "seconds": 1e-3, "work": "w", "way": "x", "TFLOP/s": 2.0}  # fmt: skip
    wrong = {"part": "speed", "key": "y", "state": "wrong", "why": "rounding"}
    kept.pytest_runtest_logreport(report("a", "passed", fast))
    kept.pytest_runtest_logreport(report("b", "failed", wrong))
    kept.pytest_runtest_logreport(report("c", "failed", why="x\nworker gw0 crashed"))
    kept.pytest_runtest_logreport(report("d", "skipped", why="no room", part="fit"))
    kept.pytest_runtest_logreport(report("e", "failed", {**fast, "goal": ""}, why="1 != 2"))
    facts = json.loads((tmp_path / "gpu" / "nvidia-h200.json").read_text())
    assert [row["state"] for row in facts["rows"]] == [
        *("timed", "wrong", "failed", "skipped"),
        *("timed", "failed"),  # what was noted before it failed is there, too
    ]
    assert facts["rows"][2]["why"] == "worker gw0 crashed"
    assert [row["part"] for row in facts["rows"]] == ["speed"] * 3 + ["fit"] + ["speed"] * 2
    made = (tmp_path / "gpu" / "nvidia-h200.md").read_text()
    assert "| bf16 8192 cubed: x | 1 | 0.97 | ✗ |" in made
    assert "| speed | y | wrong | rounding |" in made


def test_the_shipped_record_has_a_page():
    facts = json.loads((data_file("measured") / "gpu" / "nvidia-h200.json").read_text("utf-8"))
    made = page(facts)
    assert "# NVIDIA H200: what `make gpu` found" in made
    assert "| bf16 8192 cubed: wgmma\\_ws\\_persistent | timed | 1.56 ms | 702.6 | 1.022 |" in made
