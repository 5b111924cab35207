"""What is drawn of a training: layers and the loss.

    layer 0  |####====|   barriers of a step        |########====|   bytes of a step
    layer 1  |####====|   (predicted: a black line) |########====|
    loss     step by step

Ranks report the sums of all their steps so far: a report that is lost leaves no gap.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tiledask.distributed.training.by_layer import CallSite, Sums, ordered, together
from tiledask.lab.dashboard.recorder import ReportedRun
from tiledask.lab.dashboard.views import Chart, View, facts_of, stacked
from tiledask.lab.plots.primitives import Box, span
from tiledask.lab.plots.style import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["training_view"]

PARTS = {
    "tensor, forward": (BLUE, "tensor parallel, forward"),
    "tensor, backward": (ORANGE, "tensor parallel, backward"),
    "data, gradients": (GREEN, "data parallel, gradients"),
    "data, weights": (PINK, "data parallel, weights"),
    "pipeline": (GREY, "between stages"),
    "all ranks": (YELLOW, "all ranks, norm of the gradients"),
}
"""Part of a step -> (colour, what it is)."""
_RECENT = 10
"""Steps over which seconds and tokens are taken."""
BySite = dict[CallSite, Sums]


def training_view(run: ReportedRun, now: float) -> View:
    """A training, as far as it has reported."""
    said, ranks = run.predicted, range(len(run.lanes))
    planned = [_sums(row for _, *row in said["sums"] if _ == rank) for rank in ranks]
    counted = [_sums(mine["sums"], mine["steps"]) for mine in run.counted.values()]
    step, expected = together(counted), together(planned)
    places = ordered({**expected, **step}, said["units"])
    units = [*dict.fromkeys(place.unit for place in places)]
    charts = {}
    for at, label, unit, of in (
        ("left", "Barriers of a step, of the rank that has most", "", "barriers"),
        ("right", "Bytes of a step, sent by all ranks", "B", "sent"),
    ):
        bars = [*stacked(_bars(units, step, of))]
        marks = [sum(getattr(s, of) for p, s in expected.items() if p.unit == u) for u in units]
        charts[at] = Chart(label, "", unit, units, bars, marks)
    used = {_part(place) for place in places}
    legend = [(words, span(0, 0, 0, c)) for part, (c, words) in PARTS.items() if part in used]
    rows: dict[int, dict[int, Any]] = {}
    for rank, _, number, *row in run.spans:
        rows.setdefault(number, {})[rank] = row  # of a step that was done again, the last
    whole = {n: [*mine.values()] for n, mine in sorted(rows.items()) if len(mine) == len(ranks)}
    losses = [sum(loss for loss, *_ in mine) for mine in whole.values()]
    title, facts, _ = facts_of(run, now)
    facts["steps done"] = f"{max(whole, default=-1) + 1} of {said['steps']}"
    if whole:
        begin = min(mine["begin"] for mine in run.counted.values())
        ends = [begin, *(max(row[-1] for row in mine) for mine in whole.values())][-_RECENT - 1 :]
        seconds = (ends[-1] - ends[0]) / (len(ends) - 1) or 1.0
        _, sent, _, barriers, _ = zip(*whole[max(whole)], strict=True)
        facts["loss"], facts["time per step"] = f"{losses[-1]:.4f}", format_seconds(seconds)
        facts["tokens/s"] = f"{said['tokens'] / seconds:,.0f}"
        facts["barriers"] = f"{max(barriers)} a step"
        facts["bytes"] = f"{format_bytes(sum(sent))} a step"
    return View(title, facts, charts, legend, loss=([*whole], losses, said["floor"]))


def _sums(rows: Iterable[Sequence[Any]], steps: int = 1) -> BySite:
    """What ``rows`` say of one of so many steps."""
    return {CallSite(*row[:3]): Sums(*(n / steps for n in row[3:])) for row in rows}


def _part(place: CallSite) -> str:
    every = f"{place.parallel}, {place.when}", place.parallel, "all ranks"
    return next(part for part in every if part in PARTS)


def _bars(units: Sequence[str], step: BySite, of: str) -> Iterator[Box]:
    """A box in its layer's row for each part of a step, in the order of the legend."""
    order = [*PARTS]
    for place, mine in sorted(step.items(), key=lambda each: order.index(_part(each[0]))):
        words = f"{place.layer}, {place.when}: {mine.barriers:.4g} barriers and "
        words += f"{format_bytes(mine.sent)} a step ({format_seconds(mine.seconds)})"
        colour, _ = PARTS[_part(place)]
        yield span(units.index(place.unit), 0, getattr(mine, of), colour, gid=words)
