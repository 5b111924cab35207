"""31 to 33, 35, 38 and 39: one batch through workers in a row: the order, and who waits how long.

worker 1   B1↑ .  .  .  .  B1↓      one works, the others wait
worker 2    . B2↑ .  . B2↓  .       idle of a worker = time of the batch - its own work
worker 3    .  . B3↑B3↓ .   .       total idle = p x time - all work
"""

from collections.abc import Sequence

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PlacementError, ScheduleError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.shares import some
from tiledask.lab.questions.worked import runs
from tiledask.lab.questions.worked.runs import one_batch
from tiledask.lab.table import Comparison

# -- 31, 32 and 35: one batch: in which order, and who waits for whom ------------------------------

MANY = 6
LAYER_TIMES = {"forward": 0.05, "backward": 0.1}
"""Seconds of a layer."""


def _numbered(unit: str, numbers: Sequence[int]) -> str:
    """ "worker 1", "workers 1 and 2", "workers 1 to 9"."""
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    if len(numbers) > MANY:
        return f"{unit}s {numbers[0]} to {numbers[-1]}"
    return f"{unit}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _shown(layers: int, workers: int) -> str:
    """The cut, of many parts the first and the last."""
    cut = td.partition(layers, workers)
    return (
        some([f"[{part[0] + 1}-{part[-1] + 1}]" for part in cut.layers], " ", 8)
        if (workers > 8)
        else str(cut)
    )


def _up_and_down(blocks: int) -> str:
    up = [f"B{n}↑" for n in range(1, blocks + 1)]
    return " ".join([*up, *(f"B{n}↓" for n in range(blocks, 0, -1))])


def _flow(layers: int, workers: int, working: int, unit: str) -> WorkedAnswer:
    """The cut, the order of all blocks, the states beside one worker, and what is used."""
    if working > workers:
        raise PlacementError(f"workers are 1 to {workers}, got {working}; name one of them")
    cut = td.partition(layers, workers)
    order, (up, down) = one_batch(cut.place), LAYER_TIMES.values()
    t, before = td.simulate(order, **LAYER_TIMES), sum(cut.sizes[: working - 1])
    states = runs.meanwhile(t, working - 1)
    busy = [n * (up + down) for n in cut.sizes]
    idle = [w + 1 for w, state in states.items() if state == "idle"]
    ends = f"B1↑ ... B{layers}↑, then B{layers}↓ ... B1↓"
    sent = [part[-1] + 1 for part in cut.layers[: working - 1]]
    waits = [f"B{part[0]}↑" for part in cut.layers[working:]]
    lines = [
        f"{layers} layers over {workers} {unit}s: {_shown(layers, workers)}",
        f"the batch goes up and comes down: {ends}, {2 * layers} blocks, one after the other; "
        f"layer {layers}'s output is known last, and its gradient first: no block can go earlier",
        f"a layer takes {up:g} s up and {down:g} s down: {unit} {working} computes up from "
        f"{before} x {up:g} = {before * up:g} s to {(before + cut.sizes[working - 1]) * up:g} s",
    ]
    if sent:
        lines.append(
            f"{_numbered(unit, range(1, working))}: idle; outputs sent on (of "
            f"{some([f'B{n}↑' for n in sent])}), waiting for gradients (from "
            f"{some([f'B{n + 1}↓' for n in sent])})"
        )
    if waits:
        behind = _numbered(unit, range(working + 1, workers + 1))
        lines.append(f"{behind}: idle; waiting for outputs (of {some(waits)})")
    lines.append(
        f"time of the batch {layers} x ({up:g} + {down:g}) = {sum(busy):g} s, on each of {workers} "
        f"{unit}s; used: {sum(busy):g} / ({workers} x {sum(busy):g}) = 1/{workers} = "
        f"{100 / workers:.1f} %, idle {100 * (1 - 1 / workers):.1f} %"
    )
    title = f"{layers} layers on {workers} {unit}s, one batch"

    def run(cluster: Cluster) -> Comparison:
        """Every block a task of its length; the trace says what the others did meanwhile."""
        seen = runs.pipelined(cluster, order, **LAYER_TIMES).timeline
        blocks = _up_and_down(layers), runs.flow(t), runs.flow(seen)
        rows = [Claim("order of the blocks", *blocks, rule="equal")]
        for other, found in runs.meanwhile(seen, working - 1).items():
            name = f"{unit} {other + 1} while {working} computes forward"
            rows.append(Claim(name, "idle", states[other], found, rule="equal"))
        return Comparison(title, [*rows, *runs.idle_claims(busy, sum(busy), t, seen)])

    return WorkedAnswer(
        f"The blocks run in the order {ends}. While {unit} {working} computes its forward, "
        f"{_numbered(unit, idle)} {'is' if len(idle) == 1 else 'are'} idle: one {unit} of "
        f"{workers} works at a time, {100 / workers:.1f} % used, {100 * (1 - 1 / workers):.1f} % "
        "idle.",
        lines,
        {
            "cut": str(cut),
            "flow": runs.flow(t),
            "states": {f"{unit} {w + 1}": state for w, state in states.items()},
            "utilisation": t.utilisation,
        },
        run,
        workers,
        lambda: td.plots.gantt(t, title=title),
    )


LAYERS = Input("layers in a row", 2, 2000, run=200)


@question(
    31,
    "Process Flow in Layer-wise Model Parallelism",
    "{layers} layers are shared by {workers} workers, and a single batch is passed forward and "
    "backward. In which order do the blocks run, and what do the other workers do while worker "
    "{working} computes its part of the forward pass?",
    layers=LAYERS,
    workers=Input("workers, one after the other", 2, 500),
    working=Input("the worker that computes, from 1", 1, 500),
)
def process_flow(layers: int = 8, workers: int = 4, working: int = 3) -> WorkedAnswer:
    return _flow(layers, workers, working, "worker")


@question(
    35,
    "Analyzing Efficiency in a Distributed Model",
    lambda layers, workers, working: (
        f"{layers} layers are shared by {workers} GPUs: {_shown(layers, workers)}. What do the "
        f"other GPUs do while GPU {working} computes, and how much of the GPUs is used?"
    ),
    layers=LAYERS,
    workers=Input("GPUs, one after the other; a worker each", 2, 500),
    working=Input("the GPU that computes, from 1", 1, 500),
)
def efficiency(layers: int = 12, workers: int = 3, working: int = 2) -> WorkedAnswer:
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


@question(
    32,
    "Example of Model Parallelism with a Transformer Decoder",
    "A Transformer decoder of {blocks} blocks is spread over {blocks} workers, a block on each, "
    "and one batch is passed up and down. Which worker is busy when, and how much of its time?",
    blocks=Input("blocks L, and workers", 2, 1000),
    slot="seconds of a block, up or down",
)
def decoder_blocks(blocks: int = 4, slot: float = 0.1) -> WorkedAnswer:
    """The timetable, and what each worker's two slots of 2L leave."""
    L, order = blocks, one_batch(range(blocks))
    t = td.simulate(order, slot, slot)

    def run(cluster: Cluster) -> Comparison:
        """The timetable executed; and a small decoder trained, a block on each worker."""
        seen = runs.pipelined(cluster, order, forward=slot, backward=slot).timeline
        how = {"microbatches": 1, "cut": (1,) * L, "schedule": "naive"}
        model = {"hidden": 16, "layers": L, "heads": 4, "sequence": 16}
        split, losses, _ = runs.decoder(td.Mesh(cluster, (1, 1, L)), "", 8, model, **how)
        sent = split.records.totals("step", "kind")[0, "send"].calls
        rows = [
            Claim("slot by slot", _up_and_down(L), runs.flow(t), runs.flow(seen), rule="equal"),
            runs.used_claim("used of each worker's time", 1 / L, t, seen),
            Claim("slots", 2 * L * slot, t.makespan, seen.makespan, "seconds"),
            losses,
            Claim("transfers of a training step", 2 * (L - 1), None, sent, "count", "equal"),
        ]
        return Comparison(f"A decoder of {L} blocks on {L} workers", rows)

    return WorkedAnswer(
        f"Worker l computes in slots l and {2 * L + 1} - l of {2 * L}, and idles in the other "
        f"{2 * L - 2}: it is used 2 / {2 * L} = 1/{L} = {100 / L:.1f} % of the time.",
        [
            f"{L} blocks up and {L} blocks down: 2 x {L} = {2 * L} slots of {slot:g} s, "
            f"{2 * L * slot:g} s",
            *(_timetable(L) if L <= MANY else []),
            f"worker 1 is busy in slots 1 and {2 * L}, worker {L} in {L} and {L + 1}: worker l in "
            f"l and {2 * L} + 1 - l",
            f"busy 2 of {2 * L} slots each: 2 / {2 * L} = {100 / L:.1f} %; idle {2 * L} - 2 = "
            f"{2 * L - 2} slots = {(2 * L - 2) * slot:g} s",
        ],
        {
            "slots": 2 * L,
            "flow": runs.flow(t),
            "utilisation": t.utilisation,
            "makespan": t.makespan,
            "idle of each": t.idle_per_device[0],
        },
        run,
        blocks,
        lambda: td.plots.gantt(t, title=f"A decoder of {L} blocks on {L} workers"),
    )


# -- 33, 38 and 39: how long each waits ------------------------------------------------------------


@question(
    33,
    "Worker Idle Time in Layer-wise Model Parallelism",
    "{workers} workers have equal parts of a model, and a batch passes through them one after the "
    "other, {forward} s forward and {backward} s backward on each. How long does each wait?",
    workers=Input("workers, one after the other", 2, 10_000),
    forward="seconds of a worker's part, up",
    backward="seconds of a worker's part, down",
)
def idle_time(workers: int = 4, forward: float = 0.1, backward: float = 0.2) -> WorkedAnswer:
    """Each waits for all others; together (p - 1) times as long as the batch takes."""
    p, each, order = workers, forward + backward, one_batch(range(workers))
    T, title = p * each, f"One batch on {p} workers"
    times = {"forward": forward, "backward": backward}
    return WorkedAnswer(
        f"Each of {p} workers idles {T - each:g} of {T:g} s, all together {(p - 1) * T:g} s: "
        f"(p - 1) times the batch. Efficiency 1/{p} = {100 / p:.1f} %.",
        [
            f"a worker's own work: {forward:g} + {backward:g} = {each:g} s; the batch passes all "
            f"of them in turn: T = {p} x {each:g} = {T:g} s",
            f"idle of each: T - {each:g} = {T:g} - {each:g} = {T - each:g} s; of all: {p} x "
            f"{T - each:g} = {p * (T - each):g} s = (p - 1) T = {p - 1} x {T:g}, without overlap "
            f"and with transfers that take nothing",
            f"busy + idle: {T:g} + {p * (T - each):g} = {T + p * (T - each):g} s = {p} x {T:g}: "
            f"nothing is left out; efficiency: {T:g} / ({p} x {T:g}) = 1/{p} = {100 / p:.1f} %",
        ],
        {"makespan": T, "idle of each": T - each, "total idle": (p - 1) * T, "efficiency": 1 / p},
        lambda cluster: runs.timed(cluster, title, order, [each] * p, T, **times),
        workers,
        lambda: td.plots.gantt(td.simulate(order, forward, backward), title=title),
    )


WORKERS = Input("workers", 1, 1000)


@question(
    38,
    "From {before} to {after} workers, with the same total computation",
    "Layers on {before} workers are spread over {after} instead; the total computation stays what "
    "it was, {compute} s forward, and one batch passes through. What happens to utilisation and to "
    "the time of the batch?",
    before=WORKERS,
    after=WORKERS,
    compute="seconds of a forward pass on one worker",
    transfer=Input("seconds from worker to worker", 0),
)
def more_workers(
    before: int = 2, after: int = 4, compute: float = 0.8, transfer: float = 0.05
) -> WorkedAnswer:
    """Utilisation, time and idle device-time with ``before`` and with ``after`` workers."""
    cases = {
        f"{p} workers" + ", transfers" * bool(c): (
            p, c, one_batch(range(p), backward=False), {"forward": compute / p, "latency": c})
        for p in (before, after)
        for c in dict.fromkeys((0.0, transfer))
    }  # fmt: skip
    times = {name: compute + (p - 1) * c for name, (p, c, *_) in cases.items()}
    found = {name: td.simulate(order, **secs) for name, (_, _, order, secs) in cases.items()}
    sent = [
        found[f"{p} workers" + ", transfers" * bool(transfer)].makespan for p in (before, after)
    ]
    moved = f" ({sent[0]:g} and {sent[1]:g} s with transfers of {transfer:g} s)" * bool(transfer)

    def run(cluster: Cluster) -> Comparison:
        rows = []
        for name, (p, _, order, seconds) in cases.items():
            seen = runs.pipelined(cluster, order, **seconds).timeline
            both = found[name], seen
            rows += runs.idle_claims([compute / p] * p, times[name], *both, name)[:3]
        return Comparison(f"{compute:g} s of work on {before} and on {after} workers", rows)

    return WorkedAnswer(
        f"Utilisation goes from {100 / before:.3g} % to {100 / after:.3g} %, and the batch takes "
        f"{compute:g} s before and after{moved}: workers that work in turn only wait, "
        f"{(before - 1) * compute:g} s of device-time before and {(after - 1) * compute:g} s "
        f"after.",
        [
            *(
                f"{name}: each computes {compute:g} / {p} = {compute / p:g} s; time {compute:g} + "
                f"{p - 1} x {c:g} = {times[name]:g} s; utilisation {compute:g} / ({p} x "
                f"{times[name]:g}) = {100 * compute / (p * times[name]):.1f} %; idle {p} x "
                f"{times[name]:g} - {compute:g} = {p * times[name] - compute:g} s"
                for name, (p, c, *_) in cases.items()
            ),
            f"with transfers that take nothing, idle device-time is (p - 1) T: {before - 1} x "
            f"{compute:g} = {(before - 1) * compute:g} s becomes {after - 1} x {compute:g} = "
            f"{(after - 1) * compute:g} s",
        ],
        {
            name: {"time": t.makespan, "utilisation": t.utilisation, "idle": t.idle}
            for name, t in found.items()
        },
        run,
        max(before, after),
        lambda: td.plots.gantt(
            found[f"{before} workers"], found[f"{after} workers"], title="The same work"
        ),
    )


def added(numbers: Sequence[float]) -> str:
    """A sum as it is written: "0.3 + 0.1 = 0.4"."""
    return f"{' + '.join(f'{n:g}' for n in numbers)} = {sum(numbers):g}"


@question(
    39,
    "Calculating Sequential Processing Inefficiency",
    "A batch passes through workers one after the other, forward ({forward} s) and backward "
    "({backward} s), with transfers between them ({transfer} s), or times that are drawn from a "
    "seed ({seed}). How long does it take, how long does each worker wait, how efficient is it?",
    forward="seconds up",
    backward="seconds down",
    transfer="seconds between; one or each",
    seed=Input("other than 0: draws as many new times", 0),
)
def sequential(
    forward: Sequence[float] = (0.3, 0.1, 0.4, 0.2),
    backward: Sequence[float] = (0.5, 0.2, 0.6, 0.3),
    transfer: Sequence[float] = (0.05, 0.1, 0.05),
    seed: int = 0,
) -> WorkedAnswer:
    """Makespan, busy and idle time of each worker, total and efficiency, every sum written out."""
    p, F, B = len(forward), list(forward), list(backward)
    if p < 2 or len(B) != p or len(transfer) not in (1, p - 1):
        raise ScheduleError(
            f"p stages, 2 or more, have p forward times, p backward times, and p - 1 times of "
            f"transfer between them, or one for all; got {p}, {len(B)} and {len(transfer)}"
        )
    c = list(transfer) * ((p - 1) // len(transfer))
    if seed:  # whole tenths, and twentieths
        rng = np.random.default_rng(seed)
        F, B = ((rng.integers(1, most, p) / 10).tolist() for most in (5, 7))
        c = (rng.integers(1, 4, p - 1) / 20).tolist()
    work, way = sum(F) + sum(B), sum(c)
    T, busy = work + 2 * way, [f + b for f, b in zip(F, B, strict=True)]
    total, idle = p * T - work, [T - b for b in busy]
    order, title = one_batch(range(p)), f"One batch on {p} workers"
    times = {"forward": F, "backward": B, "latency": c}
    return WorkedAnswer(
        f"{T:g} s for the batch, {total:g} s of {p} x {T:g} = {p * T:g} device-seconds idle: "
        f"efficiency {100 * work / (p * T):.1f} %.",
        [
            *([f"drawn from seed {seed}: {p} stages"] if seed else []),
            f"forward: {added(F)} s; backward: {added(B)} s; transfers: {added(c)} s up, and the "
            f"same down",
            f"time of the batch: {sum(F):g} + {sum(B):g} + 2 x {way:g} = {T:g} s",
            *(
                f"worker {i}: busy {f:g} + {b:g} = {f + b:g} s, idle {T:g} - {f + b:g} = "
                f"{T - f - b:g} s"
                for i, (f, b) in enumerate(zip(F, B, strict=True), 1)
            ),
            f"total idle: {p} x {T:g} - {work:g} = {total:g} s; the sum of the above: "
            f"{added(idle)} s",
            f"efficiency: {work:g} / ({p} x {T:g}) = {100 * work / (p * T):.2f} %; without "
            f"transfers 1/{p} = {100 / p:.2f} %, whatever the stages take: one at a time",
        ],
        {"makespan": T, "busy": busy, "idle": idle, "total idle": total,
         "efficiency": work / (p * T)},
        lambda cluster: runs.timed(cluster, title, order, busy, T, **times),
        p,
        lambda: td.plots.gantt(td.simulate(order, F, B, c), title=title),
    )  # fmt: skip
