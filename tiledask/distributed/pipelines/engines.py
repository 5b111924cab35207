"""A schedule run by an engine: each device a task that loops, or each action a Dask task.

    "loop"     rank 0     [F0][F1].............[B0]         one task, and no message to the
               rank 1         [F0][B0]....[F1][B1]          scheduler between two actions

    "tasks"    rank 0     begin --> F0 ----> F1 ----> ...    ---->  the action before it there
                                     |        |                |    the one whose block it uses
               rank 1     begin ---> F0 ----> F1 ---->         v

Under both, a device's runner does its next action: it waits for its block, works, keeps the device
until its time is over, reports, and posts what it made to the device that uses it. Two at once are
done one after the other, from one start to one end. The order of tasks never rests on priorities,
so Dask's task stream is the Gantt chart.

    block made        block there
       |---- latency ----|
       '------ sent -----|start ===== work =====.... paced ....|end

A worker that takes a dead one's place has no runner, and says so; then the schedule runs again.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distributed import Future, get_worker

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.pipelines.device import StageRunner, StagesMade
from tiledask.distributed.programs.runner import Call
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.run import PATIENCE
from tiledask.distributed.transport.messages import endpoint_of, lost, opened
from tiledask.distributed.transport.transport import Message
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op, action_of
from tiledask.tile.backend import aligned

__all__ = ["ENGINES", "DeviceRunner", "run_engine"]

LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every device."""
REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""
ENGINES = "tasks", "loop"
Pace = Sequence[tuple[float, float]]
START = "start", -1
"""Under which the moment to begin comes to a device."""


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
        block, microbatch, _ = self.order[turn]
        return Action(*action_of(block), microbatch)

    def begin(self) -> None:
        """Return when the first action is to begin."""
        self.transport.wait([START], self.transport.deadline)
        sleep_until(self.transport.parcels.pop(START).call)

    def do(self) -> None:
        """Do the next action, or the two that are next at once."""
        turns = range(self.next, self.next + 1 + self.order[self.next].paired)
        self.next, label = turns.stop, str(self.action(self.next))
        self.port.enter(CollectiveCall(self.index, "step", self.port.members, 0, label, ()))
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


def run_engine(
    engine: str, mesh: Mesh, schedule: Schedule, run: str, given: Sequence[Any], seconds: float
) -> list[StagesMade]:
    """What the devices made in ``seconds``; setting up may take longer. ``given``: by device, what
    its `DeviceRunner` is made of."""
    cluster, patience = mesh.cluster, max(seconds, PATIENCE)
    # a name that is no folder: all blocks go by Dask's connections, which note when they arrive
    with opened(cluster, run, mesh.at, Path(run), patience):
        facts = {d: (d, run, patience + seconds, *given[d]) for d in mesh.at}
        runners = cluster.submit_all(DeviceRunner, facts, name="weights")
        cluster.wait(runners, "weights and micro-batches", patience, cancel=True)
        # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
        ends = _submitted(engine, cluster, schedule, runners)
        moment = max(cluster.run(now, timeout=patience)) + LEAD
        cluster.run(_start, run, moment, timeout=patience)
        return cluster.gather(ends, f"{schedule!r}", seconds, cancel=True)


def _start(run: str, moment: float) -> None:
    """Let a run begin at a moment."""
    with suppress(ClusterLostError):  # where no device is
        endpoint_of(run, 0).arrive(START, moment, (), 0)


def _submitted(
    engine: str, cluster: Cluster, schedule: Schedule, runners: Sequence[Future[Any]]
) -> list[Future[Any]]:
    """By device, what it made: after one task, or one for each action, or two at once."""
    actions, device, turns = list(schedule), schedule.device.tolist(), schedule.turns.tolist()
    submit, maker, ran = cluster.submit, schedule.maker.tolist(), dict[int, Future[Any]]()
    last = [submit(d, DeviceRunner.begin, mine, name="begin") for d, mine in enumerate(runners)]
    for n in schedule.steps if engine == "tasks" else ():
        at, d = range(n, n + 1 + int(schedule.paired[n])), device[n]
        makers = [ran[maker[k]] for k in at if maker[k] >= 0 and device[maker[k]] != d]
        name = KERNELS[actions[n].kind] if len(at) == 1 else "overlapped"
        last[d] = submit(d, _act, runners[d], n - turns[d], last[d], *makers, name=name)
        ran |= dict.fromkeys(at, last[d])
    name, each = "result" if ran else "loop", dict(enumerate(zip(runners, last, strict=True)))
    return cluster.submit_all(_finish, each, name=name)


def _act(runner: DeviceRunner, turn: int, *_: None) -> None:
    """The action of a turn, once those that it waits for are done."""
    if turn != runner.next:  # Dask does a task again that a lost worker had done
        raise lost(runner.index, "what it had done is asked for again")
    runner.do()


def _finish(runner: DeviceRunner, _: None) -> StagesMade:
    """What a device made, once all that was left to it is done, and what it sent has arrived."""
    while runner.next < len(runner.order):
        runner.do()
    runner.transport.arrived()
    return runner.done()
