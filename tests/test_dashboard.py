"""The page in the dashboard and its file: what is collected, what is drawn, what is never done."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask.dist.stages import stack
from tiledask.errors import ConfigError
from tiledask.lab.dashboard import Recorder, recorder
from tiledask.lab.dashboard.board import Board, headline, legend
from tiledask.lab.dashboard.pipelines import of_run, of_timeline
from tiledask.lab.dashboard.recorder import Task
from tiledask.lab.dashboard.saved import _record
from tiledask.lab.dashboard.tasks import of_tasks, shown
from tiledask.lab.plots.gantt import KINDS, colour_of
from tiledask.plan.pipelines.timeline import Timeline

EVIL = "<script>alert('x')</script>"
ANNOUNCED = {
    "run": "tiledask-run-a", "schedule": "1f1b", "devices": 2, "microbatches": 2, "actions": 8,
    "workers": {"0": "tcp://a", "1": "tcp://b"}, "predicted_idle": [0.25, 0.5],
}  # fmt: skip


def collecting(**names: str) -> Recorder:
    """A recorder on a scheduler whose workers have these names: address -> name."""
    made = Recorder()
    workers = {
        address: SimpleNamespace(
            address=address, name=name, executing={}, processing=set(), last_seen=0
        )
        for address, name in names.items()
    }
    made.scheduler = SimpleNamespace(workers=workers)
    for address in workers:
        made.add_worker(made.scheduler, address)
    return made


def ran(made: Recorder, worker: str, key: str, *times: tuple, erred: bool = False) -> None:
    """A task has run on ``worker``: times are (action, start, stop)."""
    startstops = [{"action": a, "start": start, "stop": stop} for a, start, stop in times]
    made.transition(
        key, "processing", "erred" if erred else "memory", stimulus_id="x", worker=worker,
        startstops=startstops, thread=1,
    )  # fmt: skip


def acted(made: Recorder, action: tuple, device: int, start: float, end: float, **more) -> None:
    event = {"action": action, "device": device, "start": start, "end": end, "late": 0.0, **more}
    made.log_event("tiledask-run-a", event)


# -- collecting ----------------------------------------------------------------------------------


def test_only_finished_tasks_are_kept():
    made = collecting(a="0")
    made.transition("x", "released", "waiting", stimulus_id="s")
    made.transition("x", "waiting", "processing", stimulus_id="s", worker="a")
    made.transition("x", "processing", "released", stimulus_id="s", worker="a")
    assert not made.tasks
    ran(made, "a", "x", ("compute", 0, 1))
    ran(made, "a", "y", ("compute", 1, 2), erred=True)
    assert [task.key for task in made.tasks] == ["x", "y"]


def test_memory_is_bounded(monkeypatch):
    made = collecting(a="0")
    for i in range(recorder.KEPT_TASKS + 10):
        ran(made, "a", f"x-{i}", ("compute", i, i + 1))
    assert len(made.tasks) == recorder.KEPT_TASKS
    for i in range(recorder.KEPT_RUNS + 3):
        made.log_event("tiledask-runs", {"run": f"tiledask-run-{i}"})
    assert list(made.runs) == [f"tiledask-run-{i}" for i in range(3, recorder.KEPT_RUNS + 3)]
    for i in range(recorder.KEPT_ACTIONS + 5):
        acted(made, ("F", 0, i), 0, i, i + 1)
    run = made.runs["tiledask-run-a"]
    assert (len(run.events), run.count) == (recorder.KEPT_ACTIONS, recorder.KEPT_ACTIONS + 5)
    drawn = of_run(run, made.record())
    assert f"the last {recorder.KEPT_ACTIONS:,} of {recorder.KEPT_ACTIONS + 5:,}" in drawn.note
    for i in range(recorder.KEPT_NAMES + 5):
        made.scheduler.workers[f"w{i}"] = SimpleNamespace(name=i)
        made.add_worker(made.scheduler, f"w{i}")
    assert len(made.names) == recorder.KEPT_NAMES


@pytest.mark.parametrize(
    "event",
    [None, 3, "F", {}, {"action": ("F", 0)}, {"action": ("F", 0, 0), "device": "x"},
     {"action": ("Q", 0, 0), "device": 0, "start": 0, "end": 1},
     {"action": ("F", 0, 0), "device": -1, "start": 0, "end": 1},
     {"action": ("F", 0, 0), "device": 0, "start": 2, "end": 1},
     {"action": ("F", 0, 0), "device": 0, "start": 0, "end": float("nan")}],
)  # fmt: skip
def test_what_is_no_action_is_passed_over(event):
    made = collecting(a="0")
    for said in (None, 3, {}, {"run": 3}):
        made.log_event("tiledask-runs", said)
    assert not made.runs
    made.log_event("tiledask-runs", ANNOUNCED | {"devices": "many", "predicted_idle": [2.0]})
    made.log_event("tiledask-run-a", event)
    acted(made, ("F", 0, 0), 0, 5.0, 6.0, arriving=event)
    drawn = shown(made.record())
    assert len(drawn.boxes) == 1
    assert drawn.predicted is None


def test_a_page_that_cannot_be_added_costs_no_scheduler(caplog):
    broken = SimpleNamespace(workers={}, http_application=None)
    asyncio.run(Recorder().start(broken))
    assert not caplog.records  # no dashboard, no page
    broken.http_application = SimpleNamespace(applications=3)
    asyncio.run(Recorder().start(broken))
    (record,) = caplog.records
    assert "tiledask's page is not in the dashboard" in record.getMessage()


# -- pipelines -----------------------------------------------------------------------------------


def pipeline(made: Recorder, until: int = 8) -> None:
    """The first actions of 1F1B, 2 devices, 2 micro-batches: F 1 s, B 2 s, from second 100."""
    made.log_event("tiledask-runs", ANNOUNCED)
    for device, kind, i, start, end in [
        (0, "F", 0, 0, 1), (0, "F", 1, 1, 2), (1, "F", 0, 1, 2), (1, "B", 0, 2, 4),
        (1, "F", 1, 4, 5), (0, "B", 0, 4, 6), (1, "B", 1, 5, 7), (0, "B", 1, 7, 9),
    ][:until]:  # fmt: skip
        acted(made, (kind, device, i), device, 100 + start, 100 + end, worker="ab"[device])


def test_a_run_is_drawn_in_the_colours_of_the_matplotlib_gantt():
    made = collecting(a="0", b="1")
    pipeline(made)
    ran(made, "b", "hand-1", ("transfer", 100.9, 101.0), ("compute", 101.0, 101.1))
    ran(made, "b", "later-1", ("transfer", 120.0, 121.0))  # not of this run
    drawn = shown(made.record())
    assert drawn.rows == ("device 0", "device 1")
    assert [(b.row, b.start, b.end, b.text) for b in drawn.boxes[:3]] == [
        (0, 0, 1, "0"), (0, 1, 2, "1"), (0, 4, 6, "0"),
    ]  # fmt: skip
    assert {b.colour.upper() for b in drawn.boxes} == {KINDS["F"][1], KINDS["B"][1]}
    assert drawn.idle == pytest.approx((3 / 9, 3 / 9))
    assert drawn.predicted == (0.25, 0.5)
    (mark,) = drawn.transfers
    assert (mark.start, mark.end) == pytest.approx((0.9, 1.0))
    facts = dict(drawn.facts)
    assert facts == {
        "schedule": "1f1b", "devices": "2", "micro-batches": "2", "actions done": "8 of 8",
        "makespan": "9 s", "idle measured": "33.3%", "idle predicted": "37.5%",
    }  # fmt: skip
    words = [word for _, word in drawn.legend]
    assert words == ["forward", "backward", "transfer to the device"]


def test_a_run_under_way_says_so():
    made = collecting(a="0", b="1")
    pipeline(made, until=3)
    drawn = shown(made.record())
    assert drawn.title.endswith(", running")
    facts = dict(drawn.facts)
    assert facts["actions done"] == "3 of 8"
    assert facts["makespan so far"] == "2 s"
    assert facts["idle measured so far"] == "25.0%"


def test_a_run_that_has_only_announced_itself_has_its_devices():
    made = collecting(a="0", b="1")
    pipeline(made, until=0)
    drawn = shown(made.record())
    assert (drawn.rows, drawn.boxes, drawn.makespan) == (("device 0", "device 1"), (), 0.0)
    assert drawn.idle == (0.0, 0.0)
    Board(drawn)


def test_a_later_stage_of_a_device_is_paler():
    made = collecting(a="0")
    for stage, start in ((0, 0), (3, 1)):
        acted(made, ("F", stage, 0), 0, start, start + 1)
    first, later = shown(made.record()).boxes
    shade = [round(255 * c) for c in colour_of("F", 1)]
    assert [int(later.colour[i : i + 2], 16) for i in (1, 3, 5)] == shade
    assert first.colour != later.colour


def test_an_action_that_ran_again_counts_as_it_ran_last():
    made = collecting(a="0")
    acted(made, ("F", 0, 0), 0, 0.0, 1.0, worker="a")
    acted(made, ("F", 0, 0), 0, 5.0, 6.0, worker="c")  # its worker died and came back
    acted(made, ("B", 0, 0), 0, 6.0, 8.0, worker="c")
    drawn = shown(made.record())
    assert [(b.start, b.end) for b in drawn.boxes] == [(0, 1), (1, 3)]


def test_blocks_that_an_action_waited_for_are_transfers():
    made = collecting(a="0", b="1")
    acted(made, ("F", 0, 0), 0, 0.0, 1.0)
    acted(made, ("F", 1, 0), 1, 1.5, 2.5, arriving=[(0, 1.0, 1.5)])
    (mark,) = shown(made.record()).transfers
    assert (mark.start, mark.end, round(mark.row)) == (1.0, 1.5, 1)


# -- all other work ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=25
    )
)
def test_idle_is_what_the_union_of_the_computations_leaves(tasks):
    """Against a grid of quarters of a second, on which every one is busy or not."""
    made = collecting(a="0", b="1", c="2")
    busy = np.zeros((3, 40), bool)
    for n, (worker, start, length) in enumerate(tasks):
        busy[worker, start : start + length] = True
        spans = [("compute", 50 + start / 4, 50 + (start + length) / 4)]
        spans.append(("transfer", 50 + start / 4, 50 + (start + 40) / 4))  # is not busy time
        ran(made, "abc"[worker], f"x-{n}", *spans)
    drawn = of_tasks(made.record())
    at = np.flatnonzero(busy.any(axis=0))
    pauses = np.flatnonzero(np.diff(at) - 1 > 4 * 2.0)
    at = at[pauses[-1] + 1 :] if len(pauses) else at
    window = busy[:, at[0] : at[-1] + 1]
    assert drawn.makespan == pytest.approx(window.shape[1] / 4)
    assert drawn.idle == pytest.approx(tuple(1 - window.mean(axis=1)))


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 8)), min_size=1, max_size=25
    )
)
def test_boxes_of_a_worker_never_cover_each_other(tasks):
    made = collecting(a="0", b="1")
    for n, (worker, start, length) in enumerate(tasks):
        ran(made, "ab"[worker], f"x-{n}", ("compute", start / 9, (start + length) / 9))
    boxes = of_tasks(made.record()).boxes
    assert len(boxes) == len(tasks)
    for n, a in enumerate(boxes):
        assert abs(a.row - round(a.row)) + a.height / 2 <= 0.36 + 1e-9
        for b in boxes[:n]:
            apart = a.end <= b.start or b.end <= a.start
            assert apart or abs(a.row - b.row) >= (a.height + b.height) / 2 - 1e-9


def test_a_worker_that_came_back_keeps_its_row():
    made = collecting(a="0", b="1")
    ran(made, "a", "x-1", ("compute", 0, 1))
    del made.scheduler.workers["a"]
    made.remove_worker(made.scheduler, "a", stimulus_id="x")
    made.scheduler.workers["z"] = SimpleNamespace(**vars(made.scheduler.workers["b"]) | {
        "address": "z", "name": "0"})  # fmt: skip
    made.add_worker(made.scheduler, "z")
    ran(made, "z", "x-2", ("compute", 2, 4))
    drawn = shown(made.record())
    assert drawn.rows == ("worker 0", "worker 1")
    assert [round(b.row) for b in drawn.boxes] == [0, 0]
    assert drawn.idle == pytest.approx((0.25, 1.0))


def test_workers_are_in_the_order_of_their_numbers():
    made = collecting(**{a: a for a in ("w10", "w9", "w1")}, x="tcp://127.0.0.1:99")
    drawn = shown(made.record())
    assert drawn.title == "Nothing has run yet"
    assert drawn.rows == ("127.0.0.1:99", "worker w1", "worker w9", "worker w10")
    Board(drawn)


def test_more_names_than_colours_share_the_last_one():
    made = collecting(a="0")
    for i in range(30):
        ran(made, "a", (f"name{chr(97 + i % 26)}{i}", 0), ("compute", i, i + 1))
    drawn = shown(made.record())
    assert drawn.legend[-1][1] == "all other tasks"
    assert len({colour for colour, _ in drawn.legend}) == len(drawn.legend) == 10
    assert {b.colour for b in drawn.boxes} == {colour for colour, _ in drawn.legend}


def test_a_long_task_is_there_before_it_ends():
    made = collecting(a="0")
    task = Task("a", "multiply-12", 1, ())
    worker = made.scheduler.workers["a"]
    worker.executing, worker.processing = {task: 7.0}, {task}
    worker.last_seen = recorder.time()
    drawn = shown(made.record())
    assert dict(drawn.facts)["running now"] == "1 multiply"
    assert drawn.boxes[0].end - drawn.boxes[0].start == pytest.approx(7.0, abs=0.5)
    assert made.is_computing()
    made.log_event("tiledask-runs", ANNOUNCED)
    made.runs["tiledask-run-a"].announced -= 60
    assert shown(made.record()).title == "Tasks per worker"
    worker.processing = set()  # it has just ended, and the worker has not told again
    assert not made.record().running


def test_the_newest_is_shown():
    made = collecting(a="0", b="1")
    now = recorder.time()
    ran(made, "a", "old-1", ("compute", now - 60, now - 59))
    assert shown(made.record()).title == "Tasks per worker"
    made.log_event("tiledask-runs", ANNOUNCED)
    assert shown(made.record()).title.startswith("Pipeline of ")
    acted(made, ("F", 0, 0), 0, now, now + 5)
    ran(made, "a", "forward-1", ("compute", now, now + 5))  # a run's own task is no other work
    ran(made, "a", "loop-1", ("compute", now - 1, now + 5.1))  # nor is what spans the run
    assert shown(made.record()).title.startswith("Pipeline of ")
    ran(made, "b", "multiply-1", ("compute", now + 8, now + 9))
    drawn = shown(made.record())
    assert drawn.title == "Tasks per worker"
    assert [b.text for b in drawn.boxes] == ["multiply"]


# -- drawing -------------------------------------------------------------------------------------


def test_the_board_has_what_the_activity_has():
    made = collecting(a="0", b="1")
    pipeline(made)
    board = Board(shown(made.record()))
    assert board.boxes.data["text"] == ["0", "1", "0", "1", "0", "0", "1", "1"]
    assert board.idle.data["text"] == ["33.3%", "33.3%"]
    assert board.predicted.data["x"] == [25, 50]
    assert (board._across.start, board._across.end) == (0, 9)
    assert board.gantt.xaxis[0].axis_label == "time since the first start (s)"


def test_a_zoom_is_left_alone_until_it_is_reset():
    made = collecting(a="0", b="1")
    pipeline(made, until=2)
    board = Board(shown(made.record()))
    board._across.update(start=0.5, end=0.7)  # as the browser does
    pipeline(made)
    board.show(shown(made.record()))
    assert (board._across.start, board._across.end, board._across.reset_end) == (0.5, 0.7, 9)
    board._across.update(start=0, end=2)
    board.show(shown(made.record()))
    assert board._across.end == 9


def test_short_times_are_in_their_unit():
    spans = [(0, "F", 0, 0, 0.0, 0.002), (0, "B", 0, 0, 0.002, 0.004)]
    drawn = of_timeline(Timeline.of(1, spans), title="x")
    board = Board(drawn)
    assert board._across.end == pytest.approx(4)
    assert "(ms)" in board.gantt.xaxis[0].axis_label


def test_words_of_others_are_text():
    made = collecting(a="0")
    made.log_event("tiledask-runs", ANNOUNCED | {"schedule": EVIL})
    pipelines = shown(made.record())
    made = collecting(a="0")
    ran(made, "a", "<b>bold</b>-1", ("compute", 0, 1))
    for drawn in (pipelines, shown(made.record())):
        page = headline(drawn) + legend(drawn)
        assert "&lt;" in page
        assert "<script" not in page
        assert "<b>" not in page


# -- the file ------------------------------------------------------------------------------------


class Loads(HTMLParser):
    """Every address that a browser would load something from."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        names = ("src", "href", "srcset", "data", "poster", "action", "background")
        self.found += [values[name] for name in names if values.get(name)]
        self.found += re.findall(r"url\(\s*['\"]?([^'\")]+)", values.get("style") or "")


def outside(html: str) -> list[str]:
    styles = "".join(re.findall(r"<style.*?</style>", html, re.S))
    found = Loads(html).found + re.findall(r"(?:url\(|@import)\s*['\"]?([^'\");]+)", styles)
    return [address for address in found if not address.startswith(("data:", "#"))]


@pytest.mark.parametrize(
    "planted",
    ["<script src='https://cdn.x/bokeh.js'></script>", "<link rel=stylesheet href=//x/y.css>",
     "<img src=http://x/y.png>", "<style>@import 'https://x/y.css';</style>",
     "<p style='background:url(http://x/y.png)'>"],
)  # fmt: skip
def test_an_address_outside_the_file_is_found(planted):
    assert len(outside(f"<html>{planted}</html>")) == 1


def test_a_report_of_timelines(tmp_path):
    schedule = td.schedule("1f1b", 2, 4)
    simulated = td.simulate(schedule)
    rows = simulated.to_frame().itertuples(index=False)
    slower = Timeline.of(2, [(d, k, s, i, 2 * a, 2 * b) for d, k, s, i, a, b in rows], "measured")
    path = td.report(tmp_path / "new" / "run.html", simulated, slower, title=f"Two {EVIL}")
    html = path.read_text("utf-8")
    assert outside(html) == []
    assert "default-src 'none'" in html
    assert EVIL not in html
    assert html.count("<td>20.0%</td>") == 2 + 4  # idle of both; predicted for the measured one
    assert html.count("<th>predicted</th>") == 1
    assert "Bokeh" in html
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.html"]
    assert html.replace(" ", "").count('"end":30.0') == 2  # one time axis for both


def test_a_report_takes_what_has_a_timeline(tmp_path):
    simulated = td.simulate(td.schedule("gpipe", 2, 2))
    run = SimpleNamespace(timeline=simulated, simulated=None)
    assert "device 1" in td.report(tmp_path / "run.html", run).read_text("utf-8")


@pytest.mark.parametrize(
    ("what", "words"),
    [((), "1 thing or more to show, got 0"), ((3,), "got int"), (("1f1b",), "got str")],
)
def test_a_report_of_nothing_says_what_it_takes(tmp_path, what, words):
    with pytest.raises(ConfigError, match=words):
        td.report(tmp_path / "run.html", *what)
    assert not list(tmp_path.iterdir())


# -- clusters ------------------------------------------------------------------------------------


def get(client: Client, page: str) -> str:
    base = client.dashboard_link.removesuffix("/status")
    with urllib.request.urlopen(f"{base}/{page}", timeout=30) as answer:
        return answer.read().decode()


def wait_until(true, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{true} did not come true within {seconds:g} s"
        time.sleep(0.05)


def has_the_page(client: Client) -> None:
    assert "Bokeh" in get(client, "individual-tiledask")
    framed = get(client, "tiledask")
    assert "navbar" in framed
    assert 'href="tiledask"' in get(client, "status").replace("'", '"')
    assert json.loads(get(client, "individual-plots.json"))["Individual Tiledask"]


@pytest.mark.cluster
def test_a_cluster_that_we_start_has_the_page(cluster):
    has_the_page(cluster.client)


def handshake(client: Client, page: str, origin: str) -> int:
    """Status of a websocket that claims to come from a page of ``origin``."""
    host, port = client.dashboard_link.split("/")[2].split(":")
    lines = [
        f"GET /{page}/ws HTTP/1.1", f"Host: {host}:{port}", f"Origin: {origin}",
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]  # fmt: skip
    with socket.create_connection((host, int(port)), timeout=10) as stream:
        stream.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(stream.recv(64).split()[1])


@pytest.mark.cluster
def test_a_page_that_comes_later_is_open_to_those_who_may_see_the_others():
    mine = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    with dask.config.set({mine: ["127.0.0.1:8888"]}):
        running = LocalCluster(
            n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        )  # fmt: skip
    with running, Client(running) as client:  # Dask's own setting, which takes every origin, holds
        client.register_plugin(Recorder())
        for page in ("status", "tiledask", "individual-tiledask"):
            assert handshake(client, page, "http://evil.example") == 403
            assert handshake(client, page, "http://127.0.0.1:8888") != 403


@pytest.mark.cluster
def test_a_real_run_is_recorded_as_it_is_measured(cluster, tmp_path):
    schedule = td.schedule("1f1b", 3, 4)
    batch = np.random.default_rng(0).standard_normal((8, 12))
    run = td.run_schedule(
        schedule, stack((0, 1, 2, 3), width=12, hidden=20), batch, cluster, target=batch,
        forward=0.01, backward=0.02,
    )  # fmt: skip
    record = cluster.client.run_on_scheduler(_record)
    kept = record.runs[-1]
    assert kept.count == len(schedule)
    drawn = shown(record)
    assert drawn.makespan == pytest.approx(run.timeline.makespan, abs=1e-6)
    share = [idle / run.timeline.makespan for idle in run.timeline.idle_per_device]
    assert drawn.idle == pytest.approx(share, abs=1e-6)
    assert dict(drawn.facts)["actions done"] == f"{len(schedule)} of {len(schedule)}"
    assert drawn.predicted == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    html = td.report(tmp_path / "run.html", cluster).read_text("utf-8")
    assert outside(html) == []
    assert "33.3%" in html


@pytest.mark.cluster
def test_a_worker_that_dies_leaves_the_page_whole(cluster):
    cluster.gather([cluster.submit(1, os.getpid, name="before")], "before")
    os.kill(cluster.run(os.getpid)[1], signal.SIGKILL)
    cluster.gather([cluster.submit(1, os.getpid, name="after")], "after")
    record = cluster.client.run_on_scheduler(_record)
    drawn = of_tasks(record)
    assert drawn.rows == tuple(f"worker {slot}" for slot in range(4))
    rows = {b.text: round(b.row) for b in drawn.boxes}
    assert rows["after"] == 1
    has_the_page(cluster.client)


@pytest.mark.cluster
def test_a_cluster_that_runs_already_takes_the_page(tmp_path):
    with LocalCluster(
        n_workers=1, processes=False, protocol="tcp://", host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as running, Client(running) as client:  # fmt: skip
        with pytest.raises(ConfigError, match=r"--preload tiledask\.lab\.dashboard"):
            td.report(tmp_path / "run.html", client)
        for _ in range(2):  # the second time changes nothing
            client.register_plugin(Recorder())
        has_the_page(client)
        assert get(client, "status").count('href="tiledask"') == 1
        client.submit(sum, [1, 2]).result()
        assert "sum" in td.report(tmp_path / "run.html", client).read_text("utf-8")


@pytest.mark.cluster
def test_a_scheduler_of_dasks_own_preloads_the_page(tmp_path):
    log = (tmp_path / "log").open("w")
    command = [
        sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port",
        "0", "--dashboard-address", "127.0.0.1:0", "--preload", "tiledask.lab.dashboard",
        "--scheduler-file", str(tmp_path / "scheduler.json"),
    ]  # fmt: skip
    worker = [
        sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1",
        "--no-dashboard", "--scheduler-file", str(tmp_path / "scheduler.json"),
    ]  # fmt: skip
    running = [subprocess.Popen(command, stdout=log, stderr=log, cwd=Path.cwd())]
    try:
        wait_until(lambda: (tmp_path / "scheduler.json").exists())
        running.append(subprocess.Popen(worker, stdout=log, stderr=log))
        with Client(scheduler_file=str(tmp_path / "scheduler.json"), timeout=30) as client:
            assert client.submit(sum, [1, 2]).result(timeout=30) == 3
            has_the_page(client)
            client.log_event("tiledask-runs", ANNOUNCED)
            client.log_event("tiledask-run-a", {"action": ("F", 0, 0), "device": 0,
                                                "start": 1.0, "end": 2.0})  # fmt: skip
            html = td.report(tmp_path / "run.html", client).read_text("utf-8")
            assert "1 of 8" in html
    finally:
        for process in running[1:]:
            process.kill()
        running[0].terminate()
        for process in running:
            process.wait(timeout=60)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    assert "tiledask's page is not in the dashboard" not in said
