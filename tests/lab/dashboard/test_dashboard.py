"""The page in the dashboard and its file: what is collected, what is drawn, what is never done."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from bokeh.core.property.validation import validate
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc
from distributed import Client, LocalCluster
from oracles.pages import outside
from oracles.waiting import wait_until
from tornado.ioloop import PeriodicCallback

import tiledask as td
from tiledask.distributed.pipelines.stages import stack
from tiledask.errors import ConfigError, DeadlineError
from tiledask.lab.dashboard import Recorder, recorder
from tiledask.lab.dashboard.board import Board, headline, legend
from tiledask.lab.dashboard.pipelines import of_run
from tiledask.lab.dashboard.recorder import Task
from tiledask.lab.dashboard.saved import _record
from tiledask.lab.dashboard.tasks import of_tasks, shown
from tiledask.lab.dashboard.training_board import TrainingBoard, training_legend
from tiledask.lab.dashboard.training_overview import EMPTY
from tiledask.lab.plots.gantt import KINDS
from tiledask.plan.pipelines.timeline import Timeline

EVIL = "<script>alert('x')</script>"
ANNOUNCED = {
    "run": "tiledask-run-a",
    "schedule": "1f1b",
    "devices": 2,
    "microbatches": 2,
    "actions": 8,
    "workers": {"0": "tcp://a", "1": "tcp://b"},
    "predicted_idle": [0.25, 0.5],
}


def collecting(**names: str) -> Recorder:
    """A recorder on a scheduler whose workers have these names: address -> name."""
    made = Recorder()
    made.scheduler = SimpleNamespace(workers={})
    for address, name in names.items():
        comes(made, address, name)
    return made


@pytest.fixture
def made() -> Recorder:
    return collecting(a="0", b="1")


def comes(made: Recorder, address: str, name: str) -> None:
    idle = {"executing": {}, "processing": set(), "last_seen": 0}
    made.scheduler.workers[address] = SimpleNamespace(address=address, name=name, **idle)
    made.add_worker(made.scheduler, address)


def works(made: Recorder, worker: str, name: str, seconds: float, seen: float) -> SimpleNamespace:
    """The worker said at ``seen`` that a task has run for so long."""
    task, on = Task(worker, f"{name}-12", ()), made.scheduler.workers[worker]
    on.executing, on.processing, on.last_seen = {task: seconds}, {task}, seen
    return on


def ran(made: Recorder, worker: str, key: str, *times: tuple, erred: bool = False) -> None:
    """A task has run on ``worker``: times are (action, start, stop)."""
    spans = [{"action": a, "start": start, "stop": stop} for a, start, stop in times]
    facts = {"stimulus_id": "x", "worker": worker, "startstops": spans, "thread": 1}
    made.transition(key, "processing", "erred" if erred else "memory", **facts)


def acted(made: Recorder, action: tuple, device: int, start: float, end: float, **more) -> None:
    event = {"action": action, "device": device, "start": start, "end": end, "late": 0.0, **more}
    made.log_event("tiledask-run-a", event)


def test_memory_is_bounded(made, monkeypatch):
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
        comes(made, f"w{i}", i)
    assert len(made.names) == recorder.KEPT_NAMES


ACTION = {"action": ("F", 0, 1), "device": 0, "start": 0, "end": 1}
WRONG = {"device": ("x", -1), "action": (("Q", 0, 1),), "start": (2,), "end": (math.nan,)}


@pytest.mark.parametrize(
    "event",
    [
        *(None, 3, "F", {}, {"action": ("F", 0)}, ACTION | {"action": ("F", 0)}),
        *(ACTION | {field: x} for field, values in WRONG.items() for x in values),
    ],
    ids=str,
)
def test_what_is_no_action_is_passed_over(made, event):
    for said in (None, 3, {}, {"run": 3}):
        made.log_event("tiledask-runs", said)
    assert not made.runs
    made.log_event("tiledask-runs", ANNOUNCED | {"devices": "many", "predicted_idle": [2.0]})
    made.log_event("tiledask-run-a", event)
    acted(made, ("F", 0, 0), 0, 5.0, 6.0, arriving=event)
    drawn = shown(made.record())
    assert len(drawn.boxes) == 1
    assert drawn.predicted is None


def pipeline(made: Recorder, until: int = 8) -> None:
    """The first actions of 1F1B, 2 devices, 2 micro-batches: F 1 s, B 2 s, from second 100."""
    made.log_event("tiledask-runs", ANNOUNCED)
    order = "0F0 0 0F1 1 1F0 1 1B0 2 1F1 4 0B0 4 1B1 5 0B1 7"  # and when each starts
    for action, start in re.findall(r"(\w+) (\d)", order)[:until]:
        device, kind, i = int(action[0]), action[1], int(action[2])
        begin, length = 100 + int(start), {"F": 1, "B": 2}[kind]
        acted(made, (kind, device, i), device, begin, begin + length, worker="ab"[device])


def test_a_run_is_drawn_in_the_colours_of_the_matplotlib_gantt(made):
    pipeline(made)
    ran(made, "b", "hand-1", ("transfer", 100.9, 101.0), ("compute", 101.0, 101.1))
    ran(made, "b", "later-1", ("transfer", 120.0, 121.0))  # not of this run
    drawn = shown(made.record())
    assert drawn.rows == ("device 1", "device 2")
    first = [(b.row, b.start, b.end, b.text) for b in drawn.boxes[:3]]
    assert first == [(0, 0, 1, "0"), (0, 1, 2, "1"), (0, 4, 6, "0")]
    assert {b.colour.upper() for b in drawn.boxes} == {KINDS["F"][1], KINDS["B"][1]}
    assert drawn.idle == pytest.approx((3 / 9, 3 / 9))
    assert drawn.predicted == (0.25, 0.5)
    (mark,) = drawn.transfers
    assert (mark.start, mark.end) == pytest.approx((0.9, 1.0))
    assert [p.cause for p in drawn.pauses if p.row == 1] == ["warm-up", "draining"]
    assert " | ".join(map(": ".join, drawn.facts)) == (
        "schedule: 1f1b | devices: 2 | micro-batches: 2 | actions done: 8 of 8 | makespan: 9 s | "
        "idle measured: 33.3 % | idle predicted: 37.5 %"
    )
    words = [word for _, word in drawn.legend]
    assert words == ["forward", "backward", "transfer to the device"]


def test_a_run_under_way_is_beside_the_prediction_of_the_same_actions(made):
    simulated = td.simulate(td.schedule("1f1b", 2, 2), 1.0, 2.0).to_frame()
    spans = [list(row) for row in simulated.itertuples(index=False)]
    whole = {"predicted": spans, "predicted_idle": [3 / 9, 3 / 9]}
    for until, shares in (
        (3, (0, 0.5)),
        (4, (0.5, 0.25)),
        (6, (1 / 3, 1 / 3)),
        (8, (3 / 9, 3 / 9)),
    ):
        made.runs.clear()
        pipeline(made, until)
        made.log_event("tiledask-runs", ANNOUNCED | whole)
        drawn = shown(made.record())
        assert drawn.predicted == pytest.approx(shares), until
        so_far = "" if until == 8 else " so far"
        assert dict(drawn.facts)[f"idle predicted{so_far}"] == f"{100 * sum(shares) / 2:.1f} %"
    for wrong in (None, 3, [3], [["x"] * 6], [[9, "F", 0, 0, 0.0, 1.0]]):
        pipeline(made, until=3)
        made.log_event("tiledask-runs", ANNOUNCED | {"predicted": wrong, "actions": 99})
        assert shown(made.record()).predicted is None


def test_idle_time_is_drawn_by_its_cause_in_the_rows_and_beside_them(made):
    pipeline(made)
    drawn = shown(made.record())
    assert drawn.pauses == (
        (0, 2, 4, "dependency"),
        (0, 6, 7, "dependency"),
        (1, 0, 1, "warm-up"),
        (1, 7, 9, "draining"),
    )
    board = Board(drawn)
    assert board.pauses.data["hatch"] == [".", ".", "/", "\\"]
    shares = board.causes.data
    for row in range(2):
        ends = [end for y, end in zip(shares["y"], shares["right"], strict=True) if y == row]
        assert max(ends) == pytest.approx(board.idle.data["right"][row]) == pytest.approx(100 / 3)
    said = legend(drawn)
    assert "idle, waits for other stages: 16.7 %" in said
    assert ">idle<" not in said  # all of it has a cause


def test_a_long_task_is_there_before_it_ends(monkeypatch):
    monkeypatch.setattr(recorder, "time", lambda: 1000.0)
    made = collecting(a="0")
    worker = works(made, "a", "multiply", 7.0, recorder.time())
    drawn = shown(made.record())
    assert dict(drawn.facts)["running now"] == "1 multiply"
    assert drawn.boxes[0].end - drawn.boxes[0].start == pytest.approx(7.0)
    assert made.is_computing()
    made.log_event("tiledask-runs", ANNOUNCED)
    made.runs["tiledask-run-a"].announced -= 60
    assert shown(made.record()).title == "Tasks per worker"
    worker.processing = set()  # it has just ended, and the worker has not told again
    assert not made.record().running


def test_the_newest_is_shown(made):
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


TRAINING = "tiledask-training-a"
WO, GRADIENTS = ["layer 0/attention/wo", "forward", "tensor"], ["head", "gradients", "data"]
TRAINS = {
    "run": TRAINING,
    "shape": [2, 1, 1],
    "first": 0,
    "steps": 3,
    "tokens": 64,
    "floor": 0.5,
    "units": ["embedding", "layer 0", "head"],
    "schedule": "1f1b",
    "microbatches": 2,
    "zero": 1,
    "dtype": "float32",
    "parameters": 1234,
    "model": "GPT(...)",
    "predicted": [
        [rank, *where, 2, barriers, sent, 4, 0.0]
        for rank in (0, 1)
        for where, barriers, sent in ((WO, 2, 100), (GRADIENTS, 1, 900))
    ],
}


def trains(made: Recorder, until: int = 3, ranks: tuple = (0, 1), **more) -> None:
    """A training of two ranks: steps of a second, from second 100, a rank 0.1 s after the other."""
    made.log_event("tiledask-runs", TRAINS | more)
    for step in range(until):
        for rank in ranks:
            stepped(made, rank, step)


def stepped(made: Recorder, rank: int, step: int) -> None:
    done = step + 1
    each = (WO, (2, 2, 100, 4, 0.2)), (GRADIENTS, (1, 1, 900, 2, 0.1))
    sums = [[*where, *(done * n for n in numbers)] for where, numbers in each]
    steps = [[step, 2.0 - step / 2, 101.0 + step + rank / 10, 1000, 6, 3]]
    made.log_event(TRAINING, {"rank": rank, "begin": 100.0, "steps": steps, "sums": sums})


def test_a_training_is_drawn_by_layer(made):
    trains(made)
    drawn = shown(made.record())
    assert drawn.title.endswith(", done")
    assert " | ".join(map(": ".join, drawn.facts)) == (
        "layout: dp 2, tp 1, pp 1 | ZeRO: 1 | schedule: 1f1b, 2 micro-batches | "
        "parameters: 1,234, float32 | steps done: 3 of 3 | loss: 2.0000 | time per step: 1.03 s | "
        "tokens/s: 62 | barriers: 3 a step | bytes: 2 kB a step, 6 kB so far | "
        "messages: 12 a step, 36 so far"
    )
    assert drawn.layers == ("layer 0", "head")
    assert [(b.row, b.start, b.end) for b in drawn.barriers] == [(0, 0, 2), (1, 0, 1)]
    assert [(b.row, b.start, b.end) for b in drawn.bytes] == [(0, 0, 200), (1, 0, 1800)]
    assert drawn.predicted == {"barriers": (2, 1), "bytes": (200, 1800)}
    assert "2 barriers and 200 B a step" in drawn.bytes[0].words
    assert "6 barriers and 600 B so far" in drawn.bytes[0].words
    assert drawn.losses == ((0, 1, 2), (4.0, 3.0, 2.0))
    assert [b.row for b in drawn.collectives] == [0, 0, 1, 1]
    ends = [end for b in drawn.collectives for end in (b.start, b.end)]
    assert ends == pytest.approx([0, 20, 20, 30, 0, 60 / 3.1, 60 / 3.1, 90 / 3.1])
    words = [words for _, words in drawn.legend]
    assert words == ["tensor parallel, forward", "data parallel, gradients"]


def test_the_board_of_a_training_has_what_the_overview_has(made):
    board = TrainingBoard(EMPTY)
    trains(made)
    drawn = shown(made.record())
    board.show(drawn)
    assert board.bytes.boxes.data["right"].tolist() == [200, 1800]
    assert board.bytes.predicted.data["x"] == [200, 1800]
    assert board.barriers.predicted.data["x"] == [2, 1]
    assert board.barriers.plot.yaxis[0].major_label_overrides == {0: "layer 0", 1: "head"}
    assert board.loss.line.data == {"x": [0, 1, 2], "y": [4.0, 3.0, 2.0]}
    assert board.loss.floor.data["y"] == [0.5, 0.5]
    assert board.collectives.across.end == 100
    assert "predicted of a step" in training_legend(drawn)
    board.show(EMPTY)
    assert board.loss.line.data == {"x": [], "y": []}


def test_the_board_has_what_the_activity_has_and_leaves_a_zoom_alone_until_it_is_reset(made):
    pipeline(made, until=2)
    board = Board(shown(made.record()))
    board._across.update(start=0.5, end=0.7)  # as the browser does
    pipeline(made)
    board.show(shown(made.record()))
    assert (board._across.start, board._across.end, board._across.reset_end) == (0.5, 0.7, 9)
    board._across.update(start=0, end=2)
    board.show(shown(made.record()))
    assert (board._across.start, board._across.end) == (0, 9)
    assert board.boxes.data["text"] == ["0", "1", "0", "1", "0", "0", "1", "1"]
    assert board.idle.data["text"] == ["33.3 %", "33.3 %"]
    assert board.predicted.data["x"] == [25, 50]
    assert board.gantt.xaxis[0].axis_label == "time since the start (s)"


def test_words_of_others_are_text(made):
    made.log_event("tiledask-runs", ANNOUNCED | {"schedule": EVIL})
    pipelines = shown(made.record())
    made = collecting(a="0")
    ran(made, "a", "<b>bold</b>-1", ("compute", 0, 1))
    for drawn in (pipelines, shown(made.record())):
        page = headline(drawn) + legend(drawn)
        assert "&lt;" in page
        assert "<script" not in page
        assert "<b>" not in page


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
    assert "Bokeh" in html
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.html"]
    assert html.replace(" ", "").count('"end":30.0') == 2  # one time axis for both


def test_a_report_of_what_has_a_timeline_is_made_beside_a_closed_page_of_another_thread(tmp_path):
    closed, heard = Document(), lambda event: None
    closed.on_change(heard)
    with patch_curdoc(closed):  # which for Bokeh holds in all threads
        closed.destroy(heard)
        simulated = td.simulate(td.schedule("1f1b", 2, 2))
        run = SimpleNamespace(timeline=simulated, simulated=None)
        for what in (simulated, run):
            html = td.report(tmp_path / "run.html", what).read_text("utf-8")
            assert "<h1>1f1b, p = 2, m = 2</h1>" in html
            assert "1f1b, p = 2, m = 2, simulated" in html


def get(client: Client, page: str) -> str:
    """What the dashboard answers; once more where another one of this process was just drawing.

    While Dask draws, it switches Bokeh's conversions off in all threads: pages fail, its own too.
    """
    url = f"{client.dashboard_link.removesuffix('/status')}/{page}"
    for last in (False, False, False, True):
        try:
            with urllib.request.urlopen(url, timeout=240) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if last or error.code != 500:
                raise


def has_the_page(client: Client) -> None:
    assert "Bokeh" in get(client, "individual-tiledask")
    framed = get(client, "tiledask")
    assert "navbar" in framed
    assert 'href="tiledask"' in get(client, "status").replace("'", '"')
    assert json.loads(get(client, "individual-plots.json"))["Individual Tiledask"]


def handshake(client: Client, page: str, origin: str) -> int:
    """Status of a websocket that claims to come from a page of ``origin``."""
    place = client.dashboard_link.split("/")[2]
    lines = [
        f"GET /{page}/ws HTTP/1.1\r\nHost: {place}\r\nOrigin: {origin}",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ]
    host, port = place.split(":")
    with socket.create_connection((host, int(port)), timeout=240) as stream:
        stream.sendall("\r\n".join(lines).encode())
        return int(stream.recv(64).split()[1])


def dasks_own(workers: int) -> LocalCluster:
    """A cluster of Dask's own in this process, without our page."""
    here = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}
    return LocalCluster(n_workers=workers, processes=False, **here)


@pytest.mark.cluster
def test_a_page_that_comes_later_is_open_to_those_who_may_see_the_others():
    mine = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    with dask.config.set({mine: ["127.0.0.1:8888"]}):
        running = dasks_own(0)
    with running, Client(running) as client:  # Dask's own setting, which takes every origin, holds
        client.register_plugin(Recorder())
        for page in ("status", "tiledask", "individual-tiledask"):
            assert handshake(client, page, "http://evil.example") == 403
            assert handshake(client, page, "http://127.0.0.1:8888") != 403


@pytest.mark.slow
@pytest.mark.cluster
def test_a_real_run_is_recorded_as_it_is_measured(cluster, tmp_path):
    schedule = td.schedule("1f1b", 3, 4)
    batch = np.random.default_rng(0).standard_normal((8, 12))
    stages, times = stack((0, 1, 2, 3), width=12, hidden=20), {"forward": 0.01, "backward": 0.02}
    run = td.run_schedule(schedule, stages, batch, cluster, target=batch, **times)
    record = cluster.client.run_on_scheduler(_record)
    kept = record.runs[-1]
    assert kept.count == len(schedule)
    drawn = shown(record)
    assert drawn.makespan == pytest.approx(run.timeline.makespan, abs=1e-6)
    share = [idle / run.timeline.makespan for idle in run.timeline.idle_per_device]
    assert drawn.idle == pytest.approx(share, abs=1e-6)
    assert dict(drawn.facts)["actions done"] == f"{len(schedule)} of {len(schedule)}"
    assert drawn.predicted == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    half = replace(kept, events=deque(list(kept.events)[: len(schedule) // 2]))
    under_way = of_run(half, record)
    assert "idle predicted so far" in dict(under_way.facts)
    assert all(0 <= share < 1 for share in under_way.predicted)
    html = td.report(tmp_path / "run.html", cluster).read_text("utf-8")
    assert outside(html) == []
    assert "33.3 %" in html


@pytest.mark.slow
@pytest.mark.cluster
def test_a_real_training_is_recorded_as_it_is_counted(cluster, tmp_path):
    text, mesh = td.load_text("tales"), td.Mesh(cluster, (1, 2, 2))
    model = td.GPT(text.vocabulary, hidden=8, layers=2, heads=2, sequence=8)
    got = td.train(model, text, mesh, steps=3, batch=4, microbatches=2, progress=False)
    wait_until(lambda: cluster.client.run_on_scheduler(_record).trainings[-1].is_done)
    record = cluster.client.run_on_scheduler(_record)
    training = record.trainings[-1]
    totals = got.records.totals("rank")
    for rank, sums in training.assembly.sums.items():
        assert sum(s.sent for s in sums.values()) == totals[rank].sent
        assert sum(s.calls for s in sums.values()) == totals[rank].calls
    drawn = shown(record)
    assert drawn.losses[1] == pytest.approx(got.losses.tolist(), rel=1e-12)
    frame = got.layers()
    for what in ("barriers", "bytes"):
        ends = [
            max((b.end for b in getattr(drawn, what) if b.row == row), default=0)
            for row in range(len(drawn.layers))
        ]
        assert tuple(ends) == drawn.predicted[what]
        assert sum(ends) == frame[what].sum()
    assert all(0 < box.end <= 100 for box in drawn.collectives)
    html = td.report(tmp_path / "run.html", cluster).read_text("utf-8")
    assert outside(html) == []


@pytest.mark.cluster
def test_a_real_training_that_fails_no_longer_runs(cluster):
    text, mesh = td.load_text("tales"), td.Mesh(cluster, (2, 1, 1))
    model = td.GPT(text.vocabulary, hidden=8, layers=1, heads=2, sequence=8)
    with pytest.raises(DeadlineError) as raised:
        td.train(model, text, mesh, steps=10**6, batch=4, timeout=2.0, progress=False)
    wait_until(lambda: cluster.client.run_on_scheduler(_record).trainings[-1].is_over)
    training = cluster.client.run_on_scheduler(_record).trainings[-1]
    assert training.failed == f"DeadlineError: {str(raised.value).splitlines()[0]}"


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("given", ["a cluster", "a timeline"])
def test_a_report_is_whole_while_dask_draws_its_pages(cluster, tmp_path, given):
    """Dask switches Bokeh's conversions off meanwhile, for all threads."""
    cluster.client.submit(sum, [1, 2]).result()
    what = cluster if given == "a cluster" else td.simulate(td.schedule("gpipe", 2, 2))

    def draw():
        with validate(False):
            time.sleep(0.02)

    async def drawing():
        callback = PeriodicCallback(draw, 60)  # the loop has to come to other things, too
        callback.start()
        return callback

    pages = cluster.client.sync(drawing)
    try:
        html = td.report(tmp_path / "run.html", what).read_text("utf-8")
    finally:
        cluster.client.loop.add_callback(pages.stop)
    assert '"type":"field","field":"colour"' in html.replace(" ", "")
    assert '"value":"colour"' not in html.replace(" ", "")


@pytest.mark.slow
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
    with dasks_own(1) as running, Client(running) as client:
        with pytest.raises(ConfigError, match=r"--preload tiledask\.lab\.dashboard"):
            td.report(tmp_path / "run.html", client)
        for _ in range(2):  # the second time changes nothing
            client.register_plugin(Recorder())
        has_the_page(client)
        assert get(client, "status").count('href="tiledask"') == 1
        client.submit(sum, [1, 2]).result()
        assert "sum" in td.report(tmp_path / "run.html", client).read_text("utf-8")


@pytest.mark.slow
@pytest.mark.cluster
def test_a_scheduler_of_dasks_own_preloads_the_page(tmp_path):
    log = (tmp_path / "log").open("w")
    cli, known = [sys.executable, "-m"], ["--scheduler-file", str(tmp_path / "scheduler.json")]
    at = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    own = ["distributed.cli.dask_scheduler", *at, "--preload", "tiledask.lab.dashboard"]
    worker = ["distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    running = [subprocess.Popen([*cli, *own, *known], stdout=log, stderr=log, cwd=Path.cwd())]
    try:
        wait_until(lambda: (tmp_path / "scheduler.json").exists())
        running.append(subprocess.Popen([*cli, *worker, *known], stdout=log, stderr=log))
        with Client(scheduler_file=str(tmp_path / "scheduler.json"), timeout=240) as client:
            assert client.submit(sum, [1, 2]).result(timeout=240) == 3
            has_the_page(client)
            client.log_event("tiledask-runs", ANNOUNCED)
            action = {"action": ("F", 0, 0), "device": 0, "start": 1.0, "end": 2.0}
            client.log_event("tiledask-run-a", action)
            assert "1 of 8" in td.report(tmp_path / "run.html", client).read_text("utf-8")
        said = (tmp_path / "log").read_text()  # of a worker that is killed Dask says more
    finally:
        for process in running[1:]:
            process.kill()
        running[0].terminate()
        for process in running:
            process.wait(timeout=240)
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    assert "tiledask's page is not in the dashboard" not in said
