"""Who has what of arrays: formulas with their arrays cut over ranks, blocks and owners to scale."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure, Place
from tiledask.lab.plots.style import (
    GREY,
    INK,
    PALE,
    PALETTE,
    RED,
    WIDTH,
    canvas,
    colour_of_rank,
    lighter,
    styled,
)
from tiledask.plan.products.placement import Tiling
from tiledask.plan.whole import is_whole

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray

__all__ = ["Blocks", "matrices", "owners", "placements"]

Item = str | tuple[str, Any] | tuple[str, Sequence[int], Any]
"""A word between two arrays; or an array: its name and what has a shape and a placement, or both
of these by themselves."""
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send")
_WORDS, _SIDE, _LEAST, _GAP = 0.8, 0.9, 0.32, 0.14
"""Inches of the words above and below a row's arrays, of the longest and the shortest side of an
array, and between two things at least."""
_SHARED, _WHOLE = "on several ranks", "every rank has all of it"
_PARTIAL = "a partial sum on each rank"
_LOOKS: dict[str, dict[str, Any]] = {
    _SHARED: {"colour": lighter(GREY, 0.55), "edgecolor": "white", "hatch": "///"},
    _WHOLE: {"colour": PALE, "edgecolor": GREY},
    _PARTIAL: {"colour": "white", "edgecolor": GREY, "hatch": "////"},
}


@styled
def placements(
    rows: Mapping[str, Sequence[Item]],
    ranks: int,
    *,
    title: str = "Which rank has what",
) -> "Figure":
    """A row for each formula, its arrays as boxes: a part in the colour of its rank, hatched where
    several ranks have it, a sheet of each rank where there is a partial sum on all of them, grey
    where every rank has the whole.

    ``rows``: what the formula is -> its arrays and the words between them, in order. An array is
    (name, shape, placement), or (name, a value that has these); a placement that is a number is
    the one rank that has all of it. Sides of a matrix are drawn as long as the roots of what they
    measure, so that a narrow one can still be seen. Words with the name of a collective among
    them are red.

    >>> from tiledask.plan.products.placement import Partial, Shard
    >>> cut = ("A", (8, 6), Shard(1)), "all_reduce", ("Y", (8, 4), Partial())
    >>> len(placements({"rows": cut}, 2).axes)
    1
    """
    formulas = {name: [_array(item) for item in row] for name, row in rows.items()}
    arrays = [[each for each in row if not isinstance(each, str)] for row in formulas.values()]
    if not all(arrays) or not arrays:
        raise ConfigError(
            f"placements draws 1 array or more in each row, got {len(rows)} rows, one with none; "
            f"pass {{'columns': [('A', (6, 4), td.Shard(1))]}}"
        )
    inch = _SIDE / max(n for row in arrays for _, shape, _ in row for n in shape) ** 0.5
    for row in formulas.values():
        room = WIDTH - 0.6 - sum(_GAP + _wide(each, 0) for each in row)
        sides = sum(each[1][-1] ** 0.5 for each in row if not isinstance(each, str))
        inch = min(inch, room / max(1.0, sides))
    heights = [max(max(_LEAST, inch * shape[0] ** 0.5) for _, shape, _ in row) for row in arrays]
    bottom = sum(heights) + _WORDS * len(rows)
    figure = canvas(bottom + 0.75, title)
    axes, top = figure.subplots(), 0.0
    draw.plane(axes, (0, -0.1, WIDTH - 0.3, bottom + 0.1), anchor="C")
    for (name, row), height in zip(formulas.items(), heights, strict=True):
        axes.text(0, top - 0.02, name, fontsize=9.5, fontweight="bold", va="top")
        _formula(axes, row, top + 0.47 + height / 2, inch, ranks)
        top += height + _WORDS
    entries = [draw.patch_entry(f"rank {r}", colour_of_rank(r)) for r in range(ranks)]
    kinds = {_kind(placement) for row in arrays for *_, placement in row}
    entries += [draw.patch_entry(words, **look) for words, look in _LOOKS.items() if words in kinds]
    draw.legend(figure, entries, len(entries), fontsize=8)
    return figure


def _array(item: Item) -> Any:
    """A word as it is, or (name, shape, placement)."""
    if isinstance(item, str) or len(item) == 3:
        return item
    name, value = item
    return name, tuple(value.shape), value.placement


def _wide(item: Any, inch: float) -> float:
    """Inches of a word, or of an array whose sides are ``inch`` times a root."""
    if isinstance(item, str):
        return max(0.25, 0.078 * max(map(len, item.split("\n"))))
    return max(_LEAST, inch * float(item[1][-1]) ** 0.5)


def _shared(placement: Any) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    """(ranks, interval) of what more than one rank has."""
    split = getattr(placement, "shards", None)
    return [] if split is None else [*split.shared()]


def _kind(placement: Any) -> str:
    """What the legend calls a placement; "" for parts and for what one rank has."""
    if is_whole(placement) or getattr(placement, "dim", None) is not None:
        return _SHARED if _shared(placement) else ""
    return _PARTIAL if type(placement).__name__ == "Partial" else _WHOLE


def _formula(axes: "Axes", row: Sequence[Any], middle: float, inch: float, ranks: int) -> None:
    """The arrays of ``row``, from left to right, and its words between them."""
    widths = [_wide(each, inch) for each in row]
    gap = min(0.3, (WIDTH - 0.6 - sum(widths)) / max(1, len(row)))
    left = 0.1
    for item, width in zip(row, widths, strict=True):
        if isinstance(item, str):
            moves = any(word in _COLLECTIVES for word in item.split())
            look: draw.Look = {
                "color": RED if moves else INK,
                "fontweight": "bold" if moves else "normal",
            }
            draw.text_in(axes, (left, middle, width, 0), item, "white", 9, **look)
        else:
            name, shape, placement = item
            height = max(_LEAST, inch * shape[0] ** 0.5)
            at = (left, middle - height / 2, width, height)
            draw.boxes(axes, _cut(at, shape, placement, ranks))
            look = {"ha": "center", "fontsize": 8.5}
            axes.text(left + width / 2, at[1] - 0.05, name, va="bottom", **look)
            look = {"ha": "center", "fontsize": 7, "color": GREY}
            words = " x ".join(map(str, shape))
            axes.text(left + width / 2, at[1] + height + 0.05, words, va="top", **look)
        left += width + gap


def _cut(at: Place, shape: Sequence[int], placement: Any, ranks: int) -> Iterator[Box]:
    """One array: on one rank, its parts, a sheet for each rank, or whole."""
    x, y, width, height = at
    if is_whole(placement):
        yield Box(at, colour_of_rank(placement), gid=f"rank {placement}: all")
    elif getattr(placement, "dim", None) is not None:
        across = placement.dim % len(shape) > 0
        for rank, size, (start, share), (low, band) in _pieces(placement, shape, ranks):
            mine = (x + low * width, y + start * height, band * width, share * height)
            if across:
                mine = (x + start * width, y + low * height, share * width, band * height)
            hatch, pale = ("///", 0.55) if band < 1 else (None, 0.1 if size else 0)
            words = f"rank {rank}: {size or 'piece'}"
            yield Box(mine, colour_of_rank(rank, pale), gid=words, look={"hatch": hatch})
    elif _kind(placement) == _PARTIAL:
        step = min(0.05, min(width, height) / (3 * ranks))
        for rank in reversed(range(ranks)):
            sheet = (x + step * rank, y + step * rank, width - step * ranks, height - step * ranks)
            look: draw.Look = {"hatch": "////", "edgecolor": colour_of_rank(rank)}
            yield Box(sheet, "white", gid=f"partial {rank}", look=look)
    else:
        yield Box(at, PALE, gid="whole", look={"edgecolor": GREY})


def _pieces(
    placement: Any, shape: Sequence[int], ranks: int
) -> Iterator[tuple[int, int, tuple[float, float], tuple[float, float]]]:
    """(rank, its size, start and share along the dimension that is cut, start and share across
    it); size 0 where ranks share some: what a rank has alone, or a band of what it has with
    others."""
    split: Any = getattr(placement, "shards", None)
    shared = _shared(placement)
    if not shared:
        parts = np.array_split(np.arange(shape[placement.dim]), ranks)
        counts = list(map(len, parts)) if split is None else split.counts
        for rank, (start, stop) in enumerate(pairwise([0, *accumulate(counts)])):
            share = (stop - start) / sum(counts)
            yield rank, stop - start, (start / sum(counts), share), (0, 1)
        return
    for rank, part in enumerate(split.parts):
        for start, stop in part:
            yield rank, 0, (start / split.extent, (stop - start) / split.extent), (0, 1)
    for holders, (start, stop) in shared:
        for n, rank in enumerate(holders):
            along = start / split.extent, (stop - start) / split.extent
            yield rank, 0, along, (n / len(holders), 1 / len(holders))


# -- blocks --------------------------------------------------------------------------------------

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
        have, want = {len(row) for row in self.ranks}, len(self.columns) - 1
        if len(self.ranks) != len(self.rows) - 1 or have - {want}:
            raise ConfigError(
                f"{len(self.ranks)} rows of {sorted(have)} owners need one edge more each way, "
                f"got {len(self.rows)} and {len(self.columns)} edges; give every block one owner "
                f"and list the edges from 0 to the extent"
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
        regions = (array if isinstance(array, Tiling) else array.tiling).regions
        rows, columns = (sorted({edge for region in regions for edge in region[d]}) for d in (0, 1))
        begins = [(region[0][0], region[1][0]) for region in regions]
        ranks = [
            [tuple(r for r, at in enumerate(begins) if at == (i, j)) for j in columns[:-1]]
            for i in rows[:-1]
        ]
        return cls(ranks, rows, columns)

    def boxes(self) -> Iterator[Box]:
        """A box for each block: a copy on several ranks is grey."""
        for (y, bottom), row in zip(pairwise(self.rows), self.ranks, strict=True):
            for (x, end), held in zip(pairwise(self.columns), row, strict=True):
                ranks = held if isinstance(held, tuple) else (held,)
                pale = 0.15 + 0.25 * (ranks[0] // len(PALETTE) % 3)
                colour: Any = colour_of_rank(ranks[0], pale)
                words = f"rank {ranks[0]}"
                if len(ranks) > 1:
                    colour, words = "#D9D9D9", "ranks\n" + ", ".join(map(str, ranks))
                yield Box((x, y, end - x, bottom - y), colour, words, look={"linewidth": 1.2})


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
    if not matrices:
        raise ConfigError("owners draws 1 matrix or more, got 0; pass {'A': Blocks(...)}")
    every = {n: m if isinstance(m, Blocks) else Blocks.of(m) for n, m in matrices.items()}
    power = 0.5 if roots else 1
    widths = [max(1, blocks.columns[-1]) ** power for blocks in every.values()]
    tallest = max(max(1, blocks.rows[-1]) ** power for blocks in every.values())
    room = WIDTH - 0.75 * len(widths)  # inches, without tick labels
    height = min(6.0, max(2.4, room * tallest / sum(widths) + 1.15))
    scale = min(room / sum(widths), (height - 1.15) / tallest)  # inches per row or column, or root
    figure = canvas(height, title)
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, (name, blocks) in zip(panels, every.items(), strict=True):
        rows, columns = max(1, blocks.rows[-1]), max(1, blocks.columns[-1])
        across, down = (scale * n ** (power - 1) for n in (columns, rows))
        draw.plane(axes, (0, 0, columns, rows), blocks.boxes(), aspect=down / across, anchor="N")
        name = f"{name}, {blocks.rows[-1]} x {blocks.columns[-1]}" if sizes else name
        axes.set(title=name, xlabel=xlabel, ylabel=ylabel)
        axes.set(xticks=_distant(blocks.columns, _TICK_GAP / across))
        axes.set(yticks=_distant(blocks.rows, _TICK_GAP / down))
        axes.tick_params(axis="x", rotation=0 if len(blocks.columns) <= 4 else 90)
    figure.lay_out()
    for axes, blocks in zip(panels, every.values(), strict=True):
        draw.write(axes, blocks.boxes(), 8.5)
    return figure


def _distant(edges: Sequence[int], gap: float) -> list[int]:
    """Those of ``edges`` that are ``gap`` apart, the last one among them."""
    kept = [edges[-1]]
    for edge in reversed(edges[:-1]):
        if kept[-1] - edge >= gap:
            kept.append(edge)
    return kept[::-1]


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
    every, left = [], 0.0
    for (name, (down, across)), colour in zip(shapes.items(), cycle(PALETTE), strict=False):
        words = f"{name}\n{down:,} x {across:,}", name
        every.append(Box((left, 0.0, across, down), colour, words, name))
        left += across + gap
    wide, high = left - gap, max(down for down, _ in shapes.values())
    figure = canvas(min(5.0, 0.9 + (WIDTH - 0.4) * high / wide), title)
    axes = figure.subplots()
    draw.plane(axes, (0, 0, wide, high), every)
    figure.lay_out()
    draw.write(axes, every, 8)
    return figure
