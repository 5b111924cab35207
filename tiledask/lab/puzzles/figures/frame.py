"""What figures of puzzles share: limits, and words in boxes."""

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import RED

__all__ = ["limit_line", "write"]


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
