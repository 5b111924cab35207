"""One device's step: the trainer of a training, in a pool that counts, its other ranks stood for.

                  slot 0                slot 1
run_states        device 0, device 2    device 1, device 3      in turn, where workers are few
run_pipeline      stage 0               stage 1                 at once: blocks travel between them

    mesh (dp, tp, pp)     copy 0, slice 0 of every stage is run
    over copies           all bring the same: a sum is this rank's, as often as there are copies
    over slices, tied     sums are left out: each adds up its own part, in arrays of the same shape
    ZeRO-3                what other copies have of the weights is drawn again

An instruction that makes something is counted before it begins; the first that is refused ends it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.memory.case import DeviceRole, MemoryCase, tensor_classes
from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import DeadlineError
from tiledask.plan.inputs.model import Model
from tiledask.plan.ledger import Ledger, Row
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.program.ops import Op, action_of
from tiledask.plan.program.program import Program
from tiledask.tile.backend import array_namespace, namespace, to_numpy
from tiledask.tile.memory import Pool, Refused

__all__ = ["ClaimTrainer", "DeviceRun", "run_pipeline", "run_states", "step"]

BLOCK = 2**16
"""Numbers that are drawn at once."""
DEVIATION = 0.02
"""Standard deviation of the weights that are drawn."""
MOMENTS = {"F": "forward", "B": "backward", "backward": "backward", "update": "optimizer step"}
"""By a part's kind, the planner's word."""


@dataclass(frozen=True)
class DeviceRun:
    """What one device of the layout held."""

    role: DeviceRole
    slot: int
    """The worker that ran it."""
    rows: tuple[Row, ...]
    loss: float | None = None
    """Cross entropy of the step's micro-batches, on the last stage; None elsewhere."""
    refused: Refused | None = None
    """The MemoryError that ended it, if one did."""

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        return str(self.refused or "came to the end")

    @property
    def peak(self) -> int:
        """The most bytes that its arrays held at once."""
        return Ledger.of(self.rows).peak


def run_states(case: MemoryCase, cluster: Cluster, seconds: float) -> tuple[DeviceRun, ...]:
    """Every device if there are workers enough, otherwise the fullest of each stage."""
    layout = case.layout
    every = layout.devices <= cluster.slots
    degrees = (layout.pp, *((layout.tp, layout.dp) if every else (1, 1)))
    roles = [DeviceRole(*role) for role in product(*map(range, degrees))]
    runs = [
        cluster.submit(slot, step, case, role, slot, cluster.backend, name="states")
        for at, role in enumerate(roles)
        for slot in [at % cluster.slots]
    ]
    return tuple(cluster.gather(runs, f"the states of {len(roles)} devices", seconds, cancel=True))


class StageRefusedError(Exception):
    """The DeviceRun of a stage that was refused memory; it ends the run of all."""


def run_pipeline(case: MemoryCase, cluster: Cluster, seconds: float) -> tuple[DeviceRun, ...]:
    """A rank for every stage, each on a worker; the one that was refused memory, if one was."""
    mesh = Mesh(cluster, (case.layout.pp,), slots=range(case.layout.pp))
    try:
        return tuple(run_ranks(run_stage, mesh, case, timeout=seconds, again=True).results)
    except StageRefusedError as error:
        return (error.args[0],)
    except DeadlineError as error:
        raise DeadlineError(
            f"{case.job.schedule!r}: tasks not done after {seconds:g} s; give it longer with "
            f"timeout=. {error}"
        ) from None


def run_stage(rank: Rank, case: MemoryCase) -> DeviceRun:
    """A stage on one rank; raises StageRefusedError."""
    device = step(case, DeviceRole(rank.index), rank.index, rank.backend, rank)
    if device.refused:
        raise StageRefusedError(device)
    return device


def step(
    case: MemoryCase, role: DeviceRole, slot: int, backend: str, rank: Rank | None = None
) -> DeviceRun:
    """A training step of one device; ``rank``: by which it talks to other stages."""
    pool, trainer, loss, refused = Pool(case.capacity, backend), None, 0.0, None
    try:
        trainer = ClaimTrainer(case, role, pool, backend, rank)
        loss = trainer.trained()
    except Refused as error:
        refused = error.with_traceback(None)  # its frames would keep arrays
    finally:
        if trainer is not None:
            trainer.close()
    has_loss = rank is not None and role.stage == case.layout.pp - 1 and not refused
    rows = tuple(pool.rows(role.stage))
    return DeviceRun(role, slot, rows, loss if has_loss else None, refused)


class _StandInRank:
    """The rank of a device, whose groups are numbers: how many, and which it is. ``through``: by
    which blocks go to other stages."""

    def __init__(
        self, case: MemoryCase, role: DeviceRole, backend: str, through: Rank | None
    ) -> None:
        self.shape, self.backend = case.mesh, backend
        self.coordinates = role.copy, role.slice, role.stage
        whole = isinstance(case.what, Model)
        self.index = int(np.ravel_multi_index(self.coordinates, self.shape)) if whole else role.copy
        self.through: Any = SimpleNamespace(index=self.index)
        if through is not None:  # blocks go through host memory, whatever the devices are
            self.through = Rank((1, 1, case.layout.pp), through.transport, "numpy")

    def group(self, axis: int) -> Any:
        return SimpleNamespace(size=self.shape[axis], rank=self.coordinates[axis])

    def on_device(self, host: np.ndarray) -> Any:
        return namespace(self.backend).array(host)  # a copy


class ClaimTrainer(Trainer):
    """A device's part of what is claimed, in a pool; raises Refused if its states do not fit."""

    def __init__(
        self,
        case: MemoryCase,
        role: DeviceRole,
        pool: Pool,
        backend: str = "numpy",
        rank: Rank | None = None,
    ) -> None:
        self.case, stand_in = case, _StandInRank(case, role, backend, rank)
        super().__init__(stand_in, case.job, case.program, pool=pool)  # type: ignore[arg-type]

    def trained(self) -> float:
        """The loss of a step: the mean over the tokens of one copy's micro-batches, which are
        drawn from their numbers, the same on all devices."""
        case = self.case

        def batch(i: int) -> tuple[np.ndarray, np.ndarray]:
            assert isinstance(case.what, Model)
            rng = np.random.default_rng((case.job.seed, i))
            shape = case.layout.microbatch, case.sequence + 1
            tokens = rng.integers(case.what.vocab, size=shape)
            return tokens[:, :-1], tokens[:, 1:]

        with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU
            return self.step(batch) * case.layout.dp

    def _along(self, program: Program, axis: int) -> Any:
        return self.rank.group(axis)

    def _interpreter(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        return _ClaimRunner(self, program, state)

    def _draws(self, unit: str) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Blocks of uniform numbers, the same whoever draws them; a norm's weights are near 1."""
        key = self.job.seed, *self.rank.coordinates[1:], self.job.model.units.index(unit)

        def drawn(number: int, block: int, size: int, mean: float) -> Any:
            values = np.random.default_rng((*key, number, block)).random(size, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(DEVIATION * 12**0.5)  # of a width of 1 it is 12^-1/2
            values += np.float32(mean)
            return self.pool.xp.asarray(values)

        for number, (name, shape) in enumerate(self.packings[unit].shapes.items()):
            size, mean = prod(shape), float("norm" in name and name.endswith("w"))
            for block, start in enumerate(range(0, size, BLOCK)):
                length = min(BLOCK, size - start)
                yield length, partial(drawn, number, block, length, mean)

    def _gradients(self, kept: Any) -> None:
        """As a backward would leave them, where nothing is known of layers: the copies' sum is as
        large as weights are."""
        (unit,) = self.units
        self.draw(unit, {"gradients": kept})
        kept /= self.rank.group(DATA).size


class _ClaimRunner(Interpreter):
    """A device's way through its order, whatever it makes counted in a pool."""

    def __init__(self, trainer: ClaimTrainer, program: Program, state: Mapping[str, Any]) -> None:
        self.draw, self.pool, rank = trainer.draw, trainer.pool, trainer.rank
        self.coordinates = rank.coordinates
        self.classes = tensor_classes(program.role(rank.index))
        super().__init__(rank.through, program, state, trainer._bind)  # type: ignore[attr-defined]

    def _call(self, op: Op, block: str) -> Callable[[dict[str, Any]], None]:
        call, role, moment = super()._call(op, block), self.role, MOMENTS.get(action_of(block)[0])
        if op.name == "send":
            return call
        new = role.sizes.keys() - role.alias.keys()
        made = [n for n in op.writes if n in new]
        sizes = [(self.classes[name], role.sizes[name]) for name in made]
        work = op["work"]

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
            way = env.copy()
            way[x] = np.array(to_numpy(env[x]))  # a copy: this device's memory is free again
            through_host(way)

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
        has."""
        me, counts = 0 if op["among"] else self.coordinates[op["axes"][0]], op["counts"]
        here = slice(sum(counts[:me]), sum(counts[: me + 1]))
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
