"""The programs of a training of a decoder over a (dp, tp, pp) mesh: made from shapes alone.

    rank 0: begin.0 0F.0 0F.1 0B.0 0B.1 update.0
    rank 1: begin.0 1F.0 1B.0 1F.1 1B.1 update.0

    F(s)     x of the stage before, its units' layers, x of the next or the loss
    B(s)     the rules of their tape, from the last to the first: I and W where backwards are split
    begin    gradients are cleared         update   sums over the copies, norm, optimizer's step
    end      after the last step: what was sharded is whole again, is written, and is brought

Ranks whose blocks have equal shapes share a role: made once, whatever the mesh.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tiledask.plan.collectives.shards import shards
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import even, part_of, split
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.products.placement import local_shapes
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.layers import TENSOR, TensorLayers
from tiledask.plan.program.making.tape import Tape, Value, Written, layer, needed
from tiledask.plan.program.making.zero import DATA, PIPELINE, UnitStates
from tiledask.plan.program.ops import Blocks, Op, Order, ProgramRole, Step, add_block, message
from tiledask.plan.program.program import Program

__all__ = ["TrainingTerms", "end_program", "step_program"]

LOSS, SCALE, UPDATES = (Value(name, (), 8) for name in ("loss", "scale", "updates"))
"""Numbers that stay."""


@dataclass(frozen=True, kw_only=True)
class TrainingTerms:
    """What a training's program follows from: a model's shapes, a schedule, what is kept."""

    model: Decoder
    schedule: Schedule
    cut: tuple[int, ...]
    """Layers of each stage."""
    batch: int
    """Rows of a step, of all copies of the model."""
    recipe: Recipe
    """What is kept of each number, and in how many bytes."""
    itemsize: int
    """Bytes of a number of activations."""
    sequence_parallel: bool = False
    zero: int = 0
    scaled: bool = False
    """Whether the loss is multiplied by a scale before its gradients are taken."""
    clipped: bool = False
    """Whether gradients are, by the norm of all."""
    recompute: bool = False
    """Whether a block's forward is done again in its backward, from its input alone."""

    def rows(self, copies: int, copy: int, microbatch: int) -> slice:
        """The rows of the batch of one micro-batch of one copy of the model; there may be none."""
        mine = split(0, self.batch, copies)[copy]
        return slice(*split(*mine, self.schedule.microbatches)[microbatch])

    def units(self, device: int) -> tuple[str, ...]:
        """What a pipeline rank holds."""
        here = {s for place in self.schedule.places for s, d in enumerate(place) if d == device}
        mine = {unit for s in here for unit in self.model.stage_units(s, self.cut)}
        return tuple(unit for unit in self.model.units if unit in mine)


def step_program(terms: TrainingTerms, mesh: tuple[int, int, int]) -> Program:
    """The Program of a step of a training on a (dp, tp, pp) mesh; nothing is computed."""
    rows = [even(n, terms.schedule.microbatches) for n in even(terms.batch, mesh[0])]
    first, role_of = _alike(terms, mesh, rows)
    made = (_Stages(terms, mesh, rank).made(rows[rank // prod(mesh[1:])]) for rank in first)
    roles, orders = zip(*made, strict=True)
    name = f"training {terms.schedule.name}".rstrip()
    return Program(roles, tuple(orders[n] for n in role_of), role_of, name, mesh)


def end_program(terms: TrainingTerms, mesh: tuple[int, int, int], saved: bool) -> Program:
    """The Program of what a mesh does after the last step; ``saved``: a checkpoint is written, of
    whole arrays, so that it is taken up again under any other layout."""
    tensors = [s.tensor for s in terms.recipe.states if s.tensor != "gradients"]
    (first, role_of), roles = _alike(terms, mesh), list[ProgramRole]()
    for rank in first:
        tape, states = _states(terms, mesh, rank)
        found = {
            (tensor, unit): states.whole(tensor, unit)
            for tensor in (tensors if saved else ["weights"])
            for unit in states.shapes
        }
        state = states.state
        if saved:
            state, ranks = state | {"loss": 8}, mesh[DATA] * mesh[PIPELINE]
            loss = tape.all_reduce(LOSS, "loss", (DATA, PIPELINE), ranks, "all")
            tape.do("write_checkpoint", (loss, *found.values()), what=tuple(found))
        weights = {unit: whole for (tensor, unit), whole in found.items() if tensor == "weights"}
        tape.do("bring", list(weights.values()), units=tuple(weights))
        roles.append(tape.role({"end": tape.ops}, state, constants=frozenset(state)))
    order, name = (Step("end", 0),), "checkpoint" if saved else "weights brought back"
    return Program(tuple(roles), (order,) * prod(mesh), role_of, name, mesh)


def _states(
    terms: TrainingTerms, mesh: tuple[int, int, int], rank: int, split: bool = False
) -> tuple[Tape, UnitStates]:
    copy, tensor, device = map(int, np.unravel_index(rank, mesh))
    tape = Tape(terms.itemsize, split)
    tilings = {unit: terms.model.tilings(unit, mesh[TENSOR]) for unit in terms.units(device)}
    shapes = {unit: local_shapes(of, tensor) for unit, of in tilings.items()}
    return tape, UnitStates(tape, shapes, terms.recipe, terms.zero, mesh[DATA], copy)


def _alike(
    terms: TrainingTerms, mesh: tuple[int, int, int], of_copy: Sequence[Any] = ()
) -> tuple[list[int], tuple[int, ...]]:
    """(the first rank of each role, by rank the number of its role): of equal shapes of blocks and
    of what ZeRO leaves them, and equal ``of_copy``."""
    (dp, tp, pp), model, blocks = mesh, terms.model, list[Any]()
    (query, kv, _), units = model.head_counts, ("embedding", "layer 0", "head")
    tilings = [each for unit in units for each in model.tilings(unit, tp).values()]
    for t in range(tp):
        held = [of for each in tilings if (of := each.shards())]
        counts = [(of.counts[t], *(ranks for ranks, _ in of.shared() if t in ranks)) for of in held]
        tokens = even(model.sequence, tp)[t] if terms.sequence_parallel else 0
        looks = part_of(0, query, tp, t)[0] % (query // kv)
        # the last: where, among the kv heads here, queries begin to look
        blocks.append((tuple(counts), tokens, looks))
    kept: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
    for t, p in product(range(tp), range(pp)) if terms.zero else ():
        shapes = (local_shapes(model.tilings(unit, tp), t) for unit in terms.units(p))
        kept[t, p] = shards([sum(map(prod, of.values())) for of in shapes], dp)
    keys = [
        (of_copy[d] if of_copy else (), blocks[t], p, *(each[d] for each in kept.get((t, p), ())))
        for d, t, p in np.ndindex(mesh)
    ]
    first: dict[Any, tuple[int, int]] = {}
    role_of = [first.setdefault(key, (len(first), rank))[0] for rank, key in enumerate(keys)]
    return [rank for _, rank in first.values()], tuple(role_of)


# -- one role --------------------------------------------------------------------------------------


class _Stages:
    """Writes what a rank does."""

    def __init__(self, terms: TrainingTerms, mesh: tuple[int, int, int], rank: int) -> None:
        self.terms, self.mesh, self.model = terms, mesh, terms.model
        _, self.tensor, self.device = map(int, np.unravel_index(rank, mesh))
        self.schedule, self.last = terms.schedule, terms.schedule.stages - 1
        self.actions = {action[:2] for action in self.schedule.orders[self.device]}
        split = any(kind == "I" for kind, _ in self.actions)
        self.tape, self.states = _states(terms, mesh, rank, split)
        self.came: set[Value] = set()
        """What the stage under way has not made in its layers."""
        # the axes over which the norm of all gradients is added up, if it is: copies of the model
        # have the same ones, unless ZeRO shards these
        axes = (0, 1, 2) if terms.zero else (1, 2)
        self.guarded: tuple[int, ...] = axes if terms.scaled or terms.clipped else ()
        *_, width = self.model.head_counts
        angles = self.model.sequence * width * self.tape.accum_itemsize if self.model.gated else 0
        numbers = {"loss": 8, "updates": 8, "scale": 8 * bool(self.guarded), "angles": angles}
        self.numbers = {name: size for name, size in numbers.items() if size}
        """What else stays: the losses' sum, the number of updates, the scale, the angles."""

    def made(self, rows: tuple[int, ...]) -> tuple[ProgramRole, Order]:
        """The role, and the order of its ranks, whose micro-batches have these ``rows``."""
        tape, places, variants = self.tape, self.schedule.places, sorted(set(rows))
        names: dict[tuple[str, int, int, int], str] = {}
        self.states.begin()
        tape.do("clear", (), (LOSS,))
        blocks: Blocks = {"begin": tuple(tape.take())}
        for stage, n in product(sorted({s for _, s in self.actions}), variants):
            suffix = f":{n}" if len(variants) > 1 else ""
            here = [i for i, place in enumerate(places) if place[stage] == self.device]
            made = self._stage(stage, n, suffix)
            kinds = [kind for kind in KINDS if (kind, stage) in self.actions]
            for kind, i in product(kinds, here):
                ops = list[Op]()
                for op in made[kind]:  # to and from ranks of stages, where these are others
                    rank = places[i][op["peer"]] if op.kind == "message" else None
                    if rank is not None:
                        op = message(op.name, op.buffer, rank, PIPELINE)
                    ops += [op] if rank != self.device else []
                names[kind, stage, n, i] = add_block(blocks, f"{stage}{kind}", ops, suffix)
        terms, model = self.terms, self.model
        holders: dict[str, tuple[int, ...]] = {}  # the pipeline ranks that hold each unit
        for unit in self.states.shapes:
            stages = range(self.last + 1)
            there = (s for s in stages if unit in model.stage_units(s, terms.cut))
            holders[unit] = tuple(sorted({d for s in there for d in self.schedule.holders(s)}))
        among = {
            unit: ("tied table" if model.tied and unit == "embedding" else f"{unit}/replicas", of)
            for unit, of in holders.items()
            if len(of) > 1
        }
        norm, axes, ranks = None, self.guarded, self.mesh[TENSOR]
        if axes:  # some numbers of a unit may be held by several tensor ranks, and count on one
            norm = {
                unit: any(
                    any(held.shared()) if (held := tiling.shards()) else ranks > 1
                    for tiling in model.tilings(unit, ranks).values()
                )
                for unit, of in holders.items()
                if of[0] == self.device
            }
        self.states.update(among, norm, axes, prod(self.mesh[axis] for axis in axes))
        blocks["update"] = tuple(tape.take())
        paired = self.schedule.paired[self.schedule.device == self.device].tolist()
        steps = [
            Step(names[kind, s, rows[i], i % len(places)], i, both)
            for (kind, s, i), both in zip(self.schedule.orders[self.device], paired, strict=True)
        ]
        state, states = self.states.state | self.numbers, self.states
        accumulators = frozenset(states.accumulators | {"loss"})
        constants = frozenset(states.constants | ({"angles"} & state.keys()))
        role = tape.role(blocks, state, accumulators=accumulators, constants=constants)
        return role, (Step("begin", 0), *steps, Step("update", 0))

    # -- a stage ----------------------------------------------------------------------------------

    def _stage(self, s: int, rows: int, suffix: str) -> dict[str, list[Op]]:
        """By kind, the ops of its blocks, for micro-batches of so many rows."""
        tape, model, terms = self.tape, self.model, self.terms
        ranks, tokens = self.mesh[TENSOR], None
        shape = rows, model.sequence, model.hidden
        if terms.sequence_parallel:
            tokens = 1, even(model.sequence, ranks)
            shape = rows, tokens[1][self.tensor], model.hidden
        layers = TensorLayers(tape, self.states, ranks, self.tensor, tokens, model.head_counts)
        of_tokens = {"ids": s == 0, "targets": s == self.last}
        given = {
            name: tape.make(name, (), name, (rows, model.sequence), 8, rows=rows)
            for name, here in of_tokens.items()
            if here
        }
        units = list(model.stage_units(s, terms.cut))
        if s == 0:
            with self.states.scope("embedding", again=False):
                x = layers.embedding(given["ids"], even(model.vocabulary, ranks))
            if model.positions:
                with self.states.scope("positions", again=False):
                    x = layers.positions(x)
        else:
            x = tape.comes(f"x{s}{suffix}", shape, s - 1)
        first, self.came = x, {x}
        units = [u for u in units if u not in ("embedding", "positions")]
        ends = [lambda found: self._goes(found[first], f"dx{s}{suffix}", s - 1)] if s else []
        self.states.at_end = dict(zip(units[:1], ends, strict=False))
        tape.rules += [(None, send) for send in ends if not units]
        write = self._recomputed if terms.recompute else self._block
        for unit in units:
            x = write(layers, x, unit) if unit != "head" else x
        if s == self.last:
            y = self._loss(layers, x, given["targets"])
            dy = SCALE if terms.scaled else y
        else:
            y = self._goes(x, f"x{s + 1}{suffix}", s + 1)
            if y is not x:
                tape.rules.append((y, lambda d: [(first, d)]))
        forward = tape.take()
        if s != self.last:
            dy = tape.comes(f"dx{s + 1}{suffix}", shape, s + 1)
            self.came.add(dy)
        tape.backward({y: dy})
        of_weights, backward = tape.of_weights, tape.take()
        sent = {f"x{s + 1}{suffix}": 0, f"dx{s}{suffix}": 0}  # whoever takes them reads them
        needed([forward, backward, of_weights], self.states.state | self.numbers | sent)
        return {"F": forward, "B": [*backward, *of_weights], "I": backward, "W": of_weights}

    def _block(
        self, layers: TensorLayers, x: Value, unit: str, when: str = "forward", again: bool = True
    ) -> Value:
        gated = self.model.gated
        angles = Value("angles", (), 0) if gated else None
        with self.states.scope(unit, when, again):
            return layers.block(x, angles, unit, gated, self.model.eps)

    @layer
    def _recomputed(self, layers: TensorLayers, x: Value, unit: str) -> Written:
        """A block whose forward is done again in its backward."""
        tape, before = self.tape, len(self.tape.rules)
        y = self._block(layers, x, unit)
        del tape.rules[before:]
        dy = yield y
        before = len(tape.rules)
        again = self._block(layers, x, unit, "backward", again=False)
        return [(x, tape.backward({again: dy}, before)[x])]

    def _loss(self, layers: TensorLayers, x: Value, targets: Value) -> Value:
        model, states = self.model, self.states
        count = self.terms.batch * model.sequence
        unit, name = ("embedding", "table") if model.tied else ("head", "w_head")
        with states.scope("head"):
            x = layers.norm(x, "head", "norm", "norm", model.gated, model.eps)
            with states.scope(unit) if model.tied else nullcontext():
                logits = layers.column_linear(x, unit, [name], ["w_head"], turned=model.tied)
            loss = layers.loss(logits, targets, even(model.vocabulary, layers.ranks), count)
        self.tape.do("add_loss", (LOSS, loss), (LOSS,))
        return loss

    # -- between stages ---------------------------------------------------------------------------

    def _goes(self, x: Value, name: str, other: int) -> Value:
        """``x`` under its name on the way; a stage without layers hands on what came."""
        if x in self.came:
            x = self.tape.make("hand_on", (x,), "handed", x.shape, x.itemsize)
        self.tape.goes(x, name, other)
        return x
