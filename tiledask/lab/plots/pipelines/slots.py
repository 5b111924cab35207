"""Which task is in which slot when: what one expects to see on the dashboard, or what happened.

slot 0 |  nap |  nap |            |
slot 1 |  nap |  A1  X  A1 again  |     X: a moment, such as the death of a worker
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import PALE, RED, canvas, colour_named, styled

__all__ = ["slots"]

Stay = tuple[str, float, float]
"""What a task is called, when it begins and when it ends; where these are one, a moment."""
Lanes = Mapping[str, Sequence[Stay]]


@styled
def slots(
    tasks: Lanes | Mapping[str, Lanes],
    *,
    title: str = "Which task is where",
    xlabel: str | None = "time (s)",
) -> "Figure":
    """A figure with a lane for each slot, a box for each of its tasks, in the colour of its name,
    and a red line with its name for each moment. A slot that has no task is idle: grey, as on the
    dashboard. ``xlabel=None``: times say the order alone, and the axis has no numbers.
    ``{title: lanes}`` draws a panel for each, one above the other.

    >>> len(slots({"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": []}).axes)
    1
    """
    panels = _panels(tasks)
    every = [stay for lanes in panels.values() for stays in lanes.values() for stay in stays]
    if not every or any(end < begin for _, begin, end in every):
        raise ConfigError(
            f"slots draws 1 task or more that ends after it begins, got {every}; "
            f"pass {{'slot 0': [('nap', 0, 0.2)]}}"
        )
    rows = [len(lanes) for lanes in panels.values()]
    figure = canvas(1.1 + 0.36 * sum(rows) + 0.4 * (len(rows) - 1), title)
    last = max(end for _, _, end in every)
    every_axes = draw.stacked_axes(figure, rows, sharex=True)
    for axes, (name, lanes) in zip(every_axes, panels.items(), strict=True):
        draw.lanes(axes, list(lanes))
        axes.set(xlim=(0, 1.02 * last), title=name)
        if xlabel is None:
            axes.set_xticks([])
    axes.set(xlabel=xlabel or "order of steps, not to scale")
    figure.lay_out()
    for axes, lanes in zip(every_axes, panels.values(), strict=True):
        for row, (lane, stays) in enumerate(lanes.items()):
            if xlabel is not None and lane.startswith("slot"):
                draw.box(axes, (0, row - draw.HEIGHT / 2, last, draw.HEIGHT), PALE, gid="idle")
            for stay in stays:
                _draw(axes, row, *stay)
    return figure


def _panels(tasks: Mapping[str, Any]) -> dict[str, Lanes]:
    """Lanes by the title of their panel; one without a title if no panels are given."""
    nested = bool(tasks) and all(isinstance(lanes, Mapping) for lanes in tasks.values())
    return dict(tasks) if nested else {"": tasks}


def _draw(axes: "Axes", row: int, name: str, begin: float, end: float) -> None:
    """A task's box in its row, or a moment's line."""
    at = (begin, row - draw.HEIGHT / 2, end - begin, draw.HEIGHT)
    if begin == end:
        draw.curve(axes, [begin] * 2, [row - 0.45, row + 0.45], RED, 2.5, gid=name)
        draw.note(axes, (begin, row), name, color=RED)
    else:
        draw.box(axes, at, colour_named(name), gid=name)
        draw.fitting_text(axes, at, name, colour_named(name))
