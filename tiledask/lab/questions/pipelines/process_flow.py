"""31 and 35: one batch through layers on workers: in which order, and who waits for whom."""

from functools import partial

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PlacementError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.pipelines.one_batch import (
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

__all__ = ["QUESTIONS"]

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
    """For each one but that which computes forward, what it waits for."""
    lines = []
    for worker in range(1, cut.stages + 1):
        first, last = cut.layers[worker - 1][0] + 1, cut.layers[worker - 1][-1] + 1
        if worker < working:
            up = f"has sent B{last}↑'s output on and waits for the gradient from B{last + 1}↓"
            lines.append(f"{unit} {worker}: idle; it {up}")
        elif worker > working:
            lines.append(f"{unit} {worker}: idle; it waits for the output of B{first - 1}↑")
    return lines


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
        f"{layers} layers over {workers} {unit}s: {cut}",
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
    others = [f"{unit} {w + 1} is {state}" for w, state in states.items()]
    return WorkedAnswer(
        f"While {unit} {working} computes its forward, {', '.join(others)}. One {unit} in "
        f"{workers} works at a time: {100 / workers:.1f} % used, {100 * (1 - 1 / workers):.1f} % "
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
        asked="8 layers are shared by 4 workers, and a single batch is passed forward and "
        "backward. In which order do the blocks run, and what do workers 1 and 4 do while worker 3 "
        "computes its part of the forward pass?",
        inputs={
            "layers": Input(8, 12, whole(2, 200), "layers in a row"),
            "workers": Input(4, 3, whole(2, 64), "workers, one after the other"),
            "working": Input(3, 1, whole(1, 64), "the worker that computes, from 1"),
        },
        work=work,
        run=run,
        workers=lambda workers, **_: workers,
    ),
    CourseQuestion(
        number=35,
        title="Analyzing Efficiency in a Distributed Model",
        asked="12 layers are shared by 3 GPUs: layers 1-4, 5-8 and 9-12. What do GPU 1 and GPU 3 "
        "do while GPU 2 computes, and how much of the GPUs is used?",
        inputs={
            "layers": Input(12, 9, whole(2, 200), "layers in a row"),
            "workers": Input(3, 4, whole(2, 64), "GPUs, one after the other; a worker each"),
            "working": Input(2, 1, whole(1, 64), "the GPU that computes, from 1"),
        },
        work=partial(work, unit="GPU"),
        run=partial(run, unit="GPU"),
        workers=lambda workers, **_: workers,
    ),
)
