"""Figures of schedules that were chosen or asked about: Gantt charts of their simulated runs."""

from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.result import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import gantt
from tiledask.lab.plots.style import INK, PALE, RED, styled
from tiledask.lab.puzzles.choices import CHOICE, Choice, chunks_of, run_choice, run_setting
from tiledask.lab.puzzles.figures.draw_orders import label_devices, mark_end
from tiledask.lab.puzzles.figures.frame import titled, titled_canvas
from tiledask.lab.puzzles.kind import PuzzleSpec
from tiledask.lab.puzzles.questions import QUESTION, right_answers, setting_of

__all__ = ["draw_choice", "draw_question"]


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
    first = next(guess for guess in CHOICE.guesses(puzzle.inputs))
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
            (f"device {d}, keeps {n / chunks:g} of {room:g}", judged and n / chunks > room)
            for d, n in enumerate(peaks)
        ],
    )


def _name(setting: dict) -> str:
    chunks = chunks_of(setting)
    count = setting["microbatches"]
    words = f"{setting['schedule']}, {count} micro-batch{'es' * (count != 1)}"
    return words if chunks == 1 else f"{words}, {chunks} chunks"


@styled
def draw_question(puzzle: PuzzleSpec, answer: Any, result: Result) -> draw.Figure:
    """What the simulator says, once there is an answer; until then devices that hide it."""
    asks = puzzle.inputs["asks"]
    settings: dict[str, dict] = {}
    for ask in asks:
        setting = setting_of(ask)
        settings.setdefault(f"{setting['devices']} devices, {_name(setting)}", setting)
    if not result.targets:
        return _hidden(titled(puzzle, result), settings)
    runs = {name: run_setting(setting) for name, setting in settings.items()}
    figure = gantt(*runs.values(), titles=list(runs), title=titled(puzzle, result))
    given = QUESTION.read(puzzle.inputs, answer)
    for ask, mine, right in zip(asks, given, right_answers(puzzle.inputs), strict=True):
        if "time" in ask:
            row = list(settings.values()).index(setting_of(ask))
            axes, device = figure.axes[row], ask["device"]
            colour, width, gid = (INK, 2, "asked") if mine == right else (RED, 4, "wrong asked")
            ends = [device - 0.45, device + 0.45]
            draw.curve(axes, [ask["time"]] * 2, ends, colour, width, zorder=6, gid=gid)
    return figure


def _hidden(title: str, settings: dict[str, dict]) -> draw.Figure:
    """Rows of devices, with a question mark where the run would be."""
    rows = [setting["devices"] for setting in settings.values()]
    figure = titled_canvas(0.6 + sum(0.5 + 0.3 * n for n in rows), title)
    panels = draw.stacked_axes(figure, rows)
    for axes, (name, setting), n in zip(panels, settings.items(), rows, strict=True):
        draw.lanes(axes, [f"device {d}" for d in range(n)])
        axes.barh(range(n), 1.0, draw.HEIGHT, color=PALE)
        for d in range(n):
            draw.text_in(axes, (0, d - 0.5, 1, 1), "?", PALE, 12, color=INK)
        times = {"forward": "F", "backward": "B"}
        seconds = ", ".join(
            f"{k} {setting[name]:g} s" for name, k in times.items() if name in setting
        )
        axes.set(title=f"{name}: a device takes {seconds}", xlim=(0, 1), xticks=[])
    return figure
