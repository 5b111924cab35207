"""The multiplications of a square product as a cube, a rank's part of it, and what that touches.

   +------+
   |  C   |     A: i by k, at the left; B: k by j, below; C: i by j, at the back
  /|      |
 / +------+
|A/   B  /
|/------/
"""

from collections.abc import Mapping
from itertools import product
from math import isqrt, prod
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, INK, ORANGE, PALE, canvas, lighter, styled
from tiledask.plan.whole import is_whole

__all__ = ["product_shadows"]

_MOST = 16
"""Blocks along a side that are drawn."""


@styled
def product_shadows(
    grids: Mapping[str, tuple[int, int, int]], *, title: str = "What a rank's part touches"
) -> "Figure":
    """A figure with a cube for each of ``grids``, p x q x c ranks by name: the part of one rank,
    its shadows on A, B and C in blocks of n^2 / P, and in each shadow as much as a
    rank has of its own.

    >>> len(product_shadows({"a cube": (4, 4, 4)}).axes)
    1
    """
    for grid in grids.values():
        whole = len(grid) == 3 and all(is_whole(n, 1) for n in grid)
        side = isqrt(prod(grid)) if whole else 0
        if not whole or side**2 != prod(grid) or any(side % n for n in grid) or side > _MOST:
            raise ConfigError(
                f"product_shadows draws p x q x c ranks whose number is a square of at most "
                f"{_MOST} x {_MOST}, with sides that divide its root, got {tuple(grid)}; give "
                f"(4, 4, 4)"
            )
    if not grids:
        raise ConfigError("product_shadows draws 1 grid or more, got 0; pass {'a': (4, 4, 4)}")
    figure = canvas(4.4, title)
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    for axes, (name, grid) in zip(panels, grids.items(), strict=True):
        _cube(axes, grid)
        axes.set_title(name)
    own = {"facecolor": lighter(ORANGE, 0.3), "hatch": "////", "edgecolor": INK}
    entries = [
        draw.patch_entry("its part of the multiplications", BLUE),
        draw.patch_entry("a block that it touches", lighter(ORANGE, 0.3)),
        draw.patch_entry("of these, the one it has anyway", "none", **own),
    ]
    draw.legend(figure, entries)
    return figure


def _cube(axes: "Axes", grid: tuple[int, int, int]) -> None:
    side = isqrt(prod(grid))
    size = [side // n for n in grid]  # of the part, in blocks, along i, j and k
    begin = [each * (n // 2) for each, n in zip(size, grid, strict=True)]
    part = [range(first, first + many) for first, many in zip(begin, size, strict=True)]
    walls = {"A": (0, 2, 1, 0), "B": (2, 1, 0, side), "C": (0, 1, 2, 0)}
    for name, (down, across, fixed, where) in walls.items():
        for u, v in product(range(side), range(side)):
            touched = u in part[down] and v in part[across]
            own = touched and (u, v) == (begin[down], begin[across])
            colour = lighter(ORANGE, 0.3) if touched else PALE
            look = {"hatch": "////", "edgecolor": INK} if own else {}
            gid = f"{name} {'own' if own else 'touched' if touched else 'other'}"
            edges = u, u + 1, v, v + 1, where
            _face(axes, (down, across, fixed), edges, colour, gid=gid, **look)
        middle = [0.0, 0.0, 0.0]
        middle[down], middle[across], middle[fixed] = side / 2, side / 2, where
        shift = {"A": (-0.12, 0.64), "B": (0.0, -0.28), "C": (0.0, 0.57)}[name]
        x, y = _at(tuple(middle))
        words = f"{name}, {'ijk'[down]} x {'ijk'[across]}"
        axes.text(x + shift[0] * side, y + shift[1] * side, words, ha="center", va="center")
    (i, i_end), (j, j_end), (k, k_end) = ((each[0], each[-1] + 1) for each in part)
    for fixed, down, across, where, shade in (
        (1, 0, 2, j_end, 0.0),
        (0, 2, 1, i, 0.35),
        (2, 0, 1, k_end, 0.15),
    ):
        ends = {0: (i, i_end), 1: (j, j_end), 2: (k, k_end)}
        edges = (*ends[down], *ends[across], where)
        _face(axes, (down, across, fixed), edges, lighter(BLUE, shade), gid="part", alpha=0.75)
    axes.set_aspect("equal")
    axes.margins(0.04)
    draw.bare(axes)


def _face(
    axes: "Axes", along: tuple[int, int, int], edges: tuple[float, ...], colour: Any, **look: Any
) -> None:
    """A rectangle in space: two dimensions that it spans, and the one in which it lies still."""
    first, last, left, right, where = edges
    corners = []
    for u, v in ((first, left), (first, right), (last, right), (last, left)):
        point = [0.0, 0.0, 0.0]
        point[along[0]], point[along[1]], point[along[2]] = u, v, where
        corners.append(_at(tuple(point)))
    draw.polygon(axes, corners, colour, **look)


def _at(point: tuple[float, ...]) -> tuple[float, float]:
    """Where i (down), j (to the right) and k (to the reader, from the wall at the back) are."""
    i, j, k = point
    return j - 0.5 * k, -i - 0.4 * k
