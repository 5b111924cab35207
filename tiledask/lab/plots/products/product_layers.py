"""The layers of a product on p x q x c ranks: each has a share of k, in every
block of A and B, and their sums make C.

k of layer 0     k of layer 1     C
+---+---+        +---+---+        +---+---+
| 0 | 2 |   +    | 1 | 3 |   =    | 0 | 2 |
+---+---+        +---+---+        | 1 | 3 |
                                  +---+---+
"""

from fractions import Fraction
from itertools import product

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import canvas, colour_of_rank, styled
from tiledask.plan.whole import is_whole

__all__ = ["product_layers"]

_MOST = 5
"""Layers that are drawn."""


@styled
def product_layers(grid: tuple[int, int, int], *, title: str | None = None) -> "Figure":
    """A figure of who makes which partial sum of C on ``grid``, p x q x c ranks, and who keeps
    which part of their sum."""
    if len(grid) != 3 or not all(is_whole(n, 1) for n in grid) or grid[2] > _MOST:
        raise ConfigError(
            f"product_layers draws p x q ranks in 1 to {_MOST} layers, got {tuple(grid)}; give "
            f"three numbers, the last one the layers"
        )
    p, q, c = grid
    words = f"{p} x {q} ranks in {c} layers: C is the sum of their partial sums"
    figure = canvas(min(3.4, 0.9 + 8.5 / (c + 1) * p / q), title or words)
    panels = figure.subplots(1, c + 1, squeeze=False)[0]
    for axes in panels:
        axes.set(xlim=(0, q), ylim=(p, 0), aspect="equal")
        draw.bare(axes)
    figure.lay_out()
    for rank, (i, j, layer) in enumerate(product(range(p), range(q), range(c))):
        colour = colour_of_rank(rank)
        partial, part = (j, i, 1, 1), (j, i + layer / c, 1, 1 / c)
        for axes, at, gid in ((panels[layer], partial, "partial sum"), (panels[-1], part, "sum")):
            draw.box(axes, at, colour, linewidth=1.2, gid=gid)
            any(
                draw.fitting_text(axes, at, said, colour, 8) for said in (f"rank {rank}", str(rank))
            )
    for layer, axes in enumerate(panels[:-1]):
        share = f"{Fraction(layer, c)} to {Fraction(layer + 1, c)}"
        words = f"{'+ ' * bool(layer)}layer {layer}'s partial sum:\n{share} of k in each block"
        axes.set_title(words, fontsize=8.5)
    panels[-1].set_title("= C, summed and shared", fontsize=8.5)
    return figure
