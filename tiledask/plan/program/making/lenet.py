"""d2l's LeNet on the ranks of any split: its shapes, the program of a step, and what that needs.

images [n, 1, 28, 28]
conv1  w 20x1x3x3    26x26   relu   mean of 2x2   ->   20 channels of 13x13
conv2  w 50x20x5x5   9x9     relu   mean of 2x2   ->   50 channels of 4x4
fc1    w 800x128             relu                 ->  128
fc2    w 128x10                                   ->   10 classes

                   a rank has                  so its gradients    and its layers call
data parallel      some of the images          are partial sums    all_reduce of gradients
network            some consecutive layers     are there           send and recv
by output units    some units of each layer    are there           all_gather x, reduce_scatter dx
space              some rows of each image     are partial sums    halos; then rows to images

The ways multiply: 2 data parallel x 2 network x 2 by output units are 8 ranks, (copy, stage, part)
in row-major order. A loss is over the images of the whole batch, so that gradients add up.

Zhang et al., Dive into Deep Learning, "Training on Multiple GPUs": the shapes of its `lenet`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import starmap
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.intervals import even, split
from tiledask.plan.products.placement import Replicate, Shard, Tiling, local_shapes
from tiledask.plan.program.count import STEP, PlannedCall, calls
from tiledask.plan.program.making.convolutions import WindowTerms, conv, flat, part, pool
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.tape import Tape, Value, Written, layer, needed
from tiledask.plan.program.making.zero import DATA, UnitStates, flat_name
from tiledask.plan.program.ops import ProgramRole, Step
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number

__all__ = ["EACH", "NAMES", "PARAMETERS", "PARTS", "SHAPES", "SIDE", "STAGES", "UNITS", "Need"]
__all__ += ["Split", "lenet_program", "need", "rows_of", "stages_of"]

WAYS = ("data parallel", "network", "by output units", "space")
STAGES, PARTS = 1, 2
"""Axes of the mesh, behind that of the copies."""
SIDE = 28
"""Rows and columns of an image."""
DENSE, LAST = 2, 3
"""Numbers of the first layer without rows, and of the last one."""
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "conv1": {"w": (20, 1, 3, 3), "b": (20,)},
    "conv2": {"w": (50, 20, 5, 5), "b": (50,)},
    "fc1": {"w": (800, 128), "b": (128,)},
    "fc2": {"w": (128, 10), "b": (10,)},
}
"""Of its weights."""
NAMES = tuple(SHAPES)
PARAMETERS = sum(prod(shape) for shapes in SHAPES.values() for shape in shapes.values())
UNITS = {name: shapes["b"][0] for name, shapes in SHAPES.items()}
"""Output channels, or outputs of a linear layer: what is sharded of what it gives the next one."""
EACH = {"conv1": 13 * 13, "conv2": 4 * 4, "fc1": 1, "fc2": 1}
"""Numbers of a unit."""


@dataclass(frozen=True)
class Split:
    """How many ranks there are each way; `Split.of` makes it from names."""

    copies: int = 1
    """Copies of the network, each for some of the images."""
    stages: int = 1
    """Stages of a copy, each with some of the layers."""
    parts: int = 1
    """Parts of a stage."""
    in_space: bool = False
    """Whether a part has some rows of the images; otherwise some units of the layers."""
    shape: tuple[int, int, int] = field(init=False, compare=False)
    """(copies, stages, parts)."""
    ranks: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        shape = self.copies, self.stages, self.parts
        vars(self).update(shape=shape, ranks=prod(shape))

    @classmethod
    def of(cls, ways: Mapping[str, int] | str, ranks: int = 1) -> "Split":
        """The Split with as many ranks each way, or of all ``ranks`` one way."""
        ways = {ways: ranks} if isinstance(ways, str) else dict(ways)
        if "layerwise" in ways:  # d2l's word, which elsewhere means whole layers on a device
            ways = {"by output units": ways.pop("layerwise")} | ways
        for name, n in ways.items():
            if name not in WAYS:
                raise ConfigError(f"LeNet is split by {', '.join(map(repr, WAYS))}, got {name!r}")
            whole_number(name, n, 1, of="ranks")
        if {"by output units", "space"} <= set(ways):
            raise ConfigError(
                f"a layer is split by its units or in space, got {ways}; keep one, and multiply "
                f"the other into 'data parallel'"
            )
        copies, stages, units, rows = (int(ways.get(name, 1)) for name in WAYS)
        stages_of(stages)
        return cls(copies, stages, units * rows, in_space="space" in ways)

    def tilings(self, name: str) -> dict[str, Tiling]:
        """How the weights of a layer lie on the parts of its stage: by output units these are the
        rows of a convolution's w and of b, the columns of a matrix."""
        found = {}
        for kind, shape in SHAPES[name].items():
            placement = Replicate() if self.in_space else Shard(1 if len(shape) == 2 else 0)
            found[kind] = Tiling(shape, (self.parts,), (placement,))
        return found

    def __str__(self) -> str:
        names = *WAYS[:2], WAYS[3 if self.in_space else 2]
        each = (f"{name} {n}" for name, n in zip(names, self.shape, strict=True) if n > 1)
        return " x ".join(each) or "a single device"


@cache
def rows_of(parts: int) -> dict[str, RowSplit]:
    """Who makes which rows in each layer that has any, by its name; pooling as "conv1/pool"."""
    rows, found = even(SIDE, parts), {}
    for name in NAMES[:DENSE]:
        found[name] = split_rows(rows, SHAPES[name]["w"][2])
        found[f"{name}/pool"] = split_rows(found[name].out, 2, 2)
        rows = found[f"{name}/pool"].out
    return found


def stages_of(ranks: int) -> list[tuple[int, ...]]:
    """Which layers each stage has. Raises PlacementError for more stages than layers."""
    if ranks > len(NAMES):
        raise PlacementError(
            f"a stage has a layer or more, and LeNet has {len(NAMES)}: got {ranks} ranks; use "
            f"{len(NAMES)} or fewer"
        )
    return list(map(tuple, starmap(range, split(0, len(NAMES), ranks))))


# -- the program of a step -----------------------------------------------------------------------


@lru_cache(128)
def lenet_program(ways: Split, batch: int, recipe: Recipe, itemsize: int) -> Program:
    """The Program of a step of ``batch`` images, of all copies, on a (copies, stages, parts) mesh.
    ``recipe``: what is kept of each number, all in ``itemsize`` bytes."""
    ranks = range(ways.ranks)
    roles = tuple(_Step(ways, batch, recipe, itemsize, rank).role() for rank in ranks)
    orders = ((Step(STEP, 0),),) * len(ranks)
    return Program(roles, orders, tuple(ranks), f"LeNet, {ways}", ways.shape)


class _Step:
    """Writes what a rank does."""

    def __init__(self, ways: Split, batch: int, recipe: Recipe, itemsize: int, rank: int) -> None:
        copy, self.stage, self.part = map(int, np.unravel_index(rank, ways.shape))
        self.batch, self.images = batch, even(batch, ways.copies)[copy]
        self.parts, self.layers = ways.parts, stages_of(ways.stages)[self.stage]
        self.space, self.whole = ways.in_space, ways.parts == 1
        self.tape = Tape(itemsize)
        shapes = {NAMES[i]: local_shapes(ways.tilings(NAMES[i]), self.part) for i in self.layers}
        axes = (DATA, PARTS) if self.space else (DATA,)
        given = self.tape, shapes, recipe, 0, prod(ways.shape[axis] for axis in axes), 0
        self.states = UnitStates(*given, together=("gradients", axes))
        self.alone = TensorLayers(self.tape, self.states, 1, 0, axis=PARTS)
        """What a part does by itself."""
        self.all = TensorLayers(self.tape, self.states, self.parts, self.part, axis=PARTS)

    def role(self) -> ProgramRole:
        """All of a step, in one block."""
        tape, states, total = self.tape, self.states, Value("loss", (), 8)
        first, last, stage = self.layers[0], self.layers[-1], self.stage
        states.begin()
        tape.do("clear", (), (total,))
        if first:
            x = begun = self._comes(first - 1, "forward/y", stage - 1)
        else:
            shape = self.images, 1, SIDE, SIDE
            x = begun = tape.make("images", (), "images", shape, rows=self.images)
            if self.space:
                own = even(SIDE, self.parts)
                x = part(tape, x, 2, ("part", PARTS, own), own[self.part])
        layers, splits = (self.all, rows_of(self.parts)) if self.space else (self.alone, {})
        means = WindowTerms((2, 2), (2, 2))
        for i in self.layers:
            name = NAMES[i]
            with states.scope(name):
                if i and not self.space and not self.whole:
                    x = self._gathered(x, i - 1)
                if i == DENSE:
                    x = flat(self.alone, self._to_images(x) if self.space and not self.whole else x)
                if i < DENSE:
                    rows, columns = SHAPES[name]["w"][2:]
                    window, split = WindowTerms((rows, columns)), splits.get(name)
                    x = conv(layers, x, name, window, split, f"{name}/", summed=False)
                else:
                    x = self.alone.column_linear(x, name, ("w",), ("",))
                if i < LAST:
                    x = self.alone.through("relu", x, x.shape[-1])
                if i < DENSE:
                    x = pool(layers, x, means, splits.get(f"{name}/pool"), f"{name}/pool/")
        if last == LAST:  # by units every part has the loss of all images, in space of its own
            n, classes_of = self.images, (UNITS[NAMES[LAST]],)
            classes = tape.make("classes", (), "classes", (n,), 8, rows=n)
            if self.space:
                own = even(n, self.parts)
                classes = part(tape, classes, 0, ("part", PARTS, own), own[self.part])
            elif not self.whole:
                x = self._gathered(x, LAST)
            seed = x = self.alone.loss(x, classes, classes_of, self.batch)
            tape.do("add_loss", (total, x), (total,), shares=1 if self.space else self.parts)
        else:
            tape.goes(x, f"{NAMES[last]}/forward/y", stage + 1, STAGES)
            seed = self._comes(last, "backward/dy", stage + 1)
        found = tape.backward({x: seed})
        if first:
            tape.goes(found[begun], f"{NAMES[first - 1]}/backward/dy", stage - 1, STAGES)
        states.update({})
        state, ops = states.state | {"loss": 8, "updates": 8}, tape.take()
        needed([ops], state)
        accumulators = frozenset(states.accumulators | {"loss"})
        return tape.role({STEP: ops}, state, accumulators=accumulators)

    # -- between the parts of a stage -----------------------------------------------------------

    @layer
    def _gathered(self, x: Value, boundary: int) -> Written:
        name = NAMES[boundary]
        units = even(UNITS[name], self.parts)
        dy = yield self.all.along("all_gather", x, f"{name}/forward/y", 1, units, UNITS[name])
        if boundary == LAST:  # every part had all of the loss
            return [(x, part(self.tape, dy, 1, ("part", PARTS, units), units[self.part]))]
        label, mine = f"{name}/backward/dy", units[self.part]
        dx = self.all.along("reduce_scatter", dy, label, 1, units, mine, extents=units)
        return [(x, dx)]

    @layer
    def _to_images(self, x: Value) -> Written:
        """All rows of this part's images, for its rows of all images."""
        share = even(self.images, self.parts)
        rows = rows_of(self.parts)[f"{NAMES[DENSE - 1]}/pool"].out
        dy = yield self._swapped(x, "forward/y", (0, 2), share, rows)
        return [(x, self._swapped(dy, "backward/dy", (2, 0), rows, share))]

    def _swapped(
        self, x: Value, way: str, dims: tuple[int, int], out: Sequence[int], came: Sequence[int]
    ) -> Value:
        """All of ``dims[1]``, which ``came`` in parts, of this part, by ``out``, of ``dims[0]``."""
        shape, each = list(x.shape), x.shape[1] * x.shape[3]
        shape[dims[0]], shape[dims[1]] = out[self.part], sum(came)
        args: dict[str, Any] = {"extents": out, "split_dim": dims[0], "dim": dims[1]}
        args["counts"] = tuple(each * mine * n for mine in came for n in out)
        label = f"{NAMES[DENSE - 1]}/{way}"
        return self.tape.together("all_to_all", x, label, (PARTS,), shape, stream="tp", **args)

    # -- between stages -------------------------------------------------------------------------

    def _comes(self, boundary: int, what: str, stage: int) -> Value:
        """What this part has of a layer's output, or of its gradient, from another stage."""
        name, part, n = NAMES[boundary], self.part, self.images
        units = UNITS[name] if self.space else even(UNITS[name], self.parts)[part]
        each: tuple[int, ...] = ()
        if boundary < DENSE:
            columns, rows = (rows_of(parts)[f"{name}/pool"].out for parts in (1, self.parts))
            each = rows[part] if self.space else columns[0], columns[0]
        elif self.space:
            n = even(n, self.parts)[part]
        return self.tape.comes(f"{name}/{what}", (n, units, *each), stage, STAGES)


# -- what a step needs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What a split needs of its ranks in one training step."""

    calls: tuple[tuple[PlannedCall, ...], ...]
    """By rank: its collectives and messages, in order."""
    parameters: tuple[int, ...]
    """That each rank holds."""
    flops: tuple[int, ...]
    """Of each rank's products."""
    sent: tuple[int, ...]
    """Bytes that each rank sends."""
    barriers: int
    """How often a rank waits for all of a group: the most of any rank."""
    transfers: int
    """Messages from one rank to another that no other waits for."""
    imbalance: float
    """Operations of the busiest rank over their mean: 1 is perfect."""


def need(ways: Split | Mapping[str, int] | str, images: int, ranks: int, itemsize: int) -> Need:
    """The Need of a split for a batch of ``images``: its program, counted.

    ``ways``: "by output units", "network", "data parallel" or "space" for all ``ranks``; or how
    many ranks each way has, whose product is ``ranks``.

    >>> found = need("network", 256, 4, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    """
    ways = ways if isinstance(ways, Split) else Split.of(ways, ranks)
    usual = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in usual.states)
    program = lenet_program(ways, images, replace(usual, states=states), itemsize)
    weights = [flat_name("weights", name) for name in NAMES]
    roles = [program.role(rank) for rank in range(program.ranks)]
    called = [tuple(calls(program, rank)) for rank in range(program.ranks)]
    kinds = [[call.kind for call in mine] for mine in called]
    products = ([op["product"] for op in role.blocks[STEP]] for role in roles)
    flops = tuple(sum(2 * prod(each) for each in mine if each) for mine in products)
    return Need(
        tuple(called),
        tuple(sum(role.state.get(n, 0) for n in weights) // itemsize for role in roles),
        flops,
        tuple(sum(call.sent for call in mine) for mine in called),
        max(sum(kind not in ("send", "recv") for kind in mine) for mine in kinds),
        sum(mine.count("send") for mine in kinds),
        max(flops) * len(flops) / sum(flops),
    )
