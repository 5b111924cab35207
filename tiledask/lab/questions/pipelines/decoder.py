"""32: a decoder of L blocks, a block on each worker: who is busy in which of 2L slots."""

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.pipelines.one_batch import NEARLY, executed, flow, one_batch
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison

__all__ = ["QUESTION"]

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


def work(blocks: int, slot: float) -> WorkedAnswer:
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


def run(cluster: Cluster, blocks: int, slot: float) -> Comparison:
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
        "blocks": Input(4, 3, whole(2, 1000), "blocks L, and workers"),
        "slot": Input(0.1, 0.2, number(above=True), "seconds of a block, up or down"),
    },
    work=work,
    run=run,
    workers=lambda blocks, **_: blocks,
)
