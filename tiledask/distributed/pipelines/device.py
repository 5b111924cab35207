"""One device's part of a pipeline: the kernels of its stages, op by op.

x1 kept0 = do forward          the rows of the micro-batch, where no stage is before this one
kept1 = do forward x1          an output, where none is behind it; and its loss
dx1 = do backward kept1        the gradient of that
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.programs.runner import Interpreter
from tiledask.errors import ProgramError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.timeline import Span
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op, ProgramData, action_of
from tiledask.tile.backend import aligned, namespace, synchronize, to_numpy

__all__ = ["StageRunner", "StagesMade", "joined", "shares"]

Gradients = list[dict[str, Any]]
"""Of a stage's weights, by layer and name."""


class StagesMade(NamedTuple):
    """What the stages of a device make beside what they send, by micro-batch or stage."""

    outputs: dict[int, Any]
    losses: dict[int, float]
    gradients: dict[int, Gradients]
    spans: list[Span]
    """Of its actions, and of the blocks that they waited for, where these are timed."""


class StageRunner(Interpreter):
    """A rank's way through its order with the kernels of its stages.

    ``inputs`` and ``targets``: the rows of the micro-batches that the rank begins with, and ends
    with; ``size``: elements of the whole batch, by which losses and gradients are divided, so that
    they add up.
    """

    def __init__(
        self,
        rank: Any,
        program: ProgramData,
        stages: Mapping[int, Any],
        inputs: Mapping[int, np.ndarray],
        targets: Mapping[int, np.ndarray],
        size: int,
        backend: str,
    ) -> None:
        self.xp, self.size = namespace(backend), size
        self.stages = {s: (stage, stage.init(backend)) for s, stage in stages.items()}
        self.inputs, self.targets = (
            {i: aligned(self.xp.asarray(rows)) for i, rows in part.items()}
            for part in (inputs, targets)
        )
        self.made = StagesMade({}, {}, {}, [])
        super().__init__(rank, program, {}, self._kernel_of)

    def _kernel_of(self, op: Op, block: str, _: dict[str, Any]) -> Callable[..., Any]:
        """From what ``op`` reads to what it writes, once the device has made it."""
        if op.name not in KERNELS.values():
            there = ", ".join(KERNELS.values())
            raise ProgramError(f"no kernel {op.name!r}; there are {there}")
        number = action_of(block)[1]
        (stage, weights), made, here = self.stages[number], self.made, self.xp.empty(0)
        # of which kind buffers are: "x" of x1
        reads, writes = ([n.rstrip("0123456789") for n in names] for names in (op.reads, op.writes))
        is_end = not {"x", "dx"} & {*writes}  # the last forward, or the first stage's backward

        def run(*arrays: Any) -> tuple[Any, ...]:
            i, env = self.microbatch, dict(zip(reads, arrays, strict=True))
            if op.name == "forward":
                y, saved = stage.forward(weights, env["x"] if "x" in env else self.inputs[i])
                env |= {"x": y, "kept": (saved, y if is_end else None), "for_w": None}
                if is_end:
                    made.outputs[i] = y
                if is_end and i in self.targets:
                    difference = y - self.targets[i]
                    made.losses[i] = float((difference * difference).sum() / self.size)
            elif op.name != "backward_weight":
                saved, y = env["kept"]
                dy = env["dx"] if y is None else (y - self.targets[i]) * (2 / self.size)
                if is_end and hasattr(stage, "backward_first"):
                    env["dy"] = stage.backward_first(weights, saved, dy)
                else:
                    env["dx"], env["dy"] = stage.backward_input(weights, saved, dy)
            if op.name in ("backward", "backward_weight"):
                found = stage.backward_weight(env["dy"])
                made.gradients[number] = _added(made.gradients.get(number), found)
            synchronize(here)
            return tuple(env[name] for name in writes)

        return run

    def done(self) -> StagesMade:
        """What its stages made, in NumPy; nothing else is kept."""
        outputs, losses, gradients, spans = self.made
        self.close()
        in_numpy = {
            stage: [{name: to_numpy(g) for name, g in layer.items()} for layer in layers]
            for stage, layers in gradients.items()
        }
        return StagesMade({i: to_numpy(y) for i, y in outputs.items()}, losses, in_numpy, spans)


def _added(first: Gradients | None, second: Gradients) -> Gradients:
    """New arrays: what was summed before may be needed again."""
    if first is None:
        return second
    return [{name: a[name] + b[name] for name in b} for a, b in zip(first, second, strict=True)]


def joined(parts: Iterable[StagesMade]) -> tuple[np.ndarray, float, tuple[Gradients, ...]]:
    """(outputs, loss, gradients by stage) of the whole batch, from what every device made."""
    outputs, losses, sums = dict[int, Any](), dict[int, float](), dict[int, Gradients]()
    for part in parts:
        outputs |= part.outputs
        losses |= part.losses
        for stage, mine in part.gradients.items():
            sums[stage] = _added(sums.get(stage), mine)
    batch = np.concatenate([outputs[i] for i in sorted(outputs)])
    loss = float(sum(losses[i] for i in sorted(losses)))
    return batch, loss, tuple(sums[stage] for stage in sorted(sums))


def shares(
    program: ProgramData,
    stages: Sequence[Any],
    batch: np.ndarray,
    target: np.ndarray | None,
    backend: str,
) -> list[tuple[Any, ...]]:
    """By rank, what its `StageRunner` takes after the program."""
    orders, last = program.orders, len(stages) - 1
    count = 1 + max(step.microbatch for order in orders for step in order)
    rows, found = [slice(*each) for each in split(0, len(batch), count)], []
    for order in orders:
        held = sorted({(action_of(step.block)[1], step.microbatch) for step in order})
        x = {i: batch[rows[i]] for s, i in held if s == 0}
        y = {} if target is None else {i: target[rows[i]] for s, i in held if s == last}
        found.append(({s: stages[s] for s, _ in held}, x, y, batch.size, backend))
    return found
