"""Run a pipeline schedule on workers, or a program of one on threads or workers: real layers or
dummies.

    "loop"     rank 0     [F0][F1].............[B0]         one task, and no message to the
               rank 1         [F0][B0]....[F1][B1]          scheduler between two actions

    "tasks"    rank 0     begin --> F0 ----> F1 ----> ...    ---->  the action before it there
                                     |        |                |    the one whose block it uses
               rank 1     begin ---> F0 ----> F1 ---->         v

Under both engines a device's runner does its next action. The order of tasks never rests on
priorities, so Dask's task stream is the Gantt chart. A worker that takes a dead one's place has no
runner, and says so; then the schedule runs again.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import now, set_clocks
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import counting
from tiledask.distributed.cluster.progress import announced, ended
from tiledask.distributed.cluster.room import check_room
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.pipelines.device import (
    START,
    DeviceRunner,
    StageRunner,
    StagesMade,
    joined,
    shares,
)
from tiledask.distributed.pipelines.stages import FeedForward
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import PATIENCE, run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.retry import retry_lost
from tiledask.distributed.transport.messages import endpoint_of, lost, opened
from tiledask.errors import ClusterLostError, ConfigError, PlacementError
from tiledask.plan.intervals import split
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.costs import PerBoundary, Times, costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate, timed
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.making.pipeline import program as program_of
from tiledask.plan.program.program import Program
from tiledask.plan.units import format_bytes

__all__ = ["PipelineRun", "ProgramRun", "run_program", "run_schedule"]

ENGINES = "tasks", "loop"
LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every device."""


@dataclass(frozen=True, repr=False)
class ProgramRun:
    """What came out of running a program."""

    outputs: np.ndarray
    """[tokens, width]: the last stage's output for the whole batch."""
    loss: float | None
    """Mean square error against the target; None without gradients."""
    gradients: tuple[Any, ...]
    """Per stage, the gradients of its weights summed over micro-batches; () without backwards.
    Those of a stage that is on several devices are summed where they come together."""
    traffic: Both
    """Bytes and messages between devices, predicted, and as they were received."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loss {self.loss}, {self.traffic.measured!r})"


@dataclass(frozen=True, repr=False)
class PipelineRun(ProgramRun):
    """What came out of running a schedule, and when each action ran."""

    timeline: Timeline
    """Measured: compute spans by the workers' clocks, transfers beneath them."""
    simulated: Timeline | None
    """What `td.simulate` says of the same schedule and times; None if no times were given."""
    replayed: Timeline
    """Simulated: the actions as long as they took, each started as soon as it could. What
    overhead and transfers cost, and the waiting that they caused elsewhere, is left out."""
    memory: Ledger | None
    """Measured: bytes by which each slot grew, weights included; None if a worker did not say."""
    clock_error: float
    """Seconds by which times of two devices may be wrong against each other: each may be off by its
    own clock's error, and the other way."""

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"({self.timeline!r}, ", 1)


@bounded
def run_schedule(
    schedule: Schedule,
    stages: Sequence[Any] | None = None,
    batch: np.ndarray | None = None,
    cluster: Cluster | Client | str | None = None,
    *,
    target: np.ndarray | None = None,
    forward: Times | None = None,
    backward: Times | None = None,
    latency: PerBoundary = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    overlapped: Times | None = None,
    engine: str = "tasks",
    timeout: float | None = None,
) -> PipelineRun:
    """The PipelineRun of ``schedule`` on ``cluster``, whose slot d is the schedule's device d; a
    Dask client, or a scheduler's address, is connected to (`tiledask.connect`).

    stages
        Real stages (see :mod:`tiledask.distributed.pipelines.stages`), or None for dummies: they
        keep their device busy for the times given without using its core.
    batch
        [tokens, width], cut into the schedule's micro-batches as numpy.array_split does. None,
        for dummies: one number per micro-batch.
    target
        [tokens, width]; needed for backwards. The loss is the mean square error of the batch.
    forward, backward, backward_input, backward_weight, overlapped
        Seconds that an action, or two at once, occupy their device, as for
        :func:`tiledask.simulate`: it does its work and then keeps the device until its time is
        over, so that devices of a known speed can be studied on fewer cores. Default: as long as
        it takes.
    latency
        Seconds, as for ``simulate``, after its making before which a result cannot be used on
        another device. It occupies neither device. The way that the block really takes is part
        of it; where that takes longer, it counts instead.
    engine
        "tasks": each action is a Dask task pinned to its device. "loop": each device is one task
        that goes through its actions: for short ones. Under both, blocks are posted from worker to
        worker past the scheduler, and the results are the same to the bit; when a worker dies, the
        whole schedule runs again in its time.

    Raises ScheduleError for an order that cannot run and for impossible times, PlacementError
    for too few slots or arrays of the wrong shape, ConfigError for an unknown engine,
    DoesNotFitError where a device's stages and what they keep would not fit its worker,
    DeadlineError after ``timeout`` seconds (default 300).
    """
    if engine not in ENGINES:
        raise ConfigError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    mesh = Mesh(cluster, (schedule.devices,), slots=range(schedule.devices))  # type: ignore[arg-type]
    seconds, workers = seconds_of(timeout), mesh.cluster
    if stages is None:
        batch = np.zeros((schedule.microbatches, 1)) if batch is None else batch
        target = np.zeros_like(batch) if target is None and schedule.trains else target
        stages = [FeedForward((), np.shape(batch)[-1], 0)] * schedule.stages
    program = program_of(schedule)
    mine = shares(program, stages, batch, target, workers.backend)
    # what has no time takes as long as it does
    F, halves = 0.0 if forward is None else forward, (backward_input, backward_weight)
    B = 0.0 if backward is None and any(half is None for half in halves) else backward
    times, simulated = (F, B, latency, *halves), None
    costs = costs_of(schedule, *times, overlapped)
    each = [*zip(costs.work.tolist(), costs.way.tolist(), strict=True)]
    pace = [each[a:b] for a, b in pairwise(schedule.turns.tolist())]
    predicted: dict[str, Any] = {"actions": len(schedule)}
    if any(each is not None for each in (forward, backward, *halves)):
        simulated = simulate(schedule, *times, overlapped=overlapped)
        whole = simulated.makespan or 1.0
        predicted["idle"] = [idle / whole for idle in simulated.idle_per_device]
    trains = 1 + schedule.trains  # of each weight a gradient
    needs = [trains * sum(getattr(x, "weight_bytes", 0) for x in each[0].values()) for each in mine]
    if any(needs):
        what = f"{schedule.name} with weights of {format_bytes(max(needs) // trains)} on a device"
        check_room(workers, mesh.at, needs, what, seconds)
    given = [(pace[d], program, mine[d]) for d in mesh.at]
    facts = {"schedule": schedule.name, "micro-batches": str(schedule.microbatches)}
    about = {"lanes": [f"device {d}" for d in mesh.at], "facts": facts, "predicted": predicted}

    def attempt(_: int, left: float) -> Any:
        topic, clocks = f"tiledask-run-{uuid.uuid4().hex}", set_clocks(workers, max(left, PATIENCE))
        with announced(workers, topic, kind="pipeline", **about):
            made = _ran(engine, mesh, schedule, topic, given, left)
        ended(workers, topic)
        return sum(sorted(error for _, error in clocks)[-2:]), made

    with counting(workers, max(seconds, PATIENCE)) as counted:
        error, done = retry_lost(workers, mesh.at, seconds, attempt)
    assert batch is not None
    sizes = [(b - a) * batch[0].nbytes for a, b in split(0, len(batch), schedule.microbatches)]
    sent = ((*ends, program.sent(*ends)) for ends in permutations(mesh.at, 2))
    planned = [(source, to, sizes[i]) for source, to, blocks in sent for _, i in blocks]
    moves = planned, [move for each in done for move in each.moves]
    traffic = Both(*(Traffic.of(workers.slots, each).on(workers.hosts) for each in moves))
    measured = Timeline.of(schedule.devices, [s for each in done for s in each.spans], "measured")
    took = measured.acts.end - measured.acts.start
    took[1:][schedule.paired[:-1]] = 0.0  # of a pair each half has the time of both
    replayed = timed(schedule, costs_of(schedule, 0.0, 0.0)._replace(work=took))
    timelines = measured, simulated, replayed
    return PipelineRun(*joined(done), traffic, *timelines, counted.ledger(), error)


def _ran(
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


# -- programs --------------------------------------------------------------------------------------


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
    if mesh is not None and mesh.ranks != program.ranks:
        raise PlacementError(
            f"the program has {program.ranks} ranks, the mesh {mesh.ranks}; "
            f"td.Mesh(cluster, ({program.ranks},))"
        )
    backend = "numpy" if mesh is None else mesh.cluster.backend
    given = shares(program, stages, batch, target, backend)
    options: dict[str, Any] = {"per_rank": given, "timeout": timeout}
    if mesh is None:
        counted, ranks = program.traffic, run_threads(_rank, program.ranks, program, **options)
    else:
        counted = program.traffic.on(mesh.hosts)
        ranks = run_ranks(_rank, mesh, program, again=True, **options)
    return ProgramRun(*joined(ranks.results), Both(counted, ranks.traffic))


def _rank(rank: Rank, program: Program, share: tuple[Any, ...]) -> StagesMade:
    runner = StageRunner(rank, program, share)
    runner.run()
    return runner.done()
