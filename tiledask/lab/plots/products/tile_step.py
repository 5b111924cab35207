"""One step of a tile loop: what of A and of B is loaded, and to what of C it is added."""

from collections.abc import Sequence

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, INK, ORANGE, PALE, canvas, lighter, styled
from tiledask.plan.whole import is_whole

__all__ = ["tile_step"]

_MOST = 24
"""Lines of a grid in one direction: a finer one is not drawn."""


@styled
def tile_step(
    m: int,
    n: int,
    k: int,
    tile: int | Sequence[int],
    at: Sequence[int] = (0, 0, 0),
    *,
    blocks: int = 1,
    counted: bool = True,
    title: str = "One step of the tile loop",
) -> "Figure":
    """A figure of A at the left, B above and C between them, cut into tiles, in one step.

    ``tile``: (rows of C, columns of C, of k), or one number for all. ``at``: which tile of C, by
    row and column, and which step along k. The tiles of A and B of this step are filled, those of
    the steps before are pale, and so is the tile of C to which they add. ``blocks`` share a tile,
    one above the other, with a dashed line between them. ``counted``: the legend has numbers and
    FLOP of the step; without, they can be asked for.

    >>> len(tile_step(64, 64, 96, 32, (1, 0, 2)).axes)
    1
    """
    sides = (tile,) * 3 if is_whole(tile) else tuple(tile)
    i, j, p = (
        (index * side, min(size, (index + 1) * side))
        for index, side, size in zip(at, sides, (m, n, k), strict=True)
    )
    if min(e - b for b, e in (i, j, p)) < 1:
        raise ConfigError(
            f"tile {tuple(at)} of {sides} begins beyond {m} x {n} x {k}; count tiles from 0"
        )
    figure = canvas(3.9, title)
    axes = figure.subplots()
    gap = 0.12 * max(m, n, k)
    places = {"A": (0, k + gap, k, m), "B": (k + gap, 0, n, k), "C": (k + gap, k + gap, n, m)}
    cuts = {"A": (sides[2], sides[0]), "B": (sides[1], sides[2]), "C": (sides[1], sides[0])}
    for name, place in places.items():
        _grid(axes, name, place, cuts[name])
    (x_a, y_a, *_), (x_b, y_b, *_), (x_c, y_c, *_) = places.values()
    pale, done = lighter(ORANGE, 0.65), p[0]
    if done:
        draw.box(axes, (x_a, y_a + i[0], done, i[1] - i[0]), pale, gid="A before")
        draw.box(axes, (x_b + j[0], y_b, j[1] - j[0], done), pale, gid="B before")
    for name, (left, top), across, down, colour in (
        ("A", (x_a, y_a), p, i, ORANGE),
        ("B", (x_b, y_b), j, p, ORANGE),
        ("C", (x_c, y_c), j, i, BLUE),
    ):
        tile_at = left + across[0], top + down[0], across[1] - across[0], down[1] - down[0]
        draw.box(axes, tile_at, colour, gid=f"{name} now", edgecolor=colour)
    for share in range(1, blocks):
        y = i[0] + share * (i[1] - i[0]) / blocks
        for left, (begin, end), top in ((x_a, (0, p[1]), y_a), (x_c, j, y_c)):
            look = {"linestyle": "--", "gid": "between blocks"}
            draw.curve(axes, [left + begin, left + end], [top + y] * 2, INK, 1.4, **look)
    draw.bare(axes)
    edge = 0.02 * max(m, n, k)
    axes.set(xlim=(-edge, k + gap + n + edge), ylim=(k + gap + m + edge, -edge), aspect="equal")
    numbers = (i[1] - i[0]) * (p[1] - p[0]) + (p[1] - p[0]) * (j[1] - j[0])
    flops = 2 * (i[1] - i[0]) * (j[1] - j[0]) * (p[1] - p[0])
    count = f": {numbers:,} numbers, for {flops:,} FLOP" if counted else ""
    entries = [
        draw.patch_entry(f"loaded now{count}", ORANGE),
        draw.patch_entry("loaded in the steps before", pale),
        draw.patch_entry("the tile of C that they add to", BLUE),
    ]
    line = [draw.line_entry("between blocks", INK, linestyle="--")] * (blocks > 1)
    draw.legend(figure, [*entries, *line])
    return figure


def _grid(axes: "Axes", name: str, place: draw.Box, cut: tuple[int, int]) -> None:
    """A matrix with its tiles."""
    x, y, width, height = place
    draw.box(axes, place, PALE, edgecolor=GREY, gid=name)
    sides = (width, cut[0], True), (height, cut[1], False)
    for size, step, across in sides if max(width / cut[0], height / cut[1]) <= _MOST else ():
        for line in range(step, int(size), step):
            ends = ([x + line] * 2, [y, y + height])
            ends = ends if across else ([x, x + width], [y + line] * 2)
            draw.curve(axes, *ends, "white", 0.9)
    words = f"{name}  {int(height)} x {int(width)}"
    draw.note(axes, (x, y), words, (0, 4), 8.5, ha="left")
