"""The benchmark of idle time: every schedule finds a place, and the parts make the whole.

Holds `tiledask.lab.bench.idle`.
"""

import dataclasses
import json
import sys
from itertools import combinations

import pytest

import tiledask as td
from tiledask.errors import ScheduleError
from tiledask.lab.bench import idle, records


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(td.schedules))
def test_every_schedule_of_the_table_is_found(name):
    for case in idle.cases([name], [2, 4, 8], [1, 4, 8, 16]):
        if case.schedule is None:
            assert case.refused
            continue
        shape = case.schedule.devices, case.schedule.microbatches
        assert shape == (case.devices, case.microbatches)


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8)])
def test_no_two_schedules_of_the_table_are_one(devices, microbatches):
    """With one stage a device, the looped ones are others' orders under their own names; zb-auto
    searches, and what it finds in 1F1B's memory may well be ZB-H1."""
    names = sorted({*td.schedules} - {"zb-auto"})
    found = idle.cases(names, [devices], [microbatches])
    orders = {c.name: (c.schedule.orders, c.schedule.places) for c in found if c.schedule}
    alike = [(a, b) for a, b in combinations(orders, 2) if orders[a] == orders[b]]
    assert alike == []


def test_looped_schedules_idle_as_their_chunks_make_them():
    """By (p - 1) / (v m + p - 1) for 4 devices, 8 micro-batches and 2 chunks: 3 of 19."""
    shares = {}
    for case in idle.cases(["interleaved", "looped-bfs", "interleaved-zb"], [4], [8]):
        assert case.schedule.stages == 8
        shares[case.name] = td.simulate(case.schedule, 0.02, 0.04).bubble_fraction
    assert [shares[n] for n in ("interleaved", "looped-bfs")] == pytest.approx([3 / 19] * 2)
    assert shares["interleaved-zb"] == pytest.approx(1 / 17)


def test_what_a_schedule_refuses_is_listed(monkeypatch):
    def never(stages, microbatches):
        raise ScheduleError(f"{stages} stages are refused")

    monkeypatch.setitem(td.schedules, "never", never)
    (case,) = idle.cases(["never"], [2], [1])
    assert (case.schedule, case.refused) == (None, "2 stages are refused")
    assert "never p=2 m=1: 2 stages are refused" in idle._refused([case])


@pytest.mark.cluster
@pytest.mark.parametrize("engine", ["tasks", "loop"])
def test_the_parts_make_the_difference(cluster, engine):
    (case,) = idle.cases(["1f1b"], [3], [4])
    row = idle.measure(case, cluster, engine)
    parts = sum(row[f"{part} points"] for part in idle.PARTS[1:])
    assert parts == pytest.approx(row["difference points"])
    simulated = td.simulate(case.schedule, idle.FORWARD, 2 * idle.FORWARD)
    assert row["simulated idle %"] == pytest.approx(100 * simulated.bubble_fraction)
    assert len(row["overheads"]) == len(case.schedule)
    assert row["true idle %"] + row["transfer points"] + row["overhead points"] == pytest.approx(
        row["measured idle %"]
    )


@pytest.mark.slow
@pytest.mark.cluster
def test_it_prints_and_records(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(idle, "LONG", 0.02)
    path = tmp_path / "idle.json"
    words = ["idle", "--schedules", "naive", "--devices", "2", "--microbatches", "1", "--record"]
    monkeypatch.setattr(records, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(sys, "argv", [*words, str(path)])
    assert idle.main() == 0
    kept = json.loads(path.read_text())
    assert kept["rows"][0]["schedule"] == "naive"
    assert [row["workers"] for row in kept["two and four workers"]] == [2, 4]
    assert kept["versions"]
    assert kept["machine"]
    assert "knock-on" in capsys.readouterr().out


@pytest.mark.cluster
def test_delays_of_nothing_explain_nothing_and_added_ones_are_found(cluster):
    (case,) = idle.cases(["1f1b"], [3], [4])
    run = td.run_schedule(
        case.schedule, cluster=cluster, forward=0.02, backward=0.04, latency=0.01, engine="loop"
    )
    without = dataclasses.replace(run, simulated=td.simulate(case.schedule, 0.02, 0.04))
    nothing = dataclasses.replace(without, timeline=without.simulated)
    simulated = without.simulated.bubble_fraction
    assert idle._with_delays(nothing, 0.02) == pytest.approx(simulated)
    again = idle._with_delays(without, 0.02)
    assert again > simulated + 0.04
