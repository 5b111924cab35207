"""What workers do for a claim about memory: go through a training's program, in a pool.

                  slot 0                slot 1
run_states        device 0, device 2    device 1, device 3      in turn, where workers are few
run_pipeline      stage 0               stage 1                 at once: blocks travel between them
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.memory.claim_programs import UNIT, states_program, training_terms
from tiledask.distributed.memory.claim_trainer import ClaimJob, ClaimTrainer, StandInRank
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.errors import DeadlineError
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.products.placement import Replicate, Tiling
from tiledask.plan.program.making.training import step_program
from tiledask.plan.program.program import Program
from tiledask.plan.whole import is_whole
from tiledask.tile.memory.pool import Pool, Refused
from tiledask.tile.optimizers import rule_for

__all__ = ["DeviceRun", "MemoryCase", "Role", "run_pipeline", "run_states"]

HOSTED = ("loss", "updates")
"""What stays in host memory, whatever the device: numbers."""


@dataclass(frozen=True)
class Role:
    """Which device of a layout."""

    stage: int = 0
    slice: int = 0
    """Rank of tensor parallelism."""
    copy: int = 0
    """Rank of data parallelism."""


@dataclass(frozen=True)
class _Parameters:
    """A model of which only the number of its parameters is known."""

    count: int
    units = (UNIT,)
    gated = False

    def stage_units(self, stage: int, cut: Any) -> tuple[str, ...]:
        return self.units

    def shapes(self, unit: str, ranks: int, rank: int) -> Mapping[str, tuple[int, ...]]:
        return {"w": (self.count,)}

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        return {"w": Tiling((self.count,), (ranks,), (Replicate(),))}


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
    def mesh(self) -> tuple[int, int, int]:
        """(dp, tp, pp)."""
        return self.layout.dp, self.layout.tp, self.layout.pp

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

    @cached_property
    def job(self) -> ClaimJob:
        """What its ranks are told."""
        recipe, layout = self.recipe, self.layout
        told: dict[str, Any] = {
            "rule": rule_for(recipe),
            "dtype": f"float{8 * recipe.compute_bytes}",
        }
        if isinstance(self.what, Model):
            terms = training_terms(self.what, layout, recipe, self.sequence)
            return ClaimJob(**vars(terms), **told)
        return ClaimJob(
            model=_Parameters(self.share),
            schedule=schedule("gpipe", layout.pp, 1),
            cut=(0,) * layout.pp,
            batch=layout.dp,
            recipe=recipe,
            itemsize=recipe.compute_bytes,
            zero=layout.zero,
            **told,
        )

    @cached_property
    def program(self) -> Program:
        """Of a step: of the whole mesh, or of a number of parameters that of a stage's copies."""
        if isinstance(self.what, Model):
            return step_program(self.job, self.mesh)
        return states_program(self.share, self.recipe, self.layout.zero, self.layout.dp)

    def rank(self, role: Role, backend: str = "numpy", rank: Rank | None = None) -> StandInRank:
        """The rank of a device; ``rank``: by which it talks to other stages."""
        at = role.copy, role.slice, role.stage
        whole = isinstance(self.what, Model)
        index = int(np.ravel_multi_index(at, self.mesh)) if whole else role.copy
        return StandInRank(self.mesh, at, index, backend, rank)

    @property
    def simulated(self) -> Ledger:
        """What the program says that copy 0 of slice 0 holds of each stage; places are stages."""
        stages = range(self.layout.pp if isinstance(self.what, Model) else 1)
        program = self.program
        first = replace(
            program,
            orders=program.orders[: len(stages)],
            role_of=program.role_of[: len(stages)],
            mesh=(),
        )
        rows = [row for row in first.memory.rows if row.tensor not in HOSTED]
        if len(stages) < self.layout.pp:
            rows = [replace(row, place=s) for s in range(self.layout.pp) for row in rows]
        return Ledger.of(rows)


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
    roles = [Role(*role) for role in product(*map(range, degrees))]
    slots = [at % cluster.slots for at in range(len(roles))]
    runs = [
        cluster.submit(slot, step, case, role, slot, cluster.backend, name="states")
        for slot, role in zip(slots, roles, strict=True)
    ]
    return tuple(cluster.gather(runs, f"the states of {len(roles)} devices", seconds, cancel=True))


class StageRefusedError(Exception):
    """The DeviceRun of a stage that was refused memory."""


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
    """A stage on one rank; raises StageRefusedError, which ends the run of all."""
    device = step(case, Role(rank.index), rank.index, rank.backend, rank)
    if device.refused:
        raise StageRefusedError(device)
    return device


def step(
    case: MemoryCase, role: Role, slot: int, backend: str, rank: Rank | None = None
) -> DeviceRun:
    """A training step of one device; ``rank``: by which it talks to other stages."""
    pool, trainer, loss, refused = Pool(case.capacity, backend), None, 0.0, None
    try:
        here = case.rank(role, backend, rank)
        trainer = ClaimTrainer(here, case.job, case.program, pool)
        loss = trained(trainer, case)
    except Refused as error:
        refused = error.with_traceback(None)  # its frames would keep arrays
    finally:
        if trainer is not None:
            trainer.close()
    has_loss = rank is not None and role.stage == case.layout.pp - 1 and not refused
    rows = tuple(pool.rows(role.stage))
    return DeviceRun(role, slot, rows, loss if has_loss else None, refused)


def trained(trainer: ClaimTrainer, case: MemoryCase) -> float:
    """The loss of a step: the mean over the tokens of one copy's micro-batches, which are drawn
    from their numbers, the same on all devices."""

    def batch(i: int) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(case.what, Model)
        rng = np.random.default_rng((case.job.seed, i))
        shape = case.layout.microbatch, case.sequence + 1
        tokens = rng.integers(case.what.vocab, size=shape)
        return tokens[:, :-1], tokens[:, 1:]

    with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU
        return trainer.step(batch) * case.layout.dp
