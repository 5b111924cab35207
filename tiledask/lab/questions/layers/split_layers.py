"""30: tensor parallelism: every worker has a part of every layer, and all work at once.

x --[W_1 columns]-- gelu --[W_2 rows]-- all_reduce -- y       2 sums a block up, 2 down
"""

from math import prod

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PlacementError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import count, each, listed
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.layers import Stream, decoder_block
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

ROWS, STEPS = 4, 3
ROUND_OFF = 1e-12
"""Relative difference of float64 losses, where sums are in another order."""


def _sent(hidden: int, heads: int, sequence: int, workers: int) -> tuple[int, int]:
    """(all_reduces of a block up and down, bytes that all workers send in them)."""
    if hidden % heads:
        raise PlacementError(
            f"{heads} heads share the width, got {hidden}; take a multiple of {heads}"
        )
    stream = Stream(ROWS, sequence, hidden, workers)
    block = decoder_block(stream, heads, heads, hidden // heads, gated=False)
    return len(block.calls), sum(sum(call.cost(8).sent) for call in block.calls)


def work(hidden: int, heads: int, sequence: int, layers: int, workers: int) -> WorkedAnswer:
    """Shapes of the parts, what is added up, and the bytes of it."""
    from tiledask.tile.layers import gelu

    h, t, size = hidden, workers, ROWS * sequence * hidden * 8
    sums, sent = _sent(h, heads, sequence, t)
    dealt, inner = even(heads, t), even(4 * h, t)
    x = np.random.default_rng(30).standard_normal(2)
    made = [gelu(v)[0].item() for v in (x[:1], x[1:], x[:1] + x[1:])]
    lines = [
        f"a block's matrices: {h} x {3 * h}, {h} x {h}, {h} x {4 * h}, {4 * h} x {h}: 12 x {h}^2 = "
        f"{12 * h * h:,} weights",
        f"attention by heads: {heads} on {t} workers: {listed(dealt)}; the inner {4 * h} columns: "
        f"{listed(inner)}",
        "columns first, rows second: x [W1 | W2] = [x W1 | x W2], nothing to add; the second "
        "matrix then makes partial sums: one all_reduce",
        f"rows first would not do: gelu({x[0]:.3g} + {x[1]:.3g}) = {made[2]:.4g}, but "
        f"gelu({x[0]:.3g}) + gelu({x[1]:.3g}) = {made[0] + made[1]:.4g}",
        f"a block: 2 sums up (attention, feed-forward) and 2 down = {sums}; "
        f"{count(layers, 'block')}: {layers} x {sums} = {layers * sums} a step",
        f"each of {ROWS} x {sequence} x {h} x 8 B = {format_bytes(size)}; in a ring all together "
        f"send 2 x ({t} - 1) x {format_bytes(size)} = {format_bytes(2 * (t - 1) * size)}, in a "
        f"block {sums} times that: {format_bytes(sent)}",
        f"all {t} workers compute at once; in layer-wise model parallelism 1/{t} = {100 / t:.1f} % "
        f"of them would",
    ]
    return WorkedAnswer(
        f"Each of {t} workers has {each(dealt)} of {count(heads, 'head')} and {each(inner)} of "
        f"{4 * h} inner columns in every layer, and all work at once. The price: {sums} "
        f"all_reduces a block, {layers * sums} in {count(layers, 'block')}, "
        f"{format_bytes(layers * sent)} a step.",
        lines,
        {
            "heads": list(dealt),
            "columns": list(inner),
            "all_reduces": layers * sums,
            "bytes": layers * sent,
            "gelu of a sum": made[2],
            "sum of gelus": made[0] + made[1],
        },
    )


def run(
    cluster: Cluster, hidden: int, heads: int, sequence: int, layers: int, workers: int
) -> Comparison:
    """A small decoder trained on all workers by tensor parallelism, and on one device."""
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=hidden, layers=layers, heads=heads, sequence=sequence)
    options = {"steps": STEPS, "batch": ROWS, "dtype": "float64"}
    alone = td.train(model, text, (1, 1, 1), **options)
    done = td.train(model, text, td.Mesh(cluster, (1, workers, 1)), **options)
    sums, sent = _sent(hidden, heads, sequence, workers)
    blocks = done.records.where("layer ", step=0)
    planned = [call for mine in done.planned for call in mine if "layer " in call.label]
    held = [
        8 * sum(prod(s) for u in model.units for s in model.shapes(u, workers, r).values())
        for r in range(workers)
    ]
    rows = [
        Claim(
            "all_reduces of all blocks in a step",
            layers * sums,
            len(planned) // workers,
            len(blocks.where(rank=0)),
            "count",
            "equal",
        ),
        Claim(
            "bytes of them, all workers",
            layers * sent,
            sum(call.sent for call in planned),
            sum(record.sent for record in blocks),
            "bytes",
            "equal",
        ),
        Claim(
            "weights of the fullest worker",
            max(held),
            None,
            max(each["weights"] for each in done.held),
            "bytes",
            "equal",
            f"{100 * max(held) / (8 * model.size):.1f} % of all: norms and positions are on each",
        ),
        Claim(
            "losses off one device's",
            ROUND_OFF,
            None,
            float(np.max(np.abs(done.losses / alone.losses - 1))),
            rule="at most",
            note=f"{STEPS} steps, {model.size:,} parameters",
        ),
    ]
    return Comparison(f"A decoder of {layers} blocks split over {workers} workers", rows)


QUESTION = CourseQuestion(
    number=30,
    title="Tensor Parallelism",
    asked="Each of {layers} layers of a Transformer, {hidden} wide with {heads} heads, is split "
    "over {workers} workers and trained on 4 rows of {sequence} tokens in float64. Who has what, "
    "what must be added up, and what does a step transfer?",
    inputs={
        "hidden": Input(16, whole(1, 65536), "width of the model, a multiple of the heads"),
        "heads": Input(4, whole(1, 1024), "attention heads"),
        "sequence": Input(16, whole(1, 10**6), "tokens of a row"),
        "layers": Input(2, whole(1, 1000), "blocks"),
        "workers": Input(4, whole(2, 64), "workers that share each layer"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    largest_run={"hidden": 512, "sequence": 512, "layers": 32},
)
