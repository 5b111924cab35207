"""What a stage computes: the kernels of its program by name, and a rank's way through its line.

    x1 kept0 = do forward          the rows of the frame, where no stage is before this one
    kept1 = do forward x1          an output, where none is behind it; and its loss
    dx1 = do backward kept1        the gradient of that

Beside buffers a stage makes outputs, losses, and the sum of its weights' gradients. Of a stage that
is on several devices each has the gradients of its micro-batches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tiledask.distributed.programs.runner import Interpreter
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.products.placement import split
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Block, Op, Order, ProgramData
from tiledask.tile.backend import aligned, namespace, synchronize
from tiledask.tile.backend import to_numpy as off_device

__all__ = [
    *("StageKernels", "StageRunner", "StagesMade", "at_once", "joined", "operands", "shares"),
]

Gradients = list[dict[str, Any]]
"""Of a stage's weights, by layer and name."""


class StagesMade(NamedTuple):
    """What stages make beside buffers, by frame or stage."""

    outputs: dict[int, Any]
    losses: dict[int, float]
    gradients: dict[int, Gradients]


def joined(parts: Iterable[StagesMade]) -> tuple[np.ndarray, float, tuple[Gradients, ...]]:
    """(outputs, loss, gradients by stage) of the whole batch, from what every rank made."""
    outputs, losses, sums = dict[int, Any](), dict[int, float](), dict[int, Gradients]()
    for part in parts:
        outputs |= part.outputs
        losses |= part.losses
        for stage, mine in part.gradients.items():
            sums[stage] = _added(sums.get(stage), mine)
    batch = np.concatenate([outputs[frame] for frame in sorted(outputs)])
    gradients = tuple(sums[stage] for stage in sorted(sums))
    return batch, float(sum(losses[frame] for frame in sorted(losses))), gradients


def _added(first: Gradients | None, second: Gradients) -> Gradients:
    """New arrays: what was summed before may be needed again."""
    if first is None:
        return second
    return [{name: a[name] + b[name] for name in b} for a, b in zip(first, second, strict=True)]


@dataclass
class StageKernels:
    """One stage on one device: what it works with, and what it has made beside buffers."""

    stage: Any
    """As :mod:`tiledask.distributed.pipelines.stages` says."""
    weights: Any
    inputs: Mapping[int, Any]
    """The rows of each frame, on the first stage."""
    targets: Mapping[int, Any]
    """Of each frame, on the last; none: no loss."""
    size: int
    """Elements of the whole batch."""
    outputs: dict[int, Any] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    sums: Gradients | None = None
    """Of the gradients."""

    def made(self, stage: int) -> StagesMade:
        """What was made beside buffers, by this stage, whose number is ``stage``; in NumPy."""
        sums = [{name: off_device(g) for name, g in layer.items()} for layer in self.sums or ()]
        outputs = {frame: off_device(y) for frame, y in self.outputs.items()}
        return StagesMade(outputs, self.losses, {} if self.sums is None else {stage: sums})

    def run(self, op: Op, frame: int, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """What ``op`` writes of a frame, once its device has made it."""
        reads = dict(zip(map(_what, op.reads), arrays, strict=True))
        writes = list(map(_what, op.writes))
        ends = not {"x", "dx"} & set(writes)  # the last forward, or the first stage's backward
        made = self._DO[op.name](self, frame, reads, ends)
        return tuple(made[name] for name in writes)

    def _forward(self, frame: int, reads: dict[str, Any], last: bool) -> dict[str, Any]:
        x = reads["x"] if "x" in reads else aligned(self.inputs[frame])
        y, saved = self.stage.forward(self.weights, x)
        if last:
            self.outputs[frame], self.losses[frame] = y, 0.0
            if frame in self.targets:  # divided by the whole batch, losses and gradients add up
                difference = y - aligned(self.targets[frame])
                self.losses[frame] = float((difference * difference).sum() / self.size)
        synchronize(y)
        return {"x": y, "kept": (saved, y if last else None), "for_w": None}

    def _backward_input(self, frame: int, reads: dict[str, Any], first: bool) -> dict[str, Any]:
        saved, y = reads["kept"]
        if y is None:
            dy = reads["dx"]
        else:
            dy = (y - aligned(self.targets[frame])) * (2 / self.size)
        if first and hasattr(self.stage, "backward_first"):
            for_weights = self.stage.backward_first(self.weights, saved, dy)
            synchronize(dy)
            return {"dy": for_weights}
        dx, for_weights = self.stage.backward_input(self.weights, saved, dy)
        synchronize(dx)
        return {"dx": dx, "dy": for_weights}

    def _backward_weight(self, frame: int, reads: dict[str, Any], _: bool) -> dict[str, Any]:
        self.sums = _added(self.sums, self.stage.backward_weight(reads["dy"]))
        synchronize(next(iter(self.sums[0].values())))
        return {}

    def _backward(self, frame: int, reads: dict[str, Any], first: bool) -> dict[str, Any]:
        made = self._backward_input(frame, reads, first)
        return made | self._backward_weight(frame, made, first)

    _DO: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        KERNELS["F"]: _forward,
        KERNELS["B"]: _backward,
        KERNELS["I"]: _backward_input,
        KERNELS["W"]: _backward_weight,
    }


def shares(
    program: ProgramData,
    stages: Sequence[Any],
    batch: np.ndarray,
    target: np.ndarray | None,
    backend: str,
) -> list[tuple[Any, ...]]:
    """By rank, what its `operands` are made of: its stages, and the rows of the micro-batches that
    it begins with, and ends with."""
    frames = 1 + max((step.microbatch for order in program.orders for step in order), default=-1)
    cut = [slice(*rows) for rows in split(0, len(batch), frames)]
    found = []
    for rank, order in enumerate(program.orders):
        blocks = program.role(rank).blocks
        held = {(blocks[step.block].stage, step.microbatch) for step in order}
        ends = [
            {} if array is None else {i: array[cut[i]] for s, i in held if s == stage}
            for array, stage in ((batch, 0), (target, len(stages) - 1))
        ]
        mine = {s: stages[s] for s in sorted({s for s, _ in held})}
        found.append((mine, *ends, batch.size, backend))
    return found


def operands(
    held: Mapping[int, Any],
    inputs: Mapping[int, np.ndarray],
    targets: Mapping[int, np.ndarray],
    size: int,
    backend: str,
) -> dict[int, StageKernels]:
    """By stage, on its device. Only the first stage reads inputs, and only the last targets."""
    xp = namespace(backend)
    x, y = ({i: xp.asarray(rows) for i, rows in part.items()} for part in (inputs, targets))
    return {s: StageKernels(stage, stage.init(backend), x, y, size) for s, stage in held.items()}


def at_once(order: Order) -> Iterator[list[int]]:
    """The steps that are done at once, in their order: usually one, of a pair both."""
    begun: list[int] = []
    for n, step in enumerate(order):
        begun.append(n)
        if not step.paired:
            yield begun
            begun = []


def _what(buffer: str) -> str:
    """Of which kind a buffer is: "x" of x1."""
    return buffer.rstrip("0123456789")


class StageRunner(Interpreter):
    """A rank's way through its line with the kernels of its stages."""

    def __init__(
        self, rank: Any, program: ProgramData, kernels: Mapping[int, StageKernels]
    ) -> None:
        self.kernels = kernels
        super().__init__(rank, program, {}, self._of_stage)

    def _of_stage(self, op: Op, block: Block, _: dict[str, Any]) -> Callable[..., Any]:
        run = self.kernels[block.stage].run
        return lambda *arrays: run(op, self.microbatch, arrays)

    def action(self, n: int) -> Action:
        """What a schedule calls step ``n`` of the order."""
        name, microbatch, _ = self.order[n]
        block = self.role.blocks[name]
        return Action(block.kind, block.stage, microbatch)

    def made(self) -> list[StagesMade]:
        """What every stage made beside buffers as the line was gone through."""
        return [each.made(stage) for stage, each in self.kernels.items()]
