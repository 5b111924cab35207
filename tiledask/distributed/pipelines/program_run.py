"""The reader that runs: every rank goes through its order of a program, with arrays.

recv x1      what comes is kept by its name and micro-batch; what comes early is kept aside
do forward   a kernel of the stage, on what is kept
send x2      and what nothing reads any more is let go
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.pipelines.device import StageRunner, StagesMade, joined, operands, shares
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Records
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import action_of
from tiledask.plan.program.program import Program

__all__ = ["ProgramRun", "run_program"]


@dataclass(frozen=True, repr=False)
class ProgramRun:
    """What came out of running a program."""

    outputs: np.ndarray
    """[tokens, width]: the last stage's output for the whole batch."""
    loss: float | None
    """Mean square error against the target; None without one."""
    gradients: tuple[Any, ...]
    """Per stage, the gradients of its weights summed over micro-batches; () if forward only. Those
    of a stage that is on several ranks are summed where they come together."""
    traffic: Both
    """Bytes and messages between ranks: counted in the program, and as they were received."""
    records: Records
    """Every message, with its block and micro-batch."""

    def __repr__(self) -> str:
        return f"ProgramRun(loss {self.loss}, {self.traffic.measured!r})"


@bounded
def run_program(
    program: Program,
    stages: Sequence[Any],
    batch: np.ndarray,
    mesh: Mesh | None = None,
    *,
    target: np.ndarray | None = None,
    timeout: float = 60.0,
) -> ProgramRun:
    """The ProgramRun of ``program``: on threads of this process, or on the workers of ``mesh``.

    stages    what computes (see :mod:`tiledask.distributed.pipelines.stages`), one per stage
    batch     [tokens, width], cut into micro-batches as numpy.array_split does
    target    [tokens, width]; needed for backwards. The loss is the mean square error of the batch.

    The program is checked before anything runs. Raises ProgramError for what is wrong with it,
    PlacementError for stages, a mesh, a batch or a target that do not go with it, DeadlineError
    after ``timeout`` seconds. When a worker dies, the program runs again in that time, with the
    same bits.

    >>> import tiledask as td
    >>> layers = td.stages.stack((0, 1, 2), width=4, hidden=8)
    >>> program = td.program(td.schedule("1f1b", 2, 3), block_bytes=2 * 4 * 4)
    >>> x = np.ones((6, 4), np.float32)
    >>> done = run_program(program, layers, x, target=x)
    >>> done.traffic.predicted == done.traffic.measured
    True
    """
    program.check()
    kinds, held = zip(
        *(action_of(name) for role in program.roles for name in role.blocks), strict=True
    )
    count = 1 + max(held)
    frames = 1 + max((step.microbatch for order in program.orders for step in order), default=-1)
    trains = any(kind != "F" for kind in kinds)
    kernels = list(KERNELS.values())
    if unknown := {op.name for role in program.roles for op in role.ops if op.kind == "kernel"} - {
        *kernels
    }:
        raise ProgramError(f"no kernel {min(unknown)!r}; there are {', '.join(kernels)}")
    fits = not trains or (target is not None and np.shape(target) == np.shape(batch))
    if len(stages) != count or not fits or len(batch) < frames:
        raise PlacementError(
            f"the program has {count} stages and {frames} micro-batches{', and trains' * trains}: "
            f"give so many stages, a batch of at least so many rows, and a target of the batch's "
            f"shape; got {len(stages)} stages, a batch of {np.shape(batch)} and a target of "
            f"{None if target is None else np.shape(target)}"
        )
    if mesh is not None and mesh.ranks != program.ranks:
        raise PlacementError(
            f"the program has {program.ranks} ranks, the mesh {mesh.ranks}; "
            f"td.Mesh(cluster, ({program.ranks},))"
        )
    backend = "numpy" if mesh is None else mesh.cluster.backend
    given = shares(program, stages, batch, target if trains else None, backend)
    options: dict[str, Any] = {"per_rank": given, "timeout": timeout}
    if mesh is None:
        ranks = run_threads(_run_rank, program.ranks, program, **options)
    else:
        ranks = run_ranks(_run_rank, mesh, program, again=True, **options)
    outputs, loss, gradients = joined(ranks.results)
    return ProgramRun(
        outputs,
        loss if trains else None,
        gradients,
        Both(program.traffic if mesh is None else program.traffic.on(mesh.hosts), ranks.traffic),
        ranks.records,
    )


def _run_rank(rank: Rank, program: Program, mine: tuple[Any, ...]) -> StagesMade:
    runner = StageRunner(rank, program, operands(*mine))
    runner.run()
    return runner.made()
