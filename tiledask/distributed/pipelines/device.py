"""One device's part of a pipeline: the kernels of its stages, and its actions one after the other.

    x1 kept0 = do forward          the rows of the micro-batch, where no stage is before this one
    kept1 = do forward x1          an output, where none is behind it; and its loss
    dx1 = do backward kept1        the gradient of that

Paced, an action waits for its blocks, works, keeps its device until its time is over, and is
reported. A forward and a backward at once are done one after the other, from one start to one end.

    block made        block there
       |---- latency ----|
       '------ sent -----|start ===== work =====.... paced ....|end
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker

from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.programs.runner import Interpreter
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import KINDS, Action
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.program.ops import Op, Order, ProgramData, action_of
from tiledask.tile.backend import aligned, namespace, synchronize
from tiledask.tile.backend import to_numpy as off_device

__all__ = [
    *("Arrival", "DeviceDone", "PacedRunner", "StageKernels", "StageRunner", "StagesMade"),
    *("arrived", "at_once", "joined", "operands", "shares", "sleep_until"),
]

REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""
Gradients = list[dict[str, Any]]
"""Of a stage's weights, by layer and name."""


class StagesMade(NamedTuple):
    """What the stages of a device make beside what they send, by micro-batch or stage."""

    outputs: dict[int, Any]
    losses: dict[int, float]
    gradients: dict[int, Gradients]


class DeviceDone(NamedTuple):
    """What a paced device brings back."""

    made: StagesMade
    spans: list[Span]
    """Of its actions, and of the blocks that they waited for."""
    moves: list[tuple[int, int]]
    """(source, bytes) of what came past Dask."""


class Arrival(NamedTuple):
    """A block that came from another device; times are by the scheduler's clock."""

    array: Any
    made: float
    way: tuple[float, float] | None = None
    """When it left and when it was there, if that is known here."""


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


def _added(first: Gradients | None, second: Gradients) -> Gradients:
    """New arrays: what was summed before may be needed again."""
    if first is None:
        return second
    return [{name: a[name] + b[name] for name in b} for a, b in zip(first, second, strict=True)]


# -- kernels ---------------------------------------------------------------------------------------


@dataclass
class StageKernels:
    """One stage on one device: what it works with, and what it has made beside what it sends."""

    stage: Any
    """As :mod:`tiledask.distributed.pipelines.stages` says."""
    weights: Any
    inputs: Mapping[int, Any]
    """The rows of each micro-batch, on the first stage."""
    targets: Mapping[int, Any]
    """Of each micro-batch, on the last; none: no loss."""
    size: int
    """Elements of the whole batch."""
    made: StagesMade
    """What it has made beside what it sends."""
    number: int
    """Which stage it is."""

    def run(self, op: Op, microbatch: int, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """What ``op`` writes, once its device has made it."""
        reads = dict(zip(map(_kind, op.reads), arrays, strict=True))
        writes = list(map(_kind, op.writes))
        is_end = not {"x", "dx"} & set(writes)  # the last forward, or the first stage's backward
        made = getattr(self, f"_{op.name}")(microbatch, reads, is_end)
        return tuple(made[name] for name in writes)

    def _forward(self, i: int, reads: dict[str, Any], last: bool) -> dict[str, Any]:
        x = reads["x"] if "x" in reads else aligned(self.inputs[i])
        y, saved = self.stage.forward(self.weights, x)
        if last:
            self.made.outputs[i], self.made.losses[i] = y, 0.0
            if i in self.targets:  # divided by the whole batch, losses and gradients add up
                difference = y - aligned(self.targets[i])
                self.made.losses[i] = float((difference * difference).sum() / self.size)
        synchronize(y)
        return {"x": y, "kept": (saved, y if last else None), "for_w": None}

    def _backward_input(self, i: int, reads: dict[str, Any], first: bool) -> dict[str, Any]:
        saved, y = reads["kept"]
        dy = reads["dx"] if y is None else (y - aligned(self.targets[i])) * (2 / self.size)
        if first and hasattr(self.stage, "backward_first"):
            for_weights = self.stage.backward_first(self.weights, saved, dy)
            synchronize(dy)
            return {"dy": for_weights}
        dx, for_weights = self.stage.backward_input(self.weights, saved, dy)
        synchronize(dx)
        return {"dx": dx, "dy": for_weights}

    def _backward_weight(self, i: int, reads: dict[str, Any], _: bool) -> dict[str, Any]:
        sums = _added(self.made.gradients.get(self.number), self.stage.backward_weight(reads["dy"]))
        self.made.gradients[self.number] = sums
        synchronize(next(iter(sums[0].values())))
        return {}

    def _backward(self, i: int, reads: dict[str, Any], first: bool) -> dict[str, Any]:
        made = self._backward_input(i, reads, first)
        return made | self._backward_weight(i, made, first)


def _kind(buffer: str) -> str:
    """Of which kind a buffer is: "x" of x1."""
    return buffer.rstrip("0123456789")


def shares(
    program: ProgramData,
    stages: Sequence[Any],
    batch: np.ndarray,
    target: np.ndarray | None,
    backend: str,
) -> list[tuple[Any, ...]]:
    """By rank, what its `operands` are made of: its stages, and the rows of the micro-batches that
    it begins with, and ends with."""
    count = 1 + max((step.microbatch for order in program.orders for step in order), default=-1)
    cut, last = [slice(*rows) for rows in split(0, len(batch), count)], len(stages) - 1
    found = []
    for order in program.orders:
        held = {(action_of(step.block)[1], step.microbatch) for step in order}
        x = {i: batch[cut[i]] for s, i in held if s == 0}
        y = {} if target is None else {i: target[cut[i]] for s, i in held if s == last}
        mine = {s: stages[s] for s in sorted({s for s, _ in held})}
        found.append((mine, x, y, batch.size, backend))
    return found


def operands(
    held: Mapping[int, Any],
    inputs: Mapping[int, np.ndarray],
    targets: Mapping[int, np.ndarray],
    size: int,
    backend: str,
) -> dict[int, StageKernels]:
    """By stage, on its device."""
    xp, made = namespace(backend), StagesMade({}, {}, {})
    x, y = ({i: xp.asarray(rows) for i, rows in part.items()} for part in (inputs, targets))
    return {
        s: StageKernels(stage, stage.init(backend), x, y, size, made, s)
        for s, stage in held.items()
    }


# -- a device's actions ----------------------------------------------------------------------------


def at_once(order: Order) -> Iterator[list[int]]:
    """The steps that are done at once, in their order: usually one, of a pair both."""
    begun: list[int] = []
    for n, step in enumerate(order):
        begun.append(n)
        if not step.paired:
            yield begun
            begun = []


class StageRunner(Interpreter):
    """A rank's way through its order with the kernels of its stages."""

    def __init__(
        self, rank: Any, program: ProgramData, kernels: Mapping[int, StageKernels]
    ) -> None:
        self.kernels = kernels
        super().__init__(rank, program, {}, self._of_stage)

    def _of_stage(self, op: Op, block: str, _: dict[str, Any]) -> Callable[..., Any]:
        run = self.kernels[action_of(block)[1]].run
        return lambda *arrays: run(op, self.microbatch, arrays)

    def made(self) -> StagesMade:
        """What its stages made beside what they sent, in NumPy."""
        made = [kernels.made for kernels in self.kernels.values()]  # one, which all share
        outputs, losses, gradients = made[0] if made else StagesMade({}, {}, {})
        return StagesMade(
            {i: off_device(y) for i, y in outputs.items()},
            losses,
            {
                stage: [{name: off_device(g) for name, g in layer.items()} for layer in layers]
                for stage, layers in gradients.items()
            },
        )


class PacedRunner(StageRunner):
    """All actions of a device, in their order and their time; an engine says how blocks go.

    ``topic``: on which actions are reported.
    """

    def __init__(
        self,
        topic: str,
        device: int,
        program: ProgramData,
        pace: PipelineCosts,
        kernels: Mapping[int, StageKernels],
    ) -> None:
        self.topic, self.pace = topic, pace
        self.turn, self.end = 0, 0.0
        """The turn under way; the end of what was done last."""
        self.arrivals: dict[int, Arrival] = {}
        """By turn that is under way, the block that it uses."""
        self.spans: list[Span] = []
        self.moves: list[tuple[int, int]] = []
        super().__init__(SimpleNamespace(index=device), program, kernels)

    def send(self, op: Op, array: Any) -> None:
        """Let the device ``op["peer"]`` have a block."""
        raise NotImplementedError

    def receive(self, op: Op) -> Arrival:
        """The block that an op is for."""
        raise NotImplementedError

    def action(self, n: int) -> Action:
        """What a schedule calls step ``n`` of the order."""
        name, microbatch, _ = self.order[n]
        return Action(*action_of(name), microbatch)

    def do(self, turns: Sequence[int]) -> None:
        """Do the actions of turns that are done at once, usually one."""
        actions, hop = [self.action(turn) for turn in turns], self.pace.hop
        latencies = [float(hop[i % len(hop), s + (kind != "F")]) for kind, s, i in actions]
        self.arrivals.clear()
        self._some(turns, "recv")
        for turn, latency in zip(turns, latencies, strict=True):
            if turn in self.arrivals:
                sleep_until(self.arrivals[turn].made + latency)
        start, seconds = now(), _occupied(self.pace, actions)
        self._some(turns, "")
        # a paced device is free after its time to the instant; a thread that the system wakes later
        # is no work of that device, but overhead before its next action
        self.end = max(now(), start + seconds)
        sleep_until(self.end)
        for turn, action, latency in zip(turns, actions, latencies, strict=True):
            spans: list[Span] = [(self.index, *action, start, self.end)]
            if turn in self.arrivals:
                spans += arrived(self.index, action, latency, self.arrivals[turn])
            self.spans += spans
            self._report({"run": self.topic, "spans": spans})
        self._some(turns, "send")
        for turn in turns:
            self._leave(turn)

    def done(self) -> DeviceDone:
        """What it brings back."""
        return DeviceDone(self.made(), self.spans, self.moves)

    def _some(self, turns: Sequence[int], kind: str) -> None:
        """Do the messages of a kind; "": the kernels."""
        for self.turn in turns:
            calls = self._bound[self.turn]
            some = [
                each for each in calls if kind == ("" if each[0].kind == "kernel" else each[0].name)
            ]
            self._go(self.turn, some)

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        def take(env: list[Any]) -> None:
            self.arrivals[self.turn] = block = self.receive(op)
            env[x] = aligned(block.array)

        return take if op.name == "recv" else lambda env: self.send(op, env[x])

    def _report(self, event: dict[str, Any]) -> None:
        """Report on the run's topic; a little later, because a worker's messages go out 2 ms apart:
        the news that this action is done, for which another device may be waiting, shall not queue
        behind its time of day."""
        worker = get_worker()
        later = worker.loop.call_later, REPORT_AFTER, worker.log_event
        worker.loop.add_callback(*later, self.topic, event)


def _occupied(costs: PipelineCosts, actions: Sequence[Action]) -> float:
    """Seconds for which actions that are done at once, usually one, occupy their device; 0 for as
    long as their work takes."""

    if len(actions) > 1 and (seconds := float(costs.together[actions[0][1:]])) >= 0:
        return seconds
    return float(sum(costs.seconds[KINDS.index(k), s, i] for k, s, i in actions))


def arrived(device: int, action: Action, latency: float, block: Arrival) -> Iterator[Span]:
    """The spans in which a block was on its way from the stage that made it."""
    stage, made = action.stage + (-1 if action.kind == "F" else 1), block.made
    ways = [block.way] if block.way else []
    # a way begins by another worker's clock, and by their error it may seem to end before
    for left, there in (*ways, (made, made + latency)) if latency else ways:
        yield device, TRANSFER, stage, action.microbatch, min(left, there), there


def sleep_until(moment: float) -> None:
    """Return at ``moment`` of the scheduler's clock."""
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))
