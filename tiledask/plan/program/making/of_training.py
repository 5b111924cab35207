"""The program of a training step of a decoder, over a (dp, tp, pp) mesh: made from shapes alone.

    rank 0: begin.0 0F.0 0F.1 0B.0 0B.1 update.0
    rank 1: begin.0 1F.0 1B.0 1F.1 1B.1 update.0

    F(s)     x of the stage before, its units' layers, x of the next or the loss
    B(s)     the rules of their tape, from the last to the first: I and W where backwards are split
    begin    gradients are cleared         update   sums over the copies, norm, optimizer's step

Ranks whose blocks have equal shapes share a role: made once, whatever the mesh.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.shards import shards
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import part_of
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.products.placement import split
from tiledask.plan.program.instructions import (
    Instruction,
    ProgramLine,
    ProgramPart,
    ProgramRole,
    Recv,
    Send,
)
from tiledask.plan.program.making.decoder import DecoderShapes
from tiledask.plan.program.making.layers import TENSOR, TensorLayers
from tiledask.plan.program.making.unit_states import PIPELINE, NormTerms, UnitStates
from tiledask.plan.program.making.writer import ProgramWriter, Value, needed
from tiledask.plan.program.program import Program

__all__ = ["TrainingTerms", "by_role", "step_program"]

_T = TypeVar("_T")


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
    selective: bool = False
    """Whether the attention's probabilities are, from q, k and v."""

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
        stages = _stages_of(self.model, self.cut)[unit]
        return tuple(sorted({device for s in stages for device in self.schedule.holders(s)}))

    @property
    def guarded(self) -> tuple[int, ...]:
        """The mesh's axes over which the norm of all gradients is added up; none if it is not
        asked for. Copies of the model have the same gradients, unless ZeRO shards these."""
        if not self.scaled and not self.clipped:
            return ()
        return (0, 1, 2) if self.zero else (1, 2)


@lru_cache(maxsize=16)
def _stages_of(model: DecoderShapes, cut: tuple[int, ...]) -> dict[str, list[int]]:
    """By unit, the stages that have it."""
    found = dict[str, list[int]]()
    for stage in range(len(cut)):
        for unit in model.stage_units(stage, cut):
            found.setdefault(unit, []).append(stage)
    return found


def step_program(terms: TrainingTerms, mesh: tuple[int, int, int]) -> Program:
    """The Program of a step of a training on a (dp, tp, pp) mesh; nothing is computed."""
    rows = [_rows(terms, mesh[0], d) for d in range(mesh[0])]

    def made(at: tuple[int, int, int]) -> tuple[ProgramRole, ProgramLine]:
        return _Stages(terms, mesh, at).made(rows[at[0]])

    found, of_rank = by_role(terms, mesh, made, rows)
    roles, lines = zip(*found, strict=True)
    name = f"training {terms.schedule.name}".rstrip()
    return Program(roles, tuple(lines[n] for n in of_rank), of_rank, name, mesh)


# -- in what ranks differ --------------------------------------------------------------------------


def by_role(
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
    kept = [_extents(terms, dp, tp, p) for p in range(pp)]
    roles: dict[Any, int] = {}
    found: list[_T] = []
    of_rank = []
    for d, t, p in np.ndindex(mesh):
        key = of_copy[d] if of_copy else (), blocks[t], p, kept[p](t, d)
        if key not in roles:
            roles[key] = len(roles)
            found.append(make((d, t, p)))
        of_rank.append(roles[key])
    return found, tuple(of_rank)


def _rows(terms: TrainingTerms, copies: int, copy: int) -> tuple[int, ...]:
    """Rows of each micro-batch of a copy of the model."""
    mine = split(0, terms.batch, copies)[copy]
    return tuple(stop - start for start, stop in split(*mine, terms.schedule.microbatches))


def _blocks(terms: TrainingTerms, ranks: int, rank: int) -> Any:
    """What the shapes on a tensor rank follow from."""
    model, found = terms.model, []
    for unit in ("embedding", "layer 0", "head"):
        for tiling in model.tilings(unit, ranks).values():
            if held := tiling.shards():
                shared = [ranks for ranks, _ in held.shared() if rank in ranks]
                found.append((held.counts[rank], *shared))
    tokens = even(model.sequence, ranks)[rank] if terms.sequence_parallel else 0
    return tuple(found), tokens, _looks(model, ranks, rank)


def _looks(model: Any, ranks: int, rank: int) -> Any:
    """Where, among the kv heads here, the query heads here begin to look."""
    heads = model.head_counts
    first, _ = part_of(0, heads.query, ranks, rank)
    return first % (heads.query // heads.kv)


def _extents(terms: TrainingTerms, copies: int, ranks: int, device: int) -> Any:
    """(tensor rank, copy) -> how much of each unit a rank keeps by ZeRO."""
    found: dict[int, Any] = {}

    def of(rank: int, copy: int) -> tuple[int, ...]:
        if not terms.zero:
            return ()
        if rank not in found:
            units = terms.units(device)
            shapes = [terms.model.shapes(unit, ranks, rank).values() for unit in units]
            sizes = [sum(map(prod, of)) for of in shapes]
            found[rank] = shards(sizes, copies)
        return tuple(extents[copy] for extents in found[rank])

    return of


# -- one role --------------------------------------------------------------------------------------


class _Stages:
    """Writes what the rank at some place of the mesh does."""

    def __init__(
        self, terms: TrainingTerms, mesh: tuple[int, int, int], at: tuple[int, int, int]
    ) -> None:
        self.terms, self.mesh, (self.copy, self.rank, self.device) = terms, mesh, at
        self.schedule, self.model = terms.schedule, terms.model
        self.last = self.schedule.stages - 1
        orders = self.schedule.orders[self.device]
        self.kinds = {
            s: "".join(k for k in KINDS if (k, s) in {a[:2] for a in orders})
            for s in {action.stage for action in orders}
        }
        """By stage, the kinds of its actions."""
        self.writer = ProgramWriter(
            terms.itemsize, split=any("I" in k for k in self.kinds.values())
        )
        units = terms.units(self.device)
        shapes = {unit: self.model.shapes(unit, mesh[TENSOR], self.rank) for unit in units}
        self.states = UnitStates(self.writer, shapes, terms.recipe, terms.zero, mesh[0], self.copy)
        self.parts: list[ProgramPart] = []

    def made(self, rows: tuple[int, ...]) -> tuple[ProgramRole, ProgramLine]:
        """The role, and the line of its ranks, of whose micro-batches these are the rows."""
        turns = self.schedule.orders[self.device]
        pairs = self.schedule.paired[slice(*self.schedule.turns[self.device : self.device + 2])]
        variants = sorted(set(rows))
        self._begin()
        numbers: dict[tuple[str, int, int, int], int] = {}
        places = self.schedule.places
        for stage in sorted(self.kinds):
            here = [n for n, place in enumerate(places) if place[stage] == self.device]
            for n in variants:
                named = n if len(variants) > 1 else None
                for kind, instructions in self._stage(stage, n, len(variants) > 1):
                    for pipeline in here:
                        sent = self._to_ranks(instructions, places[pipeline])
                        numbers[kind, stage, n, pipeline] = self._part(kind, stage, sent, named)
        self._update()
        turned = [numbers[k, s, rows[i], i % len(places)] for k, s, i in turns]
        columns = [0, *turned, len(self.parts) - 1], [0, *(t.microbatch for t in turns), 0]
        paired = np.array([False, *pairs.tolist(), False])
        part, frame = (np.array(column, np.int32) for column in columns)
        line = ProgramLine(part, frame, paired)
        used = {name for part in self.parts for each in part.instructions for name in each.writes}
        nbytes = {n: size for n, size in self.writer.nbytes.items() if n in used}
        stays = self.states.stays | self._numbers()
        kept = nbytes.keys() | stays.keys()
        items = {n: i for n, i in self.writer.items.items() if n in kept}
        scratch = frozenset(self.states.scratch | {"loss"})
        given = frozenset(self.states.given | ({"angles"} & stays.keys()))
        within = {n: base for n, base in self.writer.within.items() if n in nbytes}
        parts = tuple(self.parts)
        return ProgramRole(parts, nbytes, stays, scratch, given, items, within), line

    def _part(
        self, kind: str, stage: int, instructions: Iterable[Instruction], rows: int | None = None
    ) -> int:
        """The number of this part, which may be there for another pipeline."""
        part = ProgramPart(kind, stage, tuple(instructions), rows=rows)
        while part not in self.parts:
            if part.name not in {each.name for each in self.parts}:
                self.parts.append(part)
            else:
                part = replace(part, replica=part.replica + 1)
        return self.parts.index(part)

    def _numbers(self) -> dict[str, int]:
        """What else stays: the losses' sum, the number of updates, the scale, the angles."""
        width = self.model.head_counts.width
        angles = self.model.sequence * width * self.writer.wide if self.model.gated else 0
        found = {"loss": 8, "updates": 8}
        found |= {"scale": 8} if self.terms.guarded else {}
        return found | ({"angles": angles} if angles else {})

    def _begin(self) -> None:
        self.writer.part()
        self.states.begin()
        total = Value("loss", (), 8)
        self.writer.do("clear", (), (total,))
        self._part("begin", -1, self.writer.written)

    def _update(self) -> None:
        self.writer.part()
        terms, among = self.terms, dict[str, tuple[str, tuple[int, ...]]]()
        for unit in self.states.shapes:
            label = "tied table" if self.model.tied and unit == "embedding" else f"{unit}/replicas"
            if len(holders := terms.holders(unit)) > 1:
                among[unit] = label, holders
        norm = None
        if axes := terms.guarded:
            here = [u for u in self.states.shapes if self.device == terms.holders(u)[0]]
            elsewhere = {unit: self._counts_elsewhere(unit) for unit in here}
            norm = NormTerms(elsewhere, axes, prod(self.mesh[axis] for axis in axes))
        self.states.update(among, norm)
        self._part("update", -1, self.writer.written)

    def _counts_elsewhere(self, unit: str) -> bool:
        """Whether some numbers of a unit are held by several tensor ranks, and count on one."""
        ranks = self.mesh[TENSOR]
        held = [tiling.shards() for tiling in self.model.tilings(unit, ranks).values()]
        return any(ranks > 1 if shards is None else any(shards.shared()) for shards in held)

    # -- a stage ----------------------------------------------------------------------------------

    def _stage(self, s: int, rows: int, named: bool) -> list[tuple[str, list[Instruction]]]:
        """(kind, instructions) of its parts, for micro-batches of so many rows."""
        writer, model, terms = self.writer, self.model, self.terms
        ranks = self.mesh[TENSOR]
        tokens = (1, even(model.sequence, ranks)) if terms.sequence_parallel else None
        heads = model.head_counts
        layers = TensorLayers(
            writer, self.states, ranks, self.rank, tokens, heads, selective=terms.selective
        )
        shape = rows, tokens[1][self.rank] if tokens else model.sequence, model.hidden
        suffix = f":{rows}" if named else ""
        units = model.stage_units(s, terms.cut)
        writer.part()
        ids, targets = self._tokens(s, rows)
        x = self._embedded(layers, ids) if s == 0 else self._comes(f"x{s}{suffix}", s - 1, shape)
        first = x
        blocks = [unit for unit in units if unit.startswith("layer")]

        def sends(found: dict[Value, Value]) -> None:
            self._goes(found[first], None, f"dx{s}{suffix}", s - 1)

        for unit in blocks:  # the next rank's gradient goes before what the first block's are for
            x = self._block(layers, x, unit, sends if s and unit == blocks[0] else None)
        seeds: dict[Value, Value] = {}
        if s == self.last:
            loss = self._loss(layers, x, targets, sends if s and not blocks else None)
            seeds[loss] = Value("scale", (), 8) if terms.scaled else loss
        else:
            out = self._goes(x, first, f"x{s + 1}{suffix}", s + 1)
            x = out if out is x else writer.on_tape(out, lambda d: [(first, d)])
        forward, tape = writer.written, writer.take_tape()
        writer.part()
        if s < self.last:
            seeds[x] = self._comes(f"dx{s + 1}{suffix}", s + 1, shape)
        found = writer.backward(tape, seeds)
        if s and not blocks and s < self.last:
            self._goes(found[first], seeds[x], f"dx{s}{suffix}", s - 1)
        backward, of_weights = writer.written, writer.of_weights
        needed([forward, backward, of_weights], self._lasting(s, suffix))
        made = {"F": forward, "B": [*backward, *of_weights], "I": backward, "W": of_weights}
        return [(kind, made[kind]) for kind in self.kinds[s]]

    def _lasting(self, s: int, suffix: str) -> Mapping[str, int]:
        """What somebody reads, though no instruction of the stage does."""
        ends = {f"x{s + 1}{suffix}": 0, f"dx{s}{suffix}": 0}
        return self.states.stays | self._numbers() | ends

    def _tokens(self, s: int, rows: int) -> tuple[Value, Value]:
        """(ids, targets), as far as the stage needs them."""
        shape, found = (rows, self.model.sequence), []
        for name, at in (("ids", 0), ("targets", self.last)):
            if s == at:
                made = self.writer.value(name, shape, 8)
                self.writer.do(name, (), (made,), rows=rows)
                found.append(made)
        return found[0] if found else _NOTHING, found[-1] if found else _NOTHING

    def _embedded(self, layers: TensorLayers, ids: Value) -> Value:
        with self.states.scope("embedding", again=False):
            x = layers.embedding(ids, even(self.model.vocabulary, layers.ranks))
        if self.model.positions:
            with self.states.scope("positions", again=False):
                x = layers.positions(x)
        return x

    def _block(
        self,
        layers: TensorLayers,
        x: Value,
        unit: str,
        sends: Callable[[dict[Value, Value]], None] | None,
    ) -> Value:
        writer = self.writer

        def written() -> Value:
            if sends:
                writer.at_backward(sends)
            angles = Value("angles", (), 0) if self.model.gated else None
            return layers.block(x, angles, unit, self.model.gated, eps=self.model.eps)

        if not self.terms.recompute:
            with self.states.scope(unit):
                return written()
        before = writer.taped
        with self.states.scope(unit):
            y = written()
        writer.take_tape(before)

        def rule(dy: Value) -> list[tuple[Value, Value]]:
            before = writer.taped
            with self.states.scope(unit, "backward", again=False):
                again = written()
            found = writer.backward(writer.take_tape(before), {again: dy})
            return [(x, found[x])]

        return writer.on_tape(y, rule)

    def _loss(
        self,
        layers: TensorLayers,
        x: Value,
        targets: Value,
        sends: Callable[[dict[Value, Value]], None] | None,
    ) -> Value:
        model, states, writer = self.model, self.states, self.writer
        count = self.terms.batch * model.sequence
        with states.scope("head"):
            if sends:
                writer.at_backward(sends)
            x = layers.norm(x, "head", "norm", "norm", model.gated, model.eps)
            if model.tied:
                with states.scope("embedding"):
                    logits = layers.column_linear(
                        x, "embedding", ["table"], ["w_head"], turned=True
                    )
            else:
                logits = layers.column_linear(x, "head", ["w_head"], ["w_head"])
            loss = layers.loss(logits, targets, even(model.vocabulary, layers.ranks), count)
        total = Value("loss", (), 8)
        writer.do("add_loss", (total, loss), (total,))
        return loss

    # -- between stages ---------------------------------------------------------------------------

    def _comes(self, name: str, other: int, shape: tuple[int, ...]) -> Value:
        """What another stage makes."""
        made = self.writer.named(Value(name, shape, self.writer.itemsize))
        self.writer.written.append(Recv(name, other))
        return made

    def _goes(self, x: Value, came: Value | None, name: str, other: int) -> Value:
        """``x`` under its name on the way; a stage without layers hands on what ``came``."""
        if x is came:
            handed = self.writer.named(Value(name, x.shape, x.itemsize))
            self.writer.do("hand_on", (x,), (handed,))
            x = handed
        else:
            self.writer.rename(x, name)
        self.writer.written.append(Send(name, other))
        return x

    def _to_ranks(
        self, written: Sequence[Instruction], place: Sequence[int]
    ) -> Iterator[Instruction]:
        """The same, with messages to and from the ranks of stages, where these are others."""
        for each in written:
            if not isinstance(each, Send | Recv):
                yield each
            elif (rank := place[each.peer]) != self.device:
                way = "to" if isinstance(each, Send) else "from"
                yield replace(each, peer=rank, stream=f"{way}_{rank}", axis=PIPELINE)


_NOTHING = Value("", (), 0)
