"""The programs of a training of a decoder over a (dp, tp, pp) mesh: made from shapes alone.

    rank 0: begin.0 0F.0 0F.1 0B.0 0B.1 update.0
    rank 1: begin.0 1F.0 1B.0 1F.1 1B.1 update.0

    F(s)     x of the stage before, its units' layers, x of the next or the loss
    B(s)     the rules of their tape, from the last to the first: I and W where backwards are split
    begin    gradients are cleared         update   sums over the copies, norm, optimizer's step
    end      after the last step: what was sharded is whole again, is written, and is brought

Ranks whose blocks have equal shapes share a role: made once, whatever the mesh.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.collectives.shards import shards
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import even, part_of, split
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.program.making.decoder import DecoderShapes
from tiledask.plan.program.making.layers import TENSOR, TensorLayers
from tiledask.plan.program.making.pipeline import pairs_of
from tiledask.plan.program.making.tape import Tape, Value, Written, layer, needed
from tiledask.plan.program.making.zero import DATA, PIPELINE, UnitStates
from tiledask.plan.program.ops import Block, Op, Order, ProgramRole, Step, message
from tiledask.plan.program.program import Program

__all__ = ["TrainingTerms", "end_program", "step_program"]

_T = TypeVar("_T")
LOSS, SCALE, UPDATES = (Value(name, (), 8) for name in ("loss", "scale", "updates"))
"""Numbers that stay."""


@dataclass(frozen=True, kw_only=True)
class TrainingTerms:
    """What a training's program follows from: a model's shapes, a schedule, what is kept."""

    model: DecoderShapes
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

    def holders(self, unit: str) -> tuple[int, ...]:
        """The pipeline ranks that hold a unit."""
        stages = range(self.schedule.stages)
        here = (s for s in stages if unit in self.model.stage_units(s, self.cut))
        return tuple(sorted({device for s in here for device in self.schedule.holders(s)}))

    @property
    def guarded(self) -> tuple[int, ...]:
        """The mesh's axes over which the norm of all gradients is added up; none if it is not
        asked for. Copies of the model have the same gradients, unless ZeRO shards these."""
        if not self.scaled and not self.clipped:
            return ()
        return (0, 1, 2) if self.zero else (1, 2)


def step_program(terms: TrainingTerms, mesh: tuple[int, int, int]) -> Program:
    """The Program of a step of a training on a (dp, tp, pp) mesh; nothing is computed."""
    rows = [even(n, terms.schedule.microbatches) for n in even(terms.batch, mesh[0])]
    found, role_of = _by_role(
        terms, mesh, lambda at: _Stages(terms, mesh, at).made(rows[at[0]]), rows
    )
    roles, orders = zip(*found, strict=True)
    name = f"training {terms.schedule.name}".rstrip()
    return Program(roles, tuple(orders[n] for n in role_of), role_of, name, mesh)


def end_program(terms: TrainingTerms, mesh: tuple[int, int, int], saved: bool) -> Program:
    """The Program of what a mesh does after a training's last step; ``saved``: whether a checkpoint
    is written, of whole arrays, so that it is taken up again under any other layout."""
    roles, role_of = _by_role(terms, mesh, lambda at: _end(terms, mesh, at, saved))
    name = "checkpoint" if saved else "weights brought back"
    order = (Step("end", 0),)
    return Program(tuple(roles), (order,) * prod(mesh), role_of, name, mesh)


def _end(
    terms: TrainingTerms, mesh: tuple[int, int, int], at: tuple[int, int, int], saved: bool
) -> ProgramRole:
    tape, states = _states(terms, mesh, at)
    names = [s.tensor for s in terms.recipe.states if s.tensor != "gradients"]
    found = {(tensor, unit): states.whole(tensor, unit)
             for tensor in (names if saved else ["weights"]) for unit in states.shapes}  # fmt: skip
    state = states.state
    if saved:
        state, loss, ranks = state | {"loss": 8}, LOSS, mesh[DATA] * mesh[PIPELINE]
        if ranks > 1:
            loss = tape.all_reduce(loss, "loss", (DATA, PIPELINE), ranks, "all")
        tape.do("write_checkpoint", (loss, *found.values()), what=tuple(found))
    weights = {unit: whole for (tensor, unit), whole in found.items() if tensor == "weights"}
    tape.do("bring", list(weights.values()), units=tuple(weights))
    return tape.role([Block("end", -1, tuple(tape.ops))], state, constants=frozenset(state))


def _states(
    terms: TrainingTerms, mesh: tuple[int, int, int], at: tuple[int, int, int], split: bool = False
) -> tuple[Tape, UnitStates]:
    copy, rank, device = at
    tape = Tape(terms.itemsize, split)
    units = {unit: terms.model.shapes(unit, mesh[TENSOR], rank) for unit in terms.units(device)}
    return tape, UnitStates(tape, units, terms.recipe, terms.zero, mesh[DATA], copy)


# -- in what ranks differ --------------------------------------------------------------------------


def _by_role(
    terms: TrainingTerms,
    mesh: tuple[int, int, int],
    make: Callable[[tuple[int, int, int]], _T],
    of_copy: Sequence[Any] = (),
) -> tuple[list[_T], tuple[int, ...]]:
    """What ``make`` gives for one rank of each role, and the role of each rank.

    Ranks of a role have blocks of equal shapes and keep as much of each unit; ``of_copy``: in what
    else copies of the model differ.
    """
    dp, tp, pp = mesh
    blocks = [_blocks(terms, tp, t) for t in range(tp)]
    kept: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    """By tensor and pipeline rank, how much of its units each copy keeps by ZeRO."""
    for t, p in product(range(tp), range(pp)) if terms.zero else ():
        shapes = (terms.model.shapes(unit, tp, t).values() for unit in terms.units(p))
        extents = shards([sum(map(prod, of)) for of in shapes], dp)
        kept[t, p] = [tuple(each[d] for each in extents) for d in range(dp)]
    first, keys = dict[Any, tuple[int, int, int]](), list[Any]()
    for d, t, p in np.ndindex(mesh):
        own = kept[t, p][d] if kept else ()
        keys.append((of_copy[d] if of_copy else (), blocks[t], p, own))
        first.setdefault(keys[-1], (d, t, p))
    number = {key: n for n, key in enumerate(first)}
    return [make(at) for at in first.values()], tuple(number[key] for key in keys)


def _blocks(terms: TrainingTerms, ranks: int, rank: int) -> Any:
    """What the shapes on a tensor rank follow from."""
    model, found = terms.model, []
    for unit in ("embedding", "layer 0", "head"):
        for tiling in model.tilings(unit, ranks).values():
            if held := tiling.shards():
                shared = [ranks for ranks, _ in held.shared() if rank in ranks]
                found.append((held.counts[rank], *shared))
    tokens = even(model.sequence, ranks)[rank] if terms.sequence_parallel else 0
    heads = model.head_counts
    first, _ = part_of(0, heads.query, ranks, rank)
    looks = first % (heads.query // heads.kv)  # where, among the kv heads here, queries begin to
    return tuple(found), tokens, looks


# -- one role --------------------------------------------------------------------------------------


class _Stages:
    """Writes what the rank at some place of the mesh does."""

    def __init__(
        self, terms: TrainingTerms, mesh: tuple[int, int, int], at: tuple[int, int, int]
    ) -> None:
        self.terms, self.mesh, (_, self.rank, self.device) = terms, mesh, at
        self.schedule, self.model = terms.schedule, terms.model
        self.last = self.schedule.stages - 1
        actions = {action[:2] for action in self.schedule.orders[self.device]}
        self.kinds = {
            s: [kind for kind in KINDS if (kind, s) in actions]
            for s in sorted({s for _, s in actions})
        }
        """By stage, the kinds of its actions."""
        split = any("I" in kinds for kinds in self.kinds.values())
        self.tape, self.states = _states(terms, mesh, at, split)
        self.blocks: dict[str, Block] = {}
        self.came: set[Value] = set()
        """What the stage under way has not made in its layers."""
        width = self.model.head_counts.width
        angles = self.model.sequence * width * self.tape.accum_itemsize if self.model.gated else 0
        numbers = {"loss": 8, "updates": 8, "scale": 8 * bool(terms.guarded), "angles": angles}
        self.numbers = {name: size for name, size in numbers.items() if size}
        """What else stays: the losses' sum, the number of updates, the scale, the angles."""

    def made(self, rows: tuple[int, ...]) -> tuple[ProgramRole, Order]:
        """The role, and the order of its ranks, of whose micro-batches these are the rows."""
        places, variants = self.schedule.places, sorted(set(rows))
        names: dict[tuple[str, int, int, int], str] = {}
        self.states.begin()
        self.tape.do("clear", (), (LOSS,))
        steps = [Step(self._block_of("begin", -1, self.tape.take()), 0)]
        for stage, n in product(self.kinds, variants):
            named = n if len(variants) > 1 else None
            here = [i for i, place in enumerate(places) if place[stage] == self.device]
            for (kind, ops), i in product(self._stage(stage, n, named is not None), here):
                sent = self._to_ranks(ops, places[i])
                names[kind, stage, n, i] = self._block_of(kind, stage, sent, named)
        pairs = pairs_of(self.schedule, self.device)
        for (k, s, i), paired in zip(self.schedule.orders[self.device], pairs, strict=True):
            steps.append(Step(names[k, s, rows[i], i % len(places)], i, paired))
        self._update()
        steps.append(Step(self._block_of("update", -1, self.tape.take()), 0))
        state = self.states.state | self.numbers
        role = self.tape.role(
            list(self.blocks.values()),
            state,
            accumulators=frozenset(self.states.accumulators | {"loss"}),
            constants=frozenset(self.states.constants | ({"angles"} & state.keys())),
        )
        return role, tuple(steps)

    def _block_of(self, kind: str, stage: int, ops: Iterable[Op], rows: int | None = None) -> str:
        """The name of this block, which may be there for another pipeline."""
        block = Block(kind, stage, tuple(ops), rows=rows)
        while self.blocks.setdefault(block.name, block) != block:
            block = replace(block, replica=block.replica + 1)
        return block.name

    def _update(self) -> None:
        terms, among = self.terms, dict[str, tuple[str, tuple[int, ...]]]()
        for unit in self.states.shapes:
            label = "tied table" if self.model.tied and unit == "embedding" else f"{unit}/replicas"
            if len(holders := terms.holders(unit)) > 1:
                among[unit] = label, holders
        norm, axes = None, terms.guarded
        if axes:
            here = [u for u in self.states.shapes if self.device == terms.holders(u)[0]]
            ranks = self.mesh[TENSOR]
            tilings = {unit: self.model.tilings(unit, ranks).values() for unit in here}
            # some numbers of a unit may be held by several tensor ranks, and count on one
            norm = {
                unit: any(any(held.shared()) if (held := t.shards()) else ranks > 1 for t in of)
                for unit, of in tilings.items()
            }
        self.states.update(among, norm, axes, prod(self.mesh[axis] for axis in axes))

    # -- a stage ----------------------------------------------------------------------------------

    def _stage(self, s: int, rows: int, named: bool) -> list[tuple[str, list[Op]]]:
        """(kind, ops) of its blocks, for micro-batches of so many rows."""
        tape, model, terms = self.tape, self.model, self.terms
        ranks, suffix = self.mesh[TENSOR], f":{rows}" if named else ""
        tokens = (1, even(model.sequence, ranks)) if terms.sequence_parallel else None
        layers = TensorLayers(tape, self.states, ranks, self.rank, tokens, model.head_counts)
        shape = rows, tokens[1][self.rank] if tokens else model.sequence, model.hidden
        ids = self._rows_of("ids", rows) if s == 0 else None
        targets = self._rows_of("targets", rows) if s == self.last else None
        if ids:
            with self.states.scope("embedding", again=False):
                x = layers.embedding(ids, even(model.vocabulary, ranks))
            if model.positions:
                with self.states.scope("positions", again=False):
                    x = layers.positions(x)
        else:
            x = self._comes(f"x{s}{suffix}", s - 1, shape)
        first, self.came = x, {x}
        units = [u for u in model.stage_units(s, terms.cut) if u not in ("embedding", "positions")]

        def send(found: dict[Value, Value]) -> None:
            self._goes(found[first], f"dx{s}{suffix}", s - 1)

        self.states.at_end = dict.fromkeys(units[:1], send) if s else {}
        if s and not units:
            tape.at_backward(send)
        write = self._recomputed if terms.recompute else self._block
        for unit in units:
            x = write(layers, x, unit) if unit != "head" else x
        if targets:
            y = self._loss(layers, x, targets)
            dy = SCALE if terms.scaled else y
        else:
            y = self._goes(x, f"x{s + 1}{suffix}", s + 1)
            if y is not x:
                tape.rules.append((y, lambda d: [(first, d)]))
        forward, rules = tape.take(), tape.take_rules()
        if not targets:
            dy = self._comes(f"dx{s + 1}{suffix}", s + 1, shape)
        tape.backward(rules, {y: dy})
        of_weights, backward = tape.of_weights, tape.take()
        sent = {f"x{s + 1}{suffix}": 0, f"dx{s}{suffix}": 0}  # whoever takes them reads them
        needed([forward, backward, of_weights], self.states.state | self.numbers | sent)
        made = {"F": forward, "B": [*backward, *of_weights], "I": backward, "W": of_weights}
        return [(kind, made[kind]) for kind in self.kinds[s]]

    def _rows_of(self, name: str, rows: int) -> Value:
        """ids or targets."""
        return self.tape.make(name, (), name, (rows, self.model.sequence), 8, rows=rows)

    def _block(
        self, layers: TensorLayers, x: Value, unit: str, when: str = "forward", again: bool = True
    ) -> Value:
        model = self.model
        angles = Value("angles", (), 0) if model.gated else None
        with self.states.scope(unit, when, again):
            return layers.block(x, angles, unit, model.gated, eps=model.eps)

    @layer
    def _recomputed(self, layers: TensorLayers, x: Value, unit: str) -> Written:
        """A block whose forward is done again in its backward."""
        tape, before = self.tape, len(self.tape.rules)
        y = self._block(layers, x, unit)
        tape.take_rules(before)
        dy = yield y
        before = len(tape.rules)
        again = self._block(layers, x, unit, "backward", again=False)
        return [(x, tape.backward(tape.take_rules(before), {again: dy})[x])]

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

    def _comes(self, name: str, other: int, shape: tuple[int, ...]) -> Value:
        """What another stage makes."""
        self.tape.ops.append(message("recv", name, other))
        x = self.tape.named(Value(name, shape, self.tape.itemsize))
        self.came.add(x)
        return x

    def _goes(self, x: Value, name: str, other: int) -> Value:
        """``x`` under its name on the way; a stage without layers hands on what came."""
        if x in self.came:
            handed = self.tape.named(Value(name, x.shape, x.itemsize))
            self.tape.do("hand_on", (x,), (handed,))
            x = handed
        else:
            self.tape.rename(x, name)
        self.tape.ops.append(message("send", name, other))
        return x

    def _to_ranks(self, ops: Sequence[Op], place: Sequence[int]) -> Iterator[Op]:
        """The same, with messages to and from the ranks of stages, where these are others."""
        for op in ops:
            if not op.is_message:
                yield op
            elif (rank := place[op["peer"]]) != self.device:
                way = "to" if op.name == "send" else "from"
                yield message(op.name, op.buffer, rank, f"{way}_{rank}", PIPELINE)
