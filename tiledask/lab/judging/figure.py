"""Figures of tasks: the title with the verdict, and what an answer reaches beside its targets."""

import textwrap
from typing import Any

from tiledask.lab.judging.result import Result, number
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, PALE, RED, canvas, styled

__all__ = ["draw_targets", "titled", "titled_canvas"]


def titled(task: Any, result: Result, note: str = "") -> str:
    """The heading of ``task``; below it how the answer stands, or else ``note``."""
    if not result.attempted:
        return "\n".join(filter(None, (task.heading, note)))
    stars = f"  {result.score[:3]}" if result.targets else ""
    lines = textwrap.wrap(result.reason, 94, max_lines=3, placeholder=" ...")
    return "\n".join([task.heading + stars, *lines])


def titled_canvas(height: float, title: str) -> draw.Figure:
    """An empty figure of so many inches below the title's first line."""
    return canvas(height + 0.18 * title.count("\n"), title)


@styled
def draw_targets(task: Any, result: Result) -> draw.Figure:
    """A bar for each target, as long as what was reached is of what is wanted: red beyond it. An
    empty frame where there is no legal answer."""
    names = [target.name for target in result.targets] or ["your answer"]
    figure = titled_canvas(0.7 + 0.34 * len(names), titled(task, result))
    axes = figure.subplots()
    draw.lanes(axes, names)
    axes.barh(range(len(names)), 1.0, draw.HEIGHT, color=PALE, zorder=0)
    for row, target in enumerate(result.targets):
        share = target.got / target.wanted if target.wanted else 2.0 * (target.got > 0)
        colour, gid = (GREEN, "met") if target.met else (RED, f"wrong {target.name}")
        axes.barh(row, min(max(share, 0.0), 2.0), draw.HEIGHT, color=colour, gid=gid)
        draw.note(axes, (2.6, row), f"{number(target.got)}, {target.goal}", (0, 0), 8)
    axes.set(xlim=(0, 3.2), xticks=[0, 1], xticklabels=["0", "target"])
    return figure
