"""A product with its operands at its edges: A above C's columns, X beside its rows.

            j
        +-------+
      k |   A   |     X and A share k: where it is cut in both, C is a sum of partial sums
    k   +-------+
  +---+ +-------+
i | X | |   Y   | i
  +---+ +-------+
            j
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    RED,
    canvas,
    colour_of_rank,
    styled,
)
from tiledask.plan.products.placement import Partial, Region, Shard, Tiling
from tiledask.tile.levels import Tile, as_tile

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray

__all__ = ["corner", "two_levels"]

_GAP, _SHIFT = 0.07, 0.036
"""Between matrices, and from first to last partial sum, as shares of the figure's extent."""
_GREY = "#D9D9D9"


class _Corner(NamedTuple):
    """Where the three matrices of a product are on axes, in entries."""

    m: int
    n: int
    k: int

    @property
    def gap(self) -> float:
        return _GAP * (self.k + max(self.m, self.n))

    @property
    def places(self) -> tuple[tuple[float, float], ...]:
        """Upper left corners of X, A and Y."""
        at = self.k + self.gap
        return (0.0, at), (at, 0.0), (at, at)

    @property
    def extent(self) -> tuple[float, float]:
        """Across and down."""
        return self.k + self.gap + self.n, self.k + self.gap + self.m

    def frame(self, axes: "Axes") -> None:
        room = 0.6 * self.gap
        across, down = self.extent
        axes.set(xlim=(-room, across + room), ylim=(down + room, -room))
        axes.set_aspect("equal", anchor="NW")
        draw.bare(axes)


def _corner_of(left: tuple[int, ...], right: tuple[int, ...]) -> _Corner:
    if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        raise ConfigError(
            f"a product is drawn of m x k by k x n, got {left} by {right}; give two matrices"
        )
    return _Corner(left[0], right[1], left[1])


def _tiling(array: "ShardedArray | Tiling") -> Tiling:
    return array if isinstance(array, Tiling) else array.tiling


@styled
def corner(
    x: "ShardedArray | Tiling",
    a: "ShardedArray | Tiling",
    y: "ShardedArray | Tiling",
    *,
    names: tuple[str, str, str] = ("X", "A", "Y"),
    before: "Sequence[ShardedArray | Tiling]" = (),
    title: str | None = None,
) -> "Figure":
    """A figure of a product: who holds which block of the three matrices, to scale.

    What several ranks hold is grey; partial sums lie one upon the other. Where k is cut, a red line
    says so. ``before``: X and A as they lie before they are moved, in dashed lines.
    """
    tilings = _tiling(x), _tiling(a), _tiling(y)
    at = _corner_of(tilings[0].shape, tilings[1].shape)
    across, down = at.extent
    height = 4.1 * min(1.4, max(1.0, down / across))
    figure = canvas(height, title or f"{names[2]} = {names[0]} {names[1]}: who holds what", 7.0)
    axes = figure.subplots()
    at.frame(axes)
    figure.lay_out()
    for name, tiling, (left, top) in zip(names, tilings, at.places, strict=True):
        _blocks(axes, tiling, left, top, at, low=bool(before))
        rows, columns = tiling.shape
        draw.note(axes, (left, top), f"{name}, {rows:,} x {columns:,}", (1, 2), 8.5)
    for tiling, (left, top) in zip(map(_tiling, before), at.places, strict=False):
        for rank, ((i, end), (j, stop)) in enumerate(tiling.regions):
            look = {"edgecolor": INK, "linestyle": "--", "gid": "before", "zorder": 5}
            draw.box(axes, (left + j, top + i, stop - j, end - i), "none", **look)
            draw.note(axes, (left + j, top + i), f"on rank {rank}", (4, -4), 7.5, zorder=6)
    look = {"colour": RED, "width": 2.2, "gid": "k is cut"}
    (x_left, x_top), (a_left, a_top), _ = at.places
    for k in sorted({region[1][0] for region in tilings[0].regions} - {0}):
        draw.curve(axes, [x_left + k] * 2, [x_top, x_top + at.m], **look)
    for k in sorted({region[0][0] for region in tilings[1].regions} - {0}):
        draw.curve(axes, [a_left, a_left + at.n], [a_top + k] * 2, **look)
    cut = any(line.get_gid() == "k is cut" for line in axes.lines)
    entries = []
    if any(box.get_gid() == "copies" for box in axes.patches):
        entries.append(draw.patch_entry("held by several ranks", _GREY))
    if before:
        entries.append(draw.line_entry("where it lies before", INK, linestyle="--"))
    if cut:
        entries.append(draw.line_entry("K, the summed index, is cut here", RED, linewidth=2.2))
    if entries:
        draw.legend(figure, entries, 2)
    return figure


def _blocks(
    axes: "Axes", tiling: Tiling, left: float, top: float, at: _Corner, low: bool = False
) -> None:
    """``low``: words stand at the foot of a block that is one rank's, and not at all in others."""
    holders: dict[Region, list[int]] = {}
    for rank, region in enumerate(tiling.regions):
        holders.setdefault(region, []).append(rank)
    partial = any(isinstance(p, Partial) for p in tiling.placements)
    for region, ranks in holders.items():
        (i, end), (j, stop) = region[0], region[1]
        if partial:
            shift = _SHIFT * max(at.extent) / max(1, len(ranks) - 1)
            for upon, rank in enumerate(ranks):
                box = (left + j + upon * shift, top + i + upon * shift, stop - j, end - i)
                draw.box(axes, box, colour_of_rank(rank), gid="partial sum", zorder=2 + upon)
            words = f"{len(ranks)} partial sums\nof ranks {', '.join(map(str, ranks))}"
            colour = colour_of_rank(ranks[-1])
            for said in (words, " + ".join(map(str, ranks))):  # the longest that fits
                if draw.fitting_text(axes, box, said, colour, 8.5, zorder=9):
                    break
            continue
        box = (left + j, top + i, stop - j, end - i)
        colour = colour_of_rank(ranks[0]) if len(ranks) == 1 else _GREY
        gid = "block" if len(ranks) == 1 else "copies"
        draw.box(axes, box, colour, linewidth=1.2, gid=gid)
        if low and len(ranks) > 1:
            continue
        if low:
            box = (box[0], box[1] + 0.62 * box[3], box[2], 0.38 * box[3])
        words = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks\n{', '.join(map(str, ranks))}"
        short = ", ".join(map(str, ranks))
        draw.fitting_text(axes, box, words, colour, 8.5) or draw.fitting_text(
            axes, box, short, colour, 8.5
        )


@styled
def two_levels(
    a: "ShardedArray | Tiling",
    b: "ShardedArray | Tiling",
    *,
    rank: int = 0,
    tile: int | Tile = 32,
    names: tuple[str, str, str] = ("A", "B", "C"),
    title: str | None = None,
) -> "Figure":
    """A figure of the two levels of C = A B, or other ``names``: at left C's block of ``rank`` and
    what it is made of; at right that block, one tile of it, and what a tile is made of."""
    left, right = _tiling(a), _tiling(b)
    whole = _corner_of(left.shape, right.shape)
    if not any(isinstance(p, Shard) for p in (*left.placements, *right.placements)):
        raise ConfigError("two_levels draws a block of a matrix that is cut; shard A or B")
    rows, columns = left.regions[rank][0], right.regions[rank][1]
    block = _Corner(rows[1] - rows[0], columns[1] - columns[0], whole.k)
    figure = canvas(4.2, title or "Two levels: a block in the mesh, a tile in the block")
    between, inside = figure.subplots(1, 2)
    edges = [
        sorted({edge for r in t.regions for edge in r[dim]}) for t, dim in ((left, 0), (right, 1))
    ]
    _level(between, whole, edges[0], edges[1], rows, columns, whole.k, names)
    between.set_title(
        f"between workers: block {block.m} x {block.n} of {whole.m} x {whole.n}", pad=12
    )
    step = tuple(min(t, extent) for t, extent in zip(as_tile(tile), block, strict=True))
    cut = [
        [*range(0, extent, t), extent]
        for t, extent in zip(step[:2], (block.m, block.n), strict=True)
    ]
    _level(inside, block, cut[0], cut[1], (0, step[0]), (0, step[1]), step[2], names)
    inside.set_title(f"in rank {rank}: tile {step[0]} x {step[1]} of {block.m} x {block.n}", pad=12)
    entries = [
        draw.patch_entry("the block, the tile that is made", ORANGE),
        draw.patch_entry("what it needs", BLUE),
        draw.patch_entry(
            "of that, what is loaded at a time", BLUE, hatch="////", edgecolor="white"
        ),
    ]
    draw.legend(figure, entries)
    return figure


def _level(
    axes: "Axes",
    at: _Corner,
    down: list[int],
    across: list[int],
    rows: tuple[int, int],
    columns: tuple[int, int],
    step: int,
    names: tuple[str, str, str],
) -> None:
    """The three matrices, C cut at ``down`` and ``across``; of one part what it needs."""
    at.frame(axes)
    (x, y), (a_x, a_y), (c_x, c_y) = at.places
    (i, end), (j, stop) = rows, columns
    for place, wide, tall in ((at.places[0], at.k, at.m), (at.places[1], at.n, at.k)):
        draw.box(axes, (*place, wide, tall), PALE, edgecolor=GREY)
    draw.box(axes, (c_x, c_y, at.n, at.m), PALE, edgecolor=GREY)
    draw.box(axes, (x, y + i, at.k, end - i), BLUE, edgecolor="none", gid="needs")
    draw.box(axes, (a_x + j, a_y, stop - j, at.k), BLUE, edgecolor="none", gid="needs")
    if step < at.k:
        look = {"hatch": "////", "edgecolor": "white", "gid": "loaded"}
        draw.box(axes, (x, y + i, step, end - i), BLUE, **look)
        draw.box(axes, (a_x + j, a_y, stop - j, step), BLUE, **look)
    draw.box(axes, (c_x + j, c_y + i, stop - j, end - i), ORANGE, edgecolor="none", gid="made")
    look = {"colors": GREY, "linewidth": 0.5}
    axes.hlines([c_y + edge for edge in down], c_x, c_x + at.n, **look)
    axes.vlines([c_x + edge for edge in across], c_y, c_y + at.m, **look)
    for name, place in zip(names, at.places, strict=True):
        draw.note(axes, place, name, (1, 2), 9)
