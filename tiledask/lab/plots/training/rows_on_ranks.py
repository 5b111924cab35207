"""Rows of an image on ranks: whose they are, which windows each makes, which rows it borrows."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, INK, RED, canvas, colour_of_rank, lighter, styled
from tiledask.plan.collectives.rows import split_rows

__all__ = ["rows_on_ranks"]

_LANE = 0.34
"""Inches of a rank's rows."""
_WINDOW = 0.14
"""Inches of a window below them."""


@styled
def rows_on_ranks(
    rows: Sequence[int],
    size: int,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    *,
    borrowed: Mapping[int, Sequence[int]] | None = None,
    marked: Mapping[int, Sequence[int]] | None = None,
    title: str = "Who makes what of which rows",
) -> "Figure":
    """A lane for each rank: its rows, those that it borrows, and its windows below them.

    ``rows``: of the image, by rank. ``size``, ``stride`` and ``padding``: of the windows, in rows.
    ``borrowed``: rank -> rows of others, default those that its windows read; with none at all
    and none marked, of a window only the middle is drawn. It belongs to the rank that has its
    middle row. ``marked``: rank -> rows to frame in red, there or not; then
    windows for which their rank lacks a row are red, too.

    >>> len(rows_on_ranks((3, 3, 2), 3, padding=(1, 1)).axes)
    1
    """
    split, ends = split_rows(rows, size, stride, padding), (0, *accumulate(rows))
    bare = borrowed == {} and marked is None
    if borrowed is None:
        borrowed = {
            rank: [i for i in range(slab.start, slab.stop) if not ends[rank] <= i < ends[rank + 1]]
            for rank, slab in enumerate(split.slabs)
        }
    depths = [_WINDOW * max(1, made) + 0.16 for made in split.out]
    height = sum(depths) + _LANE * len(rows)
    figure = canvas(height + 1.5, title)
    axes = figure.subplots()
    top, first = 0.0, -padding[0]
    for rank, depth in enumerate(depths):
        for row in (*range(ends[rank], ends[rank + 1]), *borrowed.get(rank, ())):
            owner = next(r for r in range(len(ends) - 1) if ends[r] <= row < ends[r + 1])
            colour = colour_of_rank(owner, 0.1 if owner == rank else 0.7)
            _cell(axes, row, top, colour, str(row), hatch=None if owner == rank else "///")
        _zeros(axes, split.slabs[rank], ends[-1], top)
        here = {*range(ends[rank], ends[rank + 1]), *borrowed.get(rank, ())}
        for i in range(split.out[rank]):
            read = {*range(max(first, 0), min(first + split.reach, ends[-1]))}
            colour = RED if marked is not None and read - here else INK
            _window(axes, first, split.reach, top + _LANE + _WINDOW * (i + 0.6), colour, bare)
            first += stride
        for row in (marked or {}).get(rank, ()):
            draw.mark_box(axes, (row + 0.02, top, 0.96, _LANE), f"row {row} of rank {rank}")
        top += _LANE + depth
    middles = [sum(depths[:r]) + _LANE * (r + 0.5) for r in range(len(rows))]
    axes.set_yticks(middles, [f"rank {r}: {n} out" for r, n in enumerate(split.out)])
    axes.set(xlim=(-padding[0] - 0.2, ends[-1] + padding[1] + 0.2), ylim=(top, -0.08), xticks=[])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("number in a box: the row")
    borrowed_look = {"edgecolor": "white", "hatch": "///"}
    of = f"a window of {size} rows, stride {stride}"
    words = f"middle of {of}" if bare else f"{of}, and the row that says whose it is"
    entries = [
        draw.patch_entry("its own row", lighter(GREY, 0.1)),
        draw.patch_entry("borrowed, in its owner's colour", lighter(GREY, 0.7), **borrowed_look),
        draw.patch_entry("padding", "white", edgecolor=GREY),
        draw.line_entry(words, linewidth=0 if bare else 1.2, marker="o", markersize=3.5),
    ]
    draw.legend(figure, entries, 4, fontsize=8)
    return figure


def _zeros(axes: "Axes", slab: tuple, h: int, top: float) -> None:
    """The padding that this rank's windows read."""
    start, stop, above, below = slab
    for row in (*range(start - above, start), *range(stop, stop + below)):
        if not 0 <= row < h:
            _cell(axes, row, top, "white", "zero", edge=GREY)


def _cell(axes: "Axes", row: int, top: float, colour, words: str, edge="white", hatch=None) -> None:
    at = (row + 0.02, top, 0.96, _LANE)
    draw.box(axes, at, colour, edgecolor=edge, hatch=hatch)
    draw.text_in(axes, at, words, colour, 8.5)


def _window(axes: "Axes", first: int, reach: int, y: float, colour: str, bare: bool) -> None:
    ends, middle = [first + 0.1, first + reach - 0.1], first + (reach - 1) // 2 + 0.5
    if not bare:
        draw.curve(axes, ends, [y, y], colour, 1.2, marker="|", markersize=5, clip_on=False)
    draw.curve(axes, middle, y, colour, 0, marker="o", markersize=3.5, clip_on=False)
