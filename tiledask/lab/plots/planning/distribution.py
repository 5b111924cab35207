"""How often each value comes, of many: where the best of them lies, and where one's own."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, LINES, canvas, lighter, styled

__all__ = ["distribution"]

_BARS = 40
"""The most bars: of more different values, neighbours are drawn together."""


@styled
def distribution(
    values: Iterable[float],
    marks: Mapping[str, float],
    *,
    of: str = "value",
    title: str = "How often each comes",
) -> "Figure":
    """A figure with a bar per value, as high as the value is frequent, and a dashed line at each
    of ``marks``: ``{name: value}``. ``of``: what the values are, with their unit."""
    counts = Counter(values)
    if not counts or not marks:
        raise ConfigError(
            f"distribution draws 1 value or more and 1 mark or more, got {len(counts)} and "
            f"{len(marks)}; pass marks={{'the best': min(values)}}"
        )
    figure = canvas(3.3, title)
    axes = figure.subplots()
    if all(value == int(value) for value in counts):
        draw.whole_ticks(axes.xaxis)
    at, often = np.array(sorted(counts)), [counts[value] for value in sorted(counts)]
    width = float(np.diff(at).min(initial=1.0))
    if len(at) > _BARS:
        often, edges = np.histogram(at, _BARS, weights=often)
        at, width = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    axes.bar(at, often, 0.92 * width, color=lighter(BLUE, 0.35), gid="values")
    top = 1.1 + 0.14 * len(marks)
    axes.set(ylim=(0, top * max(often)), xlabel=of, ylabel="how many")
    low, high = min(*at, *marks.values()), max(*at, *marks.values())
    axes.set_xlim(low - width, high + 0.12 * (high - low) + width)
    for n, (name, value) in enumerate(marks.items()):  # each lower than the one before
        colour, high = LINES[1 + n % (len(LINES) - 1)], 1 - 0.1 * n
        draw.limit_line(axes, value, color=colour, gid=name, ymax=high)
        height = high * top * max(often)
        draw.note(axes, (value, height), f"{name}: {value:g}", (5, -2), color=colour, **draw.BEHIND)
    return figure
