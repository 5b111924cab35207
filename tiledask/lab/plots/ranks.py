"""Where ranks, layers and rows are, and what ranks send: groups, layers on devices, bytes."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Box, Figure
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
) -> Figure:
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
    lanes = [f"device {d + 1}" for d in range(1 + max(map(max, assignments.values())))]
    panels = []
    for name, devices in assignments.items():
        boxes = [
            draw.span(device, at - 0.42, at + 0.42, colour_of_rank(device), f"{at + first}")
            for at, device in enumerate(devices)
        ]
        crossings = sum(a != b for a, b in pairwise(devices))
        panels.append((f"{name}: {crossings} crossing{'s' * (crossings != 1)}", lanes, boxes))
    entries = [
        draw.patch_entry(f"a {unit} and its number (a colour per device)", colour_of_rank(0)),
        draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        draw.line_entry("stays on the device", GREY, linewidth=1),
    ]
    across = -0.7, longest - 0.3
    figure, every = draw.lane_figure(title, panels, entries, xlabel=unit, across=across)
    for axes, devices in zip(every, assignments.values(), strict=True):
        for at, ends in enumerate(pairwise(devices)):
            crosses = len({*ends}) > 1
            colour, width, gid = (RED, 2, "crossing") if crosses else (GREY, 1, "stays")
            axes.plot((at, at + 1), ends, color=colour, linewidth=width, gid=gid, zorder=1)
    ticks = range(0, longest, 1 + longest // 30)
    every[-1].set_xticks(ticks, [f"{at + first}" for at in ticks])
    return draw.worded(figure, zip(every, (boxes for *_, boxes in panels), strict=True))


# -- ranks ---------------------------------------------------------------------------------------


@styled
def rank_groups(
    shape: Sequence[int],
    names: Sequence[str] = ("dp", "tp", "pp"),
    hosts: Sequence[str] | Mapping[str, Sequence[str]] = (),
    *,
    title: str = "Who talks to whom along each axis",
) -> Figure:
    """A figure with a lane for each group of ranks along each axis of more than one rank, a box for
    each of its ranks: red where a group lies on several hosts. Ranks are in the order of hosts.

    ``hosts``: of each rank, as ``mesh.hosts`` says; none: all on one; or several of these by what
    they are called, one above the other.

    >>> len(rank_groups((2, 2, 1), hosts="AABB").axes)
    1
    """
    ranks = prod(shape)
    placed = hosts if isinstance(hosts, Mapping) else {"": hosts}
    if len(names) != len(shape) or any(len(on) not in (0, ranks) for on in placed.values()):
        raise ConfigError(
            f"rank_groups takes a name for each of {len(shape)} axes and a host for each of "
            f"{ranks} ranks, or none; got {len(names)} names and hosts {dict(placed)}"
        )
    mesh, panels = np.arange(ranks).reshape(shape), []
    for name, given in placed.items():
        on = [*given] or [""] * ranks
        order = sorted(range(ranks), key=[*map([*dict.fromkeys(on)].index, on)].__getitem__)
        lanes, boxes = ["host"] if given else [], []
        for host in dict.fromkeys(given):
            begin = [given[rank] for rank in order].index(host) - 0.45
            end = begin + list(given).count(host) - 0.1
            boxes.append(draw.span(0, begin, end, PALE, host, "host"))
        for axis, word in enumerate(names):
            groups = np.moveaxis(mesh, axis, -1).reshape(-1, shape[axis]).tolist()
            for group in (
                sorted(groups, key=lambda group: order.index(group[0])) if shape[axis] > 1 else ()
            ):
                far = len({on[rank] for rank in group}) > 1
                colour, gid = (RED, "across") if far else (BLUE, "within")
                for at in sorted(map(order.index, group)):
                    box = draw.span(
                        len(lanes), at - 0.45, at + 0.45, colour, f"rank {order[at]}", gid
                    )
                    boxes.append(box)
                lanes.append(word)
        panels.append((name, lanes, boxes))
    entries = [draw.patch_entry("a group on one host", BLUE)]
    if any(len({*on}) > 1 for on in placed.values()):
        entries.append(draw.patch_entry("a group on several hosts", RED))
    across = -0.6, ranks - 0.4
    figure, every = draw.lane_figure(title, panels, entries, xlabel="", across=across, pitch=0.26)
    for axes in every:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return draw.worded(figure, zip(every, (boxes for *_, boxes in panels), strict=True), 8)


# -- rows of an image ----------------------------------------------------------------------------


@styled
def rows_on_ranks(
    rows: Sequence[int],
    size: int,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    *,
    borrowed: Mapping[int, Sequence[int]] | None = None,
    title: str = "Who makes what of which rows",
) -> Figure:
    """A lane for each rank: its rows, those that it borrows, and its windows in lanes below.

    ``rows``: of the image, by rank. ``size``, ``stride`` and ``padding``: of the windows, in rows.
    ``borrowed``: rank -> rows of others, default those that its windows read; with none at all
    of a window only the middle is drawn. It belongs to the rank that has its middle row.

    >>> len(rows_on_ranks((3, 3, 2), 3, padding=(1, 1)).axes)
    1
    """
    cut, ends = split_rows(rows, size, stride, padding), (0, *accumulate(rows))
    owner = {row: r for r, (a, b) in enumerate(pairwise(ends)) for row in range(a, b)}
    lanes, boxes, begin = list[str](), list[Box](), -padding[0]
    colour: Any
    for rank, slab in enumerate(cut.slabs):
        read = range(slab.start - slab.above, slab.stop + slab.below)
        mine = {*range(ends[rank], ends[rank + 1]), *(borrowed or {}).get(rank, ())}
        for row in sorted(mine | {row for row in read if row not in owner or borrowed is None}):
            holder, colour, look = owner.get(row), PALE, {"edgecolor": GREY}
            if holder is not None:
                own = holder == rank
                colour = colour_of_rank(holder, 0.1 if own else 0.7)
                look = {} if own else {"hatch": "///"}
            words = "zero" if holder is None else str(row)
            boxes.append(draw.span(len(lanes), row, row + 1, colour, words, look=look))
        lanes.append(f"rank {rank}: {cut.out[rank]} out")
        for _ in range(cut.out[rank]):
            middle, end = begin + (cut.reach - 1) // 2, begin + cut.reach
            if borrowed != {}:
                window = draw.span(
                    len(lanes), begin + 0.1, end - 0.1, GREY, gid="window", height=0.2
                )
                boxes.append(window)
            boxes.append(draw.span(len(lanes), middle + 0.3, middle + 0.7, INK, height=0.4))
            lanes.append("")
            begin += stride
    entries = [
        draw.patch_entry("its own row", lighter(GREY, 0.1)),
        draw.patch_entry("borrowed, in its owner's colour", lighter(GREY, 0.7), hatch="///"),
        draw.patch_entry("padding", PALE, edgecolor=GREY),
        draw.line_entry(f"a window of {size} rows, stride {stride}, and its middle", linewidth=2),
    ]
    across = -padding[0] - 0.2, ends[-1] + padding[1] + 0.2
    xlabel = "number in a box: the row"
    figure, (axes,) = draw.lane_figure(
        title, [("", lanes, boxes)], entries, xlabel=xlabel, across=across, pitch=0.22
    )
    axes.set_xticks([])
    return draw.worded(figure, [(axes, boxes)], 8)


# -- bytes ---------------------------------------------------------------------------------------

_MOST_NUMBERS = 12
"""Ranks up to which a cell has room for its number."""


@styled
def traffic_matrix(
    predicted: Traffic | Mapping[str, Traffic],
    measured: Traffic | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """A heat map of bytes from each rank to each other; with ``measured``, two on one colour scale
    and a red frame around every cell that differs.

    Of several, ``{name: traffic}``, a panel each on one scale. Lines are drawn between hosts.
    """
    traffics = {"predicted": predicted} if isinstance(predicted, Traffic) else dict(predicted)
    if measured is not None:
        traffics["measured"] = measured
    if len({traffic.ranks for traffic in traffics.values()}) != 1:
        raise ConfigError(
            f"traffic_matrix draws 1 traffic or more, all of as many ranks, got "
            f"{ {name: traffic.ranks for name, traffic in traffics.items()} }; draw the same run"
        )
    first = next(iter(traffics.values()))
    wrong = [] if measured is None else np.argwhere(first.bytes != measured.bytes).tolist()
    found = "" if measured is None else ": measured equals predicted to the byte"
    found = f": {len(wrong)} cell{'s differ' if len(wrong) > 1 else ' differs'}" if wrong else found
    top = max(1, *(int(t.bytes.max(initial=0)) for t in traffics.values()))
    wide = WIDTH if len(traffics) > 1 else 0.6 * WIDTH
    figure = canvas(4.1, title or f"Bytes between ranks{found}", wide)
    panels = figure.subplots(1, len(traffics), squeeze=False)[0]
    for axes, (name, traffic) in zip(panels, traffics.items(), strict=True):
        image = axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(f"{name}: {format_bytes(traffic.total)} in {traffic.count:,} messages")
        ticks = range(0, traffic.ranks, 1 + traffic.ranks // 17)
        axes.set(xticks=ticks, yticks=ticks, xlabel="to rank", ylabel="from rank")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, (one, other) in enumerate(pairwise(traffic.hosts)):
            if one != other:
                axes.axvline(i + 0.5, gid="between hosts", **draw.DASHED)
                axes.axhline(i + 0.5, gid="between hosts", **draw.DASHED)
        for i, j in wrong:
            draw.mark_box(axes, (j - 0.47, i - 0.47, 0.94, 0.94), f"{i} to {j}")
        size = 9 if traffic.ranks <= 4 else 7 if traffic.ranks <= 8 else 5
        for (i, j), nbytes in np.ndenumerate(traffic.bytes):
            if traffic.ranks <= _MOST_NUMBERS:
                amount = format_bytes(int(nbytes)).replace(" ", "\n") if nbytes else "0"
                cell = (j - 0.5, i - 0.5, 1, 1)
                colour = image.cmap(image.norm(nbytes))
                draw.text_in(axes, cell, "·" if i == j else amount, colour, size)
    if first.ranks > _MOST_NUMBERS:
        bar = figure.colorbar(image, ax=list(panels), label="bytes", shrink=0.85)
        draw.ticks_as(bar.ax.yaxis, format_bytes)
    return figure
