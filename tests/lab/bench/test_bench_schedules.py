"""The bench of schedules: its runs do the work, agree, give up in words, and are judged.

Holds `tiledask.lab.bench.schedule_peers` and `tiledask.lab.bench.schedules`.
"""

import json
import subprocess
import sys

import pytest

from tiledask.lab.bench import schedule_peers, schedules
from tiledask.lab.bench.schedules import VIC, WARM, ScheduleProgram, Size, goals, measure

SMALL = Size("interleaved", 2, 4, 6)
OURS = ScheduleProgram(WARM, (sys.executable, "-I"), "ours", "cold")


def told(tmp_path, name=VIC, **facts) -> ScheduleProgram:
    """A peer that does nothing but say ``facts``."""
    script = tmp_path / f"{name.split()[0]}.py"
    facts = {"seconds": 1.0, "cpu": 1.0, "peak": 5, "before": 4} | facts
    script.write_text(f"print({json.dumps(json.dumps(facts))})")
    return ScheduleProgram(name, (sys.executable, "-I", "-S", str(script)), "vic")


def test_sizes_grow_to_sixteen_million_actions():
    for name in ("1f1b", "interleaved"):
        actions = [size.actions for size in schedules.SIZES if size.name == name]
        assert actions == sorted(actions)
        assert actions[-1] == 16_777_216


@pytest.mark.long
def test_a_run_says_what_it_did_and_a_peer_that_agrees_stands_beside_it(tmp_path):
    run = OURS.run(SMALL, "", 60)
    assert run["actions"] == SMALL.actions == 48
    assert run["seconds"] > 0
    assert run["peak"] > 1_000_000
    peer = told(tmp_path, makespan=run["makespan"], order=run["order"])
    ways = [told(tmp_path, WARM, **run), peer]
    rows = measure([SMALL], ways, 1, 60, lambda _: None)
    assert [row["way"] for row in rows] == [WARM, VIC]


def test_a_peer_that_does_other_work_stops_the_bench(tmp_path):
    ways = [told(tmp_path, WARM, makespan=1.0), told(tmp_path, makespan=1.5)]
    with pytest.raises(ValueError, match="not the same work, makespan differs"):
        measure([SMALL], ways, 1, 60, lambda _: None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "limit", "why"),
    [
        ("raise RecursionError('too deep')", 240, "RecursionError: too deep"),
        ("import time; time.sleep(600)", 0.2, "over 0.2 s"),
    ],
)
def test_a_run_that_breaks_or_takes_too_long_is_given_up_with_its_reason(
    tmp_path, code, limit, why
):
    given_up = ScheduleProgram("x", (sys.executable, "-c", code), "x")
    assert given_up.run(SMALL, str(tmp_path), limit) is None
    assert given_up.gave_up == {"interleaved": f"{why} at 48 actions"}


def test_goals_compare_with_the_run_that_is_warm():
    size = {"name": "1f1b", "actions": 1024}
    rows = [
        size | {"way": way, "seconds": s}
        for way, s in ((WARM, 0.1), (VIC, 3.0), (schedules.TORCH, 1.0))
    ]
    found = {row["goal"]: (row["reached"], row["met"]) for row in goals(rows)}
    assert found[f"speed / {VIC}"] == (pytest.approx(30), True)
    assert found[f"speed / {schedules.TORCH}"] == (pytest.approx(10), False)
    large = {"name": "1f1b", "actions": 2**24, "way": schedules.FIRST, "seconds": 2.5}
    assert [row["met"] for row in goals([large])] == [False]


def test_a_digest_tells_orders_apart():
    one, other = [["0F0", "0B0"], ["1F0"]], [["0F0"], ["0B0", "1F0"]]
    assert schedule_peers.digest(one) == schedule_peers.digest(map(iter, one))
    assert schedule_peers.digest(one) != schedule_peers.digest(other)


@pytest.mark.long
def test_what_is_missing_is_skipped_with_a_way_to_have_it(tmp_path):
    command = [sys.executable, "-m", "tiledask.lab.bench.schedules", "--largest", "10"]
    command += ["--python", "/nowhere", "--vic", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    for said in ("skipped: torch.distributed.pipelining", "--python PATH", "--vic PATH"):
        assert said in done.stdout.replace("\n", " ")
