"""The record of `make gpu`: what was noted, what failed."""

import json
from types import SimpleNamespace

from gpu.conftest import Recorder


def report(outcome, *rows, why="", part="speed"):
    return SimpleNamespace(
        **{"nodeid": f"tests/gpu/test_gpu_{part}.py::a", "when": "call", "longrepr": why},
        **{"outcome": outcome, "passed": outcome == "passed", "failed": outcome == "failed"},
        **{"duration": 1.0, "user_properties": [("cpu", 1.0), *(("row", row) for row in rows)]},
    )


def test_rows_are_recorded_as_they_come_and_what_dies_is_a_row(tmp_path):
    kept = Recorder({"name": "NVIDIA H200", "memory": 10**9}, tmp_path / "gpu")
    fast = {"part": "speed", "key": "bf16 8192 cubed: x", "state": "timed", "seconds": 1e-3}
    goal = {**fast, "goal": "bf16", "reached": 0.97}
    wrong = {"part": "speed", "key": "y", "state": "wrong", "why": "rounding"}
    kept.pytest_runtest_logreport(report("passed", goal))
    kept.pytest_runtest_logreport(report("failed", wrong))
    kept.pytest_runtest_logreport(report("failed", why="x\nworker gw0 crashed"))
    kept.pytest_runtest_logreport(report("skipped", why="no room", part="fit"))
    kept.pytest_runtest_logreport(report("failed", fast, why="1 != 2"))
    rows = json.loads((tmp_path / "gpu" / "nvidia-h200.json").read_text())["rows"]
    states = [row["state"] for row in rows]
    assert states[:4] == ["timed", "wrong", "failed", "skipped"]
    assert states[4:] == ["timed", "failed"]  # what was noted before it failed is there, too
    assert rows[2]["why"] == "worker gw0 crashed"
    assert [row["part"] for row in rows] == ["speed"] * 3 + ["fit"] + ["speed"] * 2
    lines = []
    kept.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines[0] == "bf16 8192 cubed: x: 0.970 of 1.00"
