"""Idle time hatched by its cause: in a row of the time axis, in a bar of shares, in the legend.

device 1   ///[0][1]xx[0]--      beside it, sorted:   ///xx--
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource

from tiledask.lab.dashboard.activity import HEIGHT, Activity, Pause
from tiledask.lab.plots.gantt import IDLE, IdleLook
from tiledask.plan.pipelines.causes import CAUSES

__all__ = ["PAUSE", "hatch", "hatched", "idle_legend"]

PAUSE = ("y", "left", "right", "colour", "ink", "hatch", "words")
"""Columns of a source of pauses."""


def hatch(plot: Any, pauses: ColumnDataSource) -> Any:
    """What draws idle time by its cause in ``plot``."""
    return plot.hbar(
        y="y",
        height=HEIGHT,
        left="left",
        right="right",
        fill_color="colour",
        line_color=None,
        hatch_pattern="hatch",
        hatch_color="ink",
        hatch_scale=8,
        hatch_weight=0.8,
        source=pauses,
    )


def hatched(
    pauses: Sequence[Pause], size: float, how_long: Callable[[Pause], str]
) -> dict[str, Any]:
    """The columns of ``pauses`` for their source; across in units of ``size``."""
    looks = [IDLE[pause.cause] for pause in pauses]
    numbers = np.array([pause[:3] for pause in pauses]).reshape(-1, 3)
    return {
        "y": numbers[:, 0],
        "left": numbers[:, 1] / size,
        "right": numbers[:, 2] / size,
        "colour": [look.colour for look in looks],
        "ink": [look.hatch_colour for look in looks],
        "hatch": [look.hatch for look in looks],
        "words": [f"idle, {CAUSES[pause.cause]}: {how_long(pause)}" for pause in pauses],
    }


def idle_legend(activity: Activity) -> Iterator[tuple[str, str]]:
    """(style of a patch, what it means and its share of all time) of every cause there is."""
    whole = len(activity.rows) * activity.makespan or 1.0
    for cause, words in CAUSES.items():
        if seconds := sum(p.end - p.start for p in activity.pauses if p.cause == cause):
            yield _css(IDLE[cause]), f"{words}: {100 * seconds / whole:.1f} %"


def _css(look: IdleLook) -> str:
    """The style of a patch with that hatch."""
    ink = look.hatch_colour
    line = f"repeating-linear-gradient({{}}deg,{ink} 0 1px,transparent 1px 4px)"
    hatch = {
        "/": [line.format(135)],
        "\\": [line.format(45)],
        "x": [line.format(45), line.format(135)],
        "-": [line.format(0)],
        "+": [line.format(0), line.format(90)],
        "o": [f"radial-gradient(transparent 20%,{ink} 25% 45%,transparent 50%) 0 0/6px 6px"],
        ".": [f"radial-gradient({ink} 25%,transparent 30%) 0 0/4px 4px"],
    }[look.hatch]
    return f"background:{','.join(hatch)},{look.colour}"
