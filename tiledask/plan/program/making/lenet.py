"""The program of a training step of d2l's LeNet on the ranks of any split, and what it needs.

stage 0      layers forward --send--> stage 1 ... layers forward, loss          network
             layers backward <--send-- stage 1 ... layers backward
all          gradients --all_reduce over copies, in space over parts too--> those of the batch

What a stage's layers call among its parts, forward and backward:
    by units     all_gather of x | reduce_scatter of dx                         by output units
    by rows      halo_exchange, then rows to images | the same, backwards       space

A loss is over the number of images of the whole batch: however many of them a rank has, gradients
are added up as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.program.count import STEP, calls
from tiledask.plan.program.lenet import (
    DENSE,
    NAMES,
    OUT,
    SHAPES,
    SIDE,
    UNITS,
    Need,
    Split,
    rows_of,
)
from tiledask.plan.program.making.convolutions import ConvolutionLayers, WindowTerms
from tiledask.plan.program.making.tape import Gradients, Tape, Value, needed
from tiledask.plan.program.making.zero import DATA, UnitStates, flat_name
from tiledask.plan.program.ops import Block, ProgramRole, Step, message
from tiledask.plan.program.program import Program

__all__ = ["LeNetTerms", "lenet_program", "need"]

STAGES, PARTS = 1, 2
"""Axes of the mesh, behind that of the copies."""
POOL = WindowTerms((2, 2), (2, 2))
LAST = len(NAMES) - 1


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
        self.stage, self.part = stage, part
        self.layers = self.split.layers(stage)
        self.tape = Tape(terms.itemsize)
        names = [NAMES[i] for i in self.layers]
        shapes = {name: self.split.shapes(name, part) for name in names}
        space = self.split.in_space
        axes = (DATA, PARTS) if space else (DATA,)
        adding = prod(self.split.shape[axis] for axis in axes)
        given = self.tape, shapes, terms.recipe, 0, adding, 0
        self.states = UnitStates(*given, together=("gradients", axes))
        self.alone = ConvolutionLayers(self.tape, self.states, 1, 0, axis=PARTS)
        """What a part does by itself."""
        self.all = ConvolutionLayers(self.tape, self.states, self.split.parts, part, axis=PARTS)

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
            shares = 1 if self.split.in_space else self.split.parts
            tape.do("add_loss", (total, loss), (total,), shares=shares)
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
        name, space = NAMES[i], self.split.in_space
        if i and not space:
            x = self._gathered(i - 1, x)
        if i >= DENSE:
            return self._dense(i, self._to_images(x) if space and i == DENSE else x)
        layers, splits = (self.all, rows_of(self.split.parts)) if space else (self.alone, {})
        y = layers.conv(x, name, _window(name), splits.get(name), f"{name}/", summed=False)
        y = layers.through("relu", y, y.shape[-1])
        return layers.pool(y, POOL, splits.get(f"{name}/pool"), f"{name}/pool/")

    def _dense(self, i: int, x: Value) -> Value:
        flat = self.alone.flat(x) if i == DENSE else x
        y = self.alone.column_linear(flat, NAMES[i], ("w",), ("",))
        return y if i == LAST else self.alone.through("relu", y, y.shape[-1])

    def _loss(self, y: Value) -> Value:
        """The images' loss: by units every part has that of all, in space that of its own."""
        n = self.images
        classes = self.tape.make("classes", (), "classes", (n,), 8, rows=n)
        if self.split.in_space:
            classes = self.all.own(classes, 0, even(n, self.split.parts))
        else:
            y = self._gathered(LAST, y)
        return self.alone.loss(y, classes, (UNITS[NAMES[LAST]],), self.terms.batch)

    def _images(self) -> Value:
        n = self.images
        images = self.tape.make("images", (), "images", (n, 1, SIDE, SIDE), rows=n)
        if not self.split.in_space:
            return images
        return self.all.own(images, 2, even(SIDE, self.split.parts))

    # -- between the parts of a stage -----------------------------------------------------------

    def _gathered(self, boundary: int, x: Value) -> Value:
        """All units of what a layer makes: of its gradient, a sum, each needs its own units."""
        if self.split.parts == 1:
            return x
        name = NAMES[boundary]
        units = even(UNITS[name], self.split.parts)
        label = f"{name}/forward/y"
        whole = self.all.along("all_gather", x, label, 1, units, UNITS[name])

        def rule(dy: Value) -> Gradients:
            if boundary == LAST:  # every part had all of the loss
                return [(x, self.all.own(dy, 1, units))]
            label, mine = f"{name}/backward/dy", units[self.part]
            dx = self.all.along("reduce_scatter", dy, label, 1, units, mine, extents=units)
            return [(x, dx)]

        return self.tape.on_tape(whole, rule)

    def _to_images(self, x: Value) -> Value:
        """All rows of this part's images, for its rows of all images."""
        parts, name = self.split.parts, NAMES[DENSE - 1]
        if parts == 1:
            return x
        rows, share = rows_of(parts)[f"{name}/pool"].out, even(self.images, parts)

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

        y = swapped(x, "forward/y", (0, 2), share, rows)
        return self.tape.on_tape(
            y, lambda dy: [(x, swapped(dy, "backward/dy", (2, 0), rows, share))]
        )

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
        name, parts = NAMES[boundary], self.split.parts
        n, units = self.images, UNITS[name]
        if not self.split.in_space:
            units = even(units, parts)[self.part]
        elif boundary >= DENSE:
            n = even(n, parts)[self.part]
        if boundary >= DENSE:
            return n, units
        rows = columns = OUT[name][0] // 2
        if self.split.in_space:
            rows = rows_of(parts)[f"{name}/pool"].out[self.part]
        return n, units, rows, columns


def _window(name: str) -> WindowTerms:
    rows, columns = SHAPES[name]["w"][2:]
    return WindowTerms((rows, columns))


# -- what a step needs ---------------------------------------------------------------------------


def need(ways: Split | Mapping[str, int] | str, images: int, ranks: int, itemsize: int) -> Need:
    """The Need of a split for a batch of ``images``: its program, counted.

    ``ways``: "by output units", "network", "data parallel" or "space" for all ``ranks``; or how
    many ranks each way has, whose product is ``ranks``.

    >>> found = need("network", 256, 4, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    >>> need({"data parallel": 2, "by output units": 2}, 256, 4, 4).barriers
    8
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
