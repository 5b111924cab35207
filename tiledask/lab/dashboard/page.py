"""The page in Dask's dashboard: tiledask in its bar, individual-tiledask in JupyterLab's panel."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.utils import log_errors

from tiledask.lab.dashboard.activity import Activity
from tiledask.lab.dashboard.pipelines import of_run
from tiledask.lab.dashboard.products import ProductActivity, of_product
from tiledask.lab.dashboard.recorder import NAME, Collector
from tiledask.lab.dashboard.tasks import nothing, of_tasks, shown
from tiledask.lab.dashboard.training_overview import EMPTY, Overview, of_training

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

__all__ = ["put_into"]

_BARE, _FRAMED = "individual-tiledask", "tiledask"
_EVERY = 250
"""Milliseconds between two looks at the record."""
_SHARE = 0.02
"""Of a core that one open page may take for drawing; sending takes about as much. Seconds in which
the scheduler waits for a core are not drawing, or nothing would be drawn while all cores compute.
"""
_NEWEST, _TASKS = "newest", "tasks"


def put_into(scheduler: "Scheduler") -> bool:
    """Whether the dashboard of ``scheduler`` has the page: not if it has no dashboard.

    Bokeh's server takes no pages after it was made, so a second one with the same pages and this
    one is put before it. Both stop with the scheduler.
    """
    import dask
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import applications, template_variables
    from tornado.ioloop import IOLoop

    servers = getattr(scheduler.http_application, "applications", [])
    dashboards = [server for server in servers if isinstance(server, BokehTornado)]
    if not dashboards:
        return False
    if f"/{_FRAMED}" in dashboards[0].app_paths:
        return True
    pages = {f"/{_FRAMED}": partial(_page, True), f"/{_BARE}": partial(_page, False)}
    words = template_variables(scheduler)  # the lists in it are those of every page
    words["pages"].insert(1, _FRAMED)
    words["plots"].append({"url": _BARE, "name": "Tiledask"})
    # whoever may open the other pages may open this one
    allowed = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    with dask.config.set({allowed: sorted(dashboards[0].websocket_origins)}):
        ours = BokehApplication({**applications, **pages}, scheduler, dashboards[0].prefix, words)
    ours.initialize(IOLoop.current())
    ours.start()
    servers.insert(0, ours)
    return True


@log_errors
def _page(framed: bool, scheduler: "Scheduler", extra: dict, doc: "Document") -> None:
    """Fill ``doc``, one open page, and keep it up to date."""
    from bokeh.layouts import column
    from bokeh.models import Div, Select

    from tiledask.lab.dashboard.board import Board, headline, legend
    from tiledask.lab.dashboard.product_board import ProductBoard
    from tiledask.lab.dashboard.training_board import TrainingBoard, training_legend

    recorder = scheduler.plugins.get(NAME) or Collector()
    empty = nothing(recorder.record())
    boards = {
        Activity: Board(empty),
        ProductActivity: ProductBoard(ProductActivity(**vars(empty))),
        Overview: TrainingBoard(EMPTY),
    }
    words = {Activity: legend, ProductActivity: legend, Overview: training_legend}
    above, below = Div(), Div()
    choice = Select(title="show", value=_NEWEST, options=_choices(recorder), width=260)
    for div in (above, below):
        div.update(sizing_mode="stretch_width", margin=(5, 5, 0, 8))
    seen: dict[str, Any] = {"state": None, "next": 0.0}

    def draw() -> None:
        state = recorder.changes, choice.value
        begun = time.thread_time()
        if time.perf_counter() < seen["next"]:
            return
        if state == seen["state"] and not recorder.is_computing():
            return
        drawn = _chosen(recorder, choice.value)
        for kind, board in boards.items():
            board.layout.visible = kind is type(drawn)
        boards[type(drawn)].show(drawn)
        above.text, below.text = headline(drawn), words[type(drawn)](drawn)
        choice.options = _choices(recorder)
        pause = (time.thread_time() - begun) * (1 / _SHARE - 1)
        seen.update(state=state, next=time.perf_counter() + pause)

    def chosen(attr: str, old: str, new: str) -> None:
        seen["next"] = 0.0
        draw()

    draw()
    choice.on_change("value", chosen)
    doc.add_periodic_callback(draw, _EVERY)
    layouts = [board.layout for board in boards.values()]
    doc.add_root(column(above, *layouts, below, choice, sizing_mode="stretch_both"))
    doc.title = "tiledask: who computes when"
    if framed:
        from distributed.dashboard.components.scheduler import env

        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)


def _choices(recorder: Collector) -> list[tuple[str, str]]:
    runs = [
        (
            run.topic,
            f"{time.strftime('%H:%M:%S', time.localtime(run.announced))} pipeline "
            f"{run.about.get('schedule', '')}",
        )
        for run in reversed(recorder.runs.values())
    ]
    trainings = [
        (t.topic, f"{time.strftime('%H:%M:%S', time.localtime(t.announced))} training")
        for t in reversed(recorder.trainings.values())
    ]
    products = [
        (
            p.topic,
            f"{time.strftime('%H:%M:%S', time.localtime(p.announced))} product "
            f"{p.about['algorithm']}",
        )
        for p in reversed(recorder.products.values())
    ]
    every = [(_NEWEST, "the newest, whatever it is"), *trainings, *runs, *products]
    return [*every, (_TASKS, "all other tasks")]


def _chosen(recorder: Collector, choice: str) -> Activity | Overview:
    record = recorder.record()
    if choice == _TASKS:
        return of_tasks(record)
    for run in record.runs:
        if run.topic == choice:
            return of_run(run, record)
    for training in record.trainings:
        if training.topic == choice:
            return of_training(training, record.now)
    for product in record.products:
        if product.topic == choice:
            return of_product(product, record.now)
    return shown(record)
