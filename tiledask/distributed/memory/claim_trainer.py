"""One rank of a claim: the trainer of a training, in a pool that counts, its other ranks stood for.

    mesh (dp, tp, pp)     copy 0, slice 0 of every stage is run
    blocks                go from stage to stage
    over copies           all bring the same: a sum is this rank's, as often as there are copies
    over slices, tied     sums are left out: each adds up its own part, in arrays of the same shape
    ZeRO-3                what other copies have of the weights is drawn again

An instruction that makes something is counted before it begins; the first that is refused ends it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledask.distributed.memory.claim_programs import tensor_classes
from tiledask.distributed.programs.runner import Bind, Interpreter
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.trainer import Trainer
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.program.ops import Block, Op
from tiledask.plan.program.program import Program
from tiledask.tile.backend import array_namespace, namespace, to_numpy
from tiledask.tile.memory.pool import Pool
from tiledask.tile.optimizers import Rule

__all__ = ["ClaimJob", "ClaimTrainer", "StandInRank"]

BLOCK = 2**16
"""Numbers that are drawn at once."""
DEVIATION = 0.02
"""Standard deviation of the weights that are drawn."""
MOMENTS = {
    "F": "forward",
    "B": "backward",
    "backward": "backward",
    "update": "optimizer step",
}
"""By a part's kind, the planner's word."""


@dataclass(frozen=True, kw_only=True)
class ClaimJob(TrainingTerms):
    """What a rank of a claim is told."""

    model: Any
    rule: Rule
    dtype: str
    seed: int = 0
    scale: None = None
    clip: None = None


class StandInRank:
    """One rank of a (dp, tp, pp) mesh whose groups are numbers: how many, and which it is."""

    def __init__(
        self,
        mesh: tuple[int, ...],
        at: tuple[int, ...],
        index: int,
        backend: str = "numpy",
        rank: Rank | None = None,
    ) -> None:
        """``index``: which rank of its program it is; ``rank``: by which blocks go to other
        stages, None if there are none."""
        self.mesh, self.coordinates, self.index, self.backend = mesh, at, index, backend
        self.ways: Any = SimpleNamespace(index=index)
        if rank is not None:  # blocks go through host memory, whatever the devices are
            self.ways = Rank((1, 1, mesh[2]), rank.transport, "numpy")

    def group(self, axis: int) -> Any:
        """How many ranks there are along an axis, and which of them this is."""
        return SimpleNamespace(size=self.mesh[axis], rank=self.coordinates[axis])

    def on_device(self, host: np.ndarray) -> Any:
        """A copy of ``host`` as an array of this rank's device."""
        return namespace(self.backend).array(host)


class _Others:
    """The ranks of a collective that are not there: what it gives is made of what this one has."""

    def __init__(self, op: Op, me: int, fill: Callable[[str, Any], None]) -> None:
        self.op, self.fill, counts = op, fill, op["counts"]
        self.here = slice(sum(counts[:me]), sum(counts[: me + 1]))
        self.times = len(counts) if op["axes"] == (DATA,) and op["op"] == "sum" else 1

    def all_reduce(self, x: Any, op: str, **_: Any) -> Any:
        return x * self.times

    def reduce_scatter(self, x: Any, **_: Any) -> Any:
        return x[self.here] * self.times

    def all_gather(self, x: Any, **_: Any) -> Any:
        whole = array_namespace(x).empty(sum(self.op["counts"]), x.dtype)
        self.fill(self.op["label"], whole)
        whole[self.here] = x
        return whole


class _ClaimRunner(Interpreter):
    """A rank's way through its line, whatever it makes counted in a pool."""

    def __init__(
        self,
        rank: StandInRank,
        program: Program,
        state: Mapping[str, Any],
        bind: Bind,
        pool: Pool,
        fill: Callable[[str, Any], None],
    ) -> None:
        self.stand_in, self.pool, self.fill = rank, pool, fill
        self.classes = tensor_classes(program.role(rank.index))
        super().__init__(rank.ways, program, state, bind)

    def _call(self, op: Op, block: Block) -> Callable[[list[Any]], None]:
        call, role, moment = super()._call(op, block), self.role, MOMENTS.get(block.kind)
        if op.name == "send":
            return call
        new = role.sizes.keys() - role.alias.keys()
        made = [n for n in op.writes if n in new]
        sizes = [(self.classes[name], role.size(name)) for name in made]
        slots, work = [self._slot(n) for n in made], op["work"]

        def counted(env: list[Any]) -> None:
            if moment and moment != self.pool.moment:
                self.pool.enter(moment)

            def make() -> Sequence[Any]:
                call(env)
                return [env[slot] for slot in slots]

            self.pool.made(sizes, make, work)

        return counted

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        through_host = super()._message(op, x)

        def send(env: list[Any]) -> None:
            way = env.copy()
            way[x] = np.array(to_numpy(env[x]))  # a copy: this device's memory is free again
            through_host(way)

        def take(env: list[Any]) -> None:
            through_host(env)
            env[x] = self.pool.xp.array(env[x])

        return send if op.name == "send" else take

    def _collective(self, op: Op) -> Callable[[list[Any]], None]:
        if op.name == "all_gather" and op.writes[0] in self.role.state:
            return lambda env: None  # its own part is there, and nobody brings more
        return super()._collective(op)

    def _together(self, op: Op) -> _Others:
        me = 0 if op["among"] else self.stand_in.coordinates[op["axes"][0]]
        return _Others(op, me, self.fill)


class ClaimTrainer(Trainer):
    """A rank's part of what is claimed, in a pool; raises Refused if its states do not fit."""

    def __init__(self, rank: StandInRank, job: ClaimJob, program: Program, pool: Pool) -> None:
        super().__init__(rank, job, program, pool=pool)  # type: ignore[arg-type]

    def _along(self, program: Program, axis: int) -> Any:
        return self.rank.group(axis)

    def _line(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        def fill(label: str, whole: Any) -> None:
            self.draw(label.partition("/")[0], {"whole": whole})

        rank: Any = self.rank
        return _ClaimRunner(rank, program, state, self._bind, self.pool, fill)

    def _draws(self, unit: str) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Blocks of uniform numbers, the same whoever draws them; a norm's weights are near 1."""
        rank, job = self.rank, self.job
        key = job.seed, *rank.coordinates[1:], job.model.units.index(unit)

        def drawn(number: int, block: int, size: int, mean: float) -> Any:
            values = np.random.default_rng((*key, number, block)).random(size, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(DEVIATION * 12**0.5)  # of a width of 1 it is 12^-1/2
            values += np.float32(mean)
            return self.pool.xp.asarray(values)

        for number, (name, shape) in enumerate(self.packings[unit].shapes):
            size, mean = prod(shape), float("norm" in name and name.endswith("w"))
            for block, start in enumerate(range(0, size, BLOCK)):
                length = min(BLOCK, size - start)
                yield length, partial(drawn, number, block, length, mean)

    def _bind(self, op: Op, block: Block, told: dict[str, Any]) -> Callable[..., Any]:
        if op.name == "gradients":
            return self._gradients
        return super()._bind(op, block, told)

    def _gradients(self, kept: Any) -> None:
        """As a backward would leave them, where nothing is known of layers: the copies' sum is as
        large as weights are."""
        (unit,) = self.units
        self.draw(unit, {"gradients": kept})
        kept /= self.rank.group(DATA).size
