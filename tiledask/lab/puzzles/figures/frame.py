"""The frame that figures of puzzles share: the title with the verdict, rows for devices, limits."""

import textwrap

from tiledask.lab.judging.result import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import RED, canvas
from tiledask.lab.puzzles.kind import PuzzleSpec

__all__ = ["limit_line", "titled", "titled_canvas", "write"]

_LINE, _LINES = 94, 3


def titled(puzzle: PuzzleSpec, result: Result, note: str = "") -> str:
    """The puzzle's title; below it how the answer stands, or else ``note``."""
    if not result.attempted:
        return "\n".join(filter(None, (puzzle.title, note)))
    stars = f"  {result.score[:3]}" if result.targets else ""
    lines = textwrap.wrap(result.reason, _LINE)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{lines[_LINES - 1][: _LINE - 4]} ..."]
    return "\n".join([puzzle.title + stars, *lines])


def titled_canvas(height: float, title: str) -> draw.Figure:
    """An empty figure of so many inches below the title's first line."""
    return canvas(height + 0.18 * title.count("\n"), title)


def limit_line(
    axes: draw.Axes, at: float, words: str, rows: tuple[float, float] | None = None
) -> None:
    """A red line at a target, through all rows or from one to another, and room for it."""
    look = {"linestyle": "--", "label": words, "zorder": 5, "gid": "target"}
    if rows is None:
        draw.limit_line(axes, at, color=RED, linewidth=1.5, **look)
    else:
        draw.curve(axes, [at, at], rows, RED, 1.5, **look)
    low, high = axes.get_xlim()
    axes.set_xlim(low, max(high, at * 1.03))


def write(figure: draw.Figure, words: dict[draw.Axes, dict[draw.Box, tuple]]) -> None:
    """Write (text, colour of the box) into every box of every panel that has room for it."""
    figure.lay_out()
    for axes, of_panel in words.items():
        for box, (text, tone) in of_panel.items():
            draw.fitting_text(axes, box, text, tone)
