"""Run a pipeline schedule on workers: real layers or dummies, by tasks or by loops.

    schedule --checked--> Job --engine--> results          "tasks": each action is a Dask task
                           |                               "loop":  each device is one
                           '--> events of every action --> Timeline

Stage s reads and writes what :func:`tiledask.plan.pipelines.validate.needs` says, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from distributed import Client

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.clocks import Clock, set_clocks
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import counting, measuring_load
from tiledask.distributed.cluster.progress import announced, ended, subscribed
from tiledask.distributed.cluster.room import check_room
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.pipelines.device import DeviceDone, joined, operands, shares
from tiledask.distributed.pipelines.engines import ENGINES, PipelineJob
from tiledask.distributed.pipelines.run import PipelineRun, replay
from tiledask.distributed.pipelines.stages import Dummy
from tiledask.distributed.retry import retry_lost
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.costs import PerBoundary, PipelineCosts, Times, costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import validate
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
    travel: dict[str, Any] = {"latency": latency, "overlapped": overlapped}
    dummies = stages is None
    if stages is None:
        batch = np.zeros((schedule.microbatches, 1)) if batch is None else batch
        if target is None and schedule.trains:
            target = np.zeros_like(batch)
        stages = [Dummy(np.shape(batch)[-1])] * schedule.stages
    costs = _costs(validate(schedule, stages=len(stages)), times, travel)
    batch = _check(schedule, stages, batch, target, workers)
    simulated = None
    if any(each is not None for each in times.values()):
        seconds: dict[str, Any] = dict(zip(times, costs.seconds, strict=True))
        simulated = simulate(schedule, **seconds, **travel)
    made, kept = _sized(schedule, stages, batch)
    planned = PipelineJob(schedule, made, workers, costs, seconds_of(timeout))
    _check_room(planned, stages, kept)
    given = shares(made, stages, batch, target, workers.backend)
    predicted: dict[str, Any] = {"actions": len(schedule)}
    if simulated is not None:
        predicted["idle"] = [
            each / (simulated.makespan or 1.0) for each in simulated.idle_per_device
        ]

    def attempt(_: int, left: float) -> tuple[PipelineJob, list[DeviceDone], tuple[Clock, ...]]:
        job = PipelineJob(schedule, made, workers, costs, left)
        clocks = set_clocks(workers, job.patience)
        ready = [
            workers.submit(device, operands, *mine, name="weights")
            for device, mine in enumerate(given)
        ]
        with _shown(job, predicted):
            workers.wait(ready, "weights and micro-batches", job.patience, cancel=True)
            return job, ENGINES[engine](job, ready), clocks

    with counting(workers, planned.patience) as counted, measuring_load() as load_so_far:
        devices = range(schedule.devices)
        job, done, clocks = retry_lost(workers, devices, planned.timeout, attempt)
        load = load_so_far()
    spans = [span for each in done for span in each.spans]
    spans += [
        (transfer.destination, *job.sent[key], transfer.start, transfer.stop)
        for transfer in counted.transfers
        for key in transfer.keys
        if key in job.sent
    ]
    outputs, loss, gradients = joined(each.made for each in done)
    measured = Timeline.of(schedule.devices, spans, "measured")
    moves = [(source, to, n) for to, each in enumerate(done) for source, n in each.moves]
    return PipelineRun(
        measured,
        simulated,
        replay(schedule, measured),
        outputs,
        None if target is None or dummies else loss,
        gradients,
        Both(_predicted_traffic(job, batch), counted.moved(workers.slots, moves)),
        counted.ledger({}),
        clocks,
        engine,
        load,
    )


@contextmanager
def _shown(job: PipelineJob, predicted: dict[str, Any]) -> Iterator[None]:
    """The run on the dashboard's page while the block runs; and a bar of its actions, where
    somebody looks on."""
    schedule, done = job.schedule, set[tuple[Any, ...]]()
    what = f"{schedule.name} on {schedule.devices} devices"
    about = {
        "lanes": [f"device {d}" for d in range(schedule.devices)],
        "facts": {"schedule": schedule.name, "micro-batches": str(schedule.microbatches)},
        "predicted": predicted,
    }
    with ExitStack() as stack:
        stack.enter_context(announced(job.cluster, job.topic, kind="pipeline", **about))
        if is_watched():
            stack.enter_context(showing(what, lambda: (len(done), len(schedule), ""), "actions"))
            follow = subscribed(job.cluster, job.topic, lambda e: done.add((*e["spans"][0][1:4],)))
            stack.enter_context(follow)
        yield
        done.update(schedule)  # events may come late
    ended(job.cluster, job.topic)


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
    shape = () if batch is None else np.shape(batch)
    wanted, widths = None if target is None else np.shape(target), {each.width for each in stages}
    wrong = ""
    if schedule.devices > cluster.slots:
        wrong = (
            f"the schedule has {schedule.devices} devices, the cluster {cluster.slots} slots; "
            f"{cluster.with_slots(schedule.devices)}"
        )
    elif len(shape) != 2 or widths != {shape[1]}:
        wrong = (
            f"the batch has shape {shape} and the stages take "
            f"[tokens, {' or '.join(map(str, sorted(widths)))}]; make all widths equal"
        )
    elif shape[0] < schedule.microbatches:
        wrong = (
            f"{shape[0]} tokens cannot be cut into {schedule.microbatches} micro-batches; give at "
            f"least one token each"
        )
    elif schedule.trains and wanted is None:
        wrong = "a schedule with backwards needs target=, the outputs it trains for"
    elif wanted not in (None, shape):
        wrong = f"the target has shape {wanted}, the outputs have {shape}; they must be equal"
    if wrong or batch is None:
        raise PlacementError(wrong)
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


def _check_room(job: PipelineJob, stages: Sequence[Any], kept: int) -> None:
    """None if each device's worker has room for its stages' weights, their gradients, and what is
    kept of micro-batches that are under way; else DoesNotFitError. Of stages that do not say their
    ``weight_bytes`` nothing is known."""
    schedule = job.schedule
    weights = [getattr(stage, "weight_bytes", 0) for stage in stages]
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


def _predicted_traffic(job: PipelineJob, batch: np.ndarray) -> Traffic:
    """Activations [rows, width] to the next stage's device, gradients of that shape back."""
    program, row = job.program, batch[0].nbytes
    rows = [stop - start for start, stop in split(0, len(batch), job.schedule.microbatches)]
    moves = [
        (device, op["peer"], rows[step.microbatch] * row)
        for device, order in enumerate(program.orders)
        for step in order
        for op in program.role(device).blocks[step.block]
        if op.name == "send"
    ]
    return Traffic.of(job.cluster.slots, moves).on(job.cluster.hosts)
