"""What a split of LeNet needs of each rank, by the closed forms of plan/collectives alone.

             parts of a stage              stages             copies, in space parts too
forward      gathers, or halos and rows    send, recv
             to images, layer by layer
backward     the adjoints                  recv, send
then                                                          one all_reduce of all gradients

Nothing of its program is asked: `of_lenet.need` counts that, and a run its ranks.
"""

from functools import lru_cache
from math import isqrt, prod

from tiledask.plan.collectives.convolution import Boundary, in_stages, layerwise
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.expected import Expected, all_reduced, expected, halo
from tiledask.plan.program.calls import Planned
from tiledask.plan.program.lenet import (
    BOUNDARIES,
    DENSE,
    NAMES,
    OUT,
    SHAPES,
    SIDE,
    Need,
    Split,
    flops,
    rows_of,
)

__all__ = ["calls_of", "need_by_formulas"]

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
