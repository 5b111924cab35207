"""Run a pipeline schedule on workers: real layers or dummies, by tasks or by loops.

    schedule --checked--> Job --engine--> results          "tasks": each action is a Dask task
                           |                               "loop":  each device is one
                           '--> events of every action --> Timeline

Stage s reads and writes what :func:`tiledask.plan.pipelines.validate.needs` says, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.clocks import Clock, set_clocks
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import counting, measuring_load
from tiledask.distributed.cluster.progress import subscribed
from tiledask.distributed.cluster.room import check_room
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.pipelines.engines import ENGINES, PipelineJob
from tiledask.distributed.pipelines.kernels import joined
from tiledask.distributed.pipelines.paced import DeviceDone
from tiledask.distributed.pipelines.run import PipelineRun, replay
from tiledask.distributed.pipelines.stages import Dummy
from tiledask.distributed.retry import retry_lost
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.pipelines.costs import PerBoundary, PipelineCosts, Times, costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import validate
from tiledask.plan.products.placement import split
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.making.pipeline import program
from tiledask.plan.program.program import Program
from tiledask.plan.units import format_bytes
from tiledask.tile.progress import is_watched, showing

__all__ = ["ENGINES", "PipelineRun", "run_schedule"]


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
    """The Run of ``schedule`` on ``cluster``, whose slot d is the schedule's device d; a Dask
    client, or a scheduler's address, is connected to (`tiledask.connect`).

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

    The gradients of a stage that is on several devices are summed when they are brought back; a
    program that is told their bytes sums them among the devices (:func:`tiledask.program`).

    Where the dashboard has tiledask's page, every run is announced on Dask's topic "tiledask-runs";
    each action is reported on the run's own topic when it is done, with its times on the
    scheduler's clock.

    Raises ScheduleError for an order that cannot run and for impossible times, PlacementError
    for too few slots or arrays of the wrong shape, ConfigError for an unknown engine,
    DoesNotFitError where a device's stages and what they keep would not fit its worker,
    DeadlineError after ``timeout`` seconds (default 300).
    """
    if cluster is None or engine not in ENGINES:
        raise ConfigError(
            "run_schedule needs cluster=, for example of td.start_cluster()"
            if cluster is None
            else f"no engine {engine!r}; there are {', '.join(ENGINES)}"
        )
    workers = cluster_of(cluster, "a pipeline")
    halves = {"backward_input": backward_input, "backward_weight": backward_weight}
    times = {"forward": forward, "backward": backward, **halves}
    travel = {"latency": latency, "overlapped": overlapped}
    costs = _costs(schedule, times, travel)
    dummies = stages is None
    if stages is None:
        batch = np.zeros((schedule.microbatches, 1)) if batch is None else batch
        if target is None and schedule.trains:
            target = np.zeros_like(batch)
        stages = [Dummy(np.shape(batch)[-1])] * schedule.stages
    validate(schedule, stages=len(stages))
    batch = _check(schedule, stages, batch, target, workers)
    simulated = None
    if any(each is not None for each in times.values()):
        shape = len(times), schedule.stages, schedule.microbatches
        seconds = dict(zip(times, np.broadcast_to(costs.seconds, shape), strict=True))
        simulated = simulate(schedule, **seconds, **travel)
    made, kept = _sized(schedule, stages, batch)
    given = schedule, made, stages, batch, target, workers, costs, simulated
    planned = PipelineJob(*given, seconds_of(timeout))
    _check_room(planned, kept)

    def attempt(_: int, left: float) -> tuple[PipelineJob, list[DeviceDone], tuple[Clock, ...]]:
        job = replace(planned, timeout=left)
        clocks = set_clocks(workers, job.patience)
        with _shown(job):
            return job, job.run(ENGINES[engine]), clocks

    with counting(workers, planned.patience) as counted, measuring_load() as load_so_far:
        devices = range(schedule.devices)
        job, done, clocks = retry_lost(workers, devices, planned.timeout, attempt)
        load = load_so_far()
    arrived = [
        (transfer.destination, *job.sent[key], transfer.start, transfer.stop)
        for transfer in counted.transfers
        for key in transfer.keys
        if key in job.sent
    ]
    outputs, loss, gradients = joined(made for each in done for made in each.made)
    spans = [span for each in done for span in each.spans]
    measured = Timeline.of(schedule.devices, [*spans, *arrived], "measured")
    moves = [(source, to, n) for to, each in enumerate(done) for source, n in each.moves]
    return PipelineRun(
        measured,
        simulated,
        replay(schedule, measured),
        outputs,
        None if target is None or dummies else loss,
        gradients,
        Both(_predicted_traffic(job), counted.moved(workers.slots, moves)),
        counted.ledger({}),
        max(each.late for each in done),
        clocks,
        engine,
        load,
    )


@contextmanager
def _shown(job: PipelineJob) -> Iterator[None]:
    """A bar while the block runs, of the actions that are done, where somebody looks on."""
    if not is_watched():
        yield
        return
    schedule, done = job.schedule, set[tuple[Any, ...]]()
    what = f"{schedule.name} on {schedule.devices} devices"
    with showing(what, lambda: (len(done), len(schedule), ""), "actions"):
        with subscribed(job.cluster, job.topic, lambda e: done.add(tuple(e["spans"][0][1:4]))):
            yield
        done.update(schedule)  # events may come late


def _costs(
    schedule: Schedule, times: Mapping[str, Times | None], travel: Mapping[str, Any]
) -> PipelineCosts:
    """The PipelineCosts; 0 where an action takes what it takes."""
    given: dict[str, Any] = {name: t for name, t in times.items() if t is not None}
    whole = {"backward"} if {"backward_input", "backward_weight"} <= given.keys() else set()
    rest = dict.fromkeys({"forward", "backward"} - given.keys() - whole, 0.0)
    return costs_of(schedule, **given, **rest, **travel)


def _check(
    schedule: Schedule,
    stages: Sequence[Any],
    batch: np.ndarray | None,
    target: np.ndarray | None,
    cluster: Cluster,
) -> np.ndarray:
    """``batch``, if it, the ``target`` and the ``stages`` go together; else PlacementError."""
    if schedule.devices > cluster.slots:
        raise PlacementError(
            f"the schedule has {schedule.devices} devices, the cluster {cluster.slots} slots; "
            f"{cluster.with_slots(schedule.devices)}"
        )
    widths = {stage.width for stage in stages}
    if batch is None or np.ndim(batch) != 2 or widths != {batch.shape[1]}:
        raise PlacementError(
            f"the batch has shape {() if batch is None else np.shape(batch)} and the stages take "
            f"[tokens, {' or '.join(map(str, sorted(widths)))}]; make all widths equal"
        )
    if len(batch) < schedule.microbatches:
        raise PlacementError(
            f"{len(batch)} tokens cannot be cut into {schedule.microbatches} micro-batches; "
            f"give at least one token each"
        )
    if schedule.trains and target is None:
        raise PlacementError("a schedule with backwards needs target=, the outputs it trains for")
    if target is not None and np.shape(target) != np.shape(batch):
        raise PlacementError(
            f"the target has shape {np.shape(target)}, the outputs have {np.shape(batch)}; "
            f"they must be equal"
        )
    return batch


def _sized(schedule: Schedule, stages: Sequence[Any], batch: np.ndarray) -> tuple[Program, int]:
    """The program of ``schedule`` with its bytes; and those that a stage keeps of a micro-batch, 0
    if none says its ``kept_bytes``."""
    rows = -(-len(batch) // schedule.microbatches)
    kept = max(stage.kept_bytes(rows) if hasattr(stage, "kept_bytes") else 0 for stage in stages)
    # a backward that is in two parts keeps as much again of gradients for the second
    parts = 2 if any(action.kind == "W" for action in schedule) else 1
    nbytes = rows * batch[0].nbytes
    return program(schedule, block_bytes=nbytes, activation=parts * kept), kept


def _check_room(job: PipelineJob, kept: int) -> None:
    """None if each device's worker has room for its stages' weights, their gradients, and what is
    kept of micro-batches that are under way; else DoesNotFitError. Of stages that do not say their
    ``weight_bytes`` nothing is known."""
    schedule = job.schedule
    weights = [getattr(stage, "weight_bytes", 0) for stage in job.stages]
    if not any(weights):
        return
    held, sizes = job.program.memory, np.array(weights) * (2 if schedule.trains else 1)
    peaks = [
        held.per_place.get(device, 0)
        + 2 * kept  # while one is worked on
        + sum(int(n) for s, n in enumerate(sizes) if device in schedule.holders(s))
        for device in range(schedule.devices)
    ]
    what = f"{schedule.name} with weights of {format_bytes(max(weights))} a stage"
    check_room(job.cluster, range(schedule.devices), peaks, what, job.timeout)


def _predicted_traffic(job: PipelineJob) -> Traffic:
    """Activations [rows, width] to the next stage's device, gradients of that shape back."""
    program, row = job.program, job.batch[0].nbytes
    rows = [stop - start for start, stop in split(0, len(job.batch), job.schedule.microbatches)]
    moves = [
        (device, op["peer"], rows[step.microbatch] * row)
        for device, order in enumerate(program.orders)
        for step in order
        for op in program.role(device).blocks[step.block].ops
        if op.name == "send"
    ]
    return Traffic.of(job.cluster.slots, moves).on(job.cluster.hosts)
