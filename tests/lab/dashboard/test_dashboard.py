"""What the page draws of what is reported, without a cluster; all of it: golden set `dashboard`."""

import pytest
from golden.dashboard import PIPELINE, PRODUCT, Watched

from tiledask.lab.dashboard import page, views
from tiledask.lab.dashboard.board import Board, headline, legend
from tiledask.lab.plots.timelines import KINDS

EVIL = "<script>alert('x')</script>"


def boxes(panel) -> list[tuple]:
    """(lane, start, end, words) of each box that is not idle."""
    return [
        (round(y + high / 2), x, x + wide, words)
        for (x, y, wide, high), _, words, gid, _ in panel.boxes
        if not gid.startswith("idle")
    ]


def test_a_pipeline_is_drawn_in_the_colours_of_the_matplotlib_gantt():
    made = Watched()
    made.pipeline()
    view = made.view(PIPELINE["run"])
    time, idle = view.charts["time"], view.charts["idle"]
    assert boxes(time)[:3] == [(0, 0, 1, "0"), (0, 1, 2, "1"), (0, 4, 6, "0")]
    assert {b.gid for b in time.boxes if b.words} == {KINDS["F"][0], KINDS["B"][0]}
    assert list(idle.lanes) == ["33.3 %", "33.3 %"]
    assert idle.marks == [25, 50]
    causes = "idle, waits for other stages: 16.7 %; idle, draining: 11.1 %; "
    causes += "idle, not yet filled: 5.6 %"
    assert "; ".join(gid for gid, _ in view.legend if gid.startswith("idle")) == causes
    assert " | ".join(map(": ".join, view.facts.items())) == (
        "schedule: 1f1b | actions done: 8 of 8 | makespan: 9 s | idle measured: 33.3 % | "
        "idle predicted: 37.5 %"
    )


def test_memory_is_bounded_and_what_is_no_event_is_passed_over():
    made = Watched()
    for said in (None, 3, {}, {"state": "done"}, {"run": "unknown", "spans": []}):
        made.log_event("tiledask-runs", said)
    assert not made.runs
    for i in range(page.KEPT_TASKS + 10):
        made.ran("tcp://a", f"x-{i}", ("compute", i, i + 1))
    assert len(made.tasks) == page.KEPT_TASKS
    for i in range(page.KEPT_RUNS + 3):
        made.log_event("tiledask-runs", PIPELINE | {"run": f"{i}"})
    assert list(made.runs) == [f"{i}" for i in range(3, page.KEPT_RUNS + 3)]
    made.says(PRODUCT)
    many = range(views.KEPT_SPANS + 5)
    made.says(PRODUCT, spans=[(0, "multiply", i, 100 + i, 101 + i) for i in many])
    assert len(made.runs[PRODUCT["run"]].spans) == views.KEPT_SPANS


@pytest.mark.parametrize("choice", [PIPELINE["run"], "tasks"])
def test_words_of_others_are_text(choice):
    made = Watched()
    made.says(PIPELINE | {"facts": {"schedule": EVIL}, "lanes": [EVIL, EVIL]})
    made.ran("tcp://a", f"{EVIL}-1", ("compute", 0, 1))
    view = made.view(choice)
    words = headline(view) + legend(view)
    words += "".join(Board(view).lanes["time"].boxes.data["what"])
    assert "&lt;" in words
    assert "<script" not in words
