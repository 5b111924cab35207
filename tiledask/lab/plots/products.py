"""A product with its operands at its edges: A above C's columns, X beside its rows.

            j
        +-------+
      k |   A   |     X and A share k: where it is cut in both, C is a sum of partial sums
    k   +-------+
  +---+ +-------+
i | X | |   Y   | i   corner: who holds what; two_levels: a block, and a tile of it; tile_step: one
  +---+ +-------+     step of the loop over tiles
            j
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure, Place
from tiledask.lab.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    RED,
    canvas,
    colour_of_rank,
    lighter,
    styled,
)
from tiledask.plan.products.placement import Partial, Shard, Tiling
from tiledask.plan.products.regions import Region
from tiledask.plan.whole import is_whole
from tiledask.tile.levels import Tile, as_tile

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray

__all__ = ["corner", "tile_step", "two_levels"]

_SHIFT = 0.036
"""From first to last partial sum, as a share of the figure's extent."""
_SEVERAL = "#D9D9D9"
_MADE, _LOADED, _NEEDED = BLUE, ORANGE, lighter(ORANGE, 0.65)
_MOST = 24
"""Lines of a grid in one direction: a finer one is not drawn."""
Cut = tuple[int, int]
"""Begin and end along one index."""


class _Corner(NamedTuple):
    """Where the three matrices of a product are, in entries."""

    m: int
    n: int
    k: int

    @classmethod
    def of(cls, left: tuple[int, ...], right: tuple[int, ...]) -> "_Corner":
        if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
            raise ConfigError(
                f"a product is drawn of m x k by k x n, got {left} by {right}; give two matrices"
            )
        return cls(left[0], right[1], left[1])

    @property
    def places(self) -> tuple[Place, Place, Place]:
        """Of X, A and Y."""
        at = self.k + 0.07 * (self.k + max(self.m, self.n))
        return (0.0, at, self.k, self.m), (at, 0.0, self.n, self.k), (at, at, self.n, self.m)

    def part(self, matrix: int, rows: Cut, columns: Cut) -> Place:
        """Of a part of X, A or Y."""
        left, top, *_ = self.places[matrix]
        return left + columns[0], top + rows[0], columns[1] - columns[0], rows[1] - rows[0]

    def draw(self, axes: "Axes", every: Sequence[Box], names: Sequence[str]) -> None:
        """The boxes, and the names of the matrices."""
        left, top, *size = self.places[2]
        room = 0.6 * (left - self.k)
        extent = (-room, -room, left + size[0] + 2 * room, top + size[1] + 2 * room)
        draw.plane(axes, extent, every)
        for name, (x, y, *_) in zip(names, self.places, strict=True):
            draw.note(axes, (x, y), name, (1, 2))

    def step(self, i: Cut, j: Cut, p: Cut, done: int) -> Iterator[Box]:
        """What one part of Y, rows ``i`` and columns ``j``, needs: of X and A what is loaded for
        ``p`` of k, and paler what lies before ``done``."""
        for at, colour, gid in (
            (self.part(0, i, (0, done)), _NEEDED, "needed of X"),
            (self.part(1, (0, done), j), _NEEDED, "needed of A"),
            (self.part(0, i, p), _LOADED, "loaded of X"),
            (self.part(1, p, j), _LOADED, "loaded of A"),
            (self.part(2, i, j), _MADE, "made"),
        ):
            if at[2] and at[3]:
                yield Box(at, colour, gid=gid, look={"edgecolor": "none"})

    def whole(self) -> list[Box]:
        return [Box(at, PALE, look={"edgecolor": GREY}) for at in self.places]


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
    at = _Corner.of(tilings[0].shape, tilings[1].shape)
    (x_at, a_at, y_at), boxes = at.places, list[Box]()
    across, down = y_at[0] + at.n, y_at[1] + at.m
    height = 4.1 * min(1.4, max(1.0, down / across))
    figure = canvas(height, title or f"{names[2]} = {names[0]} {names[1]}: who holds what", 7.0)
    axes = figure.subplots()
    for matrix, tiling in enumerate(tilings):
        boxes += _blocks(at, matrix, tiling, _SHIFT * max(across, down))
    sizes = [" x ".join(f"{n:,}" for n in tiling.shape) for tiling in tilings]
    at.draw(axes, boxes, [f"{name}, {size}" for name, size in zip(names, sizes, strict=True)])
    figure.lay_out()
    for box in boxes:
        if before:  # at the foot of a block that is one rank's: above is whose it was
            left, top, wide, high = box.at
            box = box._replace(at=(left, top + 0.62 * high, wide, 0.38 * high))
        if not before or box.gid != "copies":
            draw.write(axes, [box], 8.5, zorder=9)
    for matrix, tiling in enumerate(map(_tiling, before)):
        for rank, region in enumerate(tiling.regions):
            place = at.part(matrix, *region)
            draw.box(axes, place, "none", edgecolor=INK, linestyle="--", gid="before", zorder=5)
            draw.note(axes, place[:2], f"on rank {rank}", (4, -4), 7.5, zorder=6)
    look: draw.Look = {"color": RED, "linewidth": 2.2, "gid": "k is cut"}
    for k in sorted({region[1][0] for region in tilings[0].regions} - {0}):
        axes.plot([x_at[0] + k] * 2, [x_at[1], x_at[1] + at.m], **look)
    for k in sorted({region[0][0] for region in tilings[1].regions} - {0}):
        axes.plot([a_at[0], a_at[0] + at.n], [a_at[1] + k] * 2, **look)
    entries: list[Any] = []
    if any(box.gid == "copies" for box in boxes):
        entries.append(draw.patch_entry("held by several ranks", _SEVERAL))
    if before:
        entries.append(draw.line_entry("where it lies before", linestyle="--"))
    if axes.lines:
        entries.append(draw.line_entry("K, the summed index, is cut here", RED, linewidth=2.2))
    draw.legend(figure, entries, 2)
    return figure


def _blocks(at: _Corner, matrix: int, tiling: Tiling, shift: float) -> Iterator[Box]:
    """A box for each region; of partial sums one for each rank."""
    holders: dict[Region, list[int]] = {}
    for rank, region in enumerate(tiling.regions):
        holders.setdefault(region, []).append(rank)
    for region, ranks in holders.items():
        x, y, wide, high = place = at.part(matrix, *region)
        every, last = ", ".join(map(str, ranks)), ranks[-1]
        if any(isinstance(each, Partial) for each in tiling.placements):
            for upon, rank in enumerate(ranks):
                off = shift * upon / max(1, len(ranks) - 1)
                words = f"{len(ranks)} partial sums\nof ranks {every}", " + ".join(map(str, ranks))
                words = words if rank == last else ""
                place = (x + off, y + off, wide, high)
                look: draw.Look = {"zorder": 2 + upon}
                yield Box(place, colour_of_rank(rank), words, "partial sum", look)
        elif len(ranks) > 1:
            yield Box(place, _SEVERAL, (f"ranks\n{every}", every), "copies", {"linewidth": 1.2})
        else:
            words, look = (f"rank {last}", every), {"linewidth": 1.2}
            yield Box(place, colour_of_rank(last), words, "block", look)


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
    whole = _Corner.of(left.shape, right.shape)
    if not any(isinstance(p, Shard) for p in (*left.placements, *right.placements)):
        raise ConfigError("two_levels draws a block of a matrix that is cut; shard A or B")
    rows, columns = left.regions[rank][0], right.regions[rank][1]
    block = _Corner(rows[1] - rows[0], columns[1] - columns[0], whole.k)
    m, n, k = (min(t, extent) for t, extent in zip(as_tile(tile), block, strict=True))
    edges = [
        sorted({edge for r in each.regions for edge in r[dim]})
        for dim, each in enumerate((left, right))
    ]
    inside = [[*range(0, extent, side), extent] for extent, side in ((block.m, m), (block.n, n))]
    levels = (
        (whole, edges, rows, columns, 0, f"between workers: block {block.m} x {block.n}"),
        (block, inside, (0, m), (0, n), k, f"in rank {rank}: tile {m} x {n}"),
    )
    figure = canvas(4.2, title or "Two levels: a block in the mesh, a tile in the block")
    for axes, (at, cut, i, j, loaded, words) in zip(figure.subplots(1, 2), levels, strict=True):
        boxes = [*at.whole(), *at.step(i, j, (0, loaded), at.k)]
        at.draw(axes, boxes, names)
        _grid(axes, at.places[2], cut[0], cut[1], GREY)
        axes.set_title(f"{words} of {at.m} x {at.n}", pad=12)
    entries = [
        draw.patch_entry("the block, the tile that is made", _MADE),
        draw.patch_entry("what it needs", _NEEDED),
        draw.patch_entry("of that, what is loaded at a time", _LOADED),
    ]
    draw.legend(figure, entries)
    return figure


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
    the steps before are pale. ``blocks`` share a tile, one above the other, with a dashed line
    between them. ``counted``: the legend has numbers and FLOP of the step; without, they can be
    asked for.

    >>> len(tile_step(64, 64, 96, 32, (1, 0, 2)).axes)
    1
    """
    sides = (tile,) * 3 if is_whole(tile) else tuple(tile)
    i, j, p = (
        (index * side, min(size, (index + 1) * side))
        for index, side, size in zip(at, sides, (m, n, k), strict=True)
    )
    if min(end - begin for begin, end in (i, j, p)) < 1:
        raise ConfigError(
            f"tile {tuple(at)} of {sides} begins beyond {m} x {n} x {k}; count tiles from 0"
        )
    figure, corner_at = canvas(3.9, title), _Corner(m, n, k)
    axes = figure.subplots()
    shapes = {"A": (m, k), "B": (k, n), "C": (m, n)}
    names = [f"{name}  {high} x {wide}" for name, (high, wide) in shapes.items()]
    corner_at.draw(axes, [*corner_at.whole(), *corner_at.step(i, j, p, p[0])], names)
    axes.set_anchor("C")
    cuts = (sides[0], sides[2]), (sides[2], sides[1]), (sides[0], sides[1])
    for place, shape, cut in zip(corner_at.places, shapes.values(), cuts, strict=True):
        rows, columns = (range(0, size, side) for size, side in zip(shape, cut, strict=True))
        if max(len(rows), len(columns)) <= _MOST:
            _grid(axes, place, rows[1:], columns[1:], "white")
    for share in range(1, blocks):
        row = i[0] + share * (i[1] - i[0]) / blocks
        for matrix, columns in ((0, (0, p[1])), (2, j)):
            left, top, wide, _ = corner_at.part(matrix, (row, row), columns)
            axes.plot([left, left + wide], [top] * 2, gid="between blocks", **draw.DASHED)
    numbers = (i[1] - i[0] + j[1] - j[0]) * (p[1] - p[0])
    flops = 2 * (i[1] - i[0]) * (j[1] - j[0]) * (p[1] - p[0])
    count = f": {numbers:,} numbers, for {flops:,} FLOP" if counted else ""
    entries = [
        draw.patch_entry(f"loaded now{count}", _LOADED),
        draw.patch_entry("loaded in the steps before", _NEEDED),
        draw.patch_entry("the tile of C that they add to", _MADE),
    ]
    line = [draw.line_entry("between blocks", **draw.DASHED)] * (blocks > 1)
    draw.legend(figure, [*entries, *line])
    return figure


def _grid(
    axes: "Axes", at: Place, rows: Sequence[int], columns: Sequence[int], colour: str
) -> None:
    """Lines at ``rows`` and ``columns`` of the matrix at ``at``."""
    x, y, wide, high = at
    look: draw.Look = {"colors": colour, "linewidth": 0.7, "zorder": 3}
    axes.hlines([y + row for row in rows], x, x + wide, **look)
    axes.vlines([x + column for column in columns], y, y + high, **look)
