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

The ways multiply: 2 data parallel x 2 network x 2 by output units are 8 ranks. Rank (copy, stage,
part) is number (copy * stages + stage) * parts + part. A loss is over the number of images of the
whole batch: however many of them a rank has, gradients are added up as they are.

Zhang et al., Dive into Deep Learning, "Training on Multiple GPUs": the shapes of its `lenet`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import starmap
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.intervals import split
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.program.count import STEP, PlannedCall, calls
from tiledask.plan.program.making.convolutions import ConvolutionLayers, WindowTerms
from tiledask.plan.program.making.tape import Tape, Value, Written, layer, needed
from tiledask.plan.program.making.zero import DATA, UnitStates, flat_name
from tiledask.plan.program.ops import Block, ProgramRole, Step, message
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number

__all__ = [
    *("EACH", "NAMES", "PARAMETERS", "PARTS", "SHAPES", "SIDE", "STAGES", "UNITS", "LeNetTerms"),
    *("Need", "Split", "lenet_program", "need", "rows_of", "stages_of", "unit_dim"),
]

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
HIGH = {"conv1": 13, "conv2": 4, "fc1": 1, "fc2": 1}
"""Rows of what a layer gives, and columns."""
EACH = {name: high * high for name, high in HIGH.items()}
"""Numbers of a unit."""
POOL = WindowTerms((2, 2), (2, 2))


def unit_dim(shape: tuple[int, ...]) -> int:
    """Along which output units are: the rows of a convolution's w and of b, a matrix's columns."""
    return 1 if len(shape) == 2 else 0


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
        inner = "space" if "space" in ways else "by output units"
        copies, stages, parts = (int(ways.get(n, 1)) for n in (*WAYS[:2], inner))
        stages_of(stages)
        return cls(copies, stages, parts, in_space=inner == "space")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.copies, self.stages, self.parts

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    def at(self, rank: int) -> tuple[int, int, int]:
        """(copy, stage, part) of a rank."""
        copy, stage, part = map(int, np.unravel_index(rank, self.shape))
        return copy, stage, part

    def images(self, batch: int, copy: int) -> slice:
        """The images of a batch that a copy has; there may be none."""
        return slice(*split(0, batch, self.copies)[copy])

    def layers(self, stage: int) -> tuple[int, ...]:
        """Numbers of a stage's layers."""
        return stages_of(self.stages)[stage]

    def tilings(self, name: str) -> dict[str, Tiling]:
        """How the weights of a layer lie on the parts of its stage."""
        found = {}
        for kind, shape in SHAPES[name].items():
            placed = Replicate() if self.in_space else Shard(unit_dim(shape))
            found[kind] = Tiling(shape, (self.parts,), (placed,))
        return found

    def shapes(self, name: str, part: int) -> dict[str, tuple[int, ...]]:
        """Of what a part has of a layer's weights."""
        return {k: tiling.block_shape((part,)) for k, tiling in self.tilings(name).items()}

    def __str__(self) -> str:
        inner = "space" if self.in_space else "by output units"
        names = zip(self.shape, (*WAYS[:2], inner), strict=True)
        return " x ".join(f"{name} {n}" for n, name in names if n > 1) or "a single device"


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


@dataclass(frozen=True)
class LeNetTerms:
    """What a step's program follows from."""

    split: Split
    batch: int
    """Images of a step, of all copies."""
    recipe: Recipe
    """What is kept of each number, all in ``itemsize`` bytes."""
    itemsize: int


@lru_cache(128)
def lenet_program(terms: LeNetTerms) -> Program:
    """The Program of a step on a (copies, stages, parts) mesh; nothing is computed."""
    split, roles = terms.split, dict[Any, ProgramRole]()
    keys = list[Any]()
    for rank in range(split.ranks):
        copy, stage, part = split.at(rank)
        images = even(terms.batch, split.copies)[copy]
        # parts of equal shapes do the same, but for halos, which differ at the image's ends
        units = tuple(even(units, split.parts)[part] for units in UNITS.values())
        keys.append((images, stage, part if split.in_space else units))
        if keys[-1] not in roles:
            roles[keys[-1]] = _Step(terms, images, stage, part).role()
    role_of, orders = tuple(map([*roles].index, keys)), ((Step(STEP, 0),),) * split.ranks
    return Program(tuple(roles.values()), orders, role_of, f"LeNet, {split}", split.shape)


class _Step:
    """Writes what a rank does."""

    def __init__(self, terms: LeNetTerms, images: int, stage: int, part: int) -> None:
        self.terms, self.split, self.images = terms, terms.split, images
        self.stage, self.part, self.parts = stage, part, terms.split.parts
        self.space, self.layers = self.split.in_space, self.split.layers(stage)
        self.tape = Tape(terms.itemsize)
        shapes = {NAMES[i]: self.split.shapes(NAMES[i], part) for i in self.layers}
        axes = (DATA, PARTS) if self.space else (DATA,)
        adding = prod(self.split.shape[axis] for axis in axes)
        given = self.tape, shapes, terms.recipe, 0, adding, 0
        self.states = UnitStates(*given, together=("gradients", axes))
        self.alone = ConvolutionLayers(self.tape, self.states, 1, 0, axis=PARTS)
        """What a part does by itself."""
        self.all = ConvolutionLayers(self.tape, self.states, self.parts, part, axis=PARTS)

    def role(self) -> ProgramRole:
        """All of a step, in one block."""
        tape, states, total = self.tape, self.states, Value("loss", (), 8)
        first, last = self.layers[0], self.layers[-1]
        states.begin()
        tape.do("clear", (), (total,))
        x = begun = self._images() if first == 0 else self._comes(first - 1, "forward/y")
        for i in self.layers:
            with states.scope(NAMES[i]):
                x = self._layer(i, x)
        if last == LAST:
            loss = self._loss(x)
            tape.do("add_loss", (total, loss), (total,), shares=1 if self.space else self.parts)
            seeds = {loss: loss}
        else:
            self._goes(x, last, "forward/y", self.stage + 1)
            seeds = {x: self._comes(last, "backward/dy")}
        found = tape.backward(tape.take_rules(), seeds)
        if first:
            self._goes(found[begun], first - 1, "backward/dy", self.stage - 1)
        states.update({})
        state, ops = states.state | {"loss": 8, "updates": 8}, tape.take()
        needed([ops], state)
        accumulators = frozenset(states.accumulators | {"loss"})
        return tape.role([Block(STEP, -1, tuple(ops))], state, accumulators=accumulators)

    # -- layers ---------------------------------------------------------------------------------

    def _layer(self, i: int, x: Value) -> Value:
        """By units a part has some of x between layers, and gathers the others' before one; in
        space it has some rows, and what has no rows is done by images."""
        name = NAMES[i]
        if i and not self.space and self.parts > 1:
            x = self._gathered(x, i - 1)
        if i == DENSE:
            if self.space and self.parts > 1:
                x = self._to_images(x)
            x = self.alone.flat(x)
        if i >= DENSE:
            y = self.alone.column_linear(x, name, ("w",), ("",))
            return y if i == LAST else self.alone.through("relu", y, y.shape[-1])
        layers, splits = (self.all, rows_of(self.parts)) if self.space else (self.alone, {})
        rows, columns = SHAPES[name]["w"][2:]
        window = WindowTerms((rows, columns))
        y = layers.conv(x, name, window, splits.get(name), f"{name}/", summed=False)
        y = layers.through("relu", y, y.shape[-1])
        return layers.pool(y, POOL, splits.get(f"{name}/pool"), f"{name}/pool/")

    def _loss(self, y: Value) -> Value:
        """The images' loss: by units every part has that of all, in space that of its own."""
        n = self.images
        classes = self.tape.make("classes", (), "classes", (n,), 8, rows=n)
        if self.space:
            classes = self.all.own(classes, 0, even(n, self.parts))
        elif self.parts > 1:
            y = self._gathered(y, LAST)
        return self.alone.loss(y, classes, (UNITS[NAMES[LAST]],), self.terms.batch)

    def _images(self) -> Value:
        n = self.images
        images = self.tape.make("images", (), "images", (n, 1, SIDE, SIDE), rows=n)
        return self.all.own(images, 2, even(SIDE, self.parts)) if self.space else images

    # -- between the parts of a stage -----------------------------------------------------------

    @layer
    def _gathered(self, x: Value, boundary: int) -> Written:
        """All units of what a layer makes: of its gradient, a sum, each needs its own units."""
        name = NAMES[boundary]
        units = even(UNITS[name], self.parts)
        dy = yield self.all.along("all_gather", x, f"{name}/forward/y", 1, units, UNITS[name])
        if boundary == LAST:  # every part had all of the loss
            return [(x, self.all.own(dy, 1, units))]
        label, mine = f"{name}/backward/dy", units[self.part]
        dx = self.all.along("reduce_scatter", dy, label, 1, units, mine, extents=units)
        return [(x, dx)]

    @layer
    def _to_images(self, x: Value) -> Written:
        """All rows of this part's images, for its rows of all images."""
        name, share = NAMES[DENSE - 1], even(self.images, self.parts)
        rows = rows_of(self.parts)[f"{name}/pool"].out

        def swapped(x: Value, way: str, dims: tuple[int, int], *parts: Sequence[int]) -> Value:
            """All of ``dims[1]``, of this part of ``dims[0]``; of both each has such ``parts``."""
            (cut, joined), (out, came), shape = dims, parts, list(x.shape)
            shape[cut], shape[joined] = out[self.part], sum(came)
            each = x.shape[1] * x.shape[3]
            counts = tuple(each * mine * n for mine in came for n in out)
            return self.tape.together(
                "all_to_all", x, f"{name}/{way}", (PARTS,), shape,
                counts=counts, extents=out, split_dim=cut, dim=joined, stream="tp",
            )  # fmt: skip

        dy = yield swapped(x, "forward/y", (0, 2), share, rows)
        return [(x, swapped(dy, "backward/dy", (2, 0), rows, share))]

    # -- between stages -------------------------------------------------------------------------

    def _comes(self, boundary: int, what: str) -> Value:
        """What another stage makes, or the gradient of what it takes."""
        here, name = self.stage + (1 if what == "backward/dy" else -1), NAMES[boundary]
        made = Value(f"{name}/{what}", self._shape(boundary), self.tape.itemsize)
        self.tape.ops.append(message("recv", made.name, here, f"from_{here}", STAGES))
        return self.tape.named(made)

    def _goes(self, x: Value, boundary: int, what: str, stage: int) -> None:
        self.tape.rename(x, f"{NAMES[boundary]}/{what}")
        self.tape.ops.append(message("send", x.name, stage, f"to_{stage}", STAGES))

    def _shape(self, boundary: int) -> tuple[int, ...]:
        """Of what this part has of a layer's output."""
        name = NAMES[boundary]
        n, units, rows = self.images, UNITS[name], HIGH[name]
        if not self.space:
            units = even(units, self.parts)[self.part]
        elif boundary >= DENSE:
            n = even(n, self.parts)[self.part]
        else:
            rows = rows_of(self.parts)[f"{name}/pool"].out[self.part]
        return (n, units) if boundary >= DENSE else (n, units, rows, HIGH[name])


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

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        return tuple(sum(call.sent for call in mine) for mine in self.calls)

    @property
    def messages(self) -> int:
        """That all ranks send."""
        return sum(call.messages for mine in self.calls for call in mine)

    @property
    def barriers(self) -> int:
        """How often a rank waits for all of a group: the most of any rank."""
        return max(sum(call.kind not in ("send", "recv") for call in mine) for mine in self.calls)

    @property
    def transfers(self) -> int:
        """Messages from one rank to another that no other waits for."""
        return sum(call.kind == "send" for mine in self.calls for call in mine)

    @property
    def imbalance(self) -> float:
        """Operations of the busiest rank over their mean: 1 is perfect."""
        return max(self.flops) * len(self.flops) / sum(self.flops)


def need(ways: Split | Mapping[str, int] | str, images: int, ranks: int, itemsize: int) -> Need:
    """The Need of a split for a batch of ``images``: its program, counted.

    ``ways``: "by output units", "network", "data parallel" or "space" for all ``ranks``; or how
    many ranks each way has, whose product is ``ranks``.

    >>> found = need("network", 256, 4, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    """
    split = ways if isinstance(ways, Split) else Split.of(ways, ranks)
    usual = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in usual.states)
    program = lenet_program(LeNetTerms(split, images, replace(usual, states=states), itemsize))
    weights = [flat_name("weights", name) for name in NAMES]
    roles = [program.role(rank) for rank in range(split.ranks)]
    products = ([op["product"] for op in role.ops if op["product"]] for role in roles)
    return Need(
        tuple(tuple(calls(program, rank)) for rank in range(split.ranks)),
        tuple(sum(role.state.get(n, 0) for n in weights) // itemsize for role in roles),
        tuple(sum(2 * prod(product) for product in mine) for mine in products),
    )
