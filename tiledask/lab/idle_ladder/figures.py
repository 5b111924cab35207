"""Figures of the ladder: the sheet as filled in, what is off in red; the runs once it is right.

worker 1's idle time   [ 10 s ]          idle, 6 to 14 s: [A drain]
worker 2's idle time   [ not 8 s: too low, near ]
"""

from typing import Any

from tiledask.lab.judging import Result
from tiledask.lab.judging.figure import titled, titled_canvas
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import IDLE, KINDS, gantt
from tiledask.lab.plots.style import INK, PALE, RED, lighter, styled
from tiledask.lab.puzzles.figures.draw_orders import label_devices
from tiledask.lab.puzzles.figures.frame import write

__all__ = ["draw_gaps", "draw_sheet", "draw_timetable"]


@styled
def draw_sheet(task: Any, answer: Any, result: Result) -> draw.Figure:
    """A row for each thing that is asked for, and what was given, off in red; the runs once all is
    right."""
    if result:
        return _runs(task, titled(task, result))
    rows = task.sheet.rows(task.sheet.read(answer) if result.targets else None)
    figure = titled_canvas(0.6 + 0.3 * len(rows), titled(task, result))
    axes = figure.subplots()
    draw.lanes(axes, [label for label, _, _ in rows])
    axes.barh(range(len(rows)), 1.0, draw.HEIGHT, color="white", edgecolor=PALE)
    axes.set(xlim=(0, 1), xticks=[])
    axes.spines[["bottom"]].set_visible(False)
    for row, (_, words, wrong) in enumerate(rows):
        colour, weight, gid = (RED, "bold", "wrong") if wrong else (INK, "normal", "given")
        look = {"va": "center_baseline", "color": colour, "fontweight": weight, "gid": gid}
        draw.text_in(axes, (0, row - 0.5, 1, 1), words, "white", 8.5, **look)
    return figure


@styled
def draw_timetable(task: Any, answer: Any, result: Result) -> draw.Figure:
    """A box per slot; the first slot that is off is framed."""
    sheet = task.sheet
    given = sheet.read(answer) if result.targets else []
    figure = titled_canvas(1.2 + 0.34 * sheet.workers, titled(task, result))
    axes = figure.subplots()
    draw.lanes(axes, _workers(sheet.workers))
    words: dict = {}
    for worker in range(sheet.workers):
        row = given[worker] if given else sheet.words[-1:] * sheet.slots
        tones = [lighter(KINDS[word[0]][1], 0.1) if word[0] in KINDS else PALE for word in row]
        boxes = draw.stack(axes, worker, [(None, 1, tone) for tone in tones])
        for box, word, tone in zip(boxes, row, tones, strict=True):
            words[box] = (word if given else "?", tone)
    wrong = sheet.wrong(given) if given else []
    for slot, worker in wrong:
        if slot == wrong[0][0]:
            box = (slot, worker - draw.HEIGHT / 2, 1, draw.HEIGHT)
            draw.mark_box(axes, box, f"slot {slot + 1}")
    axes.set_xlim(0, sheet.slots)
    axes.set_xticks([s + 0.5 for s in range(sheet.slots)], [f"{s + 1}" for s in range(sheet.slots)])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("slot")
    write(figure, {axes: words})
    return figure


@styled
def draw_gaps(task: Any, answer: Any, result: Result) -> draw.Figure:
    """The run with a letter in each gap that is asked for; what it was called, if it was. All idle
    time looks alike until every gap has its name, for the hatches tell them."""
    figure = _runs(task, titled(task, result))
    if not result:
        _alike(figure)
    given = task.sheet.read(answer) if result.targets else []
    wrong = task.sheet.wrong(given) if given else []
    axes = figure.axes[0]
    for i, (letter, gap) in enumerate(zip(task.sheet.labels, task.sheet.gaps, strict=True)):
        box = (gap.start, gap.worker - 0.5, gap.end - gap.start, 1)
        room = box[2] * draw.points_per_unit(axes)[0]
        words = f"{letter} {given[i]}" if given else letter
        off = i in wrong[:1]
        text = words if 7.5 * 0.64 * len(words) + 6 <= room or off else letter
        frame = {"facecolor": RED if off else "white", "edgecolor": RED if off else INK}
        look = {"va": "center_baseline", "fontweight": "bold", "color": "white" if off else INK}
        look |= {"bbox": frame | {"linewidth": 0.6, "boxstyle": "round,pad=0.22"}, "zorder": 7}
        draw.text_in(axes, box, text, frame["facecolor"], gid=f"gap {letter}", **look)
    return figure


def _alike(figure: draw.Figure) -> None:
    """None, once all idle time looks alike."""
    for axes in figure.axes:
        for boxes in axes.collections:
            if boxes.get_gid() in IDLE:
                boxes.set(facecolor=PALE, hatch=None)
    (legend,) = figure.legends
    named = zip(legend.legend_handles, (t.get_text() for t in legend.get_texts()), strict=True)
    kept = [(h, label) for h, label in named if not label.startswith("idle") and h.get_visible()]
    legend.remove()
    handles, labels = zip(*kept, (draw.patch_entry("idle", PALE), "idle"), strict=True)
    figure.legend(handles, labels, loc="outside lower left", ncols=2)
    figure.lay_out()


def _runs(task: Any, title: str) -> draw.Figure:
    runs = [run.timeline for run in task.runs]
    figure = gantt(*runs, titles=[run.facts for run in task.runs], title=title)
    for axes, run in zip(figure.axes, runs, strict=False):
        label_devices(axes, [(words, False) for words in _workers(run.devices)])
    return figure


def _workers(p: int) -> list[str]:
    return [f"worker {w + 1}" for w in range(p)]
