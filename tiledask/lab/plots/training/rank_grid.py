"""The ranks of a training as a grid: what each has, and with whom it talks along each axis.

          stage 0      stage 1
rows 0-3  rank 0  ---  rank 1      tp: one frame      pp: a line across
          rank 2  ---  rank 3      dp: a line down, from copy to copy
rows 4-7  rank 4  ---  rank 5
          rank 6  ---  rank 7
"""

from collections.abc import Sequence
from itertools import product
from textwrap import fill
from typing import TYPE_CHECKING

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, GREEN, GREY, PALE, canvas, styled
from tiledask.plan.products.placement import split

if TYPE_CHECKING:
    from tiledask.distributed.training import GPT

__all__ = ["rank_grid"]

_HIGH, _WIDE, _APART = 0.84, 0.78, 0.4
"""Of a box, and between two copies; a rank has 1 x 1."""


@styled
def rank_grid(
    model: "GPT",
    shape: Sequence[int],
    *,
    batch: int = 8,
    title: str = "Who has what, and who talks to whom",
) -> "Figure":
    """A figure with a box for each rank of the mesh ``shape``, (dp, tp, pp), with the units of
    ``model`` that it has: copies and their parts from above, stages from the left. Groups of tp
    have a frame, those of pp and dp lines. ``batch``: rows of a step, shared by the copies.

    >>> import tiledask as td
    >>> len(rank_grid(td.GPT(50, 32, 3, 4, 16), (2, 2, 2)).axes)
    1
    """
    dp, tp, pp = shape
    cut = model.even_cut(pp)
    figure = canvas(1.0 + 0.5 * dp * tp, title)
    axes = figure.subplots()
    for rank, (copy, part, stage) in enumerate(product(range(dp), range(tp), range(pp))):
        y = _row(copy, part, tp)
        if stage:
            draw.curve(axes, [stage - 1, stage], [y, y], GREY, 4, gid="pp", zorder=1)
        at = (stage - _WIDE / 2, y - _HIGH / 2, _WIDE, _HIGH)
        draw.box(axes, at, PALE, gid=f"rank {rank}", zorder=2)
        units = fill(", ".join(model.stage_units(stage, cut)) or "nothing", 80 // pp)
        room = (at[0], at[1], 0.85 * _WIDE, _HIGH)  # left of the lines of dp
        draw.text_in(axes, room, f"rank {rank}\n{units}", PALE, 7, zorder=4)
        if stage == 0:
            low, high = split(0, batch, dp)[copy]
            words = f"rows {low} to {high - 1},\npart {part + 1} of {tp} of each layer"
            axes.text(-0.52, y, words, ha="right", va="center", fontsize=8.5)
    for copy, stage in product(range(dp), range(pp)):
        top = _row(copy, 0, tp) - 0.47
        frame = (stage - 0.42, top, 0.84, tp - 0.06)
        if tp > 1:
            draw.box(axes, frame, "none", edgecolor=BLUE, linewidth=2.5, gid="tp", zorder=3)
    for part, stage in product(range(tp), range(pp)):
        x, ys = stage + 0.3 + 0.05 * part, [_row(copy, part, tp) for copy in range(dp)]
        if dp > 1:
            look = {"gid": "dp", "marker": "o", "markersize": 5, "zorder": 5}
            draw.curve(axes, [x] * dp, ys, GREEN, 2, **look)
    axes.set(xlim=(-1.0, pp - 0.5), ylim=(_row(dp - 1, tp - 1, tp) + 0.6, -0.6))
    draw.bare(axes)
    entries = [
        draw.patch_entry("tp: sums in each layer", "none", edgecolor=BLUE, linewidth=2.5),
        draw.line_entry("pp: activations, gradients back", GREY, linewidth=4),
        draw.line_entry("dp: gradients, once a step", GREEN, linewidth=2, marker="o"),
    ]
    used = [entry for entry, size in zip(entries, (tp, pp, dp), strict=True) if size > 1]
    draw.legend(figure, used)
    return figure


def _row(copy: int, part: int, tp: int) -> float:
    return copy * (tp + _APART) + part
