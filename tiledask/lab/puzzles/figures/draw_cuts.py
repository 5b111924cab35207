"""Figures of layers on devices: a row per device (or stage), as wide as its time, and its memory.

device 1   [1][2][3][4][5][6]|send      :  <- target        red: what is wrong
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledask.errors import PartitionError
from tiledask.lab.judging.figure import titled, titled_canvas
from tiledask.lab.judging.result import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREY, INK, ORANGE, PALE, RED, colour_of_rank, styled
from tiledask.lab.puzzles.figures.frame import limit_line, write
from tiledask.lab.puzzles.kind import PuzzleSpec
from tiledask.plan.splitting.assignment import read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.partition import stage_name

__all__ = ["draw_cut", "draw_partition"]

_GB = 1e9


@styled
def draw_partition(puzzle: PuzzleSpec, answer: Any, result: Result) -> draw.Figure:
    """Rows of layers, as wide as their time; limits as lines; what breaks a rule in red."""
    shown = puzzle.inputs.get("shown")
    if answer is None and shown is not None:
        note = f"as proposed: {shown}"
        return draw_cut(titled(puzzle, result, note), puzzle.inputs, puzzle.targets, shown)
    return draw_cut(titled(puzzle, result), puzzle.inputs, puzzle.targets, answer)


def draw_cut(
    title: str, inputs: Mapping[str, Any], targets: Mapping[str, float], answer: Any
) -> draw.Figure:
    """The layers of ``answer``, or all of them in one row if it is none."""
    view = _View.of(inputs, answer)
    heights = [0.8 + 0.3 * len(view.labels)]
    if "memory" in inputs:
        heights.append(0.8 + 0.3 * (inputs["devices"] + (not view.stages)))
    if hasattr(inputs.get("communication"), "__len__"):
        heights.append(1.1)
    figure = titled_canvas(0.5 + sum(heights), title)
    panels = iter(draw.stacked_axes(figure, heights))
    axes = next(panels)
    words = {axes: _time_panel(axes, view, targets.get("bottleneck"))}
    if "memory" in inputs:
        axes = next(panels)
        words[axes] = _memory_panel(axes, view)
    if hasattr(inputs.get("communication"), "__len__"):
        # what it takes to send across each cut; the cuts of the answer in another colour
        axes, sends = next(panels), view.inputs["communication"]
        cuts = {layers[-1] for layers in view.stages if layers} - {len(sends) + 1}
        after = range(1, len(sends) + 1)
        axes.bar(after, sends, 0.6, color=[ORANGE if n in cuts else GREY for n in after])
        axes.set(xticks=after, xlabel="layer")
        axes.set_title("time to send if cut after this layer (orange: cut here)")
    write(figure, words)
    return figure


@dataclass(frozen=True)
class _View:
    """An answer as rows to draw."""

    inputs: Mapping[str, Any]
    stages: tuple[tuple[int, ...], ...]
    """The layers of each row, from 1; none if there is no answer that can be read."""
    missing: tuple[int, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, inputs: Mapping[str, Any], answer: Any) -> "_View":
        devices, chunks, layers = inputs["devices"], inputs.get("chunks", 1), len(inputs["costs"])
        try:
            groups = [] if answer is None else read_assignment(answer, layers, devices * chunks)
        except PartitionError:
            groups = []
        if sum(map(len, groups)) > 20 * layers:  # nothing to look at
            groups = []
        if not groups:
            empty = [_label(inputs, s) for s in range(devices * chunks)]
            return cls(inputs, (), (), ("layers", *empty))
        stages = tuple(map(tuple, stages_of(groups, devices, chunks)))
        there = {n for group in stages for n in group}
        missing = tuple(n for n in range(1, layers + 1) if n not in there)
        labels = [_label(inputs, s) for s in range(len(stages))]
        return cls(inputs, stages, missing, (*labels, "missing") if missing else tuple(labels))

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The layers of every row that has any, the missing ones last."""
        everything = tuple(range(1, len(self.inputs["costs"]) + 1))
        return [*self.stages, self.missing] if self.stages else [everything]

    def device(self, row: int) -> int | None:
        """The device of a row of layers; None for layers that have none."""
        return row % self.inputs["devices"] if row < len(self.stages) else None

    def time(self, n: int, row: int) -> float:
        """Seconds of layer ``n`` in this row; 1 for a layer that there is not."""
        cost = self.inputs["costs"][n - 1] if self.known(n) else 1.0
        device, speeds = self.device(row), self.inputs.get("speeds")
        return cost / speeds[device] if speeds and device is not None else cost

    def known(self, n: int) -> bool:
        return 1 <= n <= len(self.inputs["costs"])

    def send(self, row: int) -> float:
        """Seconds to send after the row's last layer."""
        sends, layers = self.inputs.get("communication", 0.0), self.rows[row]
        if not layers or not self.stages or not self.known(layers[-1]):
            return 0.0
        if layers[-1] == len(self.inputs["costs"]) or self.inputs["devices"] == 1:
            return 0.0
        return sends[layers[-1] - 1] if hasattr(sends, "__len__") else sends

    def wrong(self, row: int) -> list[int]:
        """Positions in the row of layers that break a rule."""
        times = Counter(n for group in self.stages for n in group)
        layers = self.rows[row]
        if self.stages and row == len(self.stages):
            return list(range(len(layers)))
        before = self.rows[row - 1] if row else ()
        late = bool(row and layers and before and layers[0] < before[0])
        return [
            i
            for i, n in enumerate(layers)
            if not self.known(n)
            or times[n] > 1
            or (i and n != layers[i - 1] + 1)
            or (late and not i)
        ]

    def colour(self, row: int):
        device = self.device(row)
        return PALE if device is None else colour_of_rank(device)


def _label(inputs: Mapping[str, Any], stage: int) -> str:
    devices, chunks, speeds = inputs["devices"], inputs.get("chunks", 1), inputs.get("speeds")
    name = stage_name(stage, devices, chunks)
    if stage >= devices * chunks:
        return f"no {name}"
    return f"{name}, speed {speeds[stage]:g}" if speeds and chunks == 1 else name


def _time_panel(axes: draw.Axes, view: _View, limit: float | None) -> dict[draw.Box, tuple]:
    """The layers of each row, as wide as their time; the words to write into their boxes."""
    draw.lanes(axes, view.labels)
    words: dict = {}
    for row, layers in enumerate(view.rows):
        wrong, tone = set(view.wrong(row)), view.colour(row)
        parts = [(f"layer {n}", view.time(n, row), tone) for n in layers]
        for i, box in enumerate(draw.stack(axes, row, parts)):
            words[box] = (f"{layers[i]}", tone)
            if i in wrong:
                draw.mark_box(axes, box, f"layer {layers[i]}")
        x, sent = sum(length for _, length, _ in parts), view.send(row)
        if sent:
            box = (x, row - draw.HEIGHT / 2, sent, draw.HEIGHT)
            draw.box(axes, box, PALE, hatch="////", edgecolor=GREY, gid="send")
            words[box] = ("send", PALE)
        if not layers and row < len(view.stages):
            axes.text(0, row, " no layer", color=RED, va="center", fontweight="bold", gid="wrong")
        if limit is not None and view.device(row) is not None:
            draw.mark_excess(axes, row, limit, x + sent)
    axes.set_xlim(left=0)
    if limit is not None:
        # between which rows the devices stand: not that of layers that no device holds
        first = 0 if view.stages else 1
        limit_line(
            axes,
            limit,
            f"target: at most {limit:g}",
            rows=(first - 0.5, len(view.labels) - bool(view.missing) - 0.5),
        )
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_xlabel("time of the layers")
    return words


def _memory_panel(axes: draw.Axes, view: _View) -> dict[draw.Box, tuple]:
    """The bytes of the layers of each device, and what it has room for; the words as well."""
    inputs, words = view.inputs, {}
    devices = inputs["devices"]
    caps = [c / _GB for c in capacities(inputs["capacity"], devices)]
    first = 0 if view.stages else 1  # the row of layers that have no device yet
    names = [stage_name(d, devices) for d in range(devices)]
    draw.lanes(axes, ["layers", *names] if first else names)
    ends = [0.0] * (devices + first)
    for row, layers in enumerate(view.rows):
        device = view.device(row)
        if view.stages and (device is None or row >= devices * inputs.get("chunks", 1)):
            continue
        at = 0 if device is None else device
        for n in filter(view.known, layers):
            width, tone = inputs["memory"][n - 1] / _GB, view.colour(row)
            box = (ends[at], at - draw.HEIGHT / 2, width, draw.HEIGHT)
            draw.box(axes, box, tone)
            words[box] = (f"{n}", tone)
            ends[at] += width
    for d, cap in enumerate(caps, first):
        look = {"label": "" if d > first else "room on the device", "gid": "capacity"}
        draw.curve(axes, [cap, cap], [d - 0.45, d + 0.45], INK, 2, **look)
        draw.mark_excess(axes, d, cap, ends[d])
    axes.set(xlim=(0, 1.03 * max(*caps, *ends)), xlabel="memory of the layers (GB)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    return words
