"""One device's part of a pipeline: the kernels of its stages, op by op, and each in its time.

x1 kept0 = do forward          the rows of the micro-batch, where no stage is before this one
kept1 = do forward x1          an output, where none is behind it; and its loss
dx1 = do backward kept1        the gradient of that

A device of a schedule waits for its block, works, keeps the device until its time is over, reports,
and posts what it made to the device that uses it. Two at once are done one after the other, from
one start to one end.

    block made        block there
       |---- latency ----|
       '------ sent -----|start ===== work =====.... paced ....|end
"""

import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker

from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.programs.runner import Call, Interpreter
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.transport.messages import endpoint_of
from tiledask.distributed.transport.transport import Message
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op, action_of
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned, namespace, synchronize, to_numpy

__all__ = ["START", "DeviceRunner", "StageRunner", "StagesMade", "joined", "shares"]

REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""
START = "start", -1
"""Under which the moment to begin comes to a device."""
Rows = np.ndarray | None
Gradients = list[dict[str, Any]]
"""Of a stage's weights, by layer and name."""
Pace = Sequence[tuple[float, float]]


class StagesMade(NamedTuple):
    """What the stages of a device make beside what they send, by micro-batch or stage."""

    outputs: dict[int, Any]
    losses: dict[int, float]
    gradients: dict[int, Gradients]
    spans: list[Span]
    """Of its actions, and of the blocks that they waited for, where these are timed."""
    moves: list[tuple[int, int, int]]
    """(source, this device, bytes) of those blocks."""


class StageRunner(Interpreter):
    """A rank's way through its order with the kernels of its stages, from its share of `shares`."""

    def __init__(self, rank: Any, program: Program, share: tuple[Any, ...]) -> None:
        stages, inputs, targets, self.size, backend = share
        self.xp = namespace(backend)
        self.stages = {s: (stage, stage.init(backend)) for s, stage in stages.items()}
        self.inputs, self.targets = (
            {i: aligned(self.xp.asarray(rows)) for i, rows in part.items()}
            for part in (inputs, targets)
        )
        self.made = StagesMade({}, {}, {}, [], [])
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
        is_last = "x" not in writes  # of a forward

        def run(*arrays: Any) -> tuple[Any, ...]:
            i, env = self.microbatch, dict(zip(reads, arrays, strict=True))
            if op.name == "forward":
                y, saved = stage.forward(weights, env["x"] if "x" in env else self.inputs[i])
                env |= {"x": y, "kept": (saved, y if is_last else None), "for_w": None}
                if is_last:
                    made.outputs[i] = y
                if is_last and i in self.targets:
                    difference = y - self.targets[i]
                    made.losses[i] = float((difference * difference).sum() / self.size)
            elif op.name != "backward_weight":
                saved, y = env["kept"]
                dy = env["dx"] if y is None else (y - self.targets[i]) * (2 / self.size)
                env["dx"], env["dy"] = stage.backward_input(weights, saved, dy)
            if op.name in ("backward", "backward_weight"):
                found = stage.backward_weight(env["dy"])
                made.gradients[number] = _added(made.gradients.get(number), found)
            synchronize(here)
            return tuple(env[name] for name in writes)

        return run

    def done(self) -> StagesMade:
        """What its stages made, in NumPy; nothing else is kept."""
        made = self.made
        self.close()
        self.stages, self.inputs, self.targets = {}, {}, {}
        gradients = {
            stage: [{name: to_numpy(g) for name, g in layer.items()} for layer in layers]
            for stage, layers in made.gradients.items()
        }
        outputs = {i: to_numpy(y) for i, y in made.outputs.items()}
        return made._replace(outputs=outputs, gradients=gradients)


def _added(first: Gradients | None, second: Gradients) -> Gradients:
    """New arrays: what was summed before may be needed again."""
    if first is None:
        return second
    return [{name: a[name] + b[name] for name in b} for a, b in zip(first, second, strict=True)]


# -- in its time ---------------------------------------------------------------------------------


class DeviceRunner(StageRunner):
    """A device's actions, one after the other, in their time; from task to task.

    ``run``: its name, and the topic on which actions are reported. ``seconds``: after which a wait
    is given up. ``pace``: by turn, the seconds of an action, and the latency of what it receives.
    """

    def __init__(self, device: int, run: str, seconds: float, pace: Pace, *given: Any) -> None:
        self.transport = endpoint_of(run, device)
        self.transport.begin(time.monotonic() + seconds, ())
        self.port = self.transport.port(tuple(range(self.transport.ranks)), "blocks")
        self.name, self.pace, self.next = run, pace, 0
        self.end, self.ways = 0.0, list[Span]()
        """Of what was done last; in which blocks came for what is done next."""
        super().__init__(SimpleNamespace(index=device), *given)

    def action(self, turn: int) -> Action:
        """What a schedule calls a turn."""
        return Action(*action_of(self.order[turn].block), self.order[turn].microbatch)

    def begin(self) -> None:
        """Return when the first action is to begin."""
        self.transport.wait([START], self.transport.deadline)
        sleep_until(self.transport.parcels.pop(START).call)

    def do(self) -> None:
        """Do the next action, or the two that are next at once."""
        turns = range(self.next, self.next + 1 + self.order[self.next].paired)
        self.next, label = turns.stop, str(self.action(self.next))
        self.transport.enter(CollectiveCall(self.index, "step", self.port.members, 0, label, ()))
        self._go(turns, "recv")
        start = now()
        self._go(turns, "kernel")
        # a paced device is free after its time to the instant; a thread that the system wakes later
        # is no work of that device, but overhead before its next action
        self.end = max(now(), start + sum(self.pace[turn][0] for turn in turns))
        sleep_until(self.end)
        spans = [(self.index, *self.action(turn), start, self.end) for turn in turns] + self.ways
        self.made.spans.extend(spans)
        self.ways, worker = [], get_worker()
        # a little later, because a worker's messages go out 2 ms apart: the news that this is
        # done, for which another device may be waiting, shall not queue behind its time of day
        event = worker.log_event, self.name, {"run": self.name, "spans": spans}
        worker.loop.add_callback(worker.loop.call_later, REPORT_AFTER, *event)
        self._go(turns, "send")

    def _group(self, *_: Any) -> Any:
        return self

    def send(self, array: Any, to: int, **_: Any) -> None:
        """Post a block to the device that uses it."""
        self.port.put(to, [array], (self.end, now()), lend=True)

    def recv(self, source: int, **_: Any) -> Message:
        """The next block that a device has posted to this one."""
        (message,) = self.port.get((source,))
        self.made.moves.append((source, self.index, message.nbytes))
        return message

    def _message(self, op: Op) -> Call:
        moved = super()._message(op)

        def take(env: dict[str, Any]) -> None:
            moved(env)
            message, (kind, stage, i) = env[op.buffer], self.action(self.turn)
            (made, left), (_, latency) = message.call, self.pace[self.turn]
            env[op.buffer] = aligned(message.parts[0])
            ways = [(left, message.there)] + ([(made, made + latency)] if latency else [])
            source = stage + (-1 if kind == "F" else 1)
            # a way begins by another worker's clock, and by their error it may seem to end before
            self.ways += [(self.index, TRANSFER, source, i, min(way), way[1]) for way in ways]
            sleep_until(made + latency)

        return take if op.name == "recv" else moved


def sleep_until(moment: float) -> None:
    """Return at ``moment`` of the scheduler's clock."""
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))


# -- all devices together ------------------------------------------------------------------------


def joined(parts: Iterable[StagesMade]) -> tuple[np.ndarray, float | None, tuple[Gradients, ...]]:
    """(outputs, loss, gradients by stage) of the whole batch, from what every device made; the loss
    is None where there are no gradients."""
    outputs, losses, sums = dict[int, Any](), dict[int, float](), dict[int, Gradients]()
    for part in parts:
        outputs |= part.outputs
        losses |= part.losses
        for stage, mine in part.gradients.items():
            sums[stage] = _added(sums.get(stage), mine)
    batch = np.concatenate([outputs[i] for i in sorted(outputs)])
    loss = float(sum(losses[i] for i in sorted(losses))) if any(sums.values()) else None
    return batch, loss, tuple(sums[stage] for stage in sorted(sums))


def shares(
    program: Program, stages: Sequence[Any], batch: Rows, target: Rows, backend: str
) -> list[tuple[Any, ...]]:
    """By rank: its stages by number; by micro-batch the rows of those that begin there, and of
    those that end there; the elements of the whole batch, by which losses and gradients are divided
    so that they add up; and what makes its arrays. Raises PlacementError for stages, a batch or a
    target that do not go with the program."""
    does = [{(*action_of(s.block), s.microbatch) for s in order} for order in program.orders]
    kinds, numbers, microbatches = zip(*set().union(*does), strict=True)
    count, m, widths = 1 + max(numbers), 1 + max(microbatches), {each.width for each in stages}
    shape, aim = (() if x is None else np.shape(x) for x in (batch, target))
    fits = len(shape) == 2 and shape[0] >= m and {shape[1]} == widths and len(stages) == count
    if batch is None or not fits or aim not in ({shape} if {*kinds} > {"F"} else {shape, ()}):
        raise PlacementError(
            f"{count} stages of one width and {m} micro-batches take a batch [tokens, width] of at "
            f"least {m} tokens, and for backwards target= of its shape; got {len(stages)} stages "
            f"of width {' and '.join(map(str, sorted(widths)))}, a batch of {shape or None} and a "
            f"target of {aim or None}"
        )
    rows, found = [slice(*each) for each in split(0, len(batch), m)], []
    for actions in does:
        held = {(s, i) for _, s, i in actions}
        mine = {s: stages[s] for s in sorted({s for s, _ in held})}
        x = {i: batch[rows[i]] for s, i in held if s == 0}
        y = {i: target[rows[i]] for s, i in held if s == count - 1} if target is not None else {}
        found.append((mine, x, y, batch.size, backend))
    return found
