"""A level drawn: its fields as they are filled in; the runs once all is right."""

from typing import Any

from tiledask.lab.judging import Result
from tiledask.lab.judging.figure import titled, titled_canvas
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import PALE, lighter, styled
from tiledask.lab.plots.timelines import KINDS, gantt

__all__ = ["draw_level"]


@styled
def draw_level(task: Any, answer: Any, result: Result) -> draw.Figure:
    """A lane for each field with what was filled in, the first that is off in a red frame; a box
    for each slot. Gantt charts of the runs once all is right."""
    title, fields = titled(task, result), task.fields
    if result:
        lanes = [f"worker {w + 1}" for w in range(max(run.timeline.devices for run in task.runs))]
        names = [run.facts for run in task.runs]
        return gantt(*(run.timeline for run in task.runs), titles=names, title=title, lanes=lanes)
    given: list[Any] = task.read(answer) if result.targets else [None] * len(fields)
    slots = len(fields[0].right) if isinstance(fields[0].right, tuple) else 0
    off = (row for row, field in enumerate(fields) if field.is_wrong(given[row]))
    first = next(off, None) if result.targets and not task.targets else None
    boxes = []
    for row, (field, value) in enumerate(zip(fields, given, strict=True)):
        words = (value or "?" * slots) if slots else ["?" if value is None else field.shown(value)]
        for at, word in enumerate(words):
            tone = lighter(KINDS[word[0]][1], 0.1) if slots and word[0] in KINDS else PALE
            boxes.append(draw.span(row, at, at + 1, tone, word))
    figure = titled_canvas(0.6 + 0.3 * len(fields), title)
    axes = figure.subplots()
    draw.lanes(axes, [field.what for field in fields], boxes)
    axes.set(xlim=(0, slots or 1), xticks=[])
    if first is not None:
        same = (
            [a == b for a, b in zip(given[first], fields[first].right, strict=True)]
            if slots
            else []
        )
        at = first * slots + same.index(False) if slots else first
        draw.mark_box(axes, boxes[at].at, fields[first].what)
    figure.lay_out()
    draw.write(axes, boxes)
    return figure
