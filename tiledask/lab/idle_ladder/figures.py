"""Figures of the ladder: the fields as filled in, what is off in red; the runs once it is right."""

from typing import Any

from tiledask.lab.judging import Result
from tiledask.lab.judging.figure import titled, titled_canvas
from tiledask.lab.judging.reading import Unit
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.gantt import KINDS, gantt
from tiledask.lab.plots.style import INK, PALE, RED, lighter, styled

__all__ = ["draw_level"]


@styled
def draw_level(task: Any, answer: Any, result: Result) -> draw.Figure:
    """A row for each field, or a box for each slot; the runs once all is right."""
    title = titled(task, result)
    if result:
        runs = [run.timeline for run in task.runs]
        lanes = [f"worker {w + 1}" for w in range(max(run.devices for run in runs))]
        return gantt(*runs, titles=[run.facts for run in task.runs], title=title, lanes=lanes)
    given: list[Any] = task.read(answer) if result.targets else [None] * len(task.fields)
    slots = len(task.fields[0].right) if isinstance(task.fields[0].right, tuple) else 0
    figure = titled_canvas(0.6 + 0.3 * len(given) + 0.4 * bool(slots), title)
    axes = figure.subplots()
    draw.lanes(axes, [field.what for field in task.fields])
    axes.spines[["bottom"]].set_visible(False)
    axes.set(xlim=(0, slots or 1), xticks=[])
    named, marked = not isinstance(task.fields[0].unit, Unit), False  # of words the first alone
    for row, (field, value) in enumerate(zip(task.fields, given, strict=True)):
        if slots:
            _draw_slots(axes, row, value or ["?"] * slots)
            continue
        (box,) = draw.stack(axes, row, [("given", 1, "white")], edgecolor=PALE)
        wrong, words = False, "?" if value is None else field.shown(value)
        if value is not None and task.targets:  # who says why without naming a side
            wrong = True
        elif value is not None and field.is_wrong(value) and not (named and marked):
            wrong, words = True, field.remark(value)
        marked = marked or wrong
        look = {"color": RED, "fontweight": "bold", "gid": "wrong"} if wrong else {"color": INK}
        draw.text_in(axes, box, words.removeprefix(f"{field.what} is "), "white", 8.5, **look)
    if slots:
        axes.set_xticks([s + 0.5 for s in range(slots)], [f"{s + 1}" for s in range(slots)])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("slot")
    if slots and result.targets:  # the first slot that is off
        slot, row = task.first_slot_off(given)
        draw.mark_box(axes, (slot, row - draw.HEIGHT / 2, 1, draw.HEIGHT), f"slot {slot + 1}")
    return figure


def _draw_slots(axes: draw.Axes, row: int, words: list[str]) -> None:
    tones = [lighter(KINDS[word[0]][1], 0.1) if word[0] in KINDS else PALE for word in words]
    boxes = draw.stack(axes, row, [("slot", 1, tone) for tone in tones])
    for box, word, tone in zip(boxes, words, tones, strict=True):
        draw.text_in(axes, box, word, tone)
