"""Figures of answers to puzzles: what was written is drawn, also when it is wrong."""

from typing import TYPE_CHECKING

from tiledask.errors import PartitionError, ScheduleError
from tiledask.lab.plots.gantt import gantt
from tiledask.lab.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PALETTE,
    RED,
    canvas,
    fitting_text,
    lighter,
    styled,
)
from tiledask.lab.puzzles import Puzzle, Result, read_order, run_microbatches, run_order
from tiledask.plan.judge import read_assignment
from tiledask.plan.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_microbatches", "draw_order", "draw_partition"]

_HEIGHT = 0.72
_LONGEST_TITLE = 88
Box = tuple[float, float, float, float]


@styled
def draw_partition(puzzle: Puzzle, answer, result: Result) -> "Figure":
    """A row of layers per device, as wide as their time; the target as a line."""
    costs, devices = puzzle.inputs["costs"], puzzle.inputs["devices"]
    speeds = puzzle.inputs.get("speeds", [1.0] * devices)
    try:
        groups = [] if answer is None else read_assignment(answer)
    except PartitionError:
        groups = []
    rows = max(devices, len(groups))
    figure = canvas(1.3 + 0.34 * (rows if groups else 1), _title(puzzle, result))
    axes = figure.subplots()
    if not groups:
        _device_rows(axes, ["no device yet"])
        words = _layer_row(axes, 0, range(1, len(costs) + 1), costs, 1.0, PALE)
    else:
        _device_rows(axes, [f"device {d}" for d in range(rows)])
        words = {}
        for d, group in enumerate(groups):
            speed = speeds[d] if d < devices else 1.0
            words |= _layer_row(axes, d, group, costs, speed, PALETTE[d % len(PALETTE)])
    limit = puzzle.targets.get("bottleneck")
    if limit is not None and groups:
        axes.axvline(limit, color=RED, linestyle="--", label=f"target: at most {limit:g}")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_xlabel("time of the layers")
    axes.set_xlim(left=0)
    _write(figure, axes, words)
    return figure


def _layer_row(axes: "Axes", row: int, group, costs, speed: float, colour) -> dict[Box, tuple]:
    """Draw the layers of ``group`` side by side; the words to write in each, by box."""
    x, words = 0.0, {}
    for n in group:
        known = 1 <= n <= len(costs)
        width = (costs[n - 1] if known else 1.0) / speed
        tone = lighter(colour, 0.1) if known else lighter(RED, 0.5)
        axes.barh(row, width, _HEIGHT, left=x, color=tone, edgecolor="white", gid=f"layer {n}")
        words[(x, row - _HEIGHT / 2, width, _HEIGHT)] = (f"{n}", tone)
        x += width
    return words


@styled
def draw_microbatches(puzzle: Puzzle, answer, result: Result) -> "Figure":
    """Idle share against the number of micro-batches; the target as a line, the answer as a dot."""
    most = 2 * puzzle.targets.get("microbatches", 16)
    tried = result.targets and answer
    shown = range(1, 1 + max(most, tried or 0), 1 + max(most, tried or 0) // 64)
    idle = [run_microbatches(puzzle.inputs, m).bubble_fraction for m in shown]
    figure = canvas(3.2, _title(puzzle, result))
    axes = figure.subplots()
    axes.plot(shown, idle, color=BLUE, marker=".", label="simulated")
    limit = puzzle.targets.get("idle")
    if limit is not None:
        axes.axhline(limit, color=RED, linestyle="--", label=f"target: at most {limit:g}")
    if tried:
        reached = run_microbatches(puzzle.inputs, answer).bubble_fraction
        axes.plot([answer], [reached], "o", color=ORANGE, label=f"answer: {answer}", gid="answer")
    axes.set_xlabel("micro-batches")
    axes.set_ylabel("idle / (devices x makespan)")
    axes.set_ylim(0, 1)
    axes.legend()
    return figure


@styled
def draw_order(puzzle: Puzzle, answer, result: Result) -> "Figure":
    """The run as a Gantt chart if the order can run; else the order as written."""
    try:
        if answer is not None:
            order = read_order(puzzle.inputs, answer)
            run = run_order(puzzle.inputs, order)
            return gantt(run, titles=["your order"], title=_title(puzzle, result))
    except ScheduleError:
        pass
    try:
        orders = Schedule.from_text(answer).orders if isinstance(answer, str) else ()
    except ScheduleError:
        orders = ()
    rows = max(puzzle.inputs["stages"], len(orders))
    figure = canvas(1.1 + 0.34 * rows, _title(puzzle, result))
    axes = figure.subplots()
    _device_rows(axes, [f"device {d}" for d in range(rows)])
    words = {}
    for row, order in enumerate(orders):
        for x, action in enumerate(order):
            tone = lighter({"F": BLUE, "B": ORANGE}.get(action.kind, GREY), 0.1)
            axes.barh(row, 1, _HEIGHT, left=x, color=tone, edgecolor="white", gid=str(action))
            words[(x, row - _HEIGHT / 2, 1, _HEIGHT)] = (str(action), tone)
    axes.set_xlabel("turn")
    longest = max(map(len, orders), default=0)
    axes.set_xlim(0, max(longest, 2 * puzzle.inputs["microbatches"]))
    _write(figure, axes, words)
    return figure


def _device_rows(axes: "Axes", labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)


def _write(figure: "Figure", axes: "Axes", words: dict[Box, tuple]) -> None:
    figure.draw_without_rendering()
    for box, (text, tone) in words.items():
        fitting_text(axes, box, text, tone)


def _title(puzzle: Puzzle, result: Result) -> str:
    """The puzzle's title, and how the answer stands, in one or two lines."""
    if not result.attempted:
        return puzzle.title
    reason = result.reason
    if len(reason) > _LONGEST_TITLE:
        reason = reason[:_LONGEST_TITLE].rsplit(" ", 1)[0] + " ..."
    return f"{puzzle.title}\n{reason}"
