"""An activity as it is drawn, whatever it comes from: boxes in rows, idle shares, and numbers.

row 0   [F0][F1]....[B0]      boxes with a text and a colour, thin marks for transfers,
row 1   ////[F0][B0]....      and per row: idle = 1 - (union of its busy intervals) / makespan,
                              hatched by its cause where that is known
"""

from dataclasses import dataclass
from typing import NamedTuple

from tiledask.lab.plots.style import INK
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.units import format_seconds

__all__ = ["HEIGHT", "Activity", "Pause", "RowBox", "interval", "stacked", "transfer_box"]

HEIGHT = 0.72
"""Of a row's boxes, in rows: the matplotlib Gantt's."""


class RowBox(NamedTuple):
    """A rectangle in a row: seconds across, rows down."""

    row: float
    """Where its middle is."""
    height: float
    start: float
    end: float
    text: str
    colour: str
    """#rrggbb, and ink is readable on it."""
    ink: str
    words: str
    """All about it, in a line."""


class Pause(NamedTuple):
    """Idle time of a row, of which the cause is known."""

    row: int
    start: float
    end: float
    cause: str
    """One of plan's CAUSES."""


@dataclass(frozen=True)
class Activity:
    """What is drawn: rows of boxes, the idle share of each row, and the numbers above them."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """(name, value), in the order they are read."""
    rows: tuple[str, ...]
    boxes: tuple[RowBox, ...]
    transfers: tuple[RowBox, ...]
    makespan: float
    """Seconds from the first start to the last end."""
    idle: tuple[float, ...]
    """Per row, as a share of the makespan; nan where it is not known yet."""
    predicted: tuple[float, ...] | None
    """The same as somebody predicted it, or None."""
    legend: tuple[tuple[str, str], ...]
    """(#rrggbb, what it means) for every colour in use."""
    note: str = ""
    """What a reader must know besides."""
    pauses: tuple[Pause, ...] = ()
    """Idle time whose cause is known; of a row they are apart."""
    until: float = 0.0
    """Seconds up to which the time axis goes, if that is more than the makespan."""
    numbers: str = ""
    """What the number in a box is."""


def stacked(activity: Activity) -> list[Pause]:
    """Per row and cause, all idle time as a share of the makespan, one cause after the other."""
    seconds: dict[tuple[int, str], float] = {}
    for at, start, end, cause in activity.pauses:
        seconds[at, cause] = seconds.get((at, cause), 0.0) + end - start
    made, ends = [], dict.fromkeys(range(len(activity.rows)), 0.0)
    for cause in CAUSES:
        for at, reach in ends.items():
            if length := seconds.get((at, cause), 0.0) / (activity.makespan or 1.0):
                made.append(Pause(at, reach, reach + length, cause))
                ends[at] += length
    return made


def transfer_box(row: int, start: float, end: float) -> RowBox:
    """A thin mark under the boxes of the row that receives."""
    return RowBox(
        row + HEIGHT / 2 + 0.07,
        0.08,
        start,
        end,
        "",
        INK,
        INK,
        f"transfer to this row: {interval(start, end)}",
    )


def interval(start: float, end: float) -> str:
    """How long, and from when, in words."""
    return f"{format_seconds(end - start)}, begun after {format_seconds(start)}"
