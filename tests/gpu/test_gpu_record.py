"""The record of `make gpu`: what was noted, what failed."""

import json
from types import SimpleNamespace

from gpu.conftest import Recorder


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
    lines = []
    kept.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines[0] == "bf16 8192 cubed: x: 0.970 of 1.00"
