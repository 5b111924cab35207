"""Who has what of arrays, and who sends what: formulas with their parts, owners of blocks, tiles of
a product, bytes from worker to worker.

            j
        +-------+
      k |   A   |     X and A share k: where it is cut in both, C is a sum of partial sums
    k   +-------+
  +---+ +-------+
i | X | |   Y   | i   corner: who holds what; tile_step: one step of the loop over tiles, or a
  +---+ +-------+     worker's block, and a tile of it
            j
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure, Place
from tiledask.lab.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    RED,
    WIDTH,
    canvas,
    colour_of_rank,
    lighter,
    styled,
)
from tiledask.plan.products.placement import Partial, Shard, Tiling, even_shards
from tiledask.plan.products.regions import Region
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile.levels import Tile, as_tile

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray

__all__ = ["corner", "owners", "placements", "tile_step", "traffic_matrix"]

# -- formulas ------------------------------------------------------------------------------------

Item = str | tuple[str, Sequence[int], Any]
"""A word between two arrays; or an array: its name, shape and placement."""
_COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send"}
_WORDS, _SIDE, _LEAST, _GAP = 0.8, 0.9, 0.32, 0.14
"""Inches of the words above and below a row's arrays, of the longest and the shortest side of an
array, and between two things at least."""
_MEANS: dict[str, tuple[str, Any, draw.Look]] = {
    "shared": ("on several workers", lighter(GREY, 0.55), {"edgecolor": "white", "hatch": "///"}),
    "whole": ("every worker has all of it", PALE, {"edgecolor": GREY}),
    "partial": ("a partial sum on each worker", "white", {"edgecolor": GREY, "hatch": "////"}),
}
"""How the gid of a box begins -> its line in the legend."""


@styled
def placements(
    rows: Mapping[str, Sequence[Item]],
    ranks: int,
    *,
    title: str = "Which worker has what",
) -> Figure:
    """A row for each formula, its arrays as boxes: a part in the colour of its rank, hatched where
    several ranks have it, a sheet of each rank where there is a partial sum on all of them, grey
    where every rank has the whole.

    ``rows``: what the formula is -> its arrays and the words between them, in order. An array is
    (name, shape, placement); a placement that is a number is the one rank that has all of it.
    Sides of a matrix are drawn as long as the roots of what they measure, so that a narrow one can
    still be seen. Words with the name of a collective among them are red.

    >>> from tiledask.plan.products.placement import Partial, Shard
    >>> cut = ("A", (8, 6), Shard(1)), "all_reduce", ("Y", (8, 4), Partial())
    >>> len(placements({"rows": cut}, 2).axes)
    1
    """
    shapes = [[each[1] for each in row if not isinstance(each, str)] for row in rows.values()]
    inch = _SIDE / max(n for row in shapes for shape in row for n in shape) ** 0.5
    for row, mine in zip(rows.values(), shapes, strict=True):
        room = WIDTH - 0.6 - sum(_GAP + _wide(each, 0) for each in row)
        inch = min(inch, room / max(1.0, sum(shape[-1] ** 0.5 for shape in mine)))
    heights = [max(_side(shape[0], inch) for shape in mine) for mine in shapes]
    bottom = sum(heights) + _WORDS * len(rows)
    figure = canvas(bottom + 0.45, title)
    axes, top, boxes = figure.subplots(), 0.0, list[Box]()
    for (name, row), height in zip(rows.items(), heights, strict=True):
        axes.text(0, top - 0.02, name, fontsize=9.5, fontweight="bold", va="top")
        boxes += _formula(axes, row, top + 0.47 + height / 2, inch, ranks)
        top += height + _WORDS
    draw.plane(axes, (0, -0.1, WIDTH - 0.3, bottom + 0.1), boxes, anchor="C")
    kinds = {box.gid.partition(" ")[0] for box in boxes}
    entries = [draw.patch_entry(f"worker {r}", colour_of_rank(r)) for r in range(ranks)]
    for kind, (words, colour, look) in _MEANS.items():
        entries += [draw.patch_entry(words, colour, **look)] if kind in kinds else []
    draw.legend(figure, entries)
    return figure


def _side(extent: int, inch: float) -> float:
    return float(max(_LEAST, inch * extent**0.5))


def _wide(item: Any, inch: float) -> float:
    """Inches of a word, or of an array whose sides are ``inch`` times a root."""
    if isinstance(item, str):
        return max(0.25, 0.078 * max(map(len, item.split("\n"))))
    return _side(item[1][-1], inch)


def _formula(axes: Any, row: Sequence[Any], middle: float, inch: float, ranks: int) -> list[Box]:
    """The arrays of ``row``, from left to right; its words are written between them."""
    widths, boxes = [_wide(each, inch) for each in row], list[Box]()
    gap = min(0.3, (WIDTH - 0.6 - sum(widths)) / max(1, len(row)))
    left = 0.1
    for item, width in zip(row, widths, strict=True):
        if isinstance(item, str):
            moves = not _COLLECTIVES.isdisjoint(item.split())
            look = {"color": RED, "fontweight": "bold"} if moves else {}
            draw.text_in(axes, (left, middle, width, 0), item, "#FFFFFF", 9, **look)
        else:
            name, shape, placement = item
            height = _side(shape[0], inch)
            at = (left, middle - height / 2, width, height)
            boxes += _cut(at, shape, placement, ranks)
            draw.note(axes, (left + width / 2, at[1]), name, (0, 2))
            words = " × ".join(map(str, shape))
            draw.note(axes, (left + width / 2, at[1] + height), words, (0, -2), 8, color=GREY)
        left += width + gap
    return boxes


def _cut(at: Place, shape: Sequence[int], placement: Any, ranks: int) -> Iterator[Box]:
    """One array: on one rank, its parts, a sheet for each rank, or whole."""
    x, y, width, height = at
    if is_whole(placement):
        yield Box(at, colour_of_rank(placement), gid=f"rank {placement}: all")
    elif isinstance(placement, Shard):
        dim = placement.dim % len(shape)
        shards = placement.shards or even_shards(shape[dim], ranks)

        def part(interval: tuple[int, int], n: int = 0, of: int = 1) -> Place:
            """An interval of the dimension that is cut, or band ``n`` of several of it."""
            start, stop = (end / shards.extent for end in interval)
            if dim:
                return (x + start * width, y + n / of * height, (stop - start) * width, height / of)
            return (x + n / of * width, y + start * height, width / of, (stop - start) * height)

        for rank, intervals in enumerate(shards.parts):
            for start, stop in intervals:
                gid = f"rank {rank}: {stop - start}"
                yield Box(part((start, stop)), colour_of_rank(rank), gid=gid)
        for holders, interval in shards.shared():
            for n, rank in enumerate(holders):
                band, colour = part(interval, n, len(holders)), colour_of_rank(rank, 0.55)
                yield Box(band, colour, gid=f"shared by rank {rank}", look={"hatch": "///"})
    elif isinstance(placement, Partial):
        step = min(0.05, min(width, height) / (3 * ranks))
        for rank in reversed(range(ranks)):
            sheet = (x + step * rank, y + step * rank, width - step * ranks, height - step * ranks)
            look = {"hatch": "////", "edgecolor": colour_of_rank(rank)}
            yield Box(sheet, "white", gid=f"partial {rank}", look=look)
    else:
        yield Box(at, PALE, gid="whole", look={"edgecolor": GREY})


# -- blocks --------------------------------------------------------------------------------------

_SHIFT = 0.036
"""From first to last partial sum, as a share of the figure's extent."""
_COPIES = "#D9D9D9"


def _blocks(tiling: Tiling, left: float, top: float, shift: float) -> Iterator[Box]:
    """A box for each region; of partial sums one for each rank."""
    holders: dict[Region, list[int]] = {}
    for rank, region in enumerate(tiling.regions):
        holders.setdefault(region, []).append(rank)
    for ((first, below), (start, end)), ranks in holders.items():
        every, last = ", ".join(map(str, ranks)), ranks[-1]
        size, look = f"{below - first:,} × {end - start:,}", {"linewidth": 1.2}
        at = (left + start, top + first, end - start, below - first)
        if any(isinstance(each, Partial) for each in tiling.placements):
            for upon, rank in enumerate(ranks):
                off = shift * upon / max(1, len(ranks) - 1)
                words = (
                    f"{len(ranks)} partial sums\nof workers {every}",
                    " + ".join(map(str, ranks)),
                )
                words = words if rank == last else ("", "")
                sheet = (at[0] + off, at[1] + off, *at[2:])
                yield Box(sheet, colour_of_rank(rank), words, "partial sum", {"zorder": 2 + upon})
        elif len(ranks) > 1:
            yield Box(at, _COPIES, (f"workers {every}\n{size}", every), "copies", look)
        else:
            some = f"worker {last}\n{size}", f"worker {last}", every
            yield Box(at, colour_of_rank(last), some, "block", look)


@styled
def owners(
    matrices: "Mapping[str, ShardedArray | Tiling]",
    *,
    title: str = "Who owns which block",
) -> Figure:
    """A figure of matrices side by side, all to the same scale, a colour and number per rank. Of
    long ones both sides are as long as the roots of what they measure, so that less is empty."""
    tilings: list[Any] = [getattr(each, "tiling", each) for each in matrices.values()]
    sides = [max(1, side) for tiling in tilings for side in tiling.shape]
    power = 0.5 if max(sides) > 4 * min(sides) else 1.0
    widths, tallest = [n**power for n in sides[1::2]], max(sides[::2]) ** power
    # inches per row or column, or root
    scale = min((WIDTH - 0.3 * len(widths)) / sum(widths), 4.0 / tallest)
    figure, drawn = canvas(scale * tallest + 0.7, title), []
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, name, tiling in zip(panels, matrices, tilings, strict=True):
        m, n = tiling.shape
        boxes = [*_blocks(tiling, 0, 0, _SHIFT * max(m, n))]
        aspect = (max(1, n) / max(1, m)) ** (1 - power)
        draw.plane(axes, (0, 0, n, m), boxes, aspect=aspect, anchor="N")
        axes.set_title(f"{name}, {m:,} × {n:,}")
        drawn.append((axes, boxes))
    return draw.write(figure, drawn, 8.5)


# -- a product -----------------------------------------------------------------------------------

_MADE, _LOADED, _NEEDED = BLUE, ORANGE, lighter(ORANGE, 0.65)
_MOST = 24
"""Lines of a grid in one direction: a finer one is not drawn."""


def _places(m: int, n: int, k: int) -> tuple[Place, Place, Place]:
    """Of X, A and Y, in entries."""
    at = k + 0.1 * (k + max(m, n))
    return (0.0, at, k, m), (at, 0.0, n, k), (at, at, n, m)


def _draw_product(
    axes: Axes, places: Sequence[Place], boxes: Sequence[Box], names: Sequence[str], **look: Any
) -> None:
    """The boxes, and the names of the matrices."""
    left, top, wide, high = places[2]
    room = 0.6 * (left - places[0][2])
    extent = (-room, -room, left + wide + 2 * room, top + high + 2 * room)
    draw.plane(axes, extent, boxes, **look)
    for name, (x, y, *_) in zip(names, places, strict=True):
        draw.note(axes, (x, y), name, (1, 2))


@styled
def corner(
    x: "ShardedArray | Tiling",
    a: "ShardedArray | Tiling",
    y: "ShardedArray | Tiling",
) -> Figure:
    """A figure of a product Y = X A: who holds which block of the three matrices, to scale.

    What several ranks hold is grey; partial sums lie one upon the other. Where k is cut, a red line
    says so.
    """
    tilings: list[Any] = [getattr(each, "tiling", each) for each in (x, a, y)]
    (m, k), (other, n) = tilings[0].shape, tilings[1].shape
    if k != other:
        raise ConfigError(
            f"a product is drawn of m x k by k x n, got {m} x {k} by {other} x {n}; give X and A"
        )
    places = _places(m, n, k)
    across, down = places[2][0] + n, places[2][1] + m
    height = 3.8 * min(1.4, max(1.0, down / across))
    figure = canvas(height, "Y = X A: who holds what")
    axes, boxes, titles = figure.subplots(), list[Box](), []
    for name, (left, top, *_), tiling in zip("XAY", places, tilings, strict=True):
        boxes += _blocks(tiling, left, top, _SHIFT * max(across, down))
        titles.append(f"{name}, {' × '.join(f'{side:,}' for side in tiling.shape)}")
    _draw_product(axes, places, boxes, titles)
    look: draw.Look = {"color": RED, "linewidth": 2.2}
    in_x = sorted({region[1][0] for region in tilings[0].regions} - {0})
    in_a = sorted({region[0][0] for region in tilings[1].regions} - {0})
    (_, top, *_), (left, *_), _ = places
    axes.vlines(in_x, top, top + m, gid="k is cut", **look)
    axes.hlines(in_a, left, left + n, gid="k is cut", **look)
    copies = any(box.gid == "copies" for box in boxes)
    entries = [draw.patch_entry("held by several workers", _COPIES)] * copies
    if in_x or in_a:
        entries.append(draw.line_entry("K, the summed index, is cut here", **look))
    draw.legend(figure, entries)
    return draw.write(figure, [(axes, boxes)], 8.5)


@styled
def tile_step(
    m: int,
    n: int,
    k: int,
    tile: int | Tile,
    at: Tile = (0, 0, 0),
    *,
    inner: int | Tile | None = None,
    names: tuple[str, str, str] = ("A", "B", "C"),
    title: str = "One step of the tile loop",
) -> Figure:
    """A figure of A at the left, B above and C between them, cut into tiles, in one step.

    ``tile``: (rows of C, columns of C, of k), or one number for all. ``at``: which tile of C, by
    row and column, and which step along k. The tiles of A and B of this step are filled, those of
    the steps before are pale. ``inner``: of a second panel, in which that tile is cut into tiles of
    this size: the level below.

    >>> len(tile_step(64, 64, 96, 32, (1, 0, 2)).axes), len(tile_step(64, 64, 96, 32, inner=8).axes)
    (1, 2)
    """
    sizes, sides = (m, n, k), as_tile(tile)
    step = [
        (index * side, min(size, (index + 1) * side))
        for index, side, size in zip(at, sides, sizes, strict=True)
    ]
    if min(end - begin for begin, end in step) < 1:
        raise ConfigError(
            f"tile {tuple(at)} of {sides} begins beyond {m} x {n} x {k}; count tiles from 0"
        )
    figure = canvas(3.6, title)
    every = figure.subplots(1, 1 if inner is None else 2, squeeze=False)[0]
    _draw_step(every[0], names, sizes, sides, step)
    if inner is not None:
        inside = tuple(end - begin for begin, end in step)
        side = tuple(map(min, as_tile(inner), inside))
        _draw_step(every[1], names, inside, side, [(0, s) for s in side])
        every[0].set_title(f"a block of {inside[0]} × {inside[1]} of {m} × {n}", pad=16)
        every[1].set_title(f"in it a tile of {side[0]} × {side[1]}", pad=16)
    means: list[tuple[str, Any]] = [("computed now", _MADE), ("loaded now", _LOADED)]
    means += [("loaded in the steps before", _NEEDED)] * bool(step[2][0])
    draw.legend(figure, [draw.patch_entry(*each) for each in means])
    return figure


def _draw_step(axes: Axes, names: Any, sizes: Any, tile: Any, step: Any) -> None:
    """One step, in which of m, n and k these are worked on: (begin, end) of each."""
    (top, bottom), (begin, end), (start, stop) = step
    places = _places(*sizes)
    (x, y, *_), (to, above, *_), _ = places
    parts = (
        ("needed of A", (x, y + top, start, bottom - top), _NEEDED),
        ("needed of B", (to + begin, above, end - begin, start), _NEEDED),
        ("loaded of A", (x + start, y + top, stop - start, bottom - top), _LOADED),
        ("loaded of B", (to + begin, above + start, end - begin, stop - start), _LOADED),
        ("made", (to + begin, y + top, end - begin, bottom - top), _MADE),
    )
    boxes = [Box(at, PALE, look={"edgecolor": GREY}) for at in places]
    for gid, at, colour in parts:
        boxes += [Box(at, colour, gid=gid, look={"edgecolor": "none"})] if all(at[2:]) else []
    words = [f"{name}  {at[3]} × {at[2]}" for name, at in zip(names, places, strict=True)]
    _draw_product(axes, places, boxes, words, anchor="C")
    rows, columns, depths = map(range, tile, sizes, tile)
    look: draw.Look = {"colors": "white", "linewidth": 0.7, "zorder": 3}
    cuts = (rows, depths), (depths, columns), (rows, columns)
    for (left, over, wide, high), (down, across) in zip(places, cuts, strict=True):
        if max(len(down), len(across)) < _MOST:
            axes.hlines([over + row for row in down], left, left + wide, **look)
            axes.vlines([left + column for column in across], over, over + high, **look)


# -- bytes ---------------------------------------------------------------------------------------


@styled
def traffic_matrix(
    traffics: Mapping[str, Traffic], *, title: str = "Bytes between workers"
) -> Figure:
    """A heat map of bytes from each worker to each other: a panel for each name, on one colour
    scale, numbers where there is room. Lines are drawn between hosts."""
    if len({traffic.ranks for traffic in traffics.values()}) != 1:
        raise ConfigError(
            f"traffic_matrix draws 1 traffic or more, all of as many ranks, got "
            f"{ {name: traffic.ranks for name, traffic in traffics.items()} }; draw the same run"
        )
    top = max(1, *(int(t.bytes.max(initial=0)) for t in traffics.values()))
    figure = canvas(4.1, title, WIDTH if len(traffics) > 1 else 0.6 * WIDTH)
    panels, drawn = figure.subplots(1, len(traffics), squeeze=False)[0], []
    for axes, (name, traffic) in zip(panels, traffics.items(), strict=True):
        image = axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(f"{name}: {format_bytes(traffic.total)} in {traffic.count:,} messages")
        ticks = range(0, traffic.ranks, 1 + traffic.ranks // 17)
        axes.set(xticks=ticks, yticks=ticks, xlabel="to worker", ylabel="from worker")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, (one, other) in enumerate(pairwise(traffic.hosts)):
            for line in (axes.axvline, axes.axhline) if one != other else ():
                line(i + 0.5, gid="between hosts", **draw.DASHED)
        cells = []
        for (i, j), nbytes in np.ndenumerate(traffic.bytes):
            amount = format_bytes(int(nbytes)).replace(" ", "\n") if nbytes else "0"
            colour, words = image.cmap(image.norm(nbytes)), "·" if i == j else amount
            cells.append(Box((j - 0.5, i - 0.5, 1, 1), colour, words))
        drawn.append((axes, cells))
    return draw.write(figure, drawn, 9 if traffic.ranks <= 4 else 8)
