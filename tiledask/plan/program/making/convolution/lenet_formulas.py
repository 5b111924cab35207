"""What a split of LeNet needs of each rank, by the closed forms of plan/collectives alone.

             parts of a stage              stages             copies, in space parts too
forward      gathers, or halos and rows    send, recv
             to images, layer by layer
backward     the adjoints                  recv, send
then                                                          one all_reduce of all gradients

Nothing of its program is asked: `of_lenet.need` counts that, and a run its ranks.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import NamedTuple

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import Cost, cost, even
from tiledask.plan.collectives.halo import halo_strips
from tiledask.plan.program.calls import Planned
from tiledask.plan.program.lenet import (
    BOUNDARIES,
    DENSE,
    NAMES,
    OUT,
    SHAPES,
    SIDE,
    Boundary,
    Need,
    Split,
    flops,
    rows_of,
)

__all__ = ["calls_of", "need_by_formulas"]


class Expected(NamedTuple):
    """One collective before anything runs."""

    label: str
    kind: str
    cost: Cost
    """By rank, the bytes and the messages."""


Calls = list[tuple[int, Expected]]
"""By the number of the layer that calls."""


def need_by_formulas(split: Split, images: int, itemsize: int) -> Need:
    """The Need of a split for a batch of ``images``.

    >>> found = need_by_formulas(Split.of("network", 4), 256, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    """
    places = [split.at(rank) for rank in range(split.ranks)]
    return Need(
        tuple(calls_of(split, at, images, itemsize) for at in places),
        tuple(_parameters(split, stage, part) for _, stage, part in places),
        tuple(_flops(split, at, images) for at in places),
    )


def calls_of(
    split: Split, at: tuple[int, int, int], images: int, itemsize: int
) -> tuple[Planned, ...]:
    """What the rank (copy, stage, part) calls in a step, in order."""
    copy, stage, part = at
    here, mine = split.layers(stage), even(images, split.copies)[copy]
    first, last = stage == 0, stage == split.stages - 1
    ends = [split.layers(s)[-1] for s in range(split.stages)]
    messages = [Boundary(BOUNDARIES[i].name, split.shares(i, mine)[part]) for i in ends]
    pairs = {(c.label, c.kind): c for c in in_stages(messages, 1, split.stages, itemsize)}
    there, back = (_in_space if split.in_space else _by_units)(split.parts, mine, itemsize)
    calls = []

    def between(end: int, what: str, kind: str) -> None:
        calls.append(_of(pairs[f"{BOUNDARIES[ends[end]].name}/{what}", kind], stage))

    def inside(found: Calls) -> None:
        calls.extend(_of(call, part) for i, call in found if i in here)

    if not first:
        between(stage - 1, "forward/y", "recv")
    inside(there)
    if not last:
        between(stage, "forward/y", "send")
        between(stage, "backward/dy", "recv")
    inside(back)
    if not first:
        between(stage - 1, "backward/dy", "send")
    adding = split.copies * (split.parts if split.in_space else 1)
    number = copy * split.parts + part if split.in_space else copy
    sums = all_reduced("gradients", _parameters(split, stage, part), adding, itemsize)
    return (*calls, *(_of(call, number) for call in sums))


@lru_cache(256)  # the same for every rank
def _by_units(parts: int, images: int, itemsize: int) -> tuple[Calls, Calls]:
    """(forward, backward): a layer gathers what the one before it made, and the loss the last."""
    numbers = {boundary.name: i for i, boundary in enumerate(BOUNDARIES)}
    by_layer = [
        (min(numbers[call.label.split("/")[0]] + 1, len(NAMES) - 1), call)
        for call in layerwise(BOUNDARIES, images, parts, itemsize)
    ]
    gathers = [each for each in by_layer if each[1].kind == "all_gather"]
    return gathers, [each for each in by_layer if each[1].kind == "reduce_scatter"]


@lru_cache(256)
def _in_space(parts: int, images: int, itemsize: int) -> tuple[Calls, Calls]:
    """(forward, backward): halos of each window; then rows of all images to images."""
    there, back, channels, columns = [], [], 1, SIDE
    for i, boundary in enumerate(BOUNDARIES[:DENSE]):
        inner = boundary.units, OUT[boundary.name][1]
        for name, size in ((boundary.name, (channels, columns)), (f"{boundary.name}/pool", inner)):
            split, row = rows_of(parts)[name], images * size[0] * size[1] * itemsize
            facts = split.rows, split.before, split.after, row
            there += [(i, call) for call in halo(f"{name}/forward/halo", *facts)]
            if name != BOUNDARIES[0].name:  # the images have no gradient
                back += [(i, call) for call in halo(f"{name}/backward/halo", *facts, back=True)]
        channels, columns = boundary.units, isqrt(boundary.each)
    last, share = BOUNDARIES[DENSE - 1].name, even(images, parts)
    rows, each = rows_of(parts)[f"{last}/pool"].out, channels * columns
    if parts > 1:
        out = [each * r * n for r in rows for n in share]
        into = [each * r * n for n in share for r in rows]
        there += _all_to_all(f"{last}/forward/y", out, itemsize)
        back += _all_to_all(f"{last}/backward/dy", into, itemsize)
    return there, back[::-1]


def _all_to_all(label: str, counts: list[int], itemsize: int) -> Calls:
    return [(DENSE, call) for call in expected(label, "all_to_all", counts, itemsize)]


def _of(call: Expected, me: int) -> Planned:
    each = call.cost
    return Planned(call.label, call.kind, each.sent[me], each.received[me], each.messages[me])


def _parameters(split: Split, stage: int, part: int) -> int:
    total = 0
    for i in split.layers(stage):
        units = BOUNDARIES[i].units
        mine = units if split.in_space else even(units, split.parts)[part]
        total += sum(map(prod, SHAPES[NAMES[i]].values())) // units * mine
    return total


def _flops(split: Split, at: tuple[int, int, int], images: int) -> int:
    """Of a rank's products: of its units, of its rows, or behind the rows of its images."""
    (copy, stage, part), total = at, 0
    mine = even(images, split.copies)[copy]
    for i in split.layers(stage):
        name, units = NAMES[i], BOUNDARIES[i].units
        if not split.in_space:
            total += flops(name, mine, even(units, split.parts)[part])
        elif i < DENSE:
            rows = rows_of(split.parts)[name].out[part]
            total += flops(name, mine) * rows // OUT[name][0]
        else:
            total += flops(name, even(mine, split.parts)[part])
    return total


# -- closed forms ----------------------------------------------------------------------------------


def expected(label: str, kind: str, counts: Sequence[int], itemsize: int) -> tuple[Expected, ...]:
    """One collective of chunks of ``counts`` elements, as for `cost`; none for a rank alone."""
    n = len(counts)
    return (Expected(label, kind, cost(kind, default(kind, n), counts, itemsize)),) * (n > 1)


def all_reduced(label: str, elements: int, ranks: int, itemsize: int) -> tuple[Expected, ...]:
    """One all_reduce of an array of ``elements``."""
    return expected(label, "all_reduce", even(elements, ranks), itemsize)


def halo(
    label: str, rows: Sequence[int], before: int, after: int, row_bytes: int, back: bool = False
) -> tuple[Expected, ...]:
    """One halo_exchange, or its adjoint halo_reduce (``back``); none if no row is lent.

    >>> halo("halo", [3, 3, 2], 1, 1, row_bytes=10)[0].cost.sent
    (10, 20, 10)
    """
    n, strips = len(rows), halo_strips(rows, before, after)
    sent, received, messages = [0] * n, [0] * n, [0] * n
    for strip in strips:
        ends = (strip.destination, strip.source) if back else (strip.source, strip.destination)
        nbytes = row_bytes * (strip.stop - strip.start)
        sent[ends[0]] += nbytes
        received[ends[1]] += nbytes
        messages[ends[0]] += 1
    if not strips:
        return ()
    kind = "halo_reduce" if back else "halo_exchange"
    return (Expected(label, kind, Cost(tuple(sent), tuple(received), tuple(messages), 1)),)


def transfer(
    label: str, source: int, destination: int, nbytes: int, ranks: int
) -> tuple[Expected, ...]:
    """A message from one rank to another: what one of them sends, and what the other receives.

    >>> [(each.kind, each.cost.sent) for each in transfer("h1", 0, 1, 10, ranks=3)]
    [('send', (10, 0, 0)), ('recv', (0, 0, 0))]
    """
    out = tuple(nbytes * (r == source) for r in range(ranks))
    into = tuple(nbytes * (r == destination) for r in range(ranks))
    nothing = (0,) * ranks
    one = tuple(int(r == source) for r in range(ranks))
    return (
        Expected(label, "send", Cost(out, nothing, one, 1)),
        Expected(label, "recv", Cost(nothing, into, nothing, 0)),
    )


def layerwise(
    layers: Sequence[Boundary], images: int, ranks: int, itemsize: int
) -> tuple[Expected, ...]:
    """Every layer by its output units: gathered for the next layer, summed on the way back."""

    def counts(layer: Boundary) -> list[int]:
        return [images * layer.each * units for units in even(layer.units, ranks)]

    there = [expected(f"{b.name}/forward/y", "all_gather", counts(b), itemsize) for b in layers]
    back = [
        expected(f"{b.name}/backward/dy", "reduce_scatter", counts(b), itemsize)
        for b in reversed(layers[:-1])
    ]
    return tuple(call for calls in (*there, *back) for call in calls)


def in_stages(
    layers: Sequence[Boundary], images: int, ranks: int, itemsize: int
) -> tuple[Expected, ...]:
    """A layer on each rank: its output goes to the next, the gradient of it comes back."""
    sizes = [images * b.units * b.each * itemsize for b in layers]
    pairs = list(enumerate(layers[:-1]))
    there = [transfer(f"{b.name}/forward/y", i, i + 1, sizes[i], ranks) for i, b in pairs]
    back = [
        transfer(f"{b.name}/backward/dy", i + 1, i, sizes[i], ranks) for i, b in reversed(pairs)
    ]
    return tuple(call for calls in (*there, *back) for call in calls)
