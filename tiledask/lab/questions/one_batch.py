"""31 to 33, 35, 38 and 39: one batch through workers in a row: the order, and who waits how long.

worker 1   B1↑ .  .  .  .  B1↓      one works, the others wait
worker 2    . B2↑ .  . B2↓  .       idle of a worker = time of the batch - its own work
worker 3    .  . B3↑B3↓ .   .       total idle = p x time - all work
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import PlacementError
from tiledask.lab.questions import runs
from tiledask.lab.questions.question import Working, question
from tiledask.lab.questions.runs import one_batch

MANY = 6
LAYER = {"forward": 0.05, "backward": 0.1}
"""Seconds of a layer."""


def _numbered(unit: str, numbers: Sequence[int]) -> str:
    """ "worker 1", "workers 1 and 2", "workers 1 to 9"."""
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    if len(numbers) > MANY:
        return f"{unit}s {numbers[0]} to {numbers[-1]}"
    return f"{unit}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _flow(layers: int, workers: int, working: int, unit: str) -> Working:
    """The cut, the order of all blocks, the states beside one worker, and what is used."""
    if working > workers:
        raise PlacementError(f"workers are 1 to {workers}, got {working}; name one of them")
    cut = td.partition(layers, workers)
    order, (up, down) = one_batch(cut.place), LAYER.values()
    t, before = td.simulate(order, **LAYER), sum(cut.sizes[: working - 1])
    states = runs.meanwhile(t, working - 1)
    busy = [n * (up + down) for n in cut.sizes]
    idle = [w + 1 for w, state in states.items() if state == "idle"]
    ends = f"B1↑ ... B{layers}↑, then B{layers}↓ ... B1↓"
    title = f"{layers} layers on {workers} {unit}s, one batch"
    return Working(
        f"The blocks run in the order {ends}. While {unit} {working} computes its forward, "
        f"{_numbered(unit, idle)} {'is' if len(idle) == 1 else 'are'} idle: one {unit} of "
        f"{workers} works at a time, {100 / workers:.1f} % used, {100 * (1 - 1 / workers):.1f} % "
        "idle.",
        [
            f"{layers} layers over {workers} {unit}s: {cut}; the batch goes up "
            f"and comes down, {2 * layers} blocks, one after the other: no block can go earlier",
            f"a layer takes {up:g} s up and {down:g} s down: {unit} {working} computes up from "
            f"{before} x {up:g} = {before * up:g} s to {(before + cut.sizes[working - 1]) * up:g} "
            f"s; {unit}s before it wait for gradients, those behind it for outputs",
            f"time of the batch {layers} x ({up:g} + {down:g}) = {sum(busy):g} s; used: "
            f"{sum(busy):g} / ({workers} x {sum(busy):g}) = 1/{workers}",
        ],
        {"cut": str(cut), "flow": runs.flow(t), "utilisation": t.utilisation,
         "states": {f"{unit} {w + 1}": state for w, state in states.items()}},
        lambda cluster: runs.timed(cluster, order, busy, sum(busy), **LAYER),
        lambda: td.plots.gantt(t, title=title),
    )  # fmt: skip


@question(31)
def process_flow(layers: int, workers: int, working: int) -> Working:
    return _flow(layers, workers, working, "worker")


@question(35)
def efficiency(layers: int, workers: int, working: int) -> Working:
    return _flow(layers, workers, working, "GPU")


def _timetable(blocks: int) -> list[str]:
    """A line per worker, the last one on top as in the book; "-" where it is idle.

    >>> print("\\n".join(_timetable(2)))
    slot          1    2    3    4
    worker 2      -  B2↑  B2↓    -
    worker 1    B1↑    -    -  B1↓
    """
    slots = range(1, 2 * blocks + 1)
    lines = ["slot      " + "".join(f"{slot:>5}" for slot in slots)]
    for worker in reversed(range(1, blocks + 1)):
        busy = {worker: f"B{worker}↑", 2 * blocks + 1 - worker: f"B{worker}↓"}
        lines.append(f"worker {worker:<3}" + "".join(f"{busy.get(slot, '-'):>5}" for slot in slots))
    return lines


@question(32)
def decoder_blocks(blocks: int, slot: float) -> Working:
    """The timetable, and what each worker's two slots of 2L leave."""
    L, order = blocks, one_batch(range(blocks))
    t = td.simulate(order, slot, slot)
    return Working(
        f"Worker l computes in slots l and {2 * L + 1} - l of {2 * L}, and idles in the other "
        f"{2 * L - 2}: it is used 2 / {2 * L} = 1/{L} = {100 / L:.1f} % of the time.",
        [
            f"{L} blocks up and {L} blocks down: 2 x {L} = {2 * L} slots of {slot:g} s, "
            f"{2 * L * slot:g} s",
            *(_timetable(L) if L <= MANY else []),
            f"worker 1 is busy in slots 1 and {2 * L}, worker {L} in {L} and {L + 1}",
            f"idle: {2 * L} - 2 = {2 * L - 2} slots = {(2 * L - 2) * slot:g} s each",
        ],
        {"slots": 2 * L, "flow": runs.flow(t), "utilisation": t.utilisation,
         "makespan": t.makespan, "idle of each": t.idle_per_device[0]},
        lambda cluster: runs.timed(
            cluster, order, [2 * slot] * L, 2 * L * slot, forward=slot, backward=slot),
    )  # fmt: skip


@question(33)
def idle_time(workers: int, forward: float, backward: float) -> Working:
    """Each waits for all others; together (p - 1) times as long as the batch takes."""
    p, each, order = workers, forward + backward, one_batch(range(workers))
    T, times = p * each, {"forward": forward, "backward": backward}
    return Working(
        f"Each of {p} workers idles {T - each:g} of {T:g} s, all together {(p - 1) * T:g} s: "
        f"(p - 1) times the batch. Efficiency 1/{p} = {100 / p:.1f} %.",
        [
            f"a worker's own work: {forward:g} + {backward:g} = {each:g} s; the batch passes all "
            f"of them in turn: T = {p} x {each:g} = {T:g} s",
            f"idle of each: T - {each:g} = {T - each:g} s; of all: {p} x {T - each:g} = "
            f"{p * (T - each):g} s = (p - 1) T",
            f"busy + idle: {T:g} + {p * (T - each):g} = {p} x {T:g}, nothing is left out",
        ],
        {"makespan": T, "idle of each": T - each, "total idle": (p - 1) * T, "efficiency": 1 / p},
        lambda cluster: runs.timed(cluster, order, [each] * p, T, **times),
        lambda: td.plots.gantt(td.simulate(order, **times), title=f"One batch on {p} workers"),
    )


@question(38)
def more_workers(before: int, after: int, compute: float, transfer: float) -> Working:
    """Utilisation, time and idle device-time with ``before`` and with ``after`` workers."""
    cases = {
        f"{p} workers" + ", transfers" * bool(c): (p, c)
        for p in (before, after)
        for c in dict.fromkeys((0.0, transfer))
    }
    found = {
        name: td.simulate(one_batch(range(p), backward=False), forward=compute / p, latency=c)
        for name, (p, c) in cases.items()
    }
    sent = [compute + (p - 1) * transfer for p in (before, after)]
    moved = f" ({sent[0]:g} and {sent[1]:g} s with transfers of {transfer:g} s)" * bool(transfer)
    shown = {"forward": compute / after, "latency": transfer}
    return Working(
        f"Utilisation goes from {100 / before:.3g} % to {100 / after:.3g} %, and the batch takes "
        f"{compute:g} s before and after{moved}: workers that work in turn only wait, "
        f"{(before - 1) * compute:g} s of device-time before and {(after - 1) * compute:g} s "
        f"after.",
        [
            f"{name}: each computes {compute:g} / {p} = {compute / p:g} s; time {compute:g} + "
            f"{p - 1} x {c:g} = {t.makespan:g} s; utilisation {100 * t.utilisation:.1f} %; idle "
            f"{p} x {t.makespan:g} - {compute:g} = {t.idle:g} s"
            for (name, (p, c)), t in zip(cases.items(), found.values(), strict=True)
        ],
        {
            name: {"time": t.makespan, "utilisation": t.utilisation, "idle": t.idle}
            for name, t in found.items()
        },
        lambda cluster: runs.timed(
            cluster, one_batch(range(after), backward=False), [compute / after] * after, sent[1],
            **shown),
    )  # fmt: skip


def added(numbers: Sequence[float]) -> str:
    """A sum as it is written: "0.3 + 0.1 = 0.4"."""
    return f"{' + '.join(f'{n:g}' for n in numbers)} = {sum(numbers):g}"


@question(39)
def sequential(
    forward: list[float], backward: list[float], transfer: list[float], seed: int
) -> Working:
    """Makespan, busy and idle time of each worker, total and efficiency, every sum written out."""
    p, F, B = len(forward), forward, backward
    c = transfer * (p - 1) if len(transfer) == 1 else transfer
    if seed:  # whole tenths, and twentieths
        rng = np.random.default_rng(seed)
        F, B = ((rng.integers(1, most, p) / 10).tolist() for most in (5, 7))
        c = (rng.integers(1, 4, p - 1) / 20).tolist()
    times: dict[str, Any] = {"forward": F, "backward": B, "latency": c}
    order, work, way = one_batch(range(p)), sum(F) + sum(B), sum(c)
    t = td.simulate(order, **times)
    T, busy = work + 2 * way, [f + b for f, b in zip(F, B, strict=True)]
    total, idle = p * T - work, [T - b for b in busy]
    return Working(
        f"{T:g} s for the batch, {total:g} s of {p} x {T:g} = {p * T:g} device-seconds idle: "
        f"efficiency {100 * work / (p * T):.1f} %.",
        [
            f"forward: {added(F)} s; backward: {added(B)} s; transfers: {added(c)} s up, and the "
            f"same down: {sum(F):g} + {sum(B):g} + 2 x {way:g} = {T:g} s",
            *(
                f"worker {i}: busy {b:g} s, idle {T:g} - {b:g} = {T - b:g} s"
                for i, b in enumerate(busy, 1)
            ),
            f"total idle: {p} x {T:g} - {work:g} = {added(idle)} s; efficiency: {work:g} / ({p} x "
            f"{T:g}) = {100 * work / (p * T):.2f} %, without transfers 1/{p}",
        ],
        {"makespan": T, "busy": busy, "idle": idle, "total idle": total,
         "efficiency": work / (p * T)},
        lambda cluster: runs.timed(cluster, order, busy, T, **times),
        lambda: td.plots.gantt(t, title=f"One batch on {p} workers"),
    )  # fmt: skip
