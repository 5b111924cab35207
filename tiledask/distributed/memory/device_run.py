"""What is claimed about memory, and one device's step of it: the trainer of a training, in a pool
that counts.

    slot 0   stage 0 --.              each stage of a Model is a rank
    slot 1   stage 1 <-'  blocks

An instruction that makes something is counted before it begins; the first that is refused ends it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.config import TrainingConfig
from tiledask.distributed.training.trainer import DRAWN, Trainer, stepped
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.training import step_program
from tiledask.plan.program.ops import Op, ProgramRole, action_of, buffer_of
from tiledask.plan.program.program import Program
from tiledask.tile.backend import to_numpy
from tiledask.tile.memory import Pool, Refused
from tiledask.tile.optimizers import rule_for

__all__ = ["ClaimTrainer", "MemoryCase", "run_device"]

HOSTED = ("loss", "updates")
"""What stays in host memory, whatever the device: numbers."""
MOMENTS = {"F": "forward", "B": "backward", "update": "optimizer step"}
"""By a part's kind, the planner's word."""


@dataclass(frozen=True)
class MemoryCase:
    """What is claimed, at the scale at which it is run."""

    what: Model | int
    """A Model, or a number of parameters."""
    layout: Layout
    recipe: Recipe
    sequence: int
    capacity: int
    """Bytes of one device."""

    @property
    def stages(self) -> int:
        """Those that are run: of a number of parameters one, for all hold the same."""
        return self.layout.pp if isinstance(self.what, Model) else 1

    @property
    def predicted(self) -> Ledger:
        """What the planner says; places are stages."""
        layout, recipe = self.layout, self.recipe
        if isinstance(self.what, Model):
            return estimate_memory(self.what, layout, recipe, self.sequence).ledger
        share = -(-self.what // (layout.tp * layout.pp))
        states = state_bytes(share, recipe, layout.zero, layout.dp).items()
        formula = f"its bytes x {share:,} parameters"
        return Ledger.of(Row(0, t, ALWAYS, n, formula, "state_bytes") for t, n in states)

    @cached_property
    def job(self) -> TrainingConfig:
        """The training whose step a Model's ranks do. Nothing is clipped or scaled."""
        model, layout, recipe = self.what, self.layout, self.recipe
        assert isinstance(model, Model)
        decoder = Decoder(
            model.vocab, model.hidden, model.layers, model.heads, self.sequence, model.kv_heads,
            model.ffn, tied=model.tied, head_dim=model.head_dim, learned=model.learned_pos,
        )  # fmt: skip
        return TrainingConfig(
            model=decoder,
            shape=(1, 1, layout.pp),
            schedule=layout_schedule(
                layout.schedule, layout.chunks, layout.microbatches, layout.pp
            ),
            cut=layout.chunk_layers(model.layers),
            batch=layout.microbatch * layout.microbatches,
            recipe=recipe,
            rule=rule_for(recipe),
            dtype=f"float{8 * recipe.compute_bytes}",
            itemsize=recipe.compute_bytes,
            recompute=layout.recompute == "full",
        )

    @cached_property
    def program(self) -> Program:
        """Of a step of a Model."""
        return step_program(self.job, self.job.shape)

    @property
    def simulated(self) -> Ledger:
        """What a Model's program says that each stage holds, and of a number of parameters what the
        planner does; places are stages."""
        if not isinstance(self.what, Model):
            return self.predicted
        return Ledger.of(row for row in self.program.memory.rows if row.tensor not in HOSTED)


# -- a device's step -------------------------------------------------------------------------------


def run_device(rank: Rank, case: MemoryCase) -> list[Row]:
    """Rows of what a stage's device held in a step."""
    pool, refused = Pool(case.capacity, rank.backend), None
    try:
        if isinstance(case.what, Model):
            ClaimTrainer(rank, case, pool).train()
        else:
            _step_states(case, pool)
    except Refused as error:
        refused = error.with_traceback(None)  # its frames would keep arrays
    rows = pool.rows(rank.index)
    if refused:
        refused.rows = rows
        raise refused
    return rows


def _step_states(case: MemoryCase, pool: Pool) -> None:
    """Make the states of a number of parameters, and step those that are this device's.

    Sums over copies and new weights take the places of gradients and weights: there is no more.
    """
    states, width = dict[str, Any](), {s.tensor: s.bytes for s in case.recipe.states}
    for row in case.predicted.rows:
        itemsize = width[row.tensor]
        shape = (row.bytes // itemsize,)
        states[row.tensor] = pool.empty(row.tensor, shape, f"float{8 * itemsize}")
        states[row.tensor][...] = 0
    if case.recipe.trains:
        mine = slice(min(map(len, states.values())))
        gradients = states.pop("gradients")[mine]
        stepped(rule_for(case.recipe), gradients, {t: x[mine] for t, x in states.items()}, 1)


class ClaimTrainer(Trainer):
    """A device's part of what is claimed, in a pool; raises Refused if its states do not fit."""

    def __init__(self, rank: Rank, case: MemoryCase, pool: Pool) -> None:
        self.case = case
        # blocks go through host memory, whatever the devices are
        host = Rank(rank.shape, rank.transport, "numpy")
        super().__init__(host, case.job, case.program, pool=pool)

    def train(self) -> None:
        """Do a step."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU
                self.step(self._drawn_batch)
        finally:
            self._runner.close()  # arrays go at once
            self.arrays.clear()

    def _drawn_batch(self, microbatch: int) -> tuple[np.ndarray, np.ndarray]:
        """Drawn from its number, the same on all devices."""
        rng = np.random.default_rng((self.job.seed, microbatch))
        shape = self.case.layout.microbatch, self.case.sequence + 1
        tokens = rng.integers(self.job.model.vocabulary, size=shape)
        return tokens[:, :-1], tokens[:, 1:]

    def _interpreter(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        return _CountingInterpreter(self, program, state)

    def _tokens(self, which: int) -> Any:
        return self.pool.xp.array(super()._tokens(which))  # a copy, that the pool counts

    def _draw(self, unit: str) -> None:
        """Zeros will do: memory is the same, whatever is in it."""


class _CountingInterpreter(Interpreter):
    """A device's way through its order, whatever it makes counted in a pool."""

    def __init__(self, trainer: ClaimTrainer, program: Program, state: Mapping[str, Any]) -> None:
        self.pool = trainer.pool
        self.classes = _tensor_classes(program.role(trainer.rank.index))
        super().__init__(trainer.rank, program, state, trainer._bind)

    def _call(self, op: Op, block: str) -> Callable[[dict[str, Any]], None]:
        call, role, moment = super()._call(op, block), self.role, MOMENTS.get(action_of(block)[0])
        if op.name == "send":
            return call
        made = [n for n in op.writes if n in role.sizes and n not in role.alias]
        sizes, work = [(self.classes[name], role.sizes[name]) for name in made], op["work"]

        def make(env: dict[str, Any]) -> list[Any]:
            call(env)
            return [env[name] for name in made]

        def counted(env: dict[str, Any]) -> None:
            if moment and moment != self.pool.moment:
                self.pool.enter(moment)
            self.pool.made(sizes, partial(make, env), work)

        return counted

    def _message(self, op: Op) -> Callable[[dict[str, Any]], None]:
        """A copy is sent, so that this device's memory is free again; what comes is counted."""
        through_host, x = super()._message(op), op.buffer

        def send(env: dict[str, Any]) -> None:
            through_host({**env, x: np.array(to_numpy(env[x]))})

        def take(env: dict[str, Any]) -> None:
            through_host(env)
            env[x] = self.pool.xp.array(env[x])

        return send if op.name == "send" else take


def _tensor_classes(role: ProgramRole) -> dict[str, str]:
    """The tensor class of every buffer of a training's role, as ledgers have them.

    What a forward leaves to a backward are activations; what is gone before its block ends, or is
    made by a backward, is "in between".
    """
    classes = {name: name.partition("/")[0].replace("_", " ") for name in role.state}
    placed = [(block, op) for block, ops in role.blocks.items() for op in ops]
    last = {buffer_of(name): block for block, op in placed for name in op.reads}
    for block, op in placed:
        for name in map(buffer_of, op.writes):
            stays = action_of(block)[0] == "F" and last.get(name, block) is not block
            usual = "activations" if stays else "in between"
            classes.setdefault(name, "token ids" if op.name in DRAWN else usual)
    return classes
