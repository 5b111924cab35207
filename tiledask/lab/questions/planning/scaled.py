"""A plan at a size that few workers train: the same kinds of parallelism, in twos.

dp 2 x tp 1 x pp 4, ZeRO-1   ->   a GPT of 4 small layers on dp 2 x tp 1 x pp 2, four workers
"""

from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.table import Claim
from tiledask.plan.inputs.layout import Layout

__all__ = ["idle", "shrunk", "trained"]

RANKS = 4
SIZES = {"hidden": 32, "layers": 4, "heads": 4, "sequence": 16}
STEPS, BATCH = 4, 8
KINDS = {
    "all ranks": "the gradients' norm",
    "data": "gradients and ZeRO's weights",
    "tensor": "sums over tp",
    "pipeline": "stages",
}
"""What the columns of a training's traffic are for."""
FORWARD, BACKWARD = 0.02, 0.04
"""Seconds that a worker is kept busy by a micro-batch, where idle time is measured."""


def shrunk(layout: Layout, ranks: int = RANKS) -> tuple[int, int, int]:
    """(dp, tp, pp) of at most ``ranks``: what is split stays split, as far as there is room.

    >>> shrunk(Layout(dp=4, tp=1, pp=8)), shrunk(Layout(tp=8)), shrunk(Layout(dp=4, tp=2, pp=4))
    ((2, 1, 2), (1, 4, 1), (2, 1, 2))
    """
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    small = dict.fromkeys(degrees, 1)
    for _ in range(ranks.bit_length() - 1):
        rest = {name: n // small[name] for name, n in degrees.items()}
        # what is still whole goes first, then what was split the most
        name = max(rest, key=lambda each: (rest[each] > 1 == small[each], rest[each]))
        if rest[name] > 1:
            small[name] *= 2
    return small["dp"], small["tp"], small["pp"]


def trained(cluster: Cluster, name: str, layout: Layout, **options: Any) -> list[Claim]:
    """Claims on ``layout``, shrunk, trained on workers: the loss of one device, the bytes foreseen.

    ``options``: of `tiledask.train`, such as dtype and recipe.
    """
    from tiledask.lab.precision import acceptable
    from tiledask.lab.precision.drift import SAFETY

    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, **SIZES)
    shape, zero = shrunk(layout, min(RANKS, cluster.slots)), min(layout.zero, 3)
    pieces = {"steps": STEPS, "batch": BATCH, "progress": False, "timeout": 60.0}
    alone = td.train(model, text, (1, 1, 1), dtype="float32", **pieces)
    split = td.train(
        model,
        text,
        td.Mesh(cluster, shape),
        microbatches=2 * shape[2],
        zero=zero if shape[0] > 1 else 0,
        **({"dtype": "float32"} | options),
        **pieces,
    )
    dtype = options.get("dtype", "float32")
    ends = float(alone.losses[-1]), float(split.losses[-1])
    said = acceptable(*ends, STEPS, dtype, max(2, *shape), SIZES["layers"])
    label = " x ".join(f"{n} {d}" for n, d in zip(("dp", "tp", "pp"), shape, strict=True) if d > 1)
    label = f"{name}, trained on {label or 'one worker'}"
    rows = [
        Claim(
            f"{label}: loss after {STEPS} steps off one device's",
            SAFETY * said.likely,
            None,
            said.difference,
            rule="at most",
            note=f"{dtype}; predicted: what round-off explains",
        )
    ]
    sent = split.layers().reset_index().groupby("parallel")[["predicted_bytes", "bytes"]].sum()
    return rows + [
        Claim(
            f"{label}: {KINDS.get(kind, kind)}, bytes a step",
            int(row.predicted_bytes),
            None,
            int(row.bytes),
            "bytes",
            "equal",
        )
        for kind, row in sent.iterrows()
    ]


def _formula(name: str, stages: int, microbatches: int) -> float:
    """Idle share by closed form: 1 - 1/p layer-wise, (p-1)/(m+p-1) for GPipe and 1F1B."""
    if name == "naive":
        return 1 - td.formulas.naive_utilisation(stages)
    return td.formulas.bubble_fraction(stages, microbatches)


def idle(
    cluster: Cluster,
    stages: int,
    microbatches: int,
    name: str = "1f1b",
    slowest: float = 1.0,
) -> Claim:
    """Idle share of a pipeline: by formula, simulated, and measured on workers that are kept busy.

    ``slowest``: how many times as long as the others the last stage takes. Whatever else the
    machine does adds to what is measured, so that no more is claimed of it than that it ran.
    """
    stages = min(stages, cluster.slots)
    order = td.schedule(name, stages, microbatches)
    forward, backward = ([t] * (stages - 1) + [t * slowest] for t in (FORWARD, BACKWARD))
    run = td.run_schedule(
        order, cluster=cluster, forward=forward, backward=backward, engine="loop", timeout=60.0
    )
    simulated = td.simulate(order, forward=forward, backward=backward).bubble_fraction
    even = slowest == 1.0
    return Claim(
        f"idle, {name}, {stages} stages, m = {microbatches}"
        + ("" if even else f", the last {slowest:g} times as slow"),
        _formula(name, stages, microbatches) if even else None,
        simulated,
        run.timeline.bubble_fraction,
        "percent",
        ("within", 1e-9) if even else None,
        note="a busy machine adds to what is measured",
        compare=("predicted", "simulated"),
    )
