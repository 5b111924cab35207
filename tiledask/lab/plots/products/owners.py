"""Who owns which block of a matrix, and how large matrices are, drawn to scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import PALETTE, WIDTH, canvas, colour_of_rank, styled
from tiledask.plan.products.placement import Tiling

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray

__all__ = ["Blocks", "matrices", "owners"]

_TICK_GAP = 0.25
"""Inches between ticks, at least: the height of a label and a little."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of one matrix.

    >>> halves = Blocks(ranks=[[0], [1]], rows=[0, 512, 1024], columns=[0, 1024])
    """

    ranks: Sequence[Sequence[int | tuple[int, ...]]]
    """[block row][block column]: the rank that owns the block, or those that hold copies of it."""
    rows: Sequence[int]
    """Edges between block rows, from 0 to the number of rows."""
    columns: Sequence[int]
    """Edges between block columns, from 0 to the number of columns."""

    def __post_init__(self) -> None:
        have = (len(self.ranks), len(self.ranks[0]) if len(self.ranks) else 0)
        want = (len(self.rows) - 1, len(self.columns) - 1)
        if have != want or any(len(row) != have[1] for row in self.ranks):
            raise ConfigError(
                f"{have[0]} x {have[1]} owners need one edge more each way, for {want[0]} x "
                f"{want[1]} blocks got {len(self.rows)} and {len(self.columns)} edges; give every "
                f"block one owner and list the edges from 0 to the extent"
            )
        for edges in (self.rows, self.columns):
            if edges[0] != 0 or any(a > b for a, b in pairwise(edges)):
                raise ConfigError(f"edges start at 0 and ascend, got {list(edges)}; sort them")

    @classmethod
    def of(cls, array: "ShardedArray | Tiling") -> "Blocks":
        """The blocks of an array: edges, and the ranks that hold each block.

        >>> from tiledask.plan.products.placement import Shard
        >>> Blocks.of(Tiling((4, 6), (2,), (Shard(1),)))
        Blocks(ranks=[[(0,), (1,)]], rows=[0, 4], columns=[0, 3, 6])
        """
        tiling = array if isinstance(array, Tiling) else array.tiling
        regions = tiling.regions
        rows, columns = (sorted({edge for region in regions for edge in region[d]}) for d in (0, 1))
        begins = [(region[0][0], region[1][0]) for region in regions]
        ranks = [
            [tuple(r for r, at in enumerate(begins) if at == (i, j)) for j in columns[:-1]]
            for i in rows[:-1]
        ]
        return cls(ranks, rows, columns)


@styled
def owners(
    matrices: "Mapping[str, Blocks | ShardedArray | Tiling]",
    *,
    title: str = "Who owns which block",
    xlabel: str = "column",
    ylabel: str = "row",
    sizes: bool = True,
    roots: bool = False,
) -> "Figure":
    """A figure with one panel per matrix, all to the same scale, a colour and number per rank; its
    name says its rows and columns, unless ``sizes`` is off. With ``roots`` sides are as long as
    the roots of what they measure, so that long ones leave less empty."""
    matrices = {
        name: each if isinstance(each, Blocks) else Blocks.of(each)
        for name, each in matrices.items()
    }
    if not matrices:
        raise ConfigError("owners draws 1 matrix or more, got 0; pass {'A': Blocks(...)}")
    power = 0.5 if roots else 1
    widths = [max(1, blocks.columns[-1]) ** power for blocks in matrices.values()]
    tallest = max(max(1, blocks.rows[-1]) ** power for blocks in matrices.values())
    room = WIDTH - 0.75 * len(widths)  # inches, without tick labels
    height = min(6.0, max(2.4, room * tallest / sum(widths) + 1.15))
    scale = min(room / sum(widths), (height - 1.15) / tallest)  # inches per row or column, or root
    figure = canvas(height, title)
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, (name, blocks) in zip(panels, matrices.items(), strict=True):
        rows, columns = blocks.rows[-1], blocks.columns[-1]
        across, down = (scale * max(1, n) ** (power - 1) for n in (columns, rows))
        axes.set(title=f"{name}, {rows} x {columns}" if sizes else name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set(
            xlim=(0, max(1, columns)), ylim=(max(1, rows), 0), aspect=down / across, anchor="N"
        )
        axes.set(xticks=_apart(blocks.columns, _TICK_GAP / across))
        axes.set(yticks=_apart(blocks.rows, _TICK_GAP / down))
        axes.tick_params(axis="x", rotation=0 if len(blocks.columns) <= 4 else 90)
    figure.lay_out()
    for axes, blocks in zip(panels, matrices.values(), strict=True):
        _fill(axes, blocks)
    return figure


def _apart(edges: Sequence[int], gap: float) -> list[int]:
    """Those of ``edges`` that are ``gap`` apart, the last one among them."""
    kept = [edges[-1]]
    for edge in reversed(edges[:-1]):
        if kept[-1] - edge >= gap:
            kept.append(edge)
    return kept[::-1]


def _fill(axes: "Axes", blocks: Blocks) -> None:
    for (y, bottom), row in zip(pairwise(blocks.rows), blocks.ranks, strict=True):
        for (x, end), ranks in zip(pairwise(blocks.columns), row, strict=True):
            # the colour and words of a block: a copy on several ranks is grey
            if isinstance(ranks, tuple) and len(ranks) != 1:
                colour, words = "#D9D9D9", "ranks\n" + ", ".join(map(str, ranks))
            else:
                rank = ranks[0] if isinstance(ranks, tuple) else ranks
                colour = colour_of_rank(rank, 0.15 + 0.25 * (rank // len(PALETTE) % 3))
                words = f"rank {rank}"
            at = (x, y, end - x, bottom - y)
            draw.box(axes, at, colour, linewidth=1.2)
            draw.fitting_text(axes, at, words, colour, size=8.5)


@styled
def matrices(
    shapes: Mapping[str, tuple[int, int]],
    *,
    title: str = "Weights of a layer, rows x columns, to scale",
) -> "Figure":
    """A figure of matrices side by side, each with its name, rows and columns."""
    if not shapes:
        raise ConfigError("matrices draws 1 shape or more, got 0; pass {'A': (1024, 4096)}")
    gap = 0.12 * min(max(shape[dim] for shape in shapes.values()) for dim in (0, 1))
    wide = sum(across + gap for _, across in shapes.values()) - gap
    high = max(down for down, _ in shapes.values())
    figure = canvas(min(5.0, 0.9 + (WIDTH - 0.4) * high / wide), title)
    axes = figure.subplots()
    axes.set(xlim=(0, wide), ylim=(high, 0), aspect="equal", anchor="NW")
    draw.bare(axes)
    figure.lay_out()
    left = 0.0
    for (name, (down, across)), colour in zip(shapes.items(), cycle(PALETTE), strict=False):
        at = (left, 0.0, across, down)
        draw.box(axes, at, colour, gid=name)
        sized = draw.fitting_text(axes, at, f"{name}\n{down:,} x {across:,}", colour, 8)
        sized or draw.fitting_text(axes, at, name, colour, 8)
        left += across + gap
    return figure
