"""Run a pipeline schedule on workers, or a program of one: real layers or dummies.

schedule --checked--> runners --engine--> results      "tasks": each action is a Dask task
                         |                             "loop":  each device is one
                         '--> events of every action --> Timeline

program --checked--> results                           on threads, or on workers
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from distributed import Client

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import set_clocks
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import counting, measuring_load
from tiledask.distributed.cluster.progress import announced, ended, subscribed
from tiledask.distributed.cluster.room import check_room
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.pipelines.device import StageRunner, StagesMade, joined, shares
from tiledask.distributed.pipelines.engines import ENGINES, PATIENCE, DeviceRunner, users
from tiledask.distributed.pipelines.run import PipelineRun, ProgramRun, replay
from tiledask.distributed.pipelines.stages import Dummy
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.retry import retry_lost
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.costs import PerBoundary, Times, costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import validate
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.making.pipeline import program as program_of
from tiledask.plan.program.ops import action_of
from tiledask.plan.program.program import Program
from tiledask.plan.units import format_bytes
from tiledask.tile.progress import is_watched, showing

__all__ = ["run_program", "run_schedule"]


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
    forward, backward, backward_input, backward_weight
        Seconds that an action occupies its device, in the shapes and with the meaning that they
        have for :func:`tiledask.simulate`. An action does its work and then keeps the device
        until its time is over, so devices of a known speed can be studied on a machine with
        fewer cores than devices. Default: as long as it takes.
    overlapped
        Seconds of a forward and a backward that a device does at once (DualPipe), as for
        ``simulate``. Their work is done one after the other.
    latency
        Seconds, as for ``simulate``, after its making before which a result cannot be used on
        another device. It occupies neither device. The way that the block really takes is part
        of it; where that takes longer, it counts instead.
    engine
        "tasks": each action is a Dask task pinned to its device, its turn a real dependency, so
        that Dask's task stream is the Gantt chart. "loop": each device is one task that goes
        through its actions, and blocks are posted from worker to worker past the scheduler: for
        short actions. The results are the same to the bit; when a worker dies, the whole schedule
        runs again in its time.

    Where the dashboard has tiledask's page, every run is announced on Dask's topic "tiledask-runs";
    each action is reported on the run's own topic when it is done, with its times on the
    scheduler's clock.

    Raises ScheduleError for an order that cannot run and for impossible times, PlacementError
    for too few slots or arrays of the wrong shape, ConfigError for an unknown engine,
    DoesNotFitError where a device's stages and what they keep would not fit its worker,
    DeadlineError after ``timeout`` seconds (default 300).
    """
    if engine not in ENGINES:
        raise ConfigError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    devices, seconds, given = range(schedule.devices), seconds_of(timeout), stages
    where: Any = cluster
    mesh = Mesh(where, (len(devices),), slots=devices)
    if stages is None:
        batch = np.zeros((schedule.microbatches, 1)) if batch is None else batch
        target = np.zeros_like(batch) if target is None and schedule.trains else target
        stages = [Dummy(np.shape(batch)[-1])] * schedule.stages
    validate(schedule, stages=len(stages))
    # what has no time takes as long as it does
    times = forward, backward, backward_input, backward_weight
    F = 0.0 if forward is None else forward
    B = 0.0 if backward is None and any(half is None for half in times[2:]) else backward
    pace = costs_of(schedule, F, B, latency, *times[2:], overlapped)
    batch = _checked(stages, batch, target, schedule.microbatches, schedule.trains)
    simulated, predicted = None, dict[str, Any](actions=len(schedule))
    if any(each is not None for each in times):
        simulated = simulate(schedule, F, B, latency, *times[2:], overlapped=overlapped)
        idle = np.array(simulated.idle_per_device) / (simulated.makespan or 1.0)
        predicted["idle"] = idle.tolist()
    rows = [stop - start for start, stop in split(0, len(batch), schedule.microbatches)]
    program = _with_room(schedule, stages, max(rows), batch[0].nbytes, mesh, seconds)
    mine = shares(program, stages, batch, target, mesh.cluster.backend)

    def attempt(_: int, left: float) -> Any:
        topic, patience = f"tiledask-run-{uuid.uuid4().hex}", max(left, PATIENCE)
        clocks, there = set_clocks(workers, patience), workers.wait_for_slots(devices, patience)
        runners = []
        for d in devices:
            made = there[d]["address"], d, topic, pace, program, *mine[d]
            runners.append(workers.submit(d, DeviceRunner, *made, name="weights"))
        with _shown(workers, schedule, topic, predicted):
            workers.wait(runners, "weights and micro-batches", patience, cancel=True)
            return clocks, *ENGINES[engine](mesh, schedule, runners, topic, left)

    workers = mesh.cluster
    with counting(workers, max(seconds, PATIENCE)) as counted, measuring_load() as load_so_far:
        clocks, done, names, moved = retry_lost(workers, devices, seconds, attempt)
        load = load_so_far()
    spans = [span for each in done for span in each.spans]
    for came in counted.transfers:
        sent = [names[key] for key in came.keys if key in names]
        spans += [(came.destination, *what, came.start, came.stop) for what in sent]
    measured = Timeline.of(len(devices), spans, "measured")
    outputs, loss, gradients = joined(done)
    device, numbers = schedule.device, schedule.microbatch
    moves = [
        (device[n], device[to], rows[numbers[n]] * batch[0].nbytes)
        for n, to in users(schedule).items()
    ]
    return PipelineRun(
        measured,
        simulated,
        replay(schedule, measured),
        outputs,
        None if target is None or given is None else loss,
        gradients,
        Both(
            Traffic.of(workers.slots, moves).on(workers.hosts),
            counted.traffic and counted.traffic + moved,
        ),
        counted.ledger({}),
        clocks,
        engine,
        load,
    )


@contextmanager
def _shown(
    cluster: Cluster, schedule: Schedule, topic: str, predicted: dict[str, Any]
) -> Iterator[None]:
    """The run on the dashboard's page while the block runs; and a bar of its actions, where
    somebody looks on."""
    done, what = set[Any](), f"{schedule.name} on {schedule.devices} devices"
    facts = {"schedule": schedule.name, "micro-batches": str(schedule.microbatches)}
    about = {"lanes": [f"device {d}" for d in range(schedule.devices)], "facts": facts}
    with ExitStack() as stack:
        stack.enter_context(
            announced(cluster, topic, kind="pipeline", predicted=predicted, **about)
        )
        if is_watched():
            stack.enter_context(showing(what, lambda: (len(done), len(schedule), ""), "actions"))
            follow = subscribed(cluster, topic, lambda e: done.add((*e["spans"][0][1:4],)))
            stack.enter_context(follow)
        yield
        done.update(schedule)  # events may come late
    ended(cluster, topic)


def _with_room(
    schedule: Schedule, stages: Sequence[Any], rows: int, row: int, mesh: Mesh, timeout: float
) -> Program:
    """The program of ``schedule``, if each device's worker has room for its stages' weights, their
    gradients, and what is kept of micro-batches that are under way; else DoesNotFitError. Of stages
    that do not say their ``weight_bytes`` nothing is known.

    ``rows``: the most of a micro-batch, of so many bytes a ``row``.
    """
    kept = max(stage.kept_bytes(rows) if hasattr(stage, "kept_bytes") else 0 for stage in stages)
    # a backward that is in two parts keeps as much again of gradients for the second
    parts = 2 if any(action.kind == "W" for action in schedule) else 1
    program = program_of(schedule, block_bytes=rows * row, activation=parts * kept)
    weights = [getattr(stage, "weight_bytes", 0) for stage in stages]
    if any(weights):
        most, copies = program.memory.per_place, 2 if schedule.trains else 1
        needs = [most.get(device, 0) + 2 * kept for device in mesh.at]  # 2: of the one at work
        for stage, size in enumerate(weights):
            for device in schedule.holders(stage):
                needs[device] += copies * size
        what = f"{schedule.name} with weights of {format_bytes(max(weights))} a stage"
        check_room(mesh.cluster, mesh.at, needs, what, timeout)
    return program


def _checked(
    stages: Sequence[Any],
    batch: np.ndarray | None,
    target: np.ndarray | None,
    microbatches: int,
    trains: bool,
) -> np.ndarray:
    """``batch``, if it goes with the ``stages`` and the ``target`` with it; else PlacementError."""
    widths = {stage.width for stage in stages}
    shape, aim = (None if x is None else np.shape(x) for x in (batch, target))
    right = shape is not None and len(shape) == 2 and {shape[1]} == widths
    aimed = aim == shape if trains or aim is not None else True
    if batch is None or not right or len(batch) < microbatches or not aimed:
        raise PlacementError(
            f"stages of width {' and '.join(map(str, sorted(widths)))} take a batch [tokens, width]"
            f" of {microbatches} tokens or more, at least one for each micro-batch, and for "
            f"backwards target= of its shape; got a batch of {shape} and a target of {aim}"
        )
    return batch


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
    actions = [action_of(name) for role in program.roles for name in role.blocks]
    trains, count = any(kind != "F" for kind, _ in actions), 1 + max(s for _, s in actions)
    if len(stages) != count or (mesh is not None and mesh.ranks != program.ranks):
        got = f"{len(stages)} stages{f' and a mesh of {mesh.ranks}' if mesh else ''}"
        raise PlacementError(
            f"the program has {count} stages and {program.ranks} ranks, got {got}; give as many, "
            f"and td.Mesh(cluster, ({program.ranks},))"
        )
    microbatches = 1 + max(step.microbatch for order in program.orders for step in order)
    batch = _checked(stages, batch, target, microbatches, trains)
    backend = "numpy" if mesh is None else mesh.cluster.backend
    given = shares(program, stages, batch, target if trains else None, backend)
    if mesh is None:
        ranks = run_threads(_rank, program.ranks, program, per_rank=given, timeout=timeout)
    else:
        ranks = run_ranks(_rank, mesh, program, per_rank=given, timeout=timeout, again=True)
    outputs, loss, gradients = joined(ranks.results)
    traffic = Both(program.traffic.on(mesh.hosts) if mesh else program.traffic, ranks.traffic)
    return ProgramRun(outputs, loss if trains else None, gradients, traffic, ranks.records)


def _rank(rank: Rank, program: Program, mine: tuple[Any, ...]) -> StagesMade:
    runner = StageRunner(rank, program, *mine)
    runner.run()
    return runner.done()
