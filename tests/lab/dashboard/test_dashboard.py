"""What the page draws of what is reported, without a cluster."""

import re
from functools import partial
from types import SimpleNamespace

import pytest

from tiledask.lab.dashboard import Recorder, page, views
from tiledask.lab.dashboard.board import Board, headline, legend
from tiledask.lab.dashboard.page import view_of
from tiledask.lab.plots.style import colour_named
from tiledask.lab.plots.timelines import KINDS

EVIL = "<script>alert('x')</script>"
PIPELINE = {"run": "tiledask-run-a", "kind": "pipeline", "lanes": ["device 0", "device 1"]}
PIPELINE |= {"facts": {"schedule": "1f1b"}, "predicted": {"actions": 8, "idle": [0.25, 0.5]}}
PRODUCT = {"run": "product-a", "kind": "product", "lanes": ["rank 0", "rank 1"]}
PRODUCT |= {
    "facts": {"algorithm": "summa panel 2"},
    "predicted": {"panels": [2, 2], "received": [100, 300], "memory": [1000, 2000]},
    "counted": [(0, {"held": 5000, "resident": 400}), (1, {"held": 6000, "resident": 500})],
}
PRODUCT["predicted"] |= {"seconds": 8.0, "busy": [6.0, 4.0]}
TRAINING = {"run": "tiledask-training-a", "kind": "training", "lanes": ["rank 0", "rank 1"]}
TRAINING |= {"facts": {"layout": "dp 2, tp 1, pp 1"}}
TRAINING |= {"predicted": {"steps": 3, "tokens": 64, "floor": 0.5}}


@pytest.fixture
def made(monkeypatch) -> Recorder:
    """A recorder at second 100, on a scheduler with two workers.

    Its own clock stands still, not the one that a cluster of this process reads: a message of
    Dask's that is held back for 2 ms by a clock at 100 would wait until 1970 comes again.
    """
    monkeypatch.setattr("tiledask.lab.dashboard.page.time", lambda: 100.0)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    made = Recorder()
    workers = {f"tcp://{n}": SimpleNamespace(name=i) for i, n in enumerate("ab")}
    made.scheduler = SimpleNamespace(workers=workers)
    return made


def says(made: Recorder, about: dict, **event) -> None:
    made.log_event("tiledask-runs", {"run": about["run"], **event} if event else about)


def ran(made: Recorder, worker: str, key: str, *times: tuple) -> None:
    """A task has run on ``worker``: times are (action, start, stop)."""
    spans = [{"action": a, "start": start, "stop": stop} for a, start, stop in times]
    made.transition(key, "processing", "memory", worker=worker, startstops=spans)


def pipeline(made: Recorder, until: int = 8) -> None:
    """The first actions of 1F1B, 2 devices, 2 micro-batches: F 1 s, B 2 s, from second 100."""
    says(made, PIPELINE)
    order = "0F0 0 0F1 1 1F0 1 1B0 2 1F1 4 0B0 4 1B1 5 0B1 7"  # and when each starts
    for action, start in re.findall(r"(\w+) (\d)", order)[:until]:
        device, kind, i = int(action[0]), action[1], int(action[2])
        begin, length = 100.0 + int(start), {"F": 1, "B": 2}[kind]
        says(made, PIPELINE, spans=[(device, kind, device, i, begin, begin + length)])
    if until == 8:
        says(made, PIPELINE, state="done")


def boxes(panel) -> list[tuple]:
    """(lane, start, end, words) of each box that is not idle."""
    return [
        (round(y + high / 2), x, x + wide, words)
        for (x, y, wide, high), _, words, gid, _ in panel.boxes
        if not gid.startswith("idle")
    ]


def facts(view) -> str:
    return " | ".join(map(": ".join, view.facts.items()))


def test_a_pipeline_is_drawn_in_the_colours_of_the_matplotlib_gantt(made):
    pipeline(made)
    says(made, PIPELINE, spans=[(1, "T", 0, 0, 100.9, 101.0)])
    view = view_of(made, PIPELINE["run"])
    time, idle = view.charts["time"], view.charts["idle"]
    assert view.title.endswith(", done")
    assert boxes(time)[:3] == [(0, 0, 1, "0"), (0, 1, 2, "1"), (0, 4, 6, "0")]
    moved = [b.at for b in time.boxes if b.gid == "transfer to the device"]
    assert [(x, x + wide) for x, _, wide, _ in moved] == [pytest.approx((0.9, 1.0))]
    assert {b.gid for b in time.boxes if b.words} == {KINDS["F"][0], KINDS["B"][0]}
    assert list(idle.lanes) == ["33.3 %", "33.3 %"]
    assert idle.marks == [25, 50]
    causes = "idle, waits for other stages: 16.7 %; idle, draining: 11.1 %; "
    causes += "idle, not yet filled: 5.6 %"
    assert "; ".join(gid for gid, _ in view.legend if gid.startswith("idle")) == causes
    assert max(box.at[0] + box.at[2] for box in idle.boxes) == pytest.approx(100 / 3)
    assert facts(view) == (
        "schedule: 1f1b | actions done: 8 of 8 | makespan: 9 s | idle measured: 33.3 % | "
        "idle predicted: 37.5 %"
    )


@pytest.mark.parametrize(("until", "idle"), [(3, "25.0 %"), (4, "37.5 %"), (6, "33.3 %")])
def test_a_run_under_way_has_its_idle_time_by_cause_but_for_who_waits_now(made, until, idle):
    pipeline(made, until)
    view = view_of(made)
    assert view.title.endswith(", running")
    assert view.facts["idle measured so far"] == idle
    assert view.charts["idle"].marks == [25, 50]
    assert "idle, not yet filled" in legend(view)
    assert "idle, draining" not in legend(view)  # nobody knows yet


def test_a_product_under_way_shows_what_its_ranks_have_reported_beside_the_plan(made):
    says(made, PRODUCT)
    view = view_of(made)
    assert boxes(view.charts["time"]) == []
    assert "idle measured so far" not in view.facts
    Board(view)
    spans = [(0, "read", -1, 101, 102), (0, "multiply", 0, 101, 103), (0, "wait", 0, 103, 104)]
    spans.append((0, "multiply", 1, 104, 106))
    done = {"done": 2, "of": 2, "received": 100, "peak": 5500}
    says(made, PRODUCT, spans=spans, counted=[(0, done)])
    done = {"done": 1, "of": 2, "received": 40, "peak": 6100}
    says(made, PRODUCT, spans=[(1, "multiply", 0, 102, 104)], counted=[(1, done)])
    view = view_of(made)
    drawn = [box for box in boxes(view.charts["time"]) if box[3]]
    assert drawn == [(0, 1, 3, "0"), (0, 4, 6, "1"), (1, 2, 4, "0")]
    # rank 1 has told of 4 seconds: rank 0 multiplied in 2 of them, and so did rank 1
    assert list(view.charts["idle"].lanes) == ["50.0 %", "50.0 %"]
    assert view.charts["idle"].marks == [25, 50]
    assert [end for _, _, end, _ in boxes(view.charts["left"])] == [100, 40]
    assert [end for _, _, end, _ in boxes(view.charts["right"])] == [400 + 500, 500 + 100]
    assert view.charts["right"].marks == [1000, 2000]
    assert facts(view) == (
        "algorithm: summa panel 2 | panels done: 3 of 4 | "
        "bytes between workers so far: 140 B, predicted 400 B | "
        "memory of the fullest worker so far: 900 B, predicted at most 2 kB | time so far: 6 s | "
        "time predicted: 8 s | idle measured so far: 50.0 % | idle predicted: 37.5 %"
    )
    ends = [(r, {"received": n, "memory": 950 + n, "seconds": 10.0}) for r, n in enumerate((1, 3))]
    says(made, PRODUCT, state="done", counted=ends)
    view = view_of(made)
    assert view.facts["bytes between workers"] == "4 B, predicted 400 B"
    assert view.facts["memory of the fullest worker"] == "953 B, predicted at most 2 kB"
    assert list(view.charts["idle"].lanes) == ["60.0 %", "80.0 %"]
    says(made, PRODUCT, counted=[(0, {"received": None, "memory": None})])
    assert view_of(made).facts["bytes between workers"] == "not counted, predicted 400 B"


def test_a_training_shows_its_loss_and_one_board_shows_any_run(made):
    board = Board(view_of(made))
    says(made, TRAINING)
    assert view_of(made).facts["steps done"] == "0 of 3"
    for step in range(3):  # of a second, from second 100; one rank 0.1 s after the other
        for rank in (0, 1):
            row = rank, "step", step, 2.0 - step / 2, 1000, 6, 3, 101.0 + step + rank / 10
            says(made, TRAINING, spans=[row], counted=[(rank, {"begin": 100.0})])
    view = view_of(made)
    assert facts(view) == (
        "layout: dp 2, tp 1, pp 1 | steps done: 3 of 3 | loss: 2.0000 | time per step: 1.03 s | "
        "tokens/s: 62 | barriers: 3 a step | bytes: 2 kB a step"
    )
    assert view.loss == ([0, 1, 2], [4.0, 3.0, 2.0], 0.5)
    board.show(view)
    assert [row.visible for row in board.rows.values()] == [False, False, True]
    assert board.loss.data == {"x": [0, 1, 2], "y": [4.0, 3.0, 2.0]}
    assert board.floor.data["y"] == [0.5, 0.5]
    pipeline(made)
    board.show(view_of(made, PIPELINE["run"]))
    assert [row.visible for row in board.rows.values()] == [True, False, False]
    time, idle = board.lanes["time"], board.lanes["idle"]
    assert time.boxes.data["number"] == ["0", "1", "0", "1", "0", "0", "1", "1"]
    assert sorted({*time.hatched.data["hatch_pattern"]}) == [".", "/", "\\"]
    assert idle.marks.data["x"].tolist() == [25, 50]
    assert time.plot.xaxis[0].axis_label == "time since the start (s)"


def test_tasks_are_drawn_by_worker_when_no_run_is_newer(made, monkeypatch):
    assert view_of(made).title.startswith("Nothing has run yet")
    monkeypatch.setenv("JPY_SESSION_NAME", "/learn/05_split_a_layer.ipynb")
    assert view_of(Recorder()).title.startswith("05_split_a_layer: Nothing has run yet")
    ran(made, "tcp://a", "old-1", ("compute", 60, 61))
    ran(made, "tcp://gone", "add-1", ("transfer", 60, 61), ("compute", 61, 63))
    view = view_of(made)
    assert view.title == "Tasks per worker"
    assert list(view.charts["time"].lanes) == ["worker 0", "worker 1", "worker gone"]
    assert boxes(view.charts["time"]) == [(0, 0, 1, "old"), (2, 1, 3, "add")]
    assert view.charts["time"].boxes[-1].colour == colour_named("add")
    assert view.facts["idle measured"] == "66.7 %"
    ran(made, "tcp://a", "new-1", ("compute", 65.5, 66))  # after a pause the drawing begins anew
    assert boxes(view_of(made).charts["time"]) == [(0, 0, 0.5, "new")]
    pipeline(made, until=3)
    ran(made, "tcp://a", "forward-1", ("compute", 100, 110))
    assert view_of(made).title.startswith("Pipeline of ")
    says(made, PIPELINE, state="done")
    ran(made, "tcp://b", "multiply-1", ("compute", 100.2, 109))  # of the run
    assert view_of(made).title.startswith("Pipeline of ")
    ran(made, "tcp://b", "multiply-2", ("compute", 108, 109))
    assert view_of(made).title == "Tasks per worker"


def test_a_worker_that_ends_and_another_of_its_name_leave_a_mark_in_their_lane(made, monkeypatch):
    workers = made.scheduler.workers
    for address in workers:
        made.add_worker(made.scheduler, address)
    for worker, start in (("tcp://a", 60), ("tcp://b", 60), ("tcp://b", 66)):
        ran(made, worker, f"nap-{start}", ("compute", start, start + 2))
    monkeypatch.setattr("tiledask.lab.dashboard.page.time", lambda: 63.0)
    made.remove_worker(made.scheduler, "tcp://a", stimulus_id="")
    seen = made.changes
    workers["tcp://c"] = workers.pop("tcp://a")
    monkeypatch.setattr("tiledask.lab.dashboard.page.time", lambda: 65.0)
    made.add_worker(made.scheduler, "tcp://c")
    assert made.changes > seen
    view = view_of(made)
    marks = [(b.at[0], b.at[2]) for b in view.charts["time"].boxes if b.gid == views.GONE]
    assert marks == [(3, 2)]
    assert list(view.charts["time"].lanes) == ["worker 0", "worker 1"]
    assert list(view.charts["idle"].lanes) == ["50.0 %", "50.0 %"]
    assert views.GONE in legend(view)


def test_a_run_that_fails_or_falls_silent_says_so(made, monkeypatch):
    pipeline(made, until=3)
    monkeypatch.setattr("tiledask.lab.dashboard.page.time", lambda: 145.0)
    assert view_of(made).title.endswith(", nothing heard for 45 s")
    says(made, PIPELINE, state="failed: DeadlineError: late")
    assert view_of(made).title.endswith(", failed: DeadlineError: late")


def test_memory_is_bounded_and_what_is_no_event_is_passed_over(made):
    for said in (None, 3, {}, {"state": "done"}, {"run": "unknown", "spans": []}):
        made.log_event("tiledask-runs", said)
    assert not made.runs
    for i in range(page.KEPT_TASKS + 10):
        ran(made, "tcp://a", f"x-{i}", ("compute", i, i + 1))
    assert len(made.tasks) == page.KEPT_TASKS
    for i in range(page.KEPT_RUNS + 3):
        says(made, PIPELINE | {"run": f"{i}"})
    assert list(made.runs) == [f"{i}" for i in range(3, page.KEPT_RUNS + 3)]
    says(made, PRODUCT)
    many = range(views.KEPT_SPANS + 5)
    says(made, PRODUCT, spans=[(0, "multiply", i, 100 + i, 101 + i) for i in many])
    assert len(made.runs[PRODUCT["run"]].spans) == views.KEPT_SPANS


def test_words_of_others_are_text(made):
    says(made, PIPELINE | {"facts": {"schedule": EVIL}, "lanes": [EVIL, EVIL]})
    ran(made, "tcp://a", f"{EVIL}-1", ("compute", 0, 1))
    for view in map(partial(view_of, made), (PIPELINE["run"], "tasks")):
        words = headline(view) + legend(view)
        words += "".join(Board(view).lanes["time"].boxes.data["what"])
        assert "&lt;" in words
        assert "<script" not in words
