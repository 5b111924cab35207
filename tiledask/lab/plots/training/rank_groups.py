"""Which ranks of a mesh form a group along each axis, and which groups lie on several hosts."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, PALE, RED, canvas, styled

__all__ = ["rank_groups"]

_ROW = 0.2
"""Inches of a row of groups."""
_MOST = 12
"""Boxes beside each other that have room for the word "rank"."""


@styled
def rank_groups(
    shape: Sequence[int],
    names: Sequence[str] = ("dp", "tp", "pp"),
    hosts: Sequence[str] | Mapping[str, Sequence[str]] = (),
    *,
    title: str = "Who talks to whom along each axis",
) -> "Figure":
    """A figure with a box for each rank, by host, and below it a line through the ranks of each
    group: a panel for every axis of more than one rank, red where a group lies on several hosts.

    ``hosts``: of each rank, as ``mesh.hosts`` says; none: all on one; or several of these by what
    they are called, side by side.

    >>> len(rank_groups((2, 2, 1), hosts="AABB").axes)
    3
    """
    ranks = prod(shape)
    placed = hosts if isinstance(hosts, Mapping) else {"": hosts}
    for each in placed.values():
        if len(names) != len(shape) or len(each) not in (0, ranks):
            raise ConfigError(
                f"rank_groups takes a name for each of {len(shape)} axes and a host for each of "
                f"{ranks} ranks, or none; got {len(names)} names and {len(each)} hosts"
            )
    word = "rank " if ranks * len(placed) <= _MOST else ""  # else it stands beside the boxes
    columns = [_groups(shape, names, each) for each in placed.values()]
    deep = [
        max(map(len, rows))
        for rows in zip(*(panels.values() for _, panels in columns), strict=True)
    ]
    heights = [0.75 if placed.keys() - {""} else 0.55, *(0.2 + _ROW * rows for rows in deep)]
    figure = canvas(1.2 + sum(heights), title)
    grid = figure.subplots(len(heights), len(columns), squeeze=False, height_ratios=heights)
    for column, called, (order, panels) in zip(grid.T, placed, columns, strict=True):
        where = [*placed[called]] or [""] * ranks
        at = {rank: place for place, rank in enumerate(order)}
        top, *below = column
        _ranks(top, order, where, word)
        if not word:
            top.set_ylabel("rank", rotation=0, ha="right", va="center", fontsize=10)
        top.set_title(called)
        for axes, (name, rows), most in zip(below, panels.items(), deep, strict=True):
            for y, groups in enumerate(rows):
                for group in groups:
                    far = len({where[rank] for rank in group}) > 1
                    xs, colour = sorted(at[rank] for rank in group), RED if far else BLUE
                    look = {"marker": "o", "markersize": 5, "gid": "across" if far else "within"}
                    draw.curve(axes, xs, [y] * len(xs), colour, 2.2, **look)
            draw.bare(axes)
            axes.set(ylim=(most - 0.4, -0.6))
            axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        for axes in column:
            axes.set_xlim(-0.6, ranks - 0.4)
    words = {BLUE: "a group", RED: ""}
    if any(len({*each}) > 1 for each in placed.values()):
        words = {BLUE: "a group on one host", RED: "a group on several"}
    look = {"linewidth": 2.2, "marker": "o"}
    entries = [draw.line_entry(said, colour, **look) for colour, said in words.items() if said]
    draw.legend(figure, entries)
    return figure


def _groups(
    shape: Sequence[int], names: Sequence[str], hosts: Sequence[str]
) -> tuple[list[int], dict[str, list[list[list[int]]]]]:
    """The ranks by host, and by the name of each axis its groups in rows."""
    ranks = prod(shape)
    where = [*hosts] or [""] * ranks
    order = sorted(range(ranks), key=lambda r: ([*dict.fromkeys(where)].index(where[r]), r))
    at = {rank: place for place, rank in enumerate(order)}
    grid, panels = np.arange(ranks).reshape(shape), {}
    for axis, name in enumerate(names):
        if shape[axis] > 1:
            groups = np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]).tolist()
            panels[name] = _rows(groups, at)
    return order, panels


def _rows(groups: list[list[int]], at: dict[int, int]) -> list[list[list[int]]]:
    """The groups in as few rows as leave each a stretch of its own."""
    rows: list[list[list[int]]] = []
    ends: list[int] = []
    for group in sorted(groups, key=lambda each: min(at[rank] for rank in each)):
        places = [at[rank] for rank in group]
        free = next((row for row, end in enumerate(ends) if end < min(places)), len(rows))
        if free == len(rows):
            rows.append([])
            ends.append(-1)
        rows[free].append(group)
        ends[free] = max(places)
    return rows


def _ranks(axes: "Axes", order: list[int], hosts: list[str], word: str) -> None:
    """A box for each rank, and a pale one around those of a host."""
    for host in filter(None, dict.fromkeys(hosts)):
        mine = [place for place, rank in enumerate(order) if hosts[rank] == host]
        draw.box(axes, (mine[0] - 0.47, -0.2, len(mine) - 0.06, 1.3), PALE)
        draw.note(axes, (mine[0] - 0.42, 0.87), host, color=GREY)
    for place, rank in enumerate(order):
        box = place - 0.38, -0.1, 0.76, 0.75
        draw.box(axes, box, "white")  # the lines below have the colours
        draw.text_in(axes, box, f"{word}{rank}", "white", 8.5)
    draw.bare(axes)
    axes.set_ylim(-0.25, 1.3)
