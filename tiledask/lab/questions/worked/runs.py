"""What questions run on workers, and the claims that each kind of run bears out.

multiplied   a product by an algorithm           what was sent, loaded and held; every number
by_rows      rows dealt out, in tiles            FLOP and seconds of each worker
attempted    a layer under a limit of memory     runs, or is refused
pipelined    a schedule of timed actions         who waits how long: idle, bubble
placed       real layers, one forward pass       messages and bytes
decoder      a small GPT, split                  the losses of one device
lenet        d2l's network, partitioned          bytes, barriers, gradients
trained      a layout as small as it can be      the same, and its bytes by kind
held         states at 1:1000                    fit, or are refused
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import thread_time
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.pipelines.run import PipelineRun
from tiledask.distributed.ranks.rank import Rank
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline

GRID = (td.Shard(0), td.Shard(1))
"""Blocks over the rows and columns of a mesh."""
NEARLY = ("ratio", 0.75, 1.05)
"""A measured utilisation over that of the arithmetic: what else a machine does adds idle time and
takes none away. Twice as many workers, or one at a time instead of all, are far outside."""
ROUND_OFF = 1e-12
"""Relative difference of float64 numbers whose sums are in another order."""

# -- products --------------------------------------------------------------------------------------


def whole_numbers(
    seed: int, *shapes: tuple[int, ...], dtype: Any = "float32", most: int = 2
) -> list[np.ndarray]:
    """Small whole numbers, of which every sum is exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-most, most + 1, shape).astype(dtype) for shape in shapes]


def multiplied(
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    over: tuple[int, ...],
    placed: Sequence[Any] = (GRID, GRID),
    **how: Any,
) -> ShardedArray:
    """The product of ``a`` and ``b``, placed so on a mesh of workers."""
    mesh = td.Mesh(cluster, over)
    A, B = (td.distribute(x, mesh, each) for x, each in zip((a, b), placed, strict=True))
    return td.matmul(A, B, **how)


def product_claims(
    name: str, C: ShardedArray, right: np.ndarray, sent: int, loaded: int | None = None
) -> list[Claim]:
    """What was sent for C, loaded by its tiles and held, and that it is ``right``."""
    rows = [
        Claim(f"{name}: between workers", sent, C.traffic.predicted.total,
              C.traffic.measured.total, "bytes", "equal"),
        Claim(f"{name}: on the fullest worker", C.memory.predicted.peak, None,
              C.memory.measured.peak, "bytes", "at most"),
        Claim(f"{name}: C is A B, every number", rule="true",
              measured=bool((td.to_numpy(C) == right).all()), note=f"{C.seconds:.3g} s"),
    ]  # fmt: skip
    if loaded is not None and C.tiles:
        loads = f"{name}: loaded by tiles"
        rows.append(Claim(loads, loaded, None, C.tiles.loaded, "bytes", "equal"))
    return rows


def by_rows(
    cluster: Cluster, a: np.ndarray, b: np.ndarray, rows: Sequence[int], tile: int
) -> list[tuple[int, float]]:
    """(FLOP, seconds of its thread) of each worker that multiplies so many rows of ``a``."""
    ends = np.cumsum([0, *rows])
    parts = [a[start:end] for start, end in pairwise(ends)]
    tasks = [cluster.submit(at, _tiled, part, b, tile) for at, part in enumerate(parts)]
    return list(cluster.gather(tasks, "the products", cancel=True))


def _tiled(a: np.ndarray, b: np.ndarray, tile: int) -> tuple[int, float]:
    td.tile.count_traffic(a[:tile, :tile], b[:tile, :tile], tile)  # the first call is slower
    begun = thread_time()
    _, counted = td.tile.count_traffic(a, b, tile)
    return counted.flops, thread_time() - begun


def attempted(
    rank: Rank, strategy: str, arrays: int, x: np.ndarray, w: np.ndarray, capacity: int
) -> tuple[np.ndarray | None, int]:
    """(this rank's part of y = x w, bytes held) in a step that keeps so many arrays as large as
    its part of w; None for y where ``capacity`` was refused, with the bytes it would have been."""
    from tiledask.tile.memory.pool import Pool, Refused

    pool, ranks, r = Pool(capacity), rank.group().size, rank.index
    part, mine = w, x
    if strategy == "columns":
        part = np.array_split(w, ranks, 1)[r]
    elif strategy == "rows":
        part, mine = np.array_split(w, ranks, 0)[r], np.array_split(x, ranks, 1)[r]
    elif strategy != "a layer each":
        mine = x[: -(-len(x) // ranks) if strategy == "copies" else 1]
    try:
        kept = [pool.put("weights", part)]
        kept += [pool.empty("states", part.shape, part.dtype) for _ in range(arrays - 1)]
        return pool.put("y", mine @ kept[0]), pool.peak
    except Refused as refused:
        return None, refused.needed


# -- pipelines -------------------------------------------------------------------------------------

ENOUGH = 0.9
"""Of the utilisation that it should have: a run that has less is repeated."""
ARROWS = {"F": "↑", "B": "↓"}


def one_batch(place: Sequence[int], backward: bool = True) -> td.Schedule:
    """The Schedule of one batch through stages of which ``place`` says the worker, from 0: up
    through all of them and, with ``backward``, down again.

    >>> print(one_batch([0, 0, 1]).to_text())
    0F0,1F0,1B0,0B0
    2F0,2B0
    """
    up = [Action("F", stage, 0) for stage in range(len(place))]
    down = [Action("B", stage, 0) for stage in reversed(range(len(place)))] * backward
    orders = [[a for a in up + down if place[a.stage] == worker] for worker in sorted({*place})]
    return td.Schedule.of(orders, place, "one batch")


def pipelined(cluster: Cluster, schedule: td.Schedule, **times: Any) -> PipelineRun:
    """The run of ``schedule`` whose actions keep their workers for these ``times``: of up to
    three, the one that other work on the machine disturbs least."""
    enough = 1 - ENOUGH * td.simulate(schedule, **times).utilisation
    runs: list[PipelineRun] = []
    while not runs or (runs[-1].timeline.bubble_fraction > enough and len(runs) < 3):
        runs.append(td.run_schedule(schedule, cluster=cluster, engine="loop", **times))
    return min(runs, key=lambda each: each.timeline.bubble_fraction)


def flow(timeline: Timeline) -> str:
    """The blocks in the order in which they began: "B1↑ B2↑ B2↓ B1↓"."""
    spans = [i for i in np.argsort(timeline.start, kind="stable") if timeline.kind[i] in COMPUTE]
    return " ".join(f"B{timeline.stage[i] + 1}{ARROWS[str(timeline.kind[i])]}" for i in spans)


def meanwhile(timeline: Timeline, worker: int, kind: str = "F") -> dict[int, str]:
    """What each other worker does in the middle of all that ``worker`` does of this ``kind``:
    "idle", or its actions; workers from 0.

    >>> meanwhile(td.simulate(one_batch([0, 1, 2])), 1)
    {0: 'idle', 2: 'idle'}
    """
    mine = (timeline.device == worker) & (timeline.kind == kind)
    moments = (timeline.start[mine] + timeline.end[mine]) / 2
    others = (other for other in range(timeline.devices) if other != worker)
    return {o: ", ".join(sorted({timeline.state(o, at) for at in moments})) for o in others}


def idle_claims(
    busy: Sequence[float], makespan: float, simulated: Timeline, measured: Timeline, name: str = ""
) -> list[Claim]:
    """Claims of makespan, utilisation, idle time of all workers and of each, where they are to be
    ``busy`` so many seconds of ``makespan``, one at a time."""
    p, start, s, m = len(busy), f"{name}: " * bool(name), simulated, measured
    used, idle = sum(busy) / (p * makespan), p * makespan - sum(busy)
    each = zip(busy, simulated.idle_per_device, measured.idle_per_device, strict=True)
    return [
        Claim(f"{start}time of the batch", makespan, s.makespan, m.makespan, "seconds"),
        used_claim(f"{start}utilisation", used, s, m),
        Claim(f"{start}idle time of all", idle, s.idle, m.idle, "seconds"),
        Claim(f"{start}workers busy beside another", 0, _beside(s), _beside(m), rule="equal"),
        *(
            Claim(f"{start}worker {i} idles", makespan - b, x, y, "seconds", note=f"busy {b:g} s")
            for i, (b, x, y) in enumerate(each, 1)
        ),
    ]


def timed(
    cluster: Cluster,
    title: str,
    order: td.Schedule,
    busy: Sequence[float],
    makespan: float,
    **times: Any,
) -> Comparison:
    """One batch, simulated and run: how long it takes, and who waits how long."""
    both = td.simulate(order, **times), pipelined(cluster, order, **times).timeline
    return Comparison(title, idle_claims(busy, makespan, *both))


def _beside(timeline: Timeline) -> int:
    """How many workers compute in the middle of what another does."""
    states = [meanwhile(timeline, w, k) for w in range(timeline.devices) for k in ARROWS]
    return sum(state not in ("idle", "") for each in states for state in each.values())


def used_claim(name: str, share: float | None, simulated: Timeline, measured: Timeline) -> Claim:
    """Utilisation by formula, simulated and measured."""
    both = simulated.utilisation, measured.utilisation
    return Claim(name, share, *both, "percent", NEARLY)


def bubble(
    cluster: Cluster, stages: int, microbatches: int, name: str = "1f1b", slowest: float = 1.0
) -> Claim:
    """Idle share of a pipeline whose last stage takes ``slowest`` times as long as the others.

    Whatever else the machine does adds to what is measured, so that no more is claimed of it than
    that it ran.
    """
    stages, even = min(stages, cluster.slots), slowest == 1.0
    forward, backward = ([t] * (stages - 1) + [t * slowest] for t in (0.02, 0.04))
    order = td.schedule(name, stages, microbatches)
    run = td.run_schedule(
        order, cluster=cluster, forward=forward, backward=backward, engine="loop", timeout=60.0
    )
    share = td.formulas.bubble_fraction(stages, microbatches)
    if name == "naive":
        share = 1 - td.formulas.naive_utilisation(stages)
    return Claim(
        f"idle, {name}, {stages} stages, m = {microbatches}"
        + ("" if even else f", the last {slowest:g} times as slow"),
        share if even else None,
        td.simulate(order, forward=forward, backward=backward).bubble_fraction,
        run.timeline.bubble_fraction,
        "percent",
        ("within", 1e-9) if even else None,
        note="a busy machine adds to what is measured",
        compare=("predicted", "simulated"),
    )


LAYER: dict[str, Any] = {"width": 256, "hidden": 1024, "seed": 24}
"""Of a feed-forward layer that is really run."""


def placed(cluster: Cluster, name: str, place: Sequence[int], crossings: int) -> list[Claim]:
    """Real layers passed forward, each on the worker that ``place`` says, and on one worker."""
    from tiledask.distributed.pipelines.stages import stack

    batch = np.random.default_rng(3).standard_normal((64, LAYER["width"]), np.float32)
    layers, one = stack(range(len(place) + 1), **LAYER), [0] * len(place)
    done, alone = (
        td.run_schedule(one_batch(each, False), layers, batch, cluster) for each in (place, one)
    )
    planned, counted = done.traffic.predicted, done.traffic.measured
    same, sent = done.outputs.tobytes() == alone.outputs.tobytes(), crossings * batch.nbytes
    return [
        Claim(f"{name}: messages", crossings, planned.count, counted.count, "count", "equal"),
        Claim(f"{name}: bytes sent", sent, planned.total, counted.total, "bytes", "equal"),
        Claim(f"{name}: output has the bits of one worker's", measured=same, rule="true"),
    ]


# -- trainings -------------------------------------------------------------------------------------

STEPS = 3


def decoder(mesh: Any, name: str, batch: int, sizes: dict[str, Any], **how: Any) -> Any:
    """(a small decoder's float64 training on ``mesh``, the claim of its losses, the model)."""
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, **sizes)
    options: dict[str, Any] = {"steps": STEPS, "batch": batch, "dtype": "float64"}
    alone = td.train(model, text, (1, 1, 1), microbatches=1, **options)
    done = td.train(model, text, mesh, **how, **options)
    apart = float(np.max(np.abs(done.losses / alone.losses - 1)))
    note = f"{STEPS} steps, {model.size:,} parameters"
    off = f"{name}losses off one device's"
    return done, Claim(off, ROUND_OFF, None, apart, rule="at most", note=note), model


def lenet(cluster: Cluster, devices: int, images: int, *ways: str) -> Comparison:
    """A training step of d2l's LeNet on workers, partitioned in all ways or some."""
    from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS
    from tiledask.lab.lenet import lenet_claims

    return lenet_claims(td.Mesh(cluster, (devices,)), images, ways=ways or tuple(PARTITIONINGS))


RANKS = 4
KINDS = {
    "all ranks": "the gradients' norm",
    "data": "gradients and ZeRO's weights",
    "tensor": "sums over tp",
    "pipeline": "stages",
}
"""What the columns of a training's traffic are for."""


def reduced(layout: Layout, ranks: int = RANKS) -> tuple[int, int, int]:
    """(dp, tp, pp) of at most ``ranks``: what is split stays split, as far as there are ranks.

    >>> reduced(Layout(dp=4, tp=1, pp=8)), reduced(Layout(tp=8)), reduced(Layout(dp=4, tp=2, pp=4))
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


def trained(cluster: Cluster, name: str, layout: Layout, dtype: str = "float32") -> list[Claim]:
    """Claims on ``layout``, reduced, trained on workers: the loss of one device, the bytes
    foreseen."""
    from tiledask.lab.precision import acceptable
    from tiledask.lab.precision.drift import SAFETY

    text, steps, layers = td.load_text("tales"), 4, 4
    model = td.GPT(text.vocabulary, hidden=32, layers=layers, heads=4, sequence=16)
    shape = reduced(layout, min(RANKS, cluster.slots))
    options: dict[str, Any] = {"steps": steps, "batch": 8, "progress": False, "timeout": 60.0}
    alone = td.train(model, text, (1, 1, 1), dtype="float32", **options)
    options |= {"microbatches": 2 * shape[2], "zero": min(layout.zero, 3) if shape[0] > 1 else 0}
    split = td.train(model, text, td.Mesh(cluster, shape), dtype=dtype, **options)
    ends = float(alone.losses[-1]), float(split.losses[-1])
    found = acceptable(*ends, steps, dtype, max(2, *shape), layers)
    degrees = zip(("dp", "tp", "pp"), shape, strict=True)
    where = " x ".join(f"{n} {d}" for n, d in degrees if d > 1) or "one worker"
    off = f"{name}, trained on {where}: loss after {steps} steps off one device's"
    note = f"{dtype}; predicted: what round-off explains"
    rows = [Claim(off, SAFETY * found.likely, None, found.difference, rule="at most", note=note)]
    sent = split.layers().reset_index().groupby("parallel")[["predicted_bytes", "bytes"]].sum()
    for kind, row in sent.iterrows():
        what = f"{name}, trained on {where}: {KINDS.get(str(kind), kind)}, bytes a step"
        both = int(row.predicted_bytes), None, int(row.bytes)
        rows.append(Claim(what, *both, "bytes", "equal"))
    return rows


# -- states ----------------------------------------------------------------------------------------

SCALE, MOST_HELD = 1000, 160 * 10**6
"""Parameters and bytes per one that is run, ten times as many where a worker would hold more."""
MOST_STAGES = 12
"""Stages that are run, one after the other on few workers; of more, all alike, one is."""

Plans = Mapping[str, tuple[Layout, str, int]]
"""Name -> (layout, recipe, bytes of a device)."""


def under(layouts: Mapping[str, tuple[Layout, str]], memory: int) -> Plans:
    """Each (layout, recipe) on devices of so much memory."""
    return {name: (*plan, memory) for name, plan in layouts.items()}


def held(
    cluster: Cluster, title: str, parameters: int, plans: Plans, more: Iterable[Claim] = ()
) -> Comparison:
    """What workers held, or were refused, of each plan; and ``more``.

    States depend on tp x pp alone, so that many stages are run as as many slices.
    """
    from tiledask.distributed.memory.claims import run_claim
    from tiledask.lab.claims import compare_claims

    scale, runs = SCALE, {}
    while max(memory for _, _, memory in plans.values()) > scale * MOST_HELD:
        scale *= 10
    for name, (layout, recipe, memory) in plans.items():
        if layout.pp > MOST_STAGES:
            layout = replace(layout, tp=layout.tp * layout.pp, pp=1)
        given = parameters, layout, memory, cluster
        runs[name] = run_claim(*given, recipe=recipe, scale=scale, timeout=240)
    table = compare_claims(f"{title}, states alone, run at 1:{scale}", runs)
    return Comparison(table.title, (*table.rows, *more))


Run = Callable[[Cluster], Comparison]
