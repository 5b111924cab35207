"""Figures of tasks: what was answered, also when it is wrong; red is what is wrong.

device 0   [1][2][3][4][5][6]|send      :  <- target
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tiledask.errors import PartitionError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import INK, PALE, RED, canvas, colour_of_rank, styled
from tiledask.lab.plots.timelines import KINDS, gantt
from tiledask.lab.tasks.kind import Inputs, Targets
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.splitting.partition import capacities, read_assignment, stage_name, stages_of
from tiledask.plan.units import format_seconds

__all__ = ["draw_fields", "draw_layers", "draw_run"]


def _canvas(height: float, title: str) -> Figure:
    """An empty figure of so many inches below the title's first line."""
    return canvas(height + 0.18 * title.count("\n"), title)


@styled
def draw_fields(
    names: Sequence[str],
    given: Sequence[Sequence[str]],
    wrong: tuple[int, int] | None,
    title: str,
) -> Figure:
    """A lane for each field of a level, or target, with the words that were filled in or reached;
    (lane, word) of the first that is off in a red frame."""
    boxes = []
    for row, words in enumerate(given):
        for at, word in enumerate(words):
            action = len(words) > 1 and word[0] in KINDS
            tone = KINDS[word[0]][1] if action else PALE
            boxes.append(draw.span(row, at, at + 1, tone, word))
    figure = _canvas(0.6 + 0.3 * len(names), title)
    axes = figure.subplots()
    draw.lanes(axes, names, boxes)
    axes.set(xlim=(0, max(map(len, given))), xticks=[])
    if wrong:
        row, at = wrong
        draw.mark_box(axes, draw.span(row, at, at + 1, PALE).at, names[row])
    return draw.write(figure, [(axes, boxes)])


# -- puzzles ---------------------------------------------------------------------------------------


def _limit_line(axes: Axes, at: float, words: str) -> None:
    """A red line at a target, and room for it."""
    axes.axvline(at, color=RED, linewidth=1.5, label=words, zorder=5, gid="target")
    axes.set_xlim(0, max(axes.get_xlim()[1], at * 1.03))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


@styled
def draw_layers(inputs: Inputs, targets: Targets, answer: Any, title: str) -> Figure:
    """A row per stage, as wide as its time, named by what its device holds; below them the layers
    that are on none. What breaks a rule is red."""
    costs, sends, limit = inputs["costs"], inputs.get("communication"), targets.get("bottleneck")
    devices, layers = inputs["devices"], range(1, len(costs) + 1)
    speeds = inputs.get("speeds") or [1.0] * devices
    stages = _stages(inputs, answer)
    times = Counter(chain(*stages))
    missing = [n for n in layers if not times[n]]
    odd = {n for n in times if times[n] > 1 or n not in layers} | {*missing}
    rows = [*stages, *[missing] * bool(missing)]
    figure = _canvas(1.3 + 0.3 * len(rows), title)
    axes, longest, boxes = figure.subplots(), limit or 0.0, []
    for row, group in enumerate(rows):
        end, placed, device = 0.0, row < len(stages), row % devices
        tone, speed = (colour_of_rank(device), speeds[device]) if placed else (PALE, 1.0)
        for n in group:
            start, end = end, end + (costs[n - 1] if n in layers else 1.0) / speed
            boxes.append(draw.span(row, start, end, tone, f"{n}", f"layer {n}"))
            if n in odd and times:
                draw.mark_box(axes, boxes[-1].at, f"layer {n}")
        if sends and placed and devices > 1 and group and group[-1] in layers[:-1]:
            start, end = end, end + (sends[group[-1] - 1] if isinstance(sends, list) else sends)
            boxes.append(draw.span(row, start, end, PALE, "send", "send", look={"hatch": "////"}))
        if limit is not None and placed:
            draw.mark_excess(axes, row, limit, end)
        longest = max(longest, end)
    names = _names(inputs, stages) + [("on no device", False)] * bool(missing)
    draw.lanes(axes, [name for name, _ in names], boxes)
    for tick, (_, wrong) in zip(axes.get_yticklabels(), names, strict=True):
        tick.set(color=RED if wrong else INK, fontweight="bold" if wrong else "normal")
    axes.set(xlim=(0, 1.03 * longest), xlabel="time of the layers")
    if limit is not None:
        _limit_line(axes, limit, f"target: at most {limit:g}")
    return draw.write(figure, [(axes, boxes)])


def _stages(inputs: Inputs, answer: Any) -> list[list[int]]:
    """The layers of each stage, right or wrong; all empty if it cannot be read."""
    devices, chunks, layers = inputs["devices"], inputs.get("chunks", 1), len(inputs["costs"])
    try:
        groups = [] if answer is None else read_assignment(answer, layers, devices * chunks)
    except PartitionError:
        groups = []
    few = groups if sum(map(len, groups)) <= 20 * layers else []
    return stages_of(few, devices, chunks)[: devices * chunks]


def _names(inputs: Inputs, stages: Sequence[Sequence[int]]) -> list[tuple[str, bool]]:
    """The name of each stage, with the memory of its device; whether that is too little."""
    devices, memory, speeds = inputs["devices"], inputs.get("memory"), inputs.get("speeds")
    caps, rows = capacities(inputs["capacity"], devices) if memory else [], []
    for s in range(len(stages)):
        device, held = s % devices, 0.0
        words = stage_name(s, devices, inputs.get("chunks", 1))
        words += f", speed {speeds[device]:g}" if speeds else ""
        if memory:
            mine = chain(*stages[device::devices])
            held = sum(memory[n - 1] for n in mine if 1 <= n <= len(memory))
            words += f", {held / 1e9:.3g} of {caps[device] / 1e9:.3g} GB"
        rows.append((words, bool(memory) and held > caps[device]))
    return rows


@styled
def draw_run(run: Timeline, targets: Targets, title: str) -> Figure:
    """The run of an answer, and the target; what is too late in a red frame."""
    wanted, figure = targets.get("makespan"), gantt(run, titles=["the order"], title=title)
    if wanted is not None:
        _limit_line(figure.axes[0], wanted, f"target: end by {format_seconds(wanted)}")
        if run.makespan > wanted * (1 + 1e-9):
            late = (wanted, -0.45, run.makespan - wanted, run.devices - 0.1)
            draw.mark_box(figure.axes[0], late, "end")
    return figure
