"""33, 38 and 39: how long each worker waits when one batch passes from worker to worker.

idle of a worker = time of the batch - its own work      total idle = p x time - all work
"""

from collections.abc import Sequence

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ScheduleError
from tiledask.lab.puzzles.fields import number, numbers, whole
from tiledask.lab.questions.pipelines.one_batch import added, executed, idle_rows, one_batch
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["QUESTIONS"]


# -- 39: any times --------------------------------------------------------------------------------

Times = tuple[list[float], list[float], list[float]]


def _times(
    forward: Sequence[float], backward: Sequence[float], transfer: Sequence[float], seed: int
) -> Times:
    """(forward, backward, transfer) seconds, as given or drawn: whole tenths, and twentieths."""
    p = len(forward)
    if p < 2 or len(backward) != p or len(transfer) not in (1, p - 1):
        raise ScheduleError(
            f"p stages, 2 or more, have p forward times, p backward times, and p - 1 times of "
            f"transfer between them, or one for all; got {p}, {len(backward)} and {len(transfer)}"
        )
    if not seed:
        return list(forward), list(backward), list(transfer) * ((p - 1) // len(transfer))
    rng = np.random.default_rng(seed)
    F, B, c = rng.integers(1, 5, p), rng.integers(1, 7, p), rng.integers(1, 4, p - 1)
    return (F / 10).tolist(), (B / 10).tolist(), (c / 20).tolist()


def _simulated(times: Times) -> Timeline:
    forward, backward, transfer = times
    return td.simulate(one_batch(range(len(forward))), forward, backward, transfer)


def calculate(
    forward: Sequence[float], backward: Sequence[float], transfer: Sequence[float], seed: int
) -> WorkedAnswer:
    """Makespan, busy and idle time of each worker, total and efficiency, every sum written out."""
    F, B, c = times = _times(forward, backward, transfer, seed)
    p, t = len(F), _simulated(times)
    work, way = sum(F) + sum(B), sum(c)
    T = work + 2 * way
    busy = [f + b for f, b in zip(F, B, strict=True)]
    total = p * T - work
    lines = [
        *([f"drawn from seed {seed}: {p} stages"] if seed else []),
        f"forward: {added(F)} s",
        f"backward: {added(B)} s",
        f"transfers: {added(c)} s up, and the same down",
        f"time of the batch: {sum(F):g} + {sum(B):g} + 2 x {way:g} = {T:g} s",
        *(
            f"worker {i}: busy {f:g} + {b:g} = {f + b:g} s, idle {T:g} - {f + b:g} = "
            f"{T - f - b:g} s"
            for i, (f, b) in enumerate(zip(F, B, strict=True), 1)
        ),
        f"total idle: {p} x {T:g} - {work:g} = {total:g} s; the sum of the above: "
        f"{added(T - b for b in busy)} s",
        f"efficiency: {work:g} / ({p} x {T:g}) = {100 * work / (p * T):.2f} %",
        f"without transfers {work:g} / ({p} x {work:g}) = 1/{p} = {100 / p:.2f} %, whatever the "
        f"stages take: one at a time",
    ]
    return WorkedAnswer(
        f"{T:g} s for the batch, {total:g} s of {p} x {T:g} = {p * T:g} device-seconds idle: "
        f"efficiency {100 * work / (p * T):.1f} %.",
        lines,
        {
            "makespan": T,
            "busy": busy,
            "idle": [T - b for b in busy],
            "total idle": total,
            "efficiency": work / (p * T),
        },
        lambda: td.plots.gantt(t, title=f"One batch on {p} workers"),
    )


def run_calculation(
    cluster: Cluster,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: Sequence[float],
    seed: int,
) -> Comparison:
    """Stages that take these times on workers; a transfer's time keeps nobody busy."""
    F, B, c = times = _times(forward, backward, transfer, seed)
    done = executed(cluster, one_batch(range(len(F))), forward=F, backward=B, latency=c)
    busy = [f + b for f, b in zip(F, B, strict=True)]
    T = sum(busy) + 2 * sum(c)
    t, seen = _simulated(times), done.timeline
    return Comparison(f"One batch on {len(F)} workers", idle_rows(busy, T, t, seen))


_CALCULATION = CourseQuestion(
    number=39,
    title="Calculating Sequential Processing Inefficiency",
    asked=lambda forward, backward, transfer, seed: (
        f"A batch passes through {len(forward)} workers one after the other, forward and backward; "
        f"each worker's times and the transfers between them are "
        f"{'given' if not seed else f'drawn (seed {seed})'}. How long does it take, how long does "
        f"each worker wait, and how efficient is that?"
    ),
    inputs={
        "forward": Input([0.3, 0.1, 0.4, 0.2], numbers(), "seconds up"),
        "backward": Input([0.5, 0.2, 0.6, 0.3], numbers(), "seconds down"),
        "transfer": Input([0.05, 0.1, 0.05], numbers(), "seconds between; one or each"),
        "seed": Input(0, whole(0, 10**6), "other than 0: draws as many new times"),
    },
    work=calculate,
    run=run_calculation,
    workers=lambda forward, **_: len(forward),
)


# -- 33: equal workers -----------------------------------------------------------------------------


def idle(workers: int, forward: float, backward: float) -> WorkedAnswer:
    """Each waits for all others; together (p - 1) times as long as the batch takes."""
    p, each = workers, forward + backward
    T = p * each
    return WorkedAnswer(
        f"Each of {p} workers idles {T - each:g} of {T:g} s, all together {(p - 1) * T:g} s: "
        f"(p - 1) times the batch. Efficiency 1/{p} = {100 / p:.1f} %.",
        [
            f"a worker's own work: {forward:g} + {backward:g} = {each:g} s",
            f"the batch passes all of them in turn: T = {p} x {each:g} = {T:g} s",
            f"idle of each: T - {each:g} = {T:g} - {each:g} = {T - each:g} s",
            f"idle of all: {p} x {T - each:g} = {p * (T - each):g} s = (p - 1) T = {p - 1} x "
            f"{T:g}, without overlap and with transfers that take nothing",
            f"busy + idle: {T:g} + {p * (T - each):g} = {T + p * (T - each):g} s = {p} x {T:g}: "
            f"nothing is left out",
            f"efficiency: {T:g} / ({p} x {T:g}) = 1/{p} = {100 / p:.1f} %",
        ],
        {
            "makespan": T,
            "idle of each": T - each,
            "total idle": (p - 1) * T,
            "efficiency": 1 / p,
        },
        lambda: td.plots.gantt(
            td.simulate(one_batch(range(p)), forward, backward), title=f"One batch on {p} workers"
        ),
    )


def run_idle(cluster: Cluster, workers: int, forward: float, backward: float) -> Comparison:
    """One batch on the workers, each stage of its length."""
    order = one_batch(range(workers))
    done = executed(cluster, order, forward=forward, backward=backward)
    each = forward + backward
    t = td.simulate(order, forward, backward)
    rows = idle_rows([each] * workers, workers * each, t, done.timeline)
    return Comparison(f"One batch on {workers} workers", rows)


_IDLE = CourseQuestion(
    number=33,
    title="Worker Idle Time in Layer-wise Model Parallelism",
    asked="{workers} workers have equal parts of a model, and a batch passes through them one "
    "after the other, {forward} s forward and {backward} s backward on each. How long does each of "
    "them wait?",
    inputs={
        "workers": Input(4, whole(2, 10_000), "workers, one after the other"),
        "forward": Input(0.1, number(above=True), "seconds of a worker's part, up"),
        "backward": Input(0.2, number(above=True), "seconds of a worker's part, down"),
    },
    work=idle,
    run=run_idle,
    workers=lambda workers, **_: workers,
)


# -- 38: the same work on more workers -------------------------------------------------------------


def _pass(workers: int, work: float, transfer: float) -> tuple[td.Schedule, dict[str, float]]:
    """A forward pass of ``work`` seconds over all workers, and the times of its actions."""
    order = one_batch(range(workers), backward=False)
    return order, {"forward": work / workers, "latency": transfer}


def more_workers(before: int, after: int, compute: float, transfer: float) -> WorkedAnswer:
    """Utilisation, time and idle device-time with ``before`` and with ``after`` workers."""
    lines, values, at = [], {}, {}
    for p in (before, after):
        for c in dict.fromkeys((0.0, transfer)):
            order, times = _pass(p, compute, c)
            t = at[p, c] = td.simulate(order, **times)
            T, name = compute + (p - 1) * c, f"{p} workers" + ", transfers" * bool(c)
            lines.append(
                f"{name}: each computes {compute:g} / {p} = {compute / p:g} s; time {compute:g} + "
                f"{p - 1} x {c:g} = {T:g} s; utilisation {compute:g} / ({p} x {T:g}) = "
                f"{100 * compute / (p * T):.1f} %; idle {p} x {T:g} - {compute:g} = "
                f"{p * T - compute:g} s"
            )
            values[name] = {"time": t.makespan, "utilisation": t.utilisation, "idle": t.idle}
    lines.append(
        f"with transfers that take nothing, idle device-time is (p - 1) T: {before - 1} x "
        f"{compute:g} = {(before - 1) * compute:g} s becomes {after - 1} x {compute:g} = "
        f"{(after - 1) * compute:g} s"
    )
    sent = [at[p, transfer].makespan for p in (before, after)]
    moved = f" ({sent[0]:g} and {sent[1]:g} s with transfers of {transfer:g} s)" * bool(transfer)
    return WorkedAnswer(
        f"Utilisation goes from {100 / before:.3g} % to {100 / after:.3g} %, and the batch takes "
        f"{compute:g} s before and after{moved}: workers that work in turn only wait, "
        f"{(before - 1) * compute:g} s of device-time before and {(after - 1) * compute:g} s "
        f"after.",
        lines,
        values,
        lambda: td.plots.gantt(at[before, 0.0], at[after, 0.0], title="The same work"),
    )


def run_more(
    cluster: Cluster, before: int, after: int, compute: float, transfer: float
) -> Comparison:
    """The same work on both numbers of workers, without and with transfers."""
    rows = []
    for p in (before, after):
        for c in dict.fromkeys((0.0, transfer)):
            order, times = _pass(p, compute, c)
            t, seen = td.simulate(order, **times), executed(cluster, order, **times).timeline
            T, name = compute + (p - 1) * c, f"{p} workers" + ", transfers" * bool(c)
            makespan, used, *_ = idle_rows([compute / p] * p, T, t, seen, name)
            idle = p * T - compute
            rows += [
                makespan,
                used,
                Claim(f"{name}: idle device-time", idle, t.idle, seen.idle, "seconds"),
            ]
    return Comparison(f"{compute:g} s of work on {before} and on {after} workers", rows)


_FROM_2_TO_4 = CourseQuestion(
    number=38,
    title="From {before} to {after} workers, with the same total computation",
    asked="Layers on {before} workers are spread over {after} instead; the total computation stays "
    "what it was, {compute} s forward, and one batch passes through. What happens to "
    "utilisation and to the time of the batch?",
    inputs={
        "before": Input(2, whole(1, 1000), "workers at first"),
        "after": Input(4, whole(1, 1000), "workers then"),
        "compute": Input(0.8, number(above=True), "seconds of a forward pass on one worker"),
        "transfer": Input(0.05, number(), "seconds from worker to worker"),
    },
    work=more_workers,
    run=run_more,
    workers=lambda before, after, **_: max(before, after),
)

QUESTIONS = (_IDLE, _FROM_2_TO_4, _CALCULATION)
