"""31, 32 and 35: one batch through layers on workers: in which order, and who waits for whom."""

from collections.abc import Sequence
from functools import partial

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PlacementError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.pipelines.one_batch import (
    NEARLY,
    executed,
    flow,
    idle_rows,
    meanwhile,
    one_batch,
)
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["QUESTION", "QUESTIONS"]

MANY = 6
FORWARD, BACKWARD = 0.05, 0.1
"""Seconds of a layer."""


def _cut(layers: int, workers: int, working: int) -> td.Partition:
    """Equal layers, cut; PlacementError for a worker that is not there."""
    if working > workers:
        raise PlacementError(f"workers are 1 to {workers}, got {working}; name one of them")
    return td.partition(layers, workers)


def _simulated(place: tuple[int, ...]) -> Timeline:
    return td.simulate(one_batch(place), FORWARD, BACKWARD)


def _waiting(cut: td.Partition, working: int, unit: str) -> list[str]:
    """For those before and behind the one that computes forward, what they wait for."""
    before = [part[-1] + 1 for part in cut.layers[: working - 1]]
    behind = [part[0] + 1 for part in cut.layers[working:]]
    lines = []
    if before:
        sent = _some([f"B{n}↑" for n in before])
        waits = _some([f"B{n + 1}↓" for n in before])
        lines.append(
            f"{_numbered(unit, range(1, working))}: idle; outputs sent on (of {sent}), waiting for "
            f"gradients (from {waits})"
        )
    if behind:
        waits = _some([f"B{n - 1}↑" for n in behind])
        lines.append(
            f"{_numbered(unit, range(working + 1, cut.stages + 1))}: idle; waiting for outputs (of "
            f"{waits})"
        )
    return lines


def _shown(cut: td.Partition) -> str:
    """The cut, of many parts the first and the last."""
    parts = [f"[{part[0] + 1}-{part[-1] + 1}]" for part in cut.layers]
    return str(cut) if cut.stages <= 8 else " ".join([*parts[:3], "...", parts[-1]])


def _some(names: list[str]) -> str:
    """All names, or the first and the last of many."""
    return ", ".join(names) if len(names) <= MANY else f"{names[0]} ... {names[-1]}"


def _numbered(unit: str, numbers: Sequence[int]) -> str:
    """ "worker 1", "workers 1 and 2", "workers 1 to 9"."""
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    if len(numbers) > MANY:
        return f"{unit}s {numbers[0]} to {numbers[-1]}"
    return f"{unit}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def work(layers: int, workers: int, working: int, unit: str = "worker") -> WorkedAnswer:
    """The cut, the order of all blocks, the states beside one worker, and what is used."""
    cut = _cut(layers, workers, working)
    t, sizes = _simulated(cut.place), cut.sizes
    before = sum(sizes[: working - 1])
    start, end = (n * FORWARD for n in (before, before + sizes[working - 1]))
    states = meanwhile(t, working - 1)
    busy = [n * (FORWARD + BACKWARD) for n in sizes]
    ends = f"B1↑ ... B{layers}↑, then B{layers}↓ ... B1↓"
    lines = [
        f"{layers} layers over {workers} {unit}s: {_shown(cut)}",
        f"the batch goes up and comes down: {ends}, {2 * layers} blocks, one after the other",
        f"layer {layers}'s output is known last, and its gradient first: no block can go earlier",
        f"a layer takes {FORWARD:g} s up and {BACKWARD:g} s down: {unit} {working} computes up "
        f"from {before} x {FORWARD:g} = {start:g} s to {start:g} + {sizes[working - 1]} x "
        f"{FORWARD:g} = {end:g} s",
        *_waiting(cut, working, unit),
        f"time of the batch {layers} x ({FORWARD:g} + {BACKWARD:g}) = {sum(busy):g} s, on each of "
        f"{workers} {unit}s",
        f"used: {sum(busy):g} / ({workers} x {sum(busy):g}) = 1/{workers} = {100 / workers:.1f} %, "
        f"idle {100 * (1 - 1 / workers):.1f} %",
    ]
    idle = [w + 1 for w, state in states.items() if state == "idle"]
    return WorkedAnswer(
        f"The blocks run in the order {ends}. While {unit} {working} computes its forward, "
        f"{_numbered(unit, idle)} {'is' if len(idle) == 1 else 'are'} idle: one {unit} of "
        f"{workers} works at a time, {100 / workers:.1f} % used, {100 * (1 - 1 / workers):.1f} % "
        "idle.",
        lines,
        {
            "cut": str(cut),
            "flow": flow(t),
            "states": {f"{unit} {w + 1}": state for w, state in states.items()},
            "utilisation": t.utilisation,
        },
        lambda: td.plots.gantt(t, title=f"{layers} layers on {workers} {unit}s, one batch"),
    )


def run(
    cluster: Cluster, layers: int, workers: int, working: int, unit: str = "worker"
) -> Comparison:
    """Every block a task of its length; the trace is asked what the others did meanwhile."""
    cut = _cut(layers, workers, working)
    order, t = one_batch(cut.place), _simulated(cut.place)
    done = executed(cluster, order, forward=FORWARD, backward=BACKWARD)
    seen = done.timeline
    said = " ".join([f"B{n}↑" for n in range(1, layers + 1)])
    said += " " + " ".join(f"B{n}↓" for n in range(layers, 0, -1))
    at = {
        (str(k), s): (start, end)
        for k, s, start, end in zip(seen.kind, seen.stage, seen.start, seen.end, strict=True)
    }
    late = [
        at[a.kind, a.stage][0] - at[b.kind, b.stage][1]
        for a, before in needs(order).items()
        for b in before
    ]
    rows = [
        Claim("order of the blocks", said, flow(t), flow(seen), rule="equal"),
        Claim(
            "each block begins after what it needs has ended",
            measured=min(late) >= -done.clock_error,
            rule="true",
            note=f"{len(late)} pairs, by their clocks",
        ),
    ]
    for kind, way in (("F", "forward"), ("B", "backward")):
        for other, state in meanwhile(t, working - 1, kind).items():
            measured = meanwhile(seen, working - 1, kind)[other]
            name = f"{unit} {other + 1} while {working} computes {way}"
            rows.append(Claim(name, "idle", state, measured, rule="equal"))
    busy = [n * (FORWARD + BACKWARD) for n in cut.sizes]
    rows += idle_rows(busy, sum(busy), t, seen)
    return Comparison(f"{layers} layers on {workers} {unit}s, one batch", rows)


QUESTIONS = (
    CourseQuestion(
        number=31,
        title="Process Flow in Layer-wise Model Parallelism",
        asked="{layers} layers are shared by {workers} workers, and a single batch is passed "
        "forward and backward. In which order do the blocks run, and what do the other workers do "
        "while worker {working} computes its part of the forward pass?",
        inputs={
            "layers": Input(8, whole(2, 2000), "layers in a row"),
            "workers": Input(4, whole(2, 500), "workers, one after the other"),
            "working": Input(3, whole(1, 500), "the worker that computes, from 1"),
        },
        work=work,
        run=run,
        largest_run={"layers": 200},
        workers=lambda workers, **_: workers,
    ),
    CourseQuestion(
        number=35,
        title="Analyzing Efficiency in a Distributed Model",
        asked=lambda layers, workers, working: (
            f"{layers} layers are shared by {workers} GPUs: "
            f"{_shown(td.partition(layers, workers))}. What do the other GPUs do while GPU "
            f"{working} computes, and how much of the GPUs is used?"
        ),
        inputs={
            "layers": Input(12, whole(2, 2000), "layers in a row"),
            "workers": Input(3, whole(2, 500), "GPUs, one after the other; a worker each"),
            "working": Input(2, whole(1, 500), "the GPU that computes, from 1"),
        },
        work=partial(work, unit="GPU"),
        run=partial(run, unit="GPU"),
        largest_run={"layers": 200},
        workers=lambda workers, **_: workers,
    ),
)
STEPS = 3
WIDEST = 6
"""Blocks of a timetable that fits on a line."""
ROUND_OFF = 1e-12
"""Relative difference of float64 losses, where sums are in another order."""


def _timetable(blocks: int) -> list[str]:
    """A line per worker, the last one on top as in the book; "-" where it is idle.

    >>> print("\\n".join(_timetable(2)))
    slot          1    2    3    4
    worker 2      -  B2↑  B2↓    -
    worker 1    B1↑    -    -  B1↓
    """
    t = td.simulate(one_batch(range(blocks)), 1.0, 1.0)
    lines = ["slot      " + "".join(f"{slot:>5}" for slot in range(1, 2 * blocks + 1))]
    for worker in reversed(range(blocks)):
        cells = []
        for slot in range(2 * blocks):
            arrow = {"F": "↑", "B": "↓"}.get(t.state(worker, slot + 0.5)[0], "")
            cells.append(f"{f'B{worker + 1}{arrow}' if arrow else '-':>5}")
        lines.append(f"worker {worker + 1:<3}" + "".join(cells))
    return lines


def work_32(blocks: int, slot: float) -> WorkedAnswer:
    """The timetable, and what each worker's two slots of 2L leave."""
    L, t = blocks, td.simulate(one_batch(range(blocks)), slot, slot)
    table = _timetable(L) if L <= WIDEST else []
    return WorkedAnswer(
        f"Worker l computes in slots l and {2 * L + 1} - l of {2 * L}, and idles in the other "
        f"{2 * L - 2}: it is used 2 / {2 * L} = 1/{L} = {100 / L:.1f} % of the time.",
        [
            f"{L} blocks up and {L} blocks down: 2 x {L} = {2 * L} slots of {slot:g} s, "
            f"{2 * L * slot:g} s",
            *table,
            f"worker 1 is busy in slots 1 and {2 * L}, worker {L} in {L} and {L + 1}: worker l in "
            f"l and {2 * L} + 1 - l",
            f"busy 2 of {2 * L} slots each: 2 / {2 * L} = {100 / L:.1f} %; idle {2 * L} - 2 = "
            f"{2 * L - 2} slots = {(2 * L - 2) * slot:g} s",
        ],
        {
            "slots": 2 * L,
            "flow": flow(t),
            "utilisation": t.utilisation,
            "makespan": t.makespan,
            "idle of each": t.idle_per_device[0],
        },
        lambda: td.plots.gantt(t, title=f"A decoder of {L} blocks on {L} workers"),
    )


def run_32(cluster: Cluster, blocks: int, slot: float) -> Comparison:
    """The timetable executed; and a small decoder trained, a block on each worker."""
    L, order = blocks, one_batch(range(blocks))
    t, seen = (
        td.simulate(order, slot, slot),
        executed(cluster, order, forward=slot, backward=slot).timeline,
    )
    up = [f"B{n}↑" for n in range(1, L + 1)]
    said = " ".join([*up, *(f"B{n}↓" for n in range(L, 0, -1))])
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=L, heads=4, sequence=16)
    options = {"steps": STEPS, "batch": 8, "microbatches": 1, "dtype": "float64"}
    alone = td.train(model, text, (1, 1, 1), **options)
    split = td.train(
        model, text, td.Mesh(cluster, (1, 1, L)), cut=(1,) * L, schedule="naive", **options
    )
    rows = [
        Claim("slot by slot", said, flow(t), flow(seen), rule="equal"),
        Claim(
            "used of each worker's time",
            1 / L,
            t.utilisation,
            seen.utilisation,
            "percent",
            NEARLY,
        ),
        Claim("slots", 2 * L * slot, t.makespan, seen.makespan, "seconds"),
        Claim(
            "a decoder trained: difference from one device's losses",
            ROUND_OFF,
            None,
            float(np.max(np.abs(split.losses / alone.losses - 1))),
            rule="at most",
            note=f"{STEPS} steps, {model.size:,} parameters, one block a worker",
        ),
        Claim(
            "transfers of a training step",
            2 * (L - 1),
            None,
            split.records.totals("step", "kind")[0, "send"].calls,
            "count",
            "equal",
            "up and down between neighbours",
        ),
    ]
    return Comparison(f"A decoder of {L} blocks on {L} workers", rows)


QUESTION = CourseQuestion(
    number=32,
    title="Example of Model Parallelism with a Transformer Decoder",
    asked="A Transformer decoder of {blocks} blocks is spread over {blocks} workers, a block on "
    "each, and one batch is passed up and down. Which worker is busy when, and how much of its "
    "time?",
    inputs={
        "blocks": Input(4, whole(2, 1000), "blocks L, and workers"),
        "slot": Input(0.1, number(above=True), "seconds of a block, up or down"),
    },
    work=work_32,
    run=run_32,
    workers=lambda blocks, **_: blocks,
)
