"""Where ranks, layers and rows are, and what ranks send: groups, layers on devices, bytes."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure
from tiledask.lab.plots.style import (
    BLUE,
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
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes

__all__ = ["layers_on_devices", "rank_groups", "rows_on_ranks", "traffic_matrix"]

# -- layers --------------------------------------------------------------------------------------


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]],
    *,
    title: str = "Which device holds which layer",
    unit: str = "layer",
    first: int = 1,
) -> "Figure":
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device of any of them, layers counted from ``first``, a line from layer to layer, red where it
    changes devices. ``unit`` is what the words call a layer, such as "stage"."""
    if not assignments or not all(len(devices) for devices in assignments.values()):
        raise ConfigError(
            "layers_on_devices draws 1 assignment or more of 1 layer or more, got "
            f"{ {name: len(devices) for name, devices in assignments.items()} }; "
            "pass {'contiguous': [0, 0, 1, 1]}"
        )
    longest = max(map(len, assignments.values()))
    lanes = 1 + max(map(max, assignments.values()))
    figure = canvas(0.95 + len(assignments) * (0.6 + 0.34 * lanes), title)
    panels, drawn = draw.stacked_axes(figure, [1] * len(assignments), sharex=True), []
    for axes, (name, devices) in zip(panels, assignments.items(), strict=True):
        drawn.append([
            draw.span(device, at - 0.42, at + 0.42, colour_of_rank(device), f"{at + first}")
            for at, device in enumerate(devices)
        ])  # fmt: skip
        draw.lanes(axes, [f"device {d + 1}" for d in range(lanes)], drawn[-1])
        crossings = sum(a != b for a, b in pairwise(devices))
        axes.set_title(f"{name}: {crossings} crossing{'s' * (crossings != 1)}")
        for at, ends in enumerate(pairwise(devices)):
            crosses = len({*ends}) > 1
            colour, width, gid = (RED, 2, "crossing") if crosses else (GREY, 1, "stays")
            axes.plot((at, at + 1), ends, color=colour, linewidth=width, gid=gid, zorder=1)
    step = 1 + longest // 30
    ticks = range(0, longest, step)
    panels[-1].set(xlim=(-0.7, longest - 0.3), xlabel=unit)
    panels[-1].set_xticks(ticks, [f"{at + first}" for at in ticks])
    entries = [
        draw.patch_entry(f"a {unit} and its number (a colour per device)", colour_of_rank(0)),
        draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        draw.line_entry("stays on the device", GREY, linewidth=1),
    ]
    draw.legend(figure, entries)
    figure.lay_out()
    for axes, boxes in zip(panels, drawn, strict=True):
        draw.write(axes, boxes)
    return figure


# -- ranks ---------------------------------------------------------------------------------------

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
    where = {name: [*each] or [""] * ranks for name, each in placed.items()}
    orders = {
        name: sorted(range(ranks), key=lambda r, on=on: ([*dict.fromkeys(on)].index(on[r]), r))
        for name, on in where.items()
    }
    axes_of = {name: axis for axis, name in enumerate(names) if shape[axis] > 1}
    rows = {
        (name, axis): _rows(shape, axes_of[axis], order)
        for name, order in orders.items()
        for axis in axes_of
    }
    deep = [max(len(rows[name, axis]) for name in placed) for axis in axes_of]
    heights = [0.75 if {*placed} - {""} else 0.55, *(0.2 + _ROW * each for each in deep)]
    figure = canvas(1.2 + sum(heights), title)
    grid = figure.subplots(len(heights), len(placed), squeeze=False, height_ratios=heights)
    word = "rank " if ranks * len(placed) <= _MOST else ""  # else it stands beside the boxes
    for (top, *below), name in zip(grid.T, placed, strict=True):
        _ranks(top, orders[name], where[name], word)
        top.set_title(name)
        for axes, axis, most in zip(below, axes_of, deep, strict=True):
            for y, groups in enumerate(rows[name, axis]):
                for group in groups:
                    far = len({where[name][orders[name][x]] for x in group}) > 1
                    look: draw.Look = {"marker": "o", "markersize": 5, "linewidth": 2.2}
                    look |= {"color": RED if far else BLUE, "gid": "across" if far else "within"}
                    axes.plot(group, [y] * len(group), **look)
            draw.plane(axes, (-0.6, -0.6, ranks + 0.2, most + 0.2), aspect="auto")
            axes.set_ylabel(axis, rotation=0, ha="right", va="center", fontsize=10)
    several = any(len({*on}) > 1 for on in where.values())
    words = (
        {BLUE: "a group on one host", RED: "a group on several"} if several else {BLUE: "a group"}
    )
    look = {"linewidth": 2.2, "marker": "o"}
    draw.legend(figure, [draw.line_entry(said, colour, **look) for colour, said in words.items()])
    return figure


def _rows(shape: Sequence[int], axis: int, order: list[int]) -> list[list[list[int]]]:
    """The places of each group along ``axis``, in as few rows as leave each its own stretch."""
    groups = np.moveaxis(np.arange(prod(shape)).reshape(shape), axis, -1).reshape(-1, shape[axis])
    rows: list[list[list[int]]] = []
    for group in sorted(sorted(map(order.index, each)) for each in groups.tolist()):
        free = next((row for row in rows if row[-1][-1] < group[0]), None)
        if free is None:
            rows.append([group])
        else:
            free.append(group)
    return rows


def _ranks(axes: "Axes", order: list[int], hosts: list[str], word: str) -> None:
    """A box for each rank, and a pale one around those of a host."""
    on, boxes = [hosts[rank] for rank in order], []
    for host in filter(None, dict.fromkeys(on)):
        boxes.append(Box((on.index(host) - 0.47, -0.2, on.count(host) - 0.06, 1.3), PALE))
        draw.note(axes, (on.index(host) - 0.42, 0.87), host, color=GREY)
    for place, rank in enumerate(order):
        boxes.append(Box((place - 0.38, -0.1, 0.76, 0.75), "white", f"{word}{rank}"))
        draw.text_in(axes, boxes[-1].at, f"{word}{rank}", "white", 8.5)
    draw.plane(axes, (-0.6, 1.3, len(order) + 0.2, -1.55), boxes, aspect="auto")
    if not word:
        axes.set_ylabel("rank", rotation=0, ha="right", va="center", fontsize=10)


# -- rows of an image ----------------------------------------------------------------------------

_LANE, _WINDOW = 0.34, 0.14
"""Inches of a rank's rows, and of a window below them."""


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
    cut, ends = split_rows(rows, size, stride, padding), (0, *accumulate(rows))
    bare = borrowed == {} and marked is None
    owner = {row: r for r, (a, b) in enumerate(pairwise(ends)) for row in range(a, b)}
    depths = [_WINDOW * max(1, made) + 0.16 for made in cut.out]
    figure = canvas(sum(depths) + _LANE * len(rows) + 1.5, title)
    axes, boxes = figure.subplots(), []
    top, first, middles = 0.0, -padding[0], []
    for rank, (depth, slab) in enumerate(zip(depths, cut.slabs, strict=True)):
        reach = [row for row in range(slab.start, slab.stop) if owner[row] != rank]
        others = reach if borrowed is None else borrowed.get(rank, ())
        here = {*range(ends[rank], ends[rank + 1]), *others}
        for row in sorted(here):
            pale, hatch = (0.1, None) if owner[row] == rank else (0.7, "///")
            colour, look = colour_of_rank(owner[row], pale), {"hatch": hatch}
            boxes.append(Box((row + 0.02, top, 0.96, _LANE), colour, str(row), look=look))
        # the padding that this rank's windows read
        outside = {*range(slab.start - slab.above, slab.stop + slab.below)} - {*owner}
        zeros = [
            Box((row + 0.02, top, 0.96, _LANE), "white", "zero", look={"edgecolor": GREY})
            for row in outside
        ]
        boxes += zeros if slab.above or slab.below else []
        for i in range(cut.out[rank]):
            read = {*range(max(first, 0), min(first + cut.reach, ends[-1]))}
            colour = RED if marked is not None and read - here else INK
            y, middle = top + _LANE + _WINDOW * (i + 0.6), first + (cut.reach - 1) // 2 + 0.5
            look: draw.Look = {"color": colour, "clip_on": False}
            if not bare:
                span = [first + 0.1, first + cut.reach - 0.1]
                axes.plot(span, [y, y], linewidth=1.2, marker="|", markersize=5, **look)
            axes.plot(middle, y, marker="o", markersize=3.5, **look)
            first += stride
        for row in (marked or {}).get(rank, ()):
            draw.mark_box(axes, (row + 0.02, top, 0.96, _LANE), f"row {row} of rank {rank}")
        middles.append(top + _LANE / 2)
        top += _LANE + depth
    wide = ends[-1] + sum(padding) + 0.4
    draw.plane(axes, (-padding[0] - 0.2, -0.08, wide, top + 0.08), boxes, aspect="auto")
    for box in boxes:
        draw.text_in(axes, box.at, box.words, box.colour, 8.5)
    axes.set_yticks(middles, [f"rank {r}: {n} out" for r, n in enumerate(cut.out)])
    axes.tick_params(left=False)
    axes.set_xlabel("number in a box: the row")
    of = f"a window of {size} rows, stride {stride}"
    words = f"middle of {of}" if bare else f"{of}, and the row that says whose it is"
    look = {"edgecolor": "white", "hatch": "///"}
    entries = [
        draw.patch_entry("its own row", lighter(GREY, 0.1)),
        draw.patch_entry("borrowed, in its owner's colour", lighter(GREY, 0.7), **look),
        draw.patch_entry("padding", "white", edgecolor=GREY),
        draw.line_entry(words, linewidth=0 if bare else 1.2, marker="o", markersize=3.5),
    ]
    draw.legend(figure, entries, 4, fontsize=8)
    return figure


# -- bytes ---------------------------------------------------------------------------------------

_MOST_NUMBERS = 12
"""Ranks up to which a cell has room for its number."""


@styled
def traffic_matrix(
    predicted: Traffic | Mapping[str, Traffic],
    measured: Traffic | None = None,
    *,
    title: str | None = None,
) -> "Figure":
    """A heat map of bytes from each rank to each other; with ``measured``, two on one colour scale
    and a red frame around every cell that differs, with the bytes measured too many or few.

    Of several, ``{name: traffic}``, a panel each on one scale. Lines are drawn between hosts.
    """
    traffics = {"predicted": predicted} if isinstance(predicted, Traffic) else dict(predicted)
    if not traffics:
        raise ConfigError("traffic_matrix draws 1 traffic or more, got 0: {'ring': run.traffic}")
    if measured is not None:
        traffics["measured"] = measured
    first, *others = traffics.values()
    differs = np.zeros_like(first.bytes, bool)
    found = ", predicted" if isinstance(predicted, Traffic) else ""
    if measured is not None:
        if measured.ranks != first.ranks:
            raise ConfigError(
                f"the two traffics are among different ranks: {first.ranks} predicted, "
                f"{measured.ranks} measured; compare the same run"
            )
        differs = first.bytes != measured.bytes
        count = int(differs.sum())
        found = f": {count} cell{' differs' if count == 1 else 's differ'}"
        found = found if count else ": measured equals predicted to the byte"
    top = max(1, *(int(t.bytes.max(initial=0)) for t in traffics.values()))
    figure = canvas(4.1, title or f"Bytes between ranks{found}", WIDTH if others else 0.6 * WIDTH)
    panels = figure.subplots(1, len(traffics), squeeze=False)[0]
    for axes, (name, traffic) in zip(panels, traffics.items(), strict=True):
        image = axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(f"{name}: {format_bytes(traffic.total)} in {traffic.count:,} messages")
        ticks = range(0, traffic.ranks, 1 + traffic.ranks // 17)
        axes.set(xticks=ticks, yticks=ticks, xlabel="to rank", ylabel="from rank")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i in range(1, len(traffic.hosts)):
            if traffic.hosts[i] != traffic.hosts[i - 1]:
                axes.axvline(i - 0.5, gid="between hosts", **draw.DASHED)
                axes.axhline(i - 0.5, gid="between hosts", **draw.DASHED)
        for i, j in np.argwhere(differs).tolist():
            draw.mark_box(axes, (j - 0.47, i - 0.47, 0.94, 0.94), f"{i} to {j}")
        if traffic.ranks <= _MOST_NUMBERS:
            excess = traffic.bytes - first.bytes if measured is not None else differs
            _numbers(axes, image, traffic.bytes, excess)
    if any(traffic.ranks > _MOST_NUMBERS for traffic in traffics.values()):
        bar = figure.colorbar(image, ax=list(panels), label="bytes", shrink=0.85)
        draw.ticks_as(bar.ax.yaxis, format_bytes)
    return figure


def _numbers(axes: "Axes", image: Any, cells: np.ndarray, excess: np.ndarray) -> None:
    size = 9 if len(cells) <= 4 else 7 if len(cells) <= 8 else 5
    for (i, j), nbytes in np.ndenumerate(cells):
        words = "·" if i == j else draw.amount(format_bytes)(int(nbytes)).replace(" ", "\n")
        if excess[i, j]:
            words += f"\n({excess[i, j]:+,})"
        colour = image.cmap(image.norm(nbytes))
        draw.text_in(axes, (j - 0.5, i - 0.5, 1, 1), words, colour, size)
