"""Golden values of the dashboard: all that its page shows of runs and of tasks."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from golden.store import GoldenSet, digest
from tiledask.lab.dashboard import Recorder, page
from tiledask.lab.dashboard.board import Board
from tiledask.lab.dashboard.views import View

PIPELINE = {"run": "tiledask-run-a", "kind": "pipeline", "lanes": ["device 0", "device 1"]}
PIPELINE |= {"facts": {"schedule": "1f1b"}, "predicted": {"actions": 8, "idle": [0.25, 0.5]}}
PRODUCT = {"run": "product-a", "kind": "product", "lanes": ["rank 0", "rank 1"]}
PRODUCT |= {
    "facts": {"algorithm": "summa panel 2"},
    "predicted": {"panels": [2, 2], "seconds": 8.0, "busy": [6.0, 4.0]},
}
TRAINING = {"run": "tiledask-training-a", "kind": "training", "lanes": ["rank 0", "rank 1"]}
TRAINING |= {"facts": {"layout": "dp 2, tp 1, pp 1"}}
TRAINING |= {"predicted": {"steps": 3, "tokens": 64, "floor": 0.5}}


class Watched(Recorder):
    """A recorder of a scheduler with two workers, whose clock stands still.

    Its own clock, not the one that a cluster of this process reads: a message of Dask's that is
    held back for 2 ms by a clock at 100 would wait until 1970 comes again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notebook, self.now = "", 100.0
        workers = {f"tcp://{n}": SimpleNamespace(name=i) for i, n in enumerate("ab")}
        self.scheduler = SimpleNamespace(workers=workers)

    def says(self, about: dict, **event: Any) -> None:
        with patch.object(page, "time", lambda: self.now):
            run = {"run": about["run"], **event} if event else about
            self.log_event("tiledask-runs", run)

    def ran(self, worker: str, key: str, *times: tuple) -> None:
        """A task has run on ``worker``: times are (action, start, stop)."""
        spans = [{"action": a, "start": start, "stop": stop} for a, start, stop in times]
        self.transition(key, "processing", "memory", worker=worker, startstops=spans)

    def pipeline(self, until: int = 8) -> None:
        """The first actions of 1F1B, 2 devices, 2 micro-batches: F 1 s, B 2 s, from second 100."""
        self.says(PIPELINE)
        order = "0F0 0 0F1 1 1F0 1 1B0 2 1F1 4 0B0 4 1B1 5 0B1 7"  # and when each starts
        for action, start in re.findall(r"(\w+) (\d)", order)[:until]:
            device, kind, i = int(action[0]), action[1], int(action[2])
            begin, length = 100.0 + int(start), {"F": 1, "B": 2}[kind]
            self.says(PIPELINE, spans=[(device, kind, device, i, begin, begin + length)])
        if until == 8:
            self.says(PIPELINE, state="done")

    def view(self, choice: str = "newest") -> View:
        with patch.object(page, "time", lambda: self.now):
            return page.view_of(self, choice)


def pipelines() -> Iterator[View]:
    """Under way, when nobody knows yet who drains; done, with a transfer; silent, and failed."""
    for until in (3, 4, 6, 8):
        made = Watched()
        made.pipeline(until)
        yield made.view()
    made.says(PIPELINE, spans=[(1, "T", 0, 0, 100.9, 101.0)])
    yield made.view(PIPELINE["run"])
    made = Watched()
    made.pipeline(3)
    made.now = 145.0
    yield made.view()
    made.says(PIPELINE, state="failed: DeadlineError: late")
    yield made.view()


def products() -> Iterator[View]:
    """Announced; under way, rank 0 ahead of rank 1; done."""
    made = Watched()
    made.says(PRODUCT)
    yield made.view()
    spans = [(0, "read", -1, 101, 102), (0, "multiply", 0, 101, 103), (0, "wait", 0, 103, 104)]
    spans.append((0, "multiply", 1, 104, 106))
    made.says(PRODUCT, spans=spans, counted=[(0, {"done": 2, "of": 2})])
    made.says(PRODUCT, spans=[(1, "multiply", 0, 102, 104)], counted=[(1, {"done": 1, "of": 2})])
    yield made.view()
    made.says(PRODUCT, state="done")
    yield made.view()


def trainings() -> Iterator[View]:
    """Steps of a second, from second 100; one rank 0.1 s after the other."""
    made = Watched()
    made.says(TRAINING)
    yield made.view()
    for step in range(3):
        for rank in (0, 1):
            row = rank, "step", step, 2.0 - step / 2, 1000, 6, 3, 101.0 + step + rank / 10
            made.says(TRAINING, spans=[row], counted=[(rank, {"begin": 100.0})])
    yield made.view()


def tasks() -> Iterator[View]:
    """None; of workers that are there or gone; after a pause anew; beside a run and after it."""
    made = Watched()
    yield made.view()
    made.notebook = "05_split_a_layer"
    yield made.view()
    made.notebook = ""
    made.ran("tcp://a", "old-1", ("compute", 60, 61))
    made.ran("tcp://gone", "add-1", ("transfer", 60, 61), ("compute", 61, 63))
    yield made.view()
    made.ran("tcp://a", "new-1", ("compute", 65.5, 66))
    yield made.view()
    made.pipeline(until=3)
    made.ran("tcp://a", "forward-1", ("compute", 100, 110))
    yield made.view()
    made.says(PIPELINE, state="done")
    made.ran("tcp://b", "multiply-1", ("compute", 100.2, 109))  # of the run
    yield made.view()
    made.ran("tcp://b", "multiply-2", ("compute", 108, 109))
    yield made.view()


def workers() -> Iterator[View]:
    """One ends, and another of its name begins two seconds later."""
    made = Watched()
    there = made.scheduler.workers
    for address in there:
        made.add_worker(made.scheduler, address)
    for worker, start in (("tcp://a", 60), ("tcp://b", 60), ("tcp://b", 66)):
        made.ran(worker, f"nap-{start}", ("compute", start, start + 2))
    with patch.object(page, "time", lambda: 63.0):
        made.remove_worker(made.scheduler, "tcp://a", stimulus_id="")
    there["tcp://c"] = there.pop("tcp://a")
    with patch.object(page, "time", lambda: 65.0):
        made.add_worker(made.scheduler, "tcp://c")
    yield made.view()


def shown(view: View, board: Board) -> dict[str, Any]:
    """The view, and what the board makes of it for a browser."""
    board.show(view)
    sources = [[x.data for x in (p.boxes, p.hatched, p.marks)] for p in board.lanes.values()]
    losses = [board.losses.title.text, board.loss.data, board.floor.data]
    rows = [row.visible for row in board.rows.values()]
    found = {"title": re.sub(r"\d\d:\d\d:\d\d", "now", view.title), "rows": rows, "losses": losses}
    return vars(view) | found | {"board": digest(*sources)}


def watched(given: dict[str, Any]) -> Any:
    board = Board(Watched().view())
    kinds = pipelines, products, trainings, tasks, workers
    return {made.__name__: [shown(view, board) for view in made()] for made in kinds}


SETS = (GoldenSet("dashboard", watched),)
