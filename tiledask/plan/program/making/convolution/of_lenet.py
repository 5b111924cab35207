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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.program.calls import STEP, calls
from tiledask.plan.program.instructions import Do, ProgramLine, ProgramPart, ProgramRole, Recv, Send
from tiledask.plan.program.lenet import (
    BOUNDARIES,
    DENSE,
    NAMES,
    OUT,
    SHAPES,
    SIDE,
    Need,
    Split,
    rows_of,
)
from tiledask.plan.program.making.convolution.convolutions import ConvolutionLayers, WindowTerms
from tiledask.plan.program.making.unit_states import DATA, UnitStates, flat_name
from tiledask.plan.program.making.writer import Gradients, ProgramWriter, Value, needed
from tiledask.plan.program.program import Program

__all__ = ["LeNetTerms", "lenet_program", "need", "need_of"]

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
    split, roles, of_rank = terms.split, dict[Any, int](), list[int]()
    made: list[ProgramRole] = []
    for rank in range(split.ranks):
        copy, stage, part = split.at(rank)
        images = even(terms.batch, split.copies)[copy]
        # parts of equal shapes do the same, but for halos, which differ at the image's ends
        like = (
            part if split.in_space else tuple(even(b.units, split.parts)[part] for b in BOUNDARIES)
        )
        key = images, stage, like
        if key not in roles:
            roles[key] = len(made)
            made.append(_Step(terms, images, stage, part).role())
        of_rank.append(roles[key])
    line = ProgramLine(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, bool))
    return Program(
        tuple(made), (line,) * split.ranks, tuple(of_rank), f"LeNet, {split}", split.shape
    )


class _Step:
    """Writes what a rank does."""

    def __init__(self, terms: LeNetTerms, images: int, stage: int, part: int) -> None:
        self.terms, self.split, self.images = terms, terms.split, images
        self.stage, self.part = stage, part
        self.layers = self.split.layers(stage)
        self.writer = ProgramWriter(terms.itemsize)
        names = [NAMES[i] for i in self.layers]
        shapes = {name: self.split.shapes(name, part) for name in names}
        space = self.split.in_space
        axes = (DATA, PARTS) if space else (DATA,)
        adding = prod(self.split.shape[axis] for axis in axes)
        told = self.writer, shapes, terms.recipe, 0, adding, 0
        self.states = UnitStates(*told, together=("gradients", axes))
        self.alone = ConvolutionLayers(self.writer, self.states, 1, 0, axis=PARTS)
        """What a part does by itself."""
        self.all = ConvolutionLayers(self.writer, self.states, self.split.parts, part, axis=PARTS)

    def role(self) -> ProgramRole:
        """All of a step, in one part."""
        writer, states = self.writer, self.states
        writer.part()
        total = Value("loss", (), 8)
        states.begin()
        writer.do("clear", (), (total,))
        self._forward_and_backward(total)
        states.update({}, None)
        stays = states.stays | {"loss": 8, "updates": 8}
        needed([writer.written], stays)
        used = {name for each in writer.written for name in each.writes}
        nbytes = {name: size for name, size in writer.nbytes.items() if name in used}
        items = {name: i for name, i in writer.items.items() if name in nbytes or name in stays}
        part = ProgramPart(STEP, -1, tuple(writer.written))
        scratch = frozenset(states.scratch | {"loss"})
        return ProgramRole((part,), nbytes, stays, scratch, items=items)

    def _forward_and_backward(self, total: Value) -> None:
        writer, first, last = self.writer, self.layers[0], self.layers[-1]
        x = begun = self._images() if first == 0 else self._comes(first - 1, "forward/y")
        for i in self.layers:
            with self.states.scope(NAMES[i]):
                x = (self._in_rows if self.split.in_space else self._by_units)(i, x)
        if last == LAST:
            loss = self._loss(x)
            shares = 1 if self.split.in_space else self.split.parts
            writer.do("add_loss", (total, loss), (total,), shares=shares)
            seeds = {loss: loss}
        else:
            self._goes(x, last, "forward/y", self.stage + 1)
            seeds = {x: self._comes(last, "backward/dy")}
        found = writer.backward(writer.take_tape(), seeds)
        if first:
            self._goes(found[begun], first - 1, "backward/dy", self.stage - 1)

    # -- layers ---------------------------------------------------------------------------------

    def _by_units(self, i: int, x: Value) -> Value:
        """Between layers a part has some units of x; before a layer it gathers the others'."""
        if i:
            x = self._gathered(i - 1, x)
        if i >= DENSE:
            return self._dense(i, x)
        y = self.alone.conv_by_output(x, NAMES[i], _window(NAMES[i]))
        y = self.alone.through("relu", y, y.shape[-1])
        return self.alone.pool(y, "avg_pool2d", POOL)

    def _in_rows(self, i: int, x: Value) -> Value:
        """Between convolutions a part has some rows of x; what has no rows is done by images."""
        name, splits = NAMES[i], rows_of(self.split.parts)
        if i >= DENSE:
            return self._dense(i, self._to_images(x) if i == DENSE else x)
        y = self.all.conv_in_rows(
            x, name, _window(name), splits[name], label=f"{name}/", summed=False
        )
        y = self.all.through("relu", y, y.shape[-1])
        label = f"{name}/pool/"
        return self.all.pool_in_rows(y, "avg_pool2d", POOL, splits[f"{name}/pool"], label)

    def _dense(self, i: int, x: Value) -> Value:
        flat = self.alone.flat(x) if i == DENSE else x
        y = self.alone.column_linear(flat, NAMES[i], ("w",), ("",))
        return y if i == LAST else self.alone.through("relu", y, y.shape[-1])

    def _loss(self, y: Value) -> Value:
        """The images' loss: by units every part has that of all, in space that of its own."""
        n = self.images
        classes = self.writer.value("classes", (n,), 8)
        self.writer.do("classes", (), (classes,), rows=n)
        if self.split.in_space:
            classes = self.all.own(classes, 0, even(n, self.split.parts))
        else:
            y = self._gathered(LAST, y)
        return self.alone.loss(y, classes, (BOUNDARIES[LAST].units,), self.terms.batch)

    def _images(self) -> Value:
        images = self.writer.value("images", (self.images, 1, SIDE, SIDE))
        self.writer.do("images", (), (images,), rows=self.images)
        if not self.split.in_space:
            return images
        return self.all.own(images, 2, even(SIDE, self.split.parts))

    # -- between the parts of a stage -----------------------------------------------------------

    def _gathered(self, boundary: int, x: Value) -> Value:
        """All units of what a layer makes: of its gradient, a sum, each needs its own units."""
        if self.split.parts == 1:
            return x
        of, writer = BOUNDARIES[boundary], self.writer
        units = even(of.units, self.split.parts)
        each = prod(x.shape[2:]) * x.shape[0]
        told: dict[str, Any] = {"counts": tuple(each * n for n in units), "dim": 1, "stream": "tp"}
        shape = x.shape[0], of.units, *x.shape[2:]
        whole = writer.all_gather(x, f"{of.name}/forward/y", (PARTS,), shape, **told)

        def rule(dy: Value) -> Gradients:
            if boundary == LAST:  # every part had all of the loss
                return [(x, self.all.own(dy, 1, units))]
            label = f"{of.name}/backward/dy"
            extents = {"extents": units}
            return [(x, writer.reduce_scatter(dy, label, (PARTS,), x.shape, **told, **extents))]

        return writer.on_tape(whole, rule)

    def _to_images(self, x: Value) -> Value:
        """All rows of this part's images, for its rows of all images."""
        parts, name = self.split.parts, NAMES[DENSE - 1]
        if parts == 1:
            return x
        rows, share = rows_of(parts)[f"{name}/pool"].out, even(self.images, parts)
        each = x.shape[1] * x.shape[3]
        out = tuple(each * r * n for r in rows for n in share)
        back = tuple(each * r * n for n in share for r in rows)
        shape = share[self.part], x.shape[1], sum(rows), x.shape[3]
        y = self.writer.all_to_all(
            x, f"{name}/forward/y", (PARTS,), shape,
            counts=out, extents=share, split_dim=0, dim=2, stream="tp",
        )  # fmt: skip

        def rule(dy: Value) -> Gradients:
            dx = self.writer.all_to_all(
                dy, f"{name}/backward/dy", (PARTS,), x.shape,
                counts=back, extents=rows, split_dim=2, dim=0, stream="tp",
            )  # fmt: skip
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    # -- between stages -------------------------------------------------------------------------

    def _comes(self, boundary: int, what: str) -> Value:
        """What another stage makes, or the gradient of what it takes."""
        name, here = BOUNDARIES[boundary].name, self.stage + (1 if what == "backward/dy" else -1)
        made = Value(f"{name}/{what}", self._shape(boundary), self.writer.itemsize)
        self.writer.named(made)
        self.writer.written.append(Recv(made.name, here, f"from_{here}", STAGES))
        return made

    def _goes(self, x: Value, boundary: int, what: str, stage: int) -> None:
        self.writer.rename(x, f"{BOUNDARIES[boundary].name}/{what}")
        self.writer.written.append(Send(x.name, stage, f"to_{stage}", STAGES))

    def _shape(self, boundary: int) -> tuple[int, ...]:
        """Of what this part has of a layer's output."""
        of, parts = BOUNDARIES[boundary], self.split.parts
        n, units = self.images, of.units
        if not self.split.in_space:
            units = even(units, parts)[self.part]
        elif boundary >= DENSE:
            n = even(n, parts)[self.part]
        if boundary >= DENSE:
            return n, units
        rows = columns = OUT[of.name][0] // 2
        if self.split.in_space:
            rows = rows_of(parts)[f"{of.name}/pool"].out[self.part]
        return n, units, rows, columns


def _window(name: str) -> WindowTerms:
    rows, columns = SHAPES[name]["w"][2:]
    return WindowTerms((rows, columns))


# -- what a step needs ---------------------------------------------------------------------------


def need(ways: Mapping[str, int] | str, images: int, ranks: int, itemsize: int) -> Need:
    """The Need of a split for a batch of ``images``: its program, counted.

    ``ways``: "by output units", "network", "data parallel" or "space" for all ``ranks``; or how
    many ranks each way has, whose product is ``ranks``.

    >>> found = need("network", 256, 4, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    >>> need({"data parallel": 2, "by output units": 2}, 256, 4, 4).barriers
    8
    """
    return need_of(Split.of(ways, ranks), images, itemsize)


def need_of(split: Split, images: int, itemsize: int) -> Need:
    """The same for a Split."""
    usual = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in usual.states)
    terms = LeNetTerms(split, images, replace(usual, states=states), itemsize)
    program = lenet_program(terms)
    roles = [program.role(rank) for rank in range(split.ranks)]
    weights = [flat_name("weights", name) for name in NAMES]
    held = (sum(role.stays.get(name, 0) for name in weights) for role in roles)
    return Need(
        tuple(tuple(calls(program, rank)) for rank in range(split.ranks)),
        tuple(nbytes // itemsize for nbytes in held),
        tuple(map(_flops, roles)),
    )


def _flops(role: ProgramRole) -> int:
    """Of a role's products."""
    products = (
        dict(each.options).get("product")
        for part in role.parts
        for each in part.instructions
        if isinstance(each, Do)
    )
    return sum(2 * prod(product) for product in products if product)
