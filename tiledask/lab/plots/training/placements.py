"""Who has what of arrays: a formula drawn with its arrays cut over the ranks, and parts by rank.

placements(rows)    a formula in each row: its arrays as boxes, cut as they are over the ranks
shards(split)       a lane for each rank: which heads, columns, tokens or rows it has
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    GREY,
    INK,
    PALE,
    RED,
    WIDTH,
    canvas,
    colour_of_rank,
    lighter,
    styled,
)
from tiledask.plan.whole import is_whole

__all__ = ["placements", "shards"]

Item = str | tuple[str, Any] | tuple[str, Sequence[int], Any]
"""A word between two arrays; or an array: its name and what has a shape and a placement, or both
of these by themselves."""
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send")
_WORDS, _SIDE, _LEAST, _GAP = 0.8, 0.9, 0.32, 0.14
"""Inches of the words above and below a row's arrays, of the longest and the shortest side of an
array, and between two things at least."""


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
    arrays = {name: [_array(item) for item in row] for name, row in rows.items()}
    sizes = [n for row in arrays.values() for a in row if not isinstance(a, str) for n in a[1]]
    if not sizes:
        raise ConfigError(
            f"placements draws 1 array or more, got {len(rows)} rows with none; "
            f"pass {{'columns': [('A', (6, 4), td.Shard(1))]}}"
        )
    inch = _SIDE / max(sizes) ** 0.5
    for row in arrays.values():
        room = WIDTH - 0.6 - sum(_GAP + _wide(each, 0) for each in row)
        sides = sum(a[1][-1] ** 0.5 for a in row if not isinstance(a, str))
        inch = min(inch, room / max(1.0, sides))
    heights = [
        max(_high(each, inch) for each in row if not isinstance(each, str))
        for row in arrays.values()
    ]
    bottom = sum(heights) + _WORDS * len(rows)
    figure = canvas(bottom + 0.75, title)
    axes, top = figure.subplots(), 0.0
    for (name, row), height in zip(arrays.items(), heights, strict=True):
        axes.text(0, top - 0.02, name, fontsize=9.5, fontweight="bold", va="top")
        _formula(axes, row, top + 0.47 + height / 2, inch, ranks)
        top += height + _WORDS
    draw.bare(axes)
    axes.set(xlim=(0, WIDTH - 0.3), ylim=(bottom, -0.1), aspect="equal")
    entries = [draw.patch_entry(f"rank {r}", colour_of_rank(r)) for r in range(ranks)]
    kinds = {_kind(a[2]) for row in arrays.values() for a in row if not isinstance(a, str)}
    entries += [draw.patch_entry(words, **look) for words, look in _LOOKS.items() if words in kinds]
    draw.legend(figure, entries, len(entries), fontsize=8)
    return figure


def _wide(item: Any, inch: float) -> float:
    """Inches of a word, or of an array whose sides are ``inch`` times a root."""
    if isinstance(item, str):
        return max(0.25, 0.078 * max(map(len, item.split("\n"))))
    return max(_LEAST, inch * item[1][-1] ** 0.5)


def _high(item: tuple[str, Sequence[int], Any], inch: float) -> float:
    """Inches of an array's height, whose sides are ``inch`` times a root."""
    return max(_LEAST, inch * item[1][0] ** 0.5)


_WHOLE, _PARTIAL = "every rank has all of it", "a partial sum on each rank"
_SHARED = "on several ranks"
_LOOKS: dict[str, dict[str, Any]] = {
    _SHARED: {"colour": lighter(GREY, 0.55), "edgecolor": "white", "hatch": "///"},
    _WHOLE: {"colour": PALE, "edgecolor": GREY},
    _PARTIAL: {"colour": "white", "edgecolor": GREY, "hatch": "////"},
}


def _kind(placement: Any) -> str:
    """What the legend calls a placement; "" for parts and for what one rank has."""
    if is_whole(placement) or getattr(placement, "dim", None) is not None:
        return _SHARED if _shared(placement) else ""
    return _PARTIAL if type(placement).__name__ == "Partial" else _WHOLE


def _array(item: Item) -> Any:
    """A word as it is, or (name, shape, placement)."""
    if isinstance(item, str) or len(item) == 3:
        return item
    name, value = item
    return name, tuple(value.shape), value.placement


def _formula(axes: "Axes", row: Sequence, middle: float, inch: float, ranks: int) -> None:
    """The arrays of ``row``, from left to right, and its words between them."""
    widths = [_wide(each, inch) for each in row]
    gap = min(0.3, (WIDTH - 0.6 - sum(widths)) / max(1, len(row)))
    left = 0.1
    for item, width in zip(row, widths, strict=True):
        if isinstance(item, str):
            moves = any(word in _COLLECTIVES for word in item.split())
            look = {"color": RED if moves else INK, "fontweight": "bold" if moves else "normal"}
            axes.text(left + width / 2, middle, item, ha="center", va="center", fontsize=9, **look)
        else:
            name, shape, placement = item
            height = _high(item, inch)
            at = (left, middle - height / 2, width, height)
            _cut(axes, at, shape, placement, ranks)
            middle_of = left + width / 2
            axes.text(middle_of, at[1] - 0.05, name, ha="center", va="bottom", fontsize=8.5)
            words = " x ".join(map(str, shape))
            look = {"ha": "center", "va": "top", "fontsize": 7, "color": GREY}
            axes.text(middle_of, at[1] + height + 0.05, words, **look)
        left += width + gap


def _cut(axes: "Axes", at: draw.Box, shape: Sequence[int], placement: Any, ranks: int) -> None:
    """One array: on one rank, its parts, a sheet for each rank, or whole."""
    x, y, width, height = at
    if is_whole(placement):
        draw.box(axes, at, colour_of_rank(placement), gid=f"rank {placement}: all")
    elif getattr(placement, "dim", None) is not None:
        across, begin = placement.dim % len(shape) > 0, 0
        counts = _counts(placement, shape[placement.dim], ranks)
        for rank, count in enumerate(() if _shared(placement) else counts):
            share, start = count / sum(counts), begin / sum(counts)
            mine = (x + start * width, y, share * width, height)
            mine = mine if across else (x, y + start * height, width, share * height)
            draw.box(axes, mine, colour_of_rank(rank), gid=f"rank {rank}: {count}")
            begin += count
        for rank, (start, share), (low, band) in _pieces(placement):
            mine = (x + start * width, y + low * height, share * width, band * height)
            if not across:
                mine = (x + low * width, y + start * height, band * width, share * height)
            hatch, pale = ("///", 0.55) if band < 1 else (None, 0)
            draw.box(axes, mine, colour_of_rank(rank, pale), hatch=hatch, gid=f"rank {rank}: piece")
    elif _kind(placement) == _PARTIAL:
        step = min(0.05, min(width, height) / (3 * ranks))
        for rank in reversed(range(ranks)):
            sheet = (x + step * rank, y + step * rank, width - step * ranks, height - step * ranks)
            look = {"hatch": "////", "edgecolor": colour_of_rank(rank), "gid": f"partial {rank}"}
            draw.box(axes, sheet, "white", **look)
    else:
        draw.box(axes, at, PALE, edgecolor=GREY, gid="whole")


def _counts(placement: Any, size: int, ranks: int) -> Sequence[int]:
    """How much each rank has along the dimension that is cut."""
    split = getattr(placement, "shards", None)
    if split is not None:
        return split.counts
    return [len(part) for part in np.array_split(np.arange(size), ranks)]


def _shared(placement: Any) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    """(ranks, interval) of what more than one rank has."""
    split = getattr(placement, "shards", None)
    return [] if split is None else list(split.shared())


def _pieces(placement: Any) -> Iterator[tuple[int, tuple[float, float], tuple[float, float]]]:
    """(rank, start and share along the dimension that is cut, start and share across it) where
    ranks share some of it: what a rank has alone, or a band of what it has with others."""
    shared = _shared(placement)
    if not shared:
        return
    split = placement.shards
    for rank, part in enumerate(split.parts):
        for start, stop in part:
            yield rank, (start / split.extent, (stop - start) / split.extent), (0, 1)
    for holders, (start, stop) in shared:
        for n, rank in enumerate(holders):
            along = start / split.extent, (stop - start) / split.extent
            yield rank, along, (n / len(holders), 1 / len(holders))


# -- parts by rank -------------------------------------------------------------------------------


@styled
def shards(split: Mapping[str, Any], *, title: str = "Which rank has which part") -> "Figure":
    """A panel for each of ``split``, a lane in it for each rank, with a numbered box for each
    index that the rank has. What several ranks have is hatched.

    ``split``: a name -> a `Shards`, such as those of `td.collectives.shards.deal_heads`, or the
    indices of each rank.

    >>> len(shards({"heads": [(0, 1), (1, 2)]}).axes)
    1
    """
    found = {name: _indices(each) for name, each in split.items()}
    if not found or not all(any(parts) for parts in found.values()):
        raise ConfigError(
            f"shards draws 1 array or more with 1 index or more, got {len(found)}; "
            f"pass {{'heads': [(0, 1), (2,)]}}"
        )
    ranks = max(map(len, found.values()))
    widths = [1 + max(i for part in parts for i in part) for parts in found.values()]
    figure = canvas(1.2 + 0.36 * ranks, title)
    panels = figure.subplots(1, len(found), squeeze=False, width_ratios=widths, sharey=True)[0]
    for axes, (name, parts) in zip(panels, found.items(), strict=True):
        every = [i for part in parts for i in part]
        for rank, part in enumerate(parts):
            for i in part:
                shared = every.count(i) > 1
                colour = colour_of_rank(rank, 0.55 if shared else 0.1)
                at = (i - 0.46, rank - 0.36, 0.92, 0.72)
                look = {"hatch": "///" if shared else None, "gid": f"rank {rank}: {i}"}
                draw.box(axes, at, colour, **look)
                draw.text_in(axes, at, str(i), colour, 8.5)
        axes.set_title(name)
        axes.set(xticks=[], xlim=(-0.7, 1 + max(every) - 0.3))
        draw.lanes(axes, [f"rank {rank}" for rank in range(len(parts))])
        axes.spines["bottom"].set_visible(False)
    entries = [
        draw.patch_entry("on this rank alone", lighter(GREY, 0.1)),
        draw.patch_entry("on several ranks", lighter(GREY, 0.55), hatch="///", edgecolor="white"),
    ]
    draw.legend(figure, entries)
    return figure


def _indices(each: Any) -> list[tuple[int, ...]]:
    """The indices of each rank."""
    if hasattr(each, "parts"):
        return [tuple(i for begin, end in part for i in range(begin, end)) for part in each.parts]
    return [tuple(part) for part in each]
