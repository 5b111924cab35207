"""The bench of hosts: its parts on small work, with two hosts and where there is only one.

Holds `tiledask.lab.bench.hosts.bench`, `tiledask.lab.bench.hosts.client`,
`tiledask.lab.bench.hosts.link` and `tiledask.lab.bench.hosts.rows`.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from rich.console import Console
from twins.by_hand import two_hosts

from tiledask.errors import ConfigError
from tiledask.lab.bench import records
from tiledask.lab.bench.hosts import bench, client, link
from tiledask.lab.bench.hosts.rows import Told, in_turns, row


def test_ways_take_turns_and_each_begins_as_often():
    order = []

    def way(name):
        order.append(name)
        return float(len(order)), Told(how=name)

    found = in_turns({name: lambda name=name: way(name) for name in "abc"}, 3)
    rounds = ["".join(order[at : at + 3]) for at in range(0, 12, 3)]
    assert rounds == ["cab", "abc", "bca", "cab"]
    assert [len(seconds) for seconds, _ in found.values()] == [3, 3, 3]
    assert {name: told.how for name, (_, told) in found.items()} == {n: n for n in "abc"}


def test_a_ratio_is_of_pairs_and_its_worst_is_kept():
    told = Told(8, 8, "memory", "gather")
    mine = row("hosts", "4096^3", client.TWO, ([2.0, 1.0, 4.0], told), ("one", [1.0, 1.0, 3.0]))
    assert (mine["seconds"], mine["ratio"], mine["worst"]) == (2.0, 0.75, 0.5)
    assert row("hosts", "x", "alone", ([2.0], told), flop=4e9)["GFLOP/s"] == 2.0
    assert row("hosts", "x", "alone", ([2.0], told))["ratio"] is None


def some_rows(two, predicted=8):
    told = Told(predicted, 8, "comm", "gather")
    one = [1.0]
    return [
        row("hosts", "4096^3", client.TWO, ([two], told), (client.ONE, one)),
        row("training", bench.TRAINED, client.TWO, ([two], told), (client.ONE, one))
        | {"same losses": predicted == 8},
    ]


def test_goals_say_what_was_missed():
    assert [goal["met"] for goal in bench.goals(some_rows(1.0))] == [True] * 4
    missed = bench.goals(some_rows(2.0, predicted=9))
    assert [goal["met"] for goal in missed] == [False] * 4
    assert missed[0]["goal"] == f"4096^3: speed of two hosts / {client.ONE} at least 0.92"
    assert [goal["reached"] for goal in missed] == ["0.500", "0.500", "0 of 2 rows", "0 of 1 rows"]
    assert bench.goals([]) == []


def test_every_part_has_a_table():
    console = Console(record=True, width=150)
    for table in bench.tables(some_rows(2.0)):
        console.print(table)
    text = console.export_text()
    assert "0.500" in text
    assert text.count("two hosts") == 2
    assert text.count("✓") == 2


def test_the_link_is_measured(monkeypatch):
    monkeypatch.setattr(link, "TRIPS", 5)
    monkeypatch.setattr(link, "LARGE", 2**20)
    said = queue.Queue()
    there = threading.Thread(target=link.answer, args=("127.0.0.1", said.put), daemon=True)
    there.start()
    port = int(said.get(timeout=20).split()[-1])
    found = link.measure_link("127.0.0.1", port)
    there.join(10)
    assert not there.is_alive()
    assert 0 < found.latency < 1
    assert found.bandwidth > 2**20
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


@pytest.fixture
def small(monkeypatch):
    quick = {"pairs": 1, "large_pairs": 1, "trainings": 1, "steps": (1, 2)}
    monkeypatch.setattr(bench, "QUICK", quick)
    monkeypatch.setattr(bench, "QUICK_SIZES", (96,))


@pytest.mark.cluster
@pytest.mark.slow
def test_without_two_hosts_the_rest_runs_and_says_what_is_skipped(
    small, monkeypatch, capsys, tmp_path
):
    @contextmanager
    def none(folder):
        raise ConfigError("2 hosts on one machine take root")
        yield

    monkeypatch.setattr(bench, "hosts_on_one", none)
    file = tmp_path / "hosts.json"
    monkeypatch.setattr(records, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(sys, "argv", ["hosts", "--quick", "--record", str(file)])
    assert bench.main() == 0
    assert "skipped: two hosts" in " ".join(capsys.readouterr().out.split())
    kept = json.loads(file.read_text())
    assert kept["skipped"] == "2 hosts on one machine take root"
    ways = {(r["part"], r["way"]) for r in kept["rows"]}
    assert ways > {("hosts", client.ONE), ("hosts", client.OURS), ("dask", "td.matmul")}
    assert "training" not in {part for part, _ in ways}
    (counted,) = (goal for goal in kept["goals"] if "bytes" in goal["goal"])
    assert counted["met"]


@pytest.mark.slow
@pytest.mark.cluster
def test_two_hosts_beside_one(small, monkeypatch, tmp_path):
    with two_hosts(tmp_path):  # or skipped
        pass
    file = tmp_path / "hosts.json"
    monkeypatch.setattr(records, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(sys, "argv", ["hosts", "--quick", "--record", str(file)])
    assert bench.main() == 0
    kept = json.loads(file.read_text())
    assert {row["part"] for row in kept["rows"]} == {"link", "hosts", "dask", "training"}
    assert [goal["met"] for goal in kept["goals"] if "speed" not in goal["goal"]] == [True, True]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"tdA{os.getpid()}" not in left.stdout
