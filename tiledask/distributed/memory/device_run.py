"""One device's step: the trainer of a training, in a pool that counts, its other ranks stood for.

    slot 0   stage 0 --.              mesh (dp, tp, pp): copy 0, slice 0 of every stage is run
    slot 1   stage 1 <-'  blocks

    over copies           all bring the same: a sum is this rank's, as often as there are copies
    over slices, tied     sums are left out: each adds up its own part, in arrays of the same shape
    ZeRO-3                what other copies have of the weights is drawn again

An instruction that makes something is counted before it begins; the first that is refused ends it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.memory.case import MemoryCase, tensor_classes
from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.training.trainer import Trainer, stepped
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.plan.ledger import Ledger, Row
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.program.ops import Op, action_of
from tiledask.plan.program.program import Program
from tiledask.tile.backend import array_namespace, to_numpy
from tiledask.tile.memory import Pool, Refused
from tiledask.tile.optimizers import rule_for

__all__ = ["ClaimTrainer", "RefusedError", "run_device", "run_devices", "step_states"]

BLOCK = 2**16
"""Numbers that are drawn at once."""
DEVIATION = 0.02
"""Standard deviation of the weights that are drawn."""
MOMENTS = {"F": "forward", "B": "backward", "update": "optimizer step"}
"""By a part's kind, the planner's word."""


class RefusedError(Exception):
    """(rows, Refused) of a stage that was refused memory; it ends the run of all."""


def run_devices(
    case: MemoryCase, cluster: Cluster, seconds: float
) -> tuple[Ledger, float | None, Refused | None]:
    """(what was held, the loss, what was refused) of a rank for every stage, each on a worker."""
    mesh = Mesh(cluster, (1, 1, case.stages), slots=range(case.stages))
    try:
        done = run_ranks(run_device, mesh, case, timeout=seconds, again=True).results
    except RefusedError as error:
        rows, refused = error.args
        return Ledger.of(rows), None, refused
    return Ledger.of(row for rows, _ in done for row in rows), done[-1][1], None


def run_device(rank: Rank, case: MemoryCase) -> tuple[list[Row], float | None]:
    """(rows of what a stage's device held in a step, the loss if it is the last of a Model)."""
    pool, refused, loss = Pool(case.capacity, rank.backend), None, None
    try:
        if isinstance(case.what, Model):
            loss = ClaimTrainer(rank, case, pool).trained()
        else:
            step_states(case, pool)
    except Refused as error:
        refused = error.with_traceback(None)  # its frames would keep arrays
    if refused:
        raise RefusedError(pool.rows(rank.index), refused)
    return pool.rows(rank.index), loss


def step_states(case: MemoryCase, pool: Pool) -> None:
    """Make the states of a number of parameters, and step those that are this device's.

    Sums over copies and new weights take the places of gradients and weights: there is no more.
    """
    recipe, layout, states = case.recipe, case.layout, dict[str, Any]()
    sizes = state_bytes(case.share, recipe, layout.zero, layout.dp)
    for state in recipe.states:
        shape = (sizes[state.tensor] // state.bytes,)
        states[state.tensor] = pool.empty(state.tensor, shape, f"float{8 * state.bytes}")
        states[state.tensor][...] = DEVIATION
    if recipe.trains:
        mine = slice(min(map(len, states.values())))
        gradients = states.pop("gradients")[mine]
        stepped(rule_for(recipe), gradients, {t: x[mine] for t, x in states.items()}, 1)


class ClaimTrainer(Trainer):
    """A device's part of what is claimed, in a pool; raises Refused if its states do not fit."""

    def __init__(self, rank: Rank, case: MemoryCase, pool: Pool) -> None:
        self.case = case
        # blocks go through host memory, whatever the devices are
        host = Rank(rank.shape, rank.transport, "numpy")
        super().__init__(host, case.job, case.program, pool=pool)

    def trained(self) -> float | None:
        """The loss of a step, on the last stage: the mean over the tokens of one copy's
        micro-batches, which are drawn from their numbers, the same on all devices."""
        case, job = self.case, self.job

        def batch(i: int) -> tuple[np.ndarray, np.ndarray]:
            rng = np.random.default_rng((job.seed, i))
            shape = case.layout.microbatch, case.sequence + 1
            tokens = rng.integers(job.model.vocabulary, size=shape)
            return tokens[:, :-1], tokens[:, 1:]

        try:
            with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU
                loss = self.step(batch) * case.layout.dp
            return loss if self.rank.index == case.stages - 1 else None
        finally:
            self._runner.close()  # arrays go at once
            self.arrays.clear()

    def _interpreter(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        return _CountingInterpreter(self, program, state)

    def _tokens(self, which: int) -> Any:
        return self.pool.xp.array(super()._tokens(which))  # a copy, that the pool counts

    def _draws(self, unit: str) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Blocks of uniform numbers, the same whoever draws them; a norm's weights are near 1."""
        key = self.job.seed, self.slice, self.rank.index, self.job.model.units.index(unit)

        def drawn(number: int, block: int, size: int, mean: float) -> Any:
            values = np.random.default_rng((*key, number, block)).random(size, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(DEVIATION * 12**0.5)  # of a width of 1 it is 12^-1/2
            values += np.float32(mean)
            return self.pool.xp.asarray(values)

        for number, (name, shape) in enumerate(self.shapes[unit].items()):
            size, mean = prod(shape), float("norm" in name and name.endswith("w"))
            for block, start in enumerate(range(0, size, BLOCK)):
                length = min(BLOCK, size - start)
                yield length, partial(drawn, number, block, length, mean)


class _CountingInterpreter(Interpreter):
    """A device's way through its order, whatever it makes counted in a pool."""

    def __init__(self, trainer: ClaimTrainer, program: Program, state: Mapping[str, Any]) -> None:
        self.draw, self.pool = trainer.draw, trainer.pool
        self.classes = tensor_classes(program.role(trainer.rank.index))
        super().__init__(trainer.rank, program, state, trainer._bind)

    def _call(self, op: Op, block: str) -> Callable[[dict[str, Any]], None]:
        call, role, moment = super()._call(op, block), self.role, MOMENTS.get(action_of(block)[0])
        if op.name == "send":
            return call
        made = [n for n in op.writes if n in role.sizes and n not in role.alias]
        sizes, work = [(self.classes[name], role.sizes[name]) for name in made], op["work"]

        def counted(env: dict[str, Any]) -> None:
            if moment and moment != self.pool.moment:
                self.pool.enter(moment)

            def make() -> Sequence[Any]:
                call(env)
                return [env[name] for name in made]

            self.pool.made(sizes, make, work)

        return counted

    def _message(self, op: Op) -> Callable[[dict[str, Any]], None]:
        through_host, x = super()._message(op), op.buffer

        def send(env: dict[str, Any]) -> None:
            # a copy: this device's memory is free again
            through_host({**env, x: np.array(to_numpy(env[x]))})

        def take(env: dict[str, Any]) -> None:
            through_host(env)
            env[x] = self.pool.xp.array(env[x])

        return send if op.name == "send" else take

    def _collective(self, op: Op) -> Callable[[dict[str, Any]], None]:
        if op.name == "all_gather" and op.writes[0] in self.role.state:
            return lambda env: None  # its own part is there, and nobody brings more
        return super()._collective(op)

    def _together(self, op: Op) -> Any:
        """The ranks of a collective that are not there: what it gives is made of what this one
        has, as the first of its copies."""
        counts, here = op["counts"], slice(op["counts"][0])
        times = len(counts) if op["axes"] == (DATA,) and op["op"] == "sum" else 1

        def all_gather(x: Any, **_: Any) -> Any:
            whole = array_namespace(x).empty(sum(counts), x.dtype)
            self.draw(op["label"].partition("/")[0], {"whole": whole})
            whole[here] = x
            return whole

        return SimpleNamespace(
            all_reduce=lambda x, **_: x * times,
            reduce_scatter=lambda x, **_: x[here] * times,
            all_gather=all_gather,
        )
