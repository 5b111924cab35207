"""Figures of the ladder: the sheet as filled in, what is off in red; the runs once it is right.

worker 1  [F0][  2: 6 s  ][B0]      a gap has the number of the line of the working that
worker 2  1 [F0][ 2 ][B0] 3         counts it
"""

import re
from collections.abc import Sequence
from typing import Any

from tiledask.lab.idle_ladder.spec import Gap, LevelSpec
from tiledask.lab.judging import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import IDLE, KINDS, gantt
from tiledask.lab.plots.style import INK, PALE, RED, lighter, styled
from tiledask.lab.puzzles.figures.draw_orders import label_devices
from tiledask.lab.puzzles.figures.frame import titled, titled_canvas, write
from tiledask.plan.pipelines.timeline import Timeline

__all__ = [
    "draw_best",
    "draw_fewest",
    "draw_gaps",
    "draw_names",
    "draw_numbers",
    "draw_timetable",
    "draw_working",
]

_Note = tuple[str, bool]
"""Words in a row, and whether they are off."""
_Row = tuple[str, list[_Note]]
"""Its label, and what stands in it."""
_OPEN = ("?", False)
_NARROW = 13
"""Points: less than a number in its frame needs."""


@styled
def draw_working(task: LevelSpec) -> draw.Figure:
    """The runs, each gap with the number of the line that counts it, and its length.

    Gaps are plain grey: a line counts one as a whole, whatever its causes.
    """
    figure = _runs(task, f"{task.title}: each gap with the line that counts it")
    unit = "slots" if task.sheet.drawn == "timetable" else "s"
    _plain(figure, f"idle; line that counts it: length ({unit}), or the line alone")
    if unit == "slots":
        (axes,) = figure.axes[: len(task.runs)]
        axes.set_title(re.sub(r"(?<=\d) s$", " slots", axes.get_title(loc="left")), loc="left")
        axes.set_xlabel("time (slots)")
    for number, line in enumerate(task.lines, 1):
        for gap in line.gaps:
            _label(figure, gap, f"{number}", f"{number}: {gap.end - gap.start:g} {unit}")
    return figure


@styled
def draw_timetable(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """A box per slot; the first slot that is off is framed."""
    sheet = task.sheet
    given = sheet.read(answer) if result.targets else []
    title = titled(task, result)
    figure = titled_canvas(1.2 + 0.34 * sheet.workers, title)
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
def draw_numbers(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """What was given, in its place; the runs once all is right."""
    if result:
        return _runs(task, titled(task, result))
    asked = task.sheet.asked
    if not result.targets:
        return _sheet(titled(task, result), [(a.what, [_OPEN]) for a in asked])
    rows = []
    for a, value in zip(asked, task.sheet.read(answer), strict=True):
        words = a.remark(value) if a.wrong(value) else a.shown(value)
        rows.append((a.what, [(words.removeprefix(f"{a.what} is "), a.wrong(value))]))
    given = task.sheet.read(answer)
    return _sheet(
        titled(task, result), rows, given if len({a.unit.what for a in asked}) == 1 else ()
    )


@styled
def draw_names(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """What was given for each worker, in its row; the run once all is right."""
    if result:
        return _runs(task, titled(task, result))
    workers = _workers(task.runs[0].timeline.devices)
    if not result.targets:
        return _sheet(titled(task, result), [(worker, [_OPEN]) for worker in workers])
    given = task.sheet.read(answer)
    first = task.sheet.wrong(given)[0]
    rows = []
    for w, worker in enumerate(workers):
        own = range(w, len(given), len(workers))
        moments = [task.sheet.asked[i].what.partition(" at ")[2] for i in own]
        notes = [(f"{t}: {given[i]}", i == first) for t, i in zip(moments, own, strict=True)]
        rows.append((worker, notes))
    return _sheet(titled(task, result), rows)


@styled
def draw_gaps(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """The run with a letter in each gap that is asked for; what it was called, if it was. All idle
    time looks alike until every gap has its name, for the hatches tell them."""
    figure = _runs(task, titled(task, result))
    if not result:
        _plain(figure, "idle")
    given = task.sheet.read(answer) if result.targets else []
    wrong = task.sheet.wrong(given) if given else []
    for i, letter in enumerate(task.sheet.labels):
        (gap,) = task.lines[i].gaps
        words = f"{letter} {given[i]}" if given else letter
        _label(figure, gap, letter, words, i in wrong[:1])
    return figure


@styled
def draw_fewest(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """The run of the number that was chosen; before that the empty sheet."""
    if not result.targets:
        return _sheet(titled(task, result), [("micro-batches", [_OPEN])])
    m = task.sheet.read(answer)
    run = task.sheet.run(m)
    words = f"{task.runs[0].facts}, {m} micro-batch{'es' * (m > 1)}"
    return _named(gantt(run, titles=[words], title=titled(task, result)), [run])


@styled
def draw_best(task: LevelSpec, answer: Any, result: Result) -> draw.Figure:
    """What was given, off in red; the run once it is right: its title says the seconds."""
    if result:
        return _runs(task, titled(task, result))
    given = task.sheet.read(answer) if result.targets else ()
    time, number = result.targets or (None, None)
    rows: list[_Row] = [("micro-batches", [_OPEN]), ("seconds", [_OPEN])]
    if given:
        rows[0] = "micro-batches", [(f"{given[0]}", not number.met)]
        rows[1] = "seconds", [(f"{given[1]:g} s", not time.met)]
    return _sheet(titled(task, result), rows)


def _plain(figure: draw.Figure, words: str) -> None:
    """None, once all idle time looks alike and the legend has ``words`` for it."""
    for axes in figure.axes:
        for boxes in axes.collections:
            if boxes.get_gid() in IDLE:
                boxes.set(facecolor=PALE, hatch=None)
    (legend,) = figure.legends
    named = zip(legend.legend_handles, (t.get_text() for t in legend.get_texts()), strict=True)
    kept = [(h, label) for h, label in named if not label.startswith("idle") and h.get_visible()]
    legend.remove()
    handles, labels = zip(*kept, (draw.patch_entry(words, PALE), words), strict=True)
    figure.legend(handles, labels, loc="outside lower left", ncols=2)
    figure.lay_out()


def _runs(task: LevelSpec, title: str) -> draw.Figure:
    runs = [run.timeline for run in task.runs]
    figure = gantt(*runs, titles=[run.facts for run in task.runs], title=title)
    return _named(figure, runs)


def _named(figure: draw.Figure, runs: Sequence[Timeline]) -> draw.Figure:
    for axes, run in zip(figure.axes, runs, strict=False):
        label_devices(axes, [(words, False) for words in _workers(run.devices)])
    return figure


def _workers(p: int) -> list[str]:
    return [f"worker {w + 1}" for w in range(p)]


def _label(figure: draw.Figure, gap: Gap, short: str, words: str, wrong: bool = False) -> None:
    """``words`` in the middle of a gap if they fit, else the short ones; a letter always."""
    axes = figure.axes[gap.run]
    room = (gap.end - gap.start) * draw.points_per_unit(axes)[0]
    if room < _NARROW and short.isdigit():
        return
    text = words if 7.5 * 0.64 * len(words) + 6 <= room or wrong else short
    edge = RED if wrong else INK
    frame = {"facecolor": RED if wrong else "white", "edgecolor": edge, "linewidth": 0.6}
    look = {"va": "center_baseline", "fontweight": "bold", "color": "white" if wrong else INK}
    look |= {"bbox": frame | {"boxstyle": "round,pad=0.22"}, "zorder": 7, "gid": f"gap {short}"}
    box = (gap.start, gap.worker - 0.5, gap.end - gap.start, 1)
    draw.text_in(axes, box, text, frame["facecolor"], **look)


def _sheet(title: str, rows: "Sequence[_Row]", lengths: Sequence[float] = ()) -> draw.Figure:
    """A row for each thing that is asked for, and what was given, off in red.

    ``lengths``: what was given in one unit, a bar each; without them the rows are cells.
    """
    figure = titled_canvas(0.6 + 0.3 * len(rows), title)
    axes = figure.subplots()
    draw.lanes(axes, [label for label, _ in rows])
    axes.barh(range(len(rows)), 1.0, draw.HEIGHT, color="white", edgecolor=PALE)
    longest = max(map(abs, lengths), default=0.0) or 1.0
    bars = [abs(length) / longest for length in lengths]
    axes.barh(range(len(bars)), bars, draw.HEIGHT, color=PALE, gid="given")
    axes.set(xlim=(0, 1), xticks=[])
    axes.spines[["bottom"]].set_visible(False)
    for row, (_, notes) in enumerate(rows):
        for n, (words, wrong) in enumerate(notes):
            colour, weight, gid = (RED, "bold", "wrong") if wrong else (INK, "normal", "given")
            look = {"va": "center_baseline", "color": colour, "fontweight": weight, "gid": gid}
            box = (n / len(notes), row - 0.5, 1 / len(notes), 1)
            draw.text_in(axes, box, words, "white", 8.5, **look)
    return figure
