"""A schedule run by an engine: each device a task that loops, or each action a Dask task.

    "loop"     rank 0     [F0]send[F1]send.........recv[B0]      a rank function: no message to the
               rank 1         recv[F0][B0]send recv[F1][B1]      scheduler between two actions

    "tasks"    rank 0     begin --> F0 ----> F1 ----> ...    ---->  the action before it there
                                     | x1     | x1             |    the block that one sends to
               rank 1     begin ---> F0 ----> F1 ---->         v    another device

Under both, a device's runner does its next action: it waits for its block, works, keeps the device
until its time is over, and reports. Two at once are done one after the other, from one start to one
end. The order of tasks never rests on priorities, so Dask's task stream is the Gantt chart.

    block made        block there
       |---- latency ----|
       '------ sent -----|start ===== work =====.... paced ....|end

A worker that takes a dead one's place has no runner, and says so; then the schedule runs again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Moment
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from dask.sizeof import sizeof
from dask.typing import Key
from distributed import Future, get_worker

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import now, time_there
from tiledask.distributed.pipelines.device import StageRunner, StagesMade
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.transport.messages import lost
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op, action_of
from tiledask.tile.backend import aligned

__all__ = ["ENGINES", "PATIENCE", "DeviceRunner", "StageBlock", "users"]

LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every device."""
PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""
REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""
EngineRun = tuple[list[StagesMade], dict[Key, tuple[str, int, int]], Traffic]
"""What the devices made; by Dask's name of a block what a span of its transfer says (kind, stage,
micro-batch); what moved past Dask."""


class StageBlock(NamedTuple):
    """What an action sends, activations or a gradient; times are by the scheduler's clock."""

    array: Any
    made: float
    way: tuple[float, float] | None = None
    """When it left and when it was there, if that is known here."""


sizeof.register(StageBlock, lambda block: int(block.array.nbytes))


class DeviceRunner(StageRunner):
    """A device's actions, one after the other, in their time.

    ``address``: of the worker that was there when the run began. ``topic``: the run's name, and the
    topic on which actions are reported.
    """

    def __init__(
        self, address: str, device: int, topic: str, pace: PipelineCosts, *given: Any
    ) -> None:
        if get_worker().address != address:
            raise lost(device)
        self.topic, self.pace, self.next = topic, pace, 0
        self.moment: Moment[float] = Moment()
        """At which the first action begins, once that is known."""
        self.end, self.ways = 0.0, list[Span]()
        """Of what was done last; in which blocks came for what is done next."""
        self.sent: dict[int, StageBlock] = {}
        """By turn, what was not taken yet."""
        self.receive: Any = None
        self.send: Any = None
        _runners[topic] = self
        super().__init__(SimpleNamespace(index=device), *given)

    def action(self, turn: int) -> Action:
        """What a schedule calls a turn."""
        block, microbatch, _ = self.order[turn]
        return Action(*action_of(block), microbatch)

    def do(self, receive: Callable[[Op], StageBlock], send: Callable[[Op, Any], Any]) -> None:
        """Do the next action, or the two that are next at once.

        ``receive`` gets the block that an op brings from another device, ``send`` lets one have it.
        """
        turns = range(self.next, self.next + 1 + self.order[self.next].paired)
        actions, self.next = [self.action(turn) for turn in turns], turns.stop
        self.receive, self.send = receive, send
        self._go(turns, "recv")
        start = now()
        self._go(turns, "kernel")
        seconds = sum(float(self.pace.seconds[KINDS.index(kind), s, i]) for kind, s, i in actions)
        if len(actions) > 1 and (both := float(self.pace.together[actions[0][1:]])) >= 0:
            seconds = both
        # a paced device is free after its time to the instant; a thread that the system wakes later
        # is no work of that device, but overhead before its next action
        self.end = max(now(), start + seconds)
        sleep_until(self.end)
        worker = get_worker()
        for action in actions:
            spans: list[Span] = [(self.index, *action, start, self.end), *self.ways]
            self.made.spans.extend(spans)
            # a little later, because a worker's messages go out 2 ms apart: the news that this is
            # done, for which another device may be waiting, shall not queue behind its time of day
            event = worker.log_event, self.topic, {"run": self.topic, "spans": spans}
            worker.loop.add_callback(worker.loop.call_later, REPORT_AFTER, *event)
            self.ways = []
        self._go(turns, "send")
        self.receive = self.send = None  # blocks that they have are no longer needed

    def _message(self, op: Op) -> Callable[[dict[str, Any]], None]:
        def take(env: dict[str, Any]) -> None:
            block, (kind, stage, i), hop = self.receive(op), self.action(self.turn), self.pace.hop
            env[op.buffer] = aligned(block.array)
            latency = float(hop[i % len(hop), stage + (kind != "F")])
            ways = [block.way] if block.way else []
            ways += [(block.made, block.made + latency)] if latency else []
            source = stage + (-1 if kind == "F" else 1)
            # a way begins by another worker's clock, and by their error it may seem to end before
            self.ways += [(self.index, TRANSFER, source, i, min(way), way[1]) for way in ways]
            sleep_until(block.made + latency)

        return take if op.name == "recv" else lambda env: self.send(op, env[op.buffer])


_runners: WeakValueDictionary[str, DeviceRunner] = WeakValueDictionary()
"""Of the runs under way in this worker, by topic."""


def sleep_until(moment: float) -> None:
    """Return at ``moment`` of the scheduler's clock."""
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))


# -- loops -----------------------------------------------------------------------------------------


def run_loops(
    mesh: Mesh, schedule: Schedule, runners: Sequence[Future[Any]], topic: str, timeout: float
) -> EngineRun:
    """Each device is a rank that goes through its order; blocks are messages between ranks."""
    ranks = run_ranks(_loop, mesh, per_rank=runners, timeout=timeout, transport="posts")
    return ranks.results, {}, ranks.traffic.on(mesh.cluster.hosts)


def _loop(rank: Rank, runner: DeviceRunner) -> StagesMade:
    port, early = rank.transport.port(tuple(range(rank.ranks)), "blocks"), dict[Any, StageBlock]()

    def receive(op: Op) -> StageBlock:
        """Messages come in the order of their sender; what is early is kept."""
        while (wanted := (op.buffer, runner.microbatch)) not in early:
            (message,) = port.get((op["peer"],))
            name, made, left = message.call
            early[name] = StageBlock(message.parts[0], made, (left, message.there))
        return early.pop(wanted)

    def send(op: Op, array: Any) -> None:
        about = (op.buffer, runner.microbatch), runner.end, now()
        port.put(op["peer"], [array], about, lend=True)

    call = CollectiveCall(rank.index, "start", port.members, 0, "", ())
    sleep_until(port.meet(call, lambda: now() + LEAD))
    while runner.next < len(runner.order):
        begun = port.enter(call._replace(kind="step", label=str(runner.action(runner.next))))
        runner.do(receive, send)
        port.leave(begun)
    return runner.done()


# -- tasks -----------------------------------------------------------------------------------------


def run_tasks(
    mesh: Mesh, schedule: Schedule, runners: Sequence[Future[Any]], topic: str, timeout: float
) -> EngineRun:
    """Each action is a task, and blocks are their results."""
    cluster, patience = mesh.cluster, max(timeout, PATIENCE)
    try:
        # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
        ends, names = _submitted(mesh, schedule, runners, patience + timeout)
        moment = time_there(cluster, patience) + LEAD
        cluster.run(_start, topic, moment, timeout=patience)
        made = cluster.gather(ends, f"{schedule!r}", timeout, cancel=True)
        return made, names, Traffic.of(cluster.slots)
    finally:
        with suppress(Exception):  # of a cluster that is gone: nobody waits there for the beginning
            cluster.run(_start, topic, 0.0, timeout=10.0)


def _submitted(
    mesh: Mesh, schedule: Schedule, runners: Sequence[Future[Any]], seconds: float
) -> tuple[list[Future[StagesMade]], dict[Key, tuple[str, int, int]]]:
    """A task for each action, or two that are done at once, and for each device what it made; by
    Dask's name of a block what a span of its transfer says.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    actions, device, turns = list(schedule), schedule.device.tolist(), schedule.turns.tolist()
    submit, user, names = mesh.cluster.submit, users(schedule), dict[Key, tuple[str, int, int]]()
    blocks = dict[int, Future[Any]]()  # by the position of the action that uses each
    before = [submit(d, _begin, mine, seconds, name="begin") for d, mine in enumerate(runners)]
    for n in schedule.steps:
        at, d = range(n, n + 1 + int(schedule.paired[n])), device[n]
        came = [blocks.pop(k) for k in at if k in blocks]
        name = KERNELS[actions[n].kind] if len(at) == 1 else "overlapped"
        turn = n - turns[d]
        before[d] = ran = submit(d, _act, runners[d], turn, before[d], *came, name=name)
        for k in filter(user.__contains__, at):
            if k > n:  # the first task has done both
                ran = submit(d, _act, runners[d], turn + 1, before[d], name="hand", beside=True)
            blocks[user[k]], names[ran.key] = ran, (TRANSFER, *actions[k][1:])
    ends = enumerate(zip(runners, before, strict=True))
    done = [submit(d, DeviceRunner.done, *both, name="result", beside=True) for d, both in ends]
    return done, names


def users(schedule: Schedule) -> dict[int, int]:
    """By the position of what sends its result to another device, that of what uses it there."""
    device, maker = schedule.device.tolist(), schedule.maker.tolist()
    return {m: n for n, m in enumerate(maker) if m >= 0 and device[m] != device[n]}


def _begin(runner: DeviceRunner, seconds: float) -> None:
    sleep_until(runner.moment.result(seconds))  # the client's own limit comes before


def _start(topic: str, moment: float) -> None:
    """Let the tasks of a run begin at a moment."""
    if (runner := _runners.get(topic)) and not runner.moment.done():
        runner.moment.set_result(moment)


def _act(runner: DeviceRunner, turn: int, before: Any, *blocks: StageBlock) -> StageBlock | None:
    """What the action of a turn sends; ``before`` only makes it wait for its turn."""
    if turn == runner.next:
        coming = iter(blocks)
        runner.do(
            lambda _: next(coming),
            lambda _, x: runner.sent.update({runner.turn: StageBlock(x, runner.end)}),
        )
    elif turn not in runner.sent:  # Dask runs a task again whose result a lost worker had
        raise lost(runner.index, "what it had sent is asked for again")
    return runner.sent.pop(turn, None)


ENGINES: dict[str, Callable[..., EngineRun]] = {"tasks": run_tasks, "loop": run_loops}
"""By name, what runs a schedule with futures of every device's `DeviceRunner`."""
