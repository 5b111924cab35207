"""What is drawn of a product: panels, bytes and memory by worker.

    rank 0            |[0][1]wait[2]  |  idle ##|   bytes received |####|   memory |###| |
    rank 1            |[0]wait[1][2]  |  idle #||   (predicted: a black line)

While it runs the numbers are those of its ranks' last reports; at the end they are those that
``C.traffic``, ``C.memory`` and ``C.seconds`` have.
"""

from collections.abc import Callable
from typing import Any

from tiledask.lab.dashboard.recorder import ReportedRun
from tiledask.lab.dashboard.views import Chart, View, facts_of, gaps, over_time
from tiledask.lab.plots.primitives import HEIGHT, span
from tiledask.lab.plots.style import colour_named
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["product_view"]

_WORDS = {
    "multiply": "multiplying a panel",
    "sum": "adding partial sums",
    "wait": "waiting for a panel",
    "read": "below: reading from another worker",
}
"""Kind of span -> what it is; the colours are those of `tiledask.lab.plots.slots`."""


def product_view(run: ReportedRun, now: float) -> View:
    """A product, as far as it has reported."""
    lanes, predicted = range(len(run.lanes)), run.predicted
    zero = min([run.begin, *(start for *_, start, _ in run.spans)])
    last, drawn, busy = [0.0] * len(lanes), [], []
    for rank, kind, panel, start, stop in run.spans:
        number, at = str(panel) if kind == "multiply" else "", (start - zero, stop - zero)
        row, high = (rank + HEIGHT / 2 + 0.07, 0.08) if kind == "read" else (rank, HEIGHT)
        drawn.append(span(row, *at, colour_named(kind), number, _WORDS[kind], height=high))
        busy += drawn[-1:] if kind in ("multiply", "sum") else []
        last[rank] = max(last[rank], at[1])
    counted = [run.counted.get(rank, {}) for rank in lanes]
    seconds = max([*last, *(mine.get("seconds", 0.0) for mine in counted)])
    title, facts, so_far = facts_of(run, now)
    until = min(last) if so_far else seconds  # up to here all ranks have reported what they did
    whole = predicted["seconds"]
    share = [max(0.0, 1 - each / whole) for each in predicted["busy"] or ()] if whole else None
    drawn = [*gaps(busy, len(lanes), until), *drawn]
    charts, idle, legend = over_time(run.lanes, drawn, until, share, so_far)
    done = sum(mine.get("done", 0) for mine in counted)
    facts["panels done"] = f"{done} of {sum(predicted['panels'])}"
    received, memory = [mine.get("received", 0) for mine in counted], [*map(_memory, counted)]
    facts[f"bytes between workers{so_far}"] = _beside(sum, received, predicted["received"])
    most = _beside(max, memory, predicted["memory"], "at most ")
    facts[f"memory of the fullest worker{so_far}"] = most
    for place, heading, label, kind, what, sizes in (
        ("left", "Bytes received", "from other workers", "read", "received", received),
        ("right", "Memory", "the most held", "multiply", "memory", memory),
    ):
        boxes = [
            span(rank, 0, size, colour_named(kind), gid=f"{format_bytes(size)} {label}")
            for rank, size in enumerate(sizes)
            if size is not None
        ]
        charts[place] = Chart(heading, label, "B", run.lanes, boxes, predicted[what])
    facts[f"time{so_far}"] = format_seconds(seconds)
    if whole:
        facts["time predicted"] = format_seconds(whole)
    return View(title, facts | idle, charts, legend, "the panel")


def _memory(counted: dict[str, Any]) -> int | None:
    """The most bytes that a rank has held, its operands included."""
    grown = max(0, counted.get("peak", 0) - counted.get("held", 0))
    most: int | None = counted.get("memory", counted.get("resident", 0) + grown)
    return most


def _beside(
    of: Callable[[list[int]], int], counted: list[int | None], predicted: list[int], most: str = ""
) -> str:
    known = [each for each in counted if each is not None]
    got = format_bytes(of(known)) if len(known) == len(counted) else "not counted"
    return f"{got}, predicted {most}{format_bytes(of(predicted))}"
