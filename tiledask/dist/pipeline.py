"""Run a pipeline schedule on workers: each action a pinned task, its turn a real dependency.

    device 0   F0 ----> F1 ----> ...           ---->  the previous action on the device
                | y      | y                      |   data: activations down, gradients up
    device 1   ...      F0 ----> F1 ---->         v   ("hand" tasks, on the device that has them)

The order never rests on priorities, so Dask's task stream is the Gantt chart of the schedule.
Stage s reads and writes what :func:`tiledask.plan.needs.needs` says, and nothing else.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Future, get_worker

from tiledask.dist.array import Both, read_block
from tiledask.dist.cluster import Cluster, seconds_of
from tiledask.dist.counters import counting
from tiledask.errors import DeadlineError, PlacementError, ScheduleError
from tiledask.plan.ledger import Ledger
from tiledask.plan.needs import Needs, checked
from tiledask.plan.placement import split
from tiledask.plan.schedule import Action, Schedule
from tiledask.plan.timeline import TRANSFER, Span, Timeline
from tiledask.plan.traffic import Traffic
from tiledask.tile.backend import synchronize
from tiledask.tile.backend import to_numpy as off_device
from tiledask.tile.functions import mean_square, mean_square_grad

__all__ = ["Run", "run_schedule"]


@dataclass(frozen=True, repr=False)
class Run:
    """What came out of running a schedule, and when each action ran."""

    timeline: Timeline
    """Measured: compute spans by the workers' clocks, transfers beneath them."""
    outputs: np.ndarray
    """[tokens, width]: the last stage's output for the whole batch."""
    loss: float | None
    """Mean square error against the target; None for a forward-only schedule."""
    gradients: tuple[Any, ...]
    """Per stage, the gradients of its weights summed over micro-batches; () if forward only."""
    traffic: Both
    """Traffic between devices, predicted and measured; after a worker died and its work was done
    again, more is measured than predicted."""
    memory: Ledger
    """Measured: bytes by which each slot grew, weights included."""
    late: float
    """The longest that an action took beyond the duration it was given, seconds; 0 if none."""

    def __repr__(self) -> str:
        return f"Run({self.timeline!r}, loss {self.loss}, {self.traffic.measured!r})"


def run_schedule(
    schedule: Schedule,
    stages: Sequence[Any],
    batch: np.ndarray,
    cluster: Cluster,
    *,
    target: np.ndarray | None = None,
    forward: float | Sequence[float] | None = None,
    backward: float | Sequence[float] | None = None,
    timeout: float | None = None,
) -> Run:
    """The Run of ``schedule`` over real ``stages`` (see :mod:`tiledask.dist.stages`).

    batch
        [tokens, width], cut into the schedule's micro-batches as numpy.array_split does.
    target
        [tokens, width]; needed for backwards. The loss is the mean square error of the batch.
    forward, backward
        Seconds that an action occupies its device, one number or one per stage. An action does
        its work and then keeps the device until its time is over, so devices of a known speed
        can be studied on a machine with fewer cores than devices. Default: as long as it takes.

    Device d is the cluster's slot d. Raises ScheduleError for an order that cannot run,
    PlacementError for too few slots or arrays of the wrong shape, DeadlineError after
    ``timeout`` seconds. A split backward is paced as ``backward`` says, half
    for the input gradient and half for the weights.
    """
    pace = _pace(schedule, forward, backward)
    waits, order = checked(schedule, stages=len(stages))
    _check(schedule, stages, batch, target, cluster)
    job = _Job(schedule, waits, order, stages, batch, target, cluster, pace)
    with counting(cluster, timeout) as counted:
        outputs, gradients, losses = job.submit()
        spans, late = job.follow([*outputs, *gradients, *losses], timeout)
    parts = (outputs, gradients, losses)
    outputs, gradients, losses = (
        cluster.gather(part, "the run's results", timeout) for part in parts
    )
    moved = [
        (destination, TRANSFER, -1, -1, start, stop)
        for _, destination, start, stop in counted.transfers
    ]
    return Run(
        Timeline.of(schedule.devices, [*spans, *moved], "measured"),
        np.concatenate([off_device(y) for y in outputs]),
        None if target is None else float(sum(losses)),
        tuple(gradients),
        Both(_predicted_traffic(schedule, waits, batch, cluster), counted.traffic),
        counted.ledger({}),
        late,
    )


_Pace = dict[str, list[float]]
"""Kind -> seconds per stage; 0 means as long as it takes."""


@dataclass
class _Job:
    """One run: its futures while it is being submitted, and the name its events go by."""

    schedule: Schedule
    waits: Needs
    """What each action needs."""
    order: Sequence[Action]
    """All actions, each after those before it on its device and those it needs."""
    stages: Sequence[Any]
    batch: np.ndarray
    target: np.ndarray | None
    cluster: Cluster
    pace: _Pace
    topic: str = field(default_factory=lambda: f"tiledask-run-{uuid.uuid4().hex}")

    def submit(self) -> tuple[list[Future], list[Future], list[Future]]:
        """(outputs per micro-batch, gradients per stage, losses per micro-batch) to wait for.

        All other futures are dropped here, so that activations go as soon as they are used.
        """
        place, last = self.schedule.place, len(self.stages) - 1
        submit = self.cluster.submit
        weights = [
            submit(place[s], _init, stage, self.cluster.backend, name="weights")
            for s, stage in enumerate(self.stages)
        ]
        inputs = self._rows(self.batch, place[0], "input")
        targets = self._rows(self.target, place[last], "target")
        ready = [f for f in (*weights, *inputs, *targets) if f is not None]
        self.cluster.wait(ready, "weights and micro-batches")

        done: dict[Action, Future] = {}  # an action's whole result: stays on its device
        hand: dict[Action, Future] = {}  # the part of it that goes to another stage
        turn: dict[int, Future | None] = {}  # by device: its action before
        sums: dict[int, Future | None] = {}  # by stage: its result with the gradients so far
        waits = self.waits
        for action in self.order:
            kind, s, i = action
            device = place[s]
            spot = (self.topic, device, *action, self.pace[kind][s])
            from_others = [hand[b] for b in waits[action] if b.stage != s]
            own = [done[b] for b in waits[action] if b.stage == s]
            end = (targets[i], self.batch.size) if s == last and targets[i] is not None else None
            if kind == "F":
                args = (weights[s], *(from_others or [inputs[i]]), end, self.schedule.trains)
            elif kind == "W":
                args = (*own, sums.get(s))
            else:
                args = (weights[s], *own, *(from_others or [None]), end, sums.get(s))
            done[action] = submit(
                device, _act, spot, turn.get(device), self.stages[s], *args, name=NAMES[kind]
            )
            if kind in "BW":
                sums[s] = done[action]
            turn[device] = done[action]
            if kind != "W":
                hand[action] = submit(device, _hand, done[action], name="hand", beside=True)
        forwards = [Action("F", last, i) for i in range(self.schedule.microbatches)]
        losses = [submit(place[last], _loss, done[a], name="loss", beside=True) for a in forwards]
        gradients = [
            submit(place[s], _gradients, sums[s], name="gradients", beside=True)
            for s in sorted(sums)
        ]
        return [hand[a] for a in forwards], gradients, losses

    def _rows(self, array: np.ndarray | None, slot: int, name: str) -> list[Future | None]:
        """The micro-batches of ``array`` on ``slot``, from a file: they can be read again."""
        parts = split(0, len(self.batch), self.schedule.microbatches)
        if array is None:
            return [None] * len(parts)
        path, columns = self.cluster.keep(array), (0, array.shape[1])
        dtype = array.dtype.name
        return [
            self.cluster.submit(
                slot, read_block, path, (part, columns), dtype, self.cluster.backend, name=name
            )
            for part in parts
        ]

    def follow(self, futures: list[Future], timeout: float | None) -> tuple[list[Span], float]:
        """(the span of every action, the longest overrun), once all have been reported."""
        timeout = seconds_of(timeout)
        deadline = time.monotonic() + timeout
        self.cluster.wait(futures, f"{self.schedule!r}", timeout)
        while True:
            events = self.cluster.client.get_events(self.topic) or ()
            # an action that ran again, after its worker died, counts as it ran last
            spans = {tuple(e["action"]): e for _, e in events}
            if len(spans) == len(self.schedule):
                rows = [(e["device"], *e["action"], e["start"], e["end"]) for e in spans.values()]
                return rows, max(e["late"] for e in spans.values())
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{len(spans)} of {len(self.schedule)} actions reported when they ran within "
                    f"{timeout:g} s, although all are done; run the schedule again"
                )
            time.sleep(0.01)


REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""

NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""Task names on the dashboard; each has its colour there."""


def _pace(schedule: Schedule, forward: Any, backward: Any) -> _Pace:
    def per_stage(value: Any, name: str) -> list[float]:
        values = (
            [0.0 if value is None else value] * schedule.stages
            if np.ndim(value) == 0
            else list(value)
        )
        if len(values) != schedule.stages:
            raise ScheduleError(
                f"{name} has {len(values)} durations and the schedule {schedule.stages} stages; "
                f"give one number, or one per stage"
            )
        if not all(np.isfinite(v) and v >= 0 for v in values):
            raise ScheduleError(f"{name} is in seconds, 0 or more and finite, got {values}")
        return [float(v) for v in values]

    whole = per_stage(backward, "backward")
    half = [seconds / 2 for seconds in whole]
    return {"F": per_stage(forward, "forward"), "B": whole, "I": half, "W": half}


def _check(
    schedule: Schedule, stages: Sequence[Any], batch: Any, target: Any, cluster: Cluster
) -> None:
    if schedule.devices > cluster.slots:
        raise PlacementError(
            f"the schedule has {schedule.devices} devices, the cluster {cluster.slots} slots; "
            f"start_cluster(workers={schedule.devices})"
        )
    widths = {stage.width for stage in stages}
    if np.ndim(batch) != 2 or widths != {batch.shape[1]}:
        raise PlacementError(
            f"the batch has shape {np.shape(batch)} and the stages take [tokens, "
            f"{' or '.join(map(str, sorted(widths)))}]; make all widths equal"
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


def _predicted_traffic(
    schedule: Schedule, waits: Needs, batch: np.ndarray, cluster: Cluster
) -> Traffic:
    """Activations [rows, width] to the next stage's device, gradients of that shape back."""
    rows = [stop - start for start, stop in split(0, len(batch), schedule.microbatches)]
    place = schedule.place
    return Traffic.of(
        cluster.slots,
        (
            (place[b.stage], place[a.stage], rows[a.microbatch] * batch[0].nbytes)
            for a, before in waits.items()
            for b in before
        ),
    )


# -- on the workers -------------------------------------------------------------------------------


def _init(stage: Any, backend: str) -> Any:
    return stage.init(backend)


def _act(spot: tuple, turn: Any, stage: Any, *args: Any) -> dict[str, Any]:
    """One action: its result, and an event that says when it ran. ``turn`` only makes it wait."""
    topic, device, kind, s, i, seconds = spot
    start = time.time()
    result = _DO[kind](stage, *args)
    synchronize(_an_array(result))
    late = max(0.0, time.time() - start - seconds) if seconds else 0.0
    time.sleep(max(0.0, start + seconds - time.time()))
    ran = {"action": (kind, s, i), "device": device, "start": start, "end": time.time()}
    worker = get_worker()
    # later, because a worker's messages go out 2 ms apart: the news that this action is done,
    # for which another device may be waiting, shall not queue behind its time of day
    worker.loop.add_callback(
        worker.loop.call_later, REPORT_AFTER, worker.log_event, topic, ran | {"late": late}
    )
    return result


def _an_array(result: dict[str, Any]) -> Any:
    return result["hand"] if "hand" in result else next(iter(result["gradients"][0].values()))


def _forward(stage: Any, weights: Any, x: Any, end: tuple | None, trains: bool) -> dict[str, Any]:
    y, saved = stage.forward(weights, x)
    loss = float(mean_square(y, *end)) if end else 0.0
    return {"hand": y, "saved": saved if trains else None, "loss": loss}


def _backward_input(
    stage: Any, weights: Any, ran: dict, dy: Any, end: tuple | None, sums: dict | None
) -> dict[str, Any]:
    if end:
        dy = mean_square_grad(ran["hand"], *end)
    dx, saved = stage.backward_input(weights, ran["saved"], dy)
    return {"hand": dx, "saved": saved}


def _backward_weight(stage: Any, ran: dict, sums: dict | None) -> dict[str, Any]:
    gradients = stage.backward_weight(ran["saved"])
    if sums is not None:  # new arrays: what was summed before may be needed again
        gradients = [
            {name: old[name] + new[name] for name in new}
            for old, new in zip(sums["gradients"], gradients, strict=True)
        ]
    return {"gradients": gradients}


def _backward(
    stage: Any, weights: Any, ran: dict, dy: Any, end: tuple | None, sums: dict | None
) -> dict[str, Any]:
    both = _backward_input(stage, weights, ran, dy, end, sums)
    return {"hand": both["hand"], **_backward_weight(stage, both, sums)}


_DO = {"F": _forward, "B": _backward, "I": _backward_input, "W": _backward_weight}


def _hand(result: dict[str, Any]) -> Any:
    return result["hand"]


def _loss(result: dict[str, Any]) -> float:
    return result["loss"]


def _gradients(result: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    return [{name: off_device(g) for name, g in layer.items()} for layer in result["gradients"]]
