"""Figures of schedules that were chosen: Gantt charts of their simulated runs."""

from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.figure import titled
from tiledask.lab.judging.result import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import gantt
from tiledask.lab.plots.style import styled
from tiledask.lab.puzzles.choices import (
    CHOICE,
    Choice,
    chunks_of,
    first_choice,
    run_choice,
    run_setting,
)
from tiledask.lab.puzzles.figures.draw_orders import label_devices, mark_end
from tiledask.lab.puzzles.kind import PuzzleSpec

__all__ = ["draw_choice"]


@styled
def draw_choice(puzzle: PuzzleSpec, answer: Any, result: Result) -> draw.Figure:
    """The run of what was chosen, its rival's below it; of the first choice for no answer."""
    value, note = _choice(puzzle, answer)
    runs = {_name({**puzzle.inputs, **value}): run_choice(puzzle.inputs, value)}
    if "rival" in puzzle.inputs:
        rival = {**puzzle.inputs, **value, "schedule": puzzle.inputs["rival"]}
        runs[_name(rival)] = run_setting(rival)
    figure = gantt(*runs.values(), titles=list(runs), title=titled(puzzle, result, note))
    _label(figure, puzzle, value, not note)
    mark_end(figure.axes[0], next(iter(runs.values())), puzzle.targets.get("makespan"), not note)
    return figure


def _choice(puzzle: PuzzleSpec, answer: Any) -> tuple[Choice, str]:
    """What is drawn, and a word on it if nobody chose it."""
    try:
        if answer is not None:
            return CHOICE.read(puzzle.inputs, answer), ""
    except (ConfigError, ScheduleError):
        pass
    first = first_choice(puzzle.inputs)
    return CHOICE.read(puzzle.inputs, first), f"for example: {first}"


def _label(figure: draw.Figure, puzzle: PuzzleSpec, value: Choice, judged: bool) -> None:
    """How many activations each device keeps, where that is a target; red if too many."""
    room = puzzle.targets.get("kept")
    if room is None:
        return
    chunks = chunks_of({**puzzle.inputs, **value})
    peaks = run_choice(puzzle.inputs, value).peak_in_flight
    label_devices(
        figure.axes[0],
        [
            (f"device {d + 1}, keeps {n / chunks:g} of {room:g}", judged and n / chunks > room)
            for d, n in enumerate(peaks)
        ],
    )


def _name(setting: dict) -> str:
    chunks = chunks_of(setting)
    count = setting["microbatches"]
    words = f"{setting['schedule']}, {count} micro-batch{'es' * (count != 1)}"
    return words if chunks == 1 else f"{words}, {chunks} chunks"
