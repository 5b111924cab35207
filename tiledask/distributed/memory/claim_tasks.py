"""What workers do for a claim about memory: hold states, go through a schedule, step.

                  slot 0                slot 1
run_states        device 0, device 2    device 1, device 3      in turn, where workers are few
run_pipeline      stage 0               stage 1                 at once: blocks travel between them
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from distributed import Future

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ClusterLostError
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.needs import checked
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.whole import is_whole
from tiledask.tile.memory.flat_states import FlatStates, gradient_from_seed
from tiledask.tile.memory.pool import Pool, Refused
from tiledask.tile.memory.stage_trainer import BACKWARD, STEP, Role, StageTrainer

__all__ = ["DeviceRun", "MemoryCase", "run_pipeline", "run_states"]


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
    def share(self) -> int:
        """The parameters of one stage's slice, where a number of them is claimed."""
        assert is_whole(self.what)
        return -(-self.what // (self.layout.tp * self.layout.pp))

    @property
    def predicted(self) -> Ledger:
        """What the planner says; places are stages."""
        if isinstance(self.what, Model):
            return estimate_memory(self.what, self.layout, self.recipe, self.sequence).ledger
        layout = self.layout
        states = state_bytes(self.share, self.recipe, layout.zero, layout.dp)
        return Ledger.of(
            Row(stage, tensor, ALWAYS, n, f"its bytes x {self.share:,} parameters", "state_bytes")
            for stage in range(layout.pp)
            for tensor, n in states.items()
        )


@dataclass(frozen=True)
class DeviceRun:
    """What one device of the layout held."""

    role: Role
    slot: int
    """The worker that ran it."""
    rows: tuple[Row, ...]
    loss: float | None = None
    """Cross entropy of the step's micro-batches, on the last stage; None elsewhere."""
    refused: Refused | None = None
    """The MemoryError that ended it, if one did."""
    starved: bool = False
    """Whether it stopped because another stage, refused memory, sent it no block."""

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        stopped = "stopped: another stage was refused memory"
        return str(self.refused or (stopped if self.starved else "came to the end"))

    @property
    def peak(self) -> int:
        """The most bytes that its arrays held at once."""
        return Ledger.of(self.rows).peak


# -- a number of parameters ------------------------------------------------------------------------


def run_states(case: MemoryCase, cluster: Cluster, seconds: float) -> tuple[DeviceRun, ...]:
    """Every device if there are workers enough, otherwise the fullest of each stage."""
    layout = case.layout
    every = layout.devices <= cluster.slots
    degrees = (layout.pp, *((layout.tp, layout.dp) if every else (1, 1)))
    roles = [Role(*role) for role in product(*map(range, degrees))]
    runs = [
        cluster.submit(
            at % cluster.slots,
            _hold,
            case,
            role,
            at % cluster.slots,
            cluster.backend,
            name="states",
        )
        for at, role in enumerate(roles)
    ]
    return tuple(cluster.gather(runs, f"the states of {len(roles)} devices", seconds, cancel=True))


def _hold(case: MemoryCase, role: Role, slot: int, backend: str) -> DeviceRun:
    pool, layout = Pool(case.capacity, backend), case.layout
    refused = None
    try:
        seed = (role.stage, role.slice)
        states = FlatStates(pool, case.recipe, case.share, layout.zero, layout.dp, role.copy, seed)
        if case.recipe.trains:
            pool.enter(BACKWARD)
            gradient_from_seed(states)
            pool.enter(STEP)
            states.step()
    except Refused as error:
        refused = error.with_traceback(None)
    return DeviceRun(role, slot, tuple(pool.rows(role.stage)), refused=refused)


# -- a Model ---------------------------------------------------------------------------------------


def run_pipeline(case: MemoryCase, cluster: Cluster, seconds: float) -> tuple[DeviceRun, ...]:
    """Each action a task on its stage's worker, its turn a real dependency."""
    layout = case.layout
    built = schedule(layout.schedule, layout.pp, layout.microbatches)
    waits, order = checked(built)
    slots = range(layout.pp)
    devices = [cluster.submit(s, _begin, case, s, cluster.backend, name="begin") for s in slots]
    turns: list[Future[Any]] = list(devices)
    done: dict[Action, Future[Any]] = {}
    number = [0] * layout.pp
    for action in order:
        s = action.stage
        block = next((done[b] for b in waits[action] if b.stage != s), None)
        done[action] = cluster.submit(
            s, _act, devices[s], number[s], action, turns[s], block, name=_NAMES[action.kind]
        )
        turns[s], number[s] = done[action], number[s] + 1
    ends = [cluster.submit(s, _end, devices[s], number[s], turns[s], name="step") for s in slots]
    del done, turns
    return tuple(cluster.gather(ends, f"{built!r}", seconds, cancel=True))


_NAMES = {"F": "forward", "B": "backward"}


class _Device:
    """A stage at work on its worker."""

    def __init__(self, case: MemoryCase, stage: int, backend: str) -> None:
        self.case, self.role = case, Role(stage)
        self.pool = Pool(case.capacity, backend)
        self.trainer: StageTrainer | None = None
        self.refused: Refused | None = None
        self.starved = False
        """Whether another stage, refused memory, left this one without a block."""
        self.turn = 0

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What ``work`` returns; None once this or another stage was refused memory."""
        if self.refused or self.starved:
            return None
        try:
            return work()
        except Refused as error:
            # its frames would keep arrays
            self.refused, self.trainer = error.with_traceback(None), None
            return None

    def build(self) -> None:
        case = self.case
        assert isinstance(case.what, Model)
        self.trainer = StageTrainer(
            self.pool, case.what, case.layout, case.recipe, case.sequence, self.role
        )

    def act(self, action: Action, block: np.ndarray | None) -> np.ndarray | None:
        kind, s, i = action
        starts = s == 0 if kind == "F" else s == self.case.layout.pp - 1
        self.starved |= block is None and not starts
        made: np.ndarray | None = self.attempt(
            lambda: getattr(self.trainer, _NAMES[kind])(i, block)
        )
        return made


def _begin(case: MemoryCase, stage: int, backend: str) -> _Device:
    device = _Device(case, stage, backend)
    device.attempt(device.build)
    return device


def _act(
    device: _Device, number: int, action: Action, before: Any, block: np.ndarray | None
) -> np.ndarray | None:
    """The block for the next stage, if there is one. ``before`` only makes it wait its turn."""
    _check_turn(device, number)
    return device.act(action, block)


def _end(device: _Device, number: int, before: Any) -> DeviceRun:
    _check_turn(device, number)
    loss = None
    if device.trainer is not None:
        device.attempt(device.trainer.step)
    if device.trainer is not None and device.trainer.ends and not device.starved:
        loss = device.trainer.loss
    rows = tuple(device.pool.rows(device.role.stage))
    return DeviceRun(device.role, device.role.stage, rows, loss, device.refused, device.starved)


def _check_turn(device: _Device, number: int) -> None:
    """A worker that died took its arrays along: what it did cannot be done again in part."""
    if device.turn != number:
        raise ClusterLostError(
            f"stage {device.role.stage} is at action {device.turn} and was asked for action "
            f"{number}: a worker was lost meanwhile; run the claim again"
        )
    device.turn += 1
