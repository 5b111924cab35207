"""The reader that runs: every rank goes through its line of a program, with arrays.

recv x1      what comes is kept by its name and frame; what comes early is kept aside
do forward   a kernel of the stage, on what is kept
send x2      and what nothing reads any more is let go
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.pipelines.actions import (
    DO,
    ActionOperands,
    added,
    gradients_of,
)
from tiledask.distributed.programs.runner import LineRunner
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Records
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.products.placement import split
from tiledask.plan.program.instructions import Do, ProgramPart
from tiledask.plan.program.making.of_schedule import KERNELS
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["ProgramRun", "run_program"]

_KINDS = {kernel: kind for kind, kernel in KERNELS.items()}
"""By name of a kernel, the kind of action that it is."""


@dataclass(frozen=True, repr=False)
class ProgramRun:
    """What came out of running a program."""

    outputs: np.ndarray
    """[tokens, width]: the last stage's output for the whole batch."""
    loss: float | None
    """Mean square error against the target; None without one."""
    gradients: tuple[Any, ...]
    """Per stage, the gradients of its weights summed over micro-batches; () if forward only."""
    traffic: Both
    """Bytes and messages between ranks: counted in the program, and as they were received."""
    records: Records
    """Every message, with its part and frame."""

    def __repr__(self) -> str:
        return f"ProgramRun(loss {self.loss}, {self.traffic.measured!r})"


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
    after ``timeout`` seconds.

    >>> import tiledask as td
    >>> layers = td.stages.stack((0, 1, 2), width=4, hidden=8)
    >>> program = td.program(td.schedule("1f1b", 2, 3), block_bytes=2 * 4 * 4)
    >>> x = np.ones((6, 4), np.float32)
    >>> done = run_program(program, layers, x, target=x)
    >>> done.traffic.predicted == done.traffic.measured
    True
    """
    program.check()
    parts = [part for role in program.roles for part in role.parts]
    count, frames = 1 + max(part.stage for part in parts), _frames(program)
    trains = any(part.kind != "F" for part in parts)
    unknown = {each.kernel for part in parts for each in part.instructions if isinstance(each, Do)}
    if unknown := unknown - _KINDS.keys():
        raise ProgramError(f"no kernel {min(unknown)!r}; there are {', '.join(_KINDS)}")
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
    cut = [slice(*rows) for rows in split(0, len(batch), frames)]
    given = program, tuple(stages), batch, target if trains else None, cut
    if mesh is None:
        ranks = run_threads(_through_its_line, program.ranks, *given, timeout=timeout)
    else:
        ranks = run_ranks(_through_its_line, mesh, *given, timeout=timeout)
    outputs, losses = dict[int, Any](), dict[int, float]()
    sums: dict[int, list[dict[str, Any]]] = {}
    for here in ranks.results:
        outputs |= here.outputs
        losses |= here.losses
        for stage, mine in here.gradients.items():
            sums[stage] = added(sums[stage], mine) if stage in sums else mine
    return ProgramRun(
        np.concatenate([outputs[frame] for frame in range(frames)]),
        sum(losses[frame] for frame in range(frames)) if trains else None,
        tuple(sums[stage] for stage in sorted(sums)),
        Both(program.traffic, ranks.traffic),
        ranks.records,
    )


def _frames(program: Program) -> int:
    return 1 + max(int(line.frame.max(initial=-1)) for line in program.lines)


# -- on a rank ------------------------------------------------------------------------------------


@dataclass
class _Made:
    """What a rank brings back."""

    outputs: dict[int, np.ndarray]
    losses: dict[int, float]
    gradients: dict[int, list[dict[str, Any]]]


def _through_its_line(
    rank: Rank,
    program: Program,
    stages: tuple[Any, ...],
    batch: np.ndarray,
    target: np.ndarray | None,
    cut: list[slice],
) -> _Made:
    here = sorted({part.stage for part in program.role(rank.index).parts})
    weights = {s: stages[s].init(rank.backend) for s in here}
    kernels = _Kernels(rank, stages, weights, batch, target, cut)
    runner = LineRunner(rank, program, {}, kernels.bind)
    kernels.runner = runner
    runner.run()
    return kernels.made


class _Kernels:
    """The kernels of stages by name, and what they bring back."""

    def __init__(
        self,
        rank: Rank,
        stages: tuple[Any, ...],
        weights: dict[int, Any],
        batch: np.ndarray,
        target: np.ndarray | None,
        cut: list[slice],
    ) -> None:
        self.rank, self.stages, self.weights = rank, stages, weights
        self.batch, self.target, self.cut = batch, target, cut
        self.runner: Any = None
        self.outputs: dict[int, np.ndarray] = {}
        self.losses: dict[int, float] = {}
        self.sums: dict[int, dict[str, Any]] = {}
        """By stage, the result of its last kernel with gradients."""

    def bind(self, each: Do, part: ProgramPart, _: dict[str, Any]) -> Callable[..., Any]:
        """What is called with the arrays that ``each`` reads."""

        def kernel(*arrays: Any) -> tuple[Any, ...]:
            reads = dict(zip(each.reads, arrays, strict=True))
            found = self._run(each, part.stage, self.runner.frame, reads)
            return tuple(found[name] for name in each.writes)

        return kernel

    def _run(self, each: Do, s: int, frame: int, reads: dict[str, Any]) -> dict[str, Any]:
        """What the kernel writes, by name."""
        kind, last, rows = _KINDS[each.kernel], s == len(self.stages) - 1, self.cut[frame]
        x = end = None
        if kind == "F":
            x = reads[f"x{s}"] if s else self.rank.on_device(self.batch[rows])
        elif kind != "W" and not last:
            x = reads[f"dx{s + 1}"]
        if last and self.target is not None:
            end = aligned(self.rank.on_device(self.target[rows])), self.batch.size
        own = {} if kind == "F" else reads[f"dy{s}" if kind == "W" else f"kept{s}"]
        trains = self.target is not None
        work = ActionOperands(self.weights[s], own, end, self.sums.get(s), trains)
        result = DO[kind](self.stages[s], aligned(x), work)
        if "gradients" in result:
            self.sums[s] = result
        if kind == "F" and last:
            self.outputs[frame], self.losses[frame] = off_device(result["hand"]), result["loss"]
        goes = f"x{s + 1}" if kind == "F" else f"dx{s}"
        kept = {f"kept{s}": result, f"dy{s}": result, f"for_w{s}": None}
        return kept | {goes: result.get("hand")}

    @property
    def made(self) -> _Made:
        """What the rank brings back."""
        sums = {stage: gradients_of(result) for stage, result in self.sums.items()}
        return _Made(self.outputs, self.losses, sums)
