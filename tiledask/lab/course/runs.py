"""What questions run on workers, and the claims that each kind of run bears out.

multiplied   products by an algorithm            what was sent, loaded and held; every number
split_layer  a feed-forward layer, split         sums, bytes, one device's results and gradients
lenet        d2l's network, partitioned          bytes, barriers, gradients
placed       real layers, one forward pass       messages and bytes
timed        a schedule of timed actions         who waits how long
idle         a pipeline of micro-batches         its idle share
trained      a layout as small as it can be      the loss of one device, bytes by kind
held         states at 1:1000                    fit, or are refused
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.ranks.rank import Rank
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.tile.backend import as_dtype

NEARLY = ("ratio", 0.75, 1.05)
"""A measured utilisation over that of the arithmetic: what else a machine does adds idle time and
takes none away. Twice as many workers, or one at a time instead of all, are far outside."""

# -- products and layers ---------------------------------------------------------------------------

GRID = (td.Shard(0), td.Shard(1))
"""Blocks over the rows and columns of a mesh."""


class Blocking(NamedTuple):
    """How a product is computed: on a grid of workers, from A and B placed so."""

    grid: tuple[int, ...]
    algorithm: str = "summa"
    tile: int = 0
    """Extent of a tile within workers; 0: by the machine's own product."""
    placed: tuple[Any, Any] = (GRID, GRID)

    def plan(self, m: int, n: int, k: int) -> ProductPlan:
        """The plan of the product of an m x k and a k x n matrix."""
        a, b = (
            td.Tiling(shape, self.grid, how)
            for shape, how in zip(((m, k), (k, n)), self.placed, strict=True)
        )
        return td.algorithms[self.algorithm](a, b)


def loaded(plan: ProductPlan, tile: int, item: int = 4) -> int:
    """Bytes of A and B that the tiles of all workers load, each with a block of C."""
    every = map(plan.extents, range(plan.ranks))
    return sum(td.tile.traffic(*each, tile, item).loaded for each in every if all(each))


def multiplied(
    cluster: Cluster,
    shape: tuple[int, int, int],
    products: Mapping[str, tuple[Blocking, int]],
    dtype: str = "float32",
) -> list[td.Check]:
    """Products of small whole numbers, of which every sum is exact; each with the bytes that
    workers send for it, by formula."""
    (m, n, k), rng, of, rows = shape, np.random.default_rng(1), as_dtype(dtype), []
    a, b = (rng.integers(-2, 3, each).astype(of) for each in ((m, k), (k, n)))
    right = (a.astype("float64") @ b.astype("float64")).astype(of)
    numpy = cluster.backend == "numpy"
    for name, (way, sent) in products.items():
        mesh = td.Mesh(cluster, way.grid)
        A, B = (td.distribute(x, mesh, how) for x, how in zip((a, b), way.placed, strict=True))
        tile, kernel = (way.tile, "tiled") if numpy else (32, "smem_tiled")
        how: dict[str, Any] = {"kernel": kernel, "tile": tile} if way.tile else {}
        C = td.matmul(A, B, algorithm=way.algorithm, **how)
        rows += [
            td.Check(f"{name}: between workers", sent, C.traffic.predicted.total,
                  C.traffic.measured.total, "bytes", "equal"),
            td.Check(f"{name}: on the fullest worker", C.memory.predicted.peak, None,
                  C.memory.measured.peak, "bytes", "at most"),
            td.Check(f"{name}: C is A B, every number", rule="true",
                  measured=bool((td.to_numpy(C) == right).all()),
                  note=f"{m} x {k} by {k} x {n} in {dtype}, {C.seconds:.3g} s"),
        ]  # fmt: skip
        if C.tiles:
            loads = loaded(way.plan(m, n, k), tile, of.itemsize)
            words = f"{name}: loaded by tiles of {tile}"
            rows.append(td.Check(words, loads, None, C.tiles.loaded, "bytes", "equal"))
    return rows


def feed_forward(d: int, d_h: int, tokens: int) -> tuple[Any, dict[str, np.ndarray], Any]:
    """(x, weights, dy) of a feed-forward layer, random."""
    rng = np.random.default_rng(5)
    shapes = {name: p.shape for name, p in td.tile.layers.mlp_parameters(d, d_h).items()}
    weights = {name: rng.standard_normal(shape) / d**0.5 for name, shape in shapes.items()}
    return rng.standard_normal((tokens, d)), weights, rng.standard_normal((tokens, d))


def _split_layer(rank: Rank, x: np.ndarray, weights: dict[str, np.ndarray], dy: np.ndarray) -> Any:
    """(y, dx)."""
    T, group, there = td.tensor, rank.group(), rank.on_device
    layout = T.mlp_layout(weights["w_1"].shape[1], group.size)
    mine = T.shard_weights(group, {name: there(w) for name, w in weights.items()}, layout)
    y, kept = T.mlp(group, T.replicate(there(x)), mine)
    dx, _ = T.mlp_grad(group, T.replicate(there(dy)), kept, mine)
    return td.tile.to_numpy(y.local), td.tile.to_numpy(dx.local)


def split_layer(
    cluster: Cluster, d: int, d_h: int, tokens: int, devices: int, sent: int
) -> list[td.Check]:
    """A feed-forward layer on workers, forward and backward, compared with one device."""
    x, weights, dy = feed_forward(d, d_h, tokens)
    ranks = td.run_ranks(_split_layer, td.Mesh(cluster, (devices,)), x, weights, dy)
    y, kept = td.tile.layers.mlp(x, weights)
    dx, _ = td.tile.layers.mlp_grad(dy, kept, weights)
    rows = []
    for way in ("forward", "backward"):
        records = ranks.records.where(way)
        sums = len(records.where(kind="all_reduce")) // devices
        moved = sum(record.sent for record in records)
        rows.append(td.Check(f"all-reduces, {way}", 1, None, sums, "count", "equal"))
        rows.append(td.Check(f"sent, {way}", sent, None, moved, "bytes", "equal"))
    for name, made, alone in zip(("y", "dX"), ranks.results[0], (y, dx), strict=True):
        off = float(np.abs(made - alone).max() / np.abs(alone).max())
        rows.append(td.Check(f"{name} against one device", 1e-12, None, off, rule="at most"))
    return rows


def lenet(cluster: Cluster, devices: int, images: int, *ways: str) -> list[td.Check]:
    """A training step of d2l's LeNet, partitioned in these ways."""
    from tiledask.lab.claims import lenet_claims

    return [*lenet_claims(td.Mesh(cluster, (devices,)), images, ways=ways).rows]


# -- pipelines -------------------------------------------------------------------------------------

ARROWS = {"F": "↑", "B": "↓"}


def one_batch(place: Sequence[int], backward: bool = True) -> td.Schedule:
    """The Schedule of one batch through stages of which ``place`` says the worker, from 0: up
    through all of them and, with ``backward``, down again.

    >>> print(one_batch([0, 0, 1]).to_text())
    0F0,1F0,1B0,0B0
    2F0,2B0
    """
    up = [td.Action("F", stage, 0) for stage in range(len(place))]
    down = [td.Action("B", stage, 0) for stage in reversed(range(len(place)))] * backward
    orders = [[a for a in up + down if place[a.stage] == worker] for worker in sorted({*place})]
    return td.Schedule.of(orders, place, "one batch")


def flow(timeline: Timeline) -> str:
    """The blocks in the order in which they began, "B1↑ B2↑ B2↓ B1↓"; "+" is in front of one that
    began before the middle of the last."""
    text, middle = "", 0.0
    for i in np.argsort(timeline.start, kind="stable"):
        if timeline.kind[i] in COMPUTE:
            text += "+" if text and timeline.start[i] < middle else " "
            text += f"B{timeline.stage[i] + 1}{ARROWS[str(timeline.kind[i])]}"
            middle = (timeline.start[i] + timeline.end[i]) / 2
    return text.strip()


def timed(
    cluster: Cluster, order: td.Schedule, busy: Sequence[float], makespan: float, times: Any
) -> list[td.Check]:
    """One batch through workers that are to be ``busy`` so many seconds of ``makespan``, one at a
    time: simulated and run; of up to three runs, the one that other work disturbs least."""
    simulated, runs = td.simulate(order, **times), list[Timeline]()
    while not runs or (runs[-1].utilisation < 0.9 * simulated.utilisation and len(runs) < 3):
        runs.append(td.run_schedule(order, cluster=cluster, engine="loop", **times).timeline)
    return timed_claims(busy, makespan, simulated, min(runs, key=lambda run: run.bubble_fraction))


def timed_claims(
    busy: Sequence[float], makespan: float, s: Timeline, m: Timeline
) -> list[td.Check]:
    """Of a batch, simulated and measured: its time, utilisation, order, and idle time of each."""
    used = sum(busy) / (len(busy) * makespan)
    each = enumerate(zip(busy, s.idle_per_device, m.idle_per_device, strict=True))
    return [
        td.Check("time of the batch", makespan, s.makespan, m.makespan, "seconds"),
        td.Check("utilisation", used, s.utilisation, m.utilisation, "percent", NEARLY),
        td.Check("order of the blocks", None, flow(s), flow(m), rule="equal"),
        *(td.Check(f"worker {i} idles", makespan - b, x, y, "seconds") for i, (b, x, y) in each),
    ]


def idle(cluster: Cluster, stages: int, microbatches: int, name: str = "1f1b") -> list[td.Check]:
    """Idle share of a pipeline of equal stages, and what it keeps.

    Whatever else the machine does adds to what is measured, so that no more is claimed of its time
    than that it ran.
    """
    stages, times = min(stages, cluster.slots), dict[str, Any](forward=0.02, backward=0.04)
    order, how = td.schedule(name, stages, microbatches), times | {"timeout": 60.0}
    s = td.simulate(order, **times)
    m = td.run_schedule(order, cluster=cluster, engine="loop", **how).timeline
    share = td.formulas.bubble_fraction(stages, 1 if name == "naive" else microbatches)
    which, note = f"{name}, {stages} stages, m = {microbatches}", "a busy machine adds to it"
    return [
        td.Check(f"idle, {which}", share, s.bubble_fraction, m.bubble_fraction, "percent",
              ("within", 1e-9), note, ("predicted", "simulated")),
        td.Check(f"activations kept at most, {which}", None, max(s.peak_in_flight),
              max(m.peak_in_flight), rule="equal"),
    ]  # fmt: skip


def placed(cluster: Cluster, name: str, place: Sequence[int], crossings: int) -> list[td.Check]:
    """Real layers passed forward, each on the worker that ``place`` says, and on one worker."""
    from tiledask.distributed.pipelines.stages import stack

    batch = np.random.default_rng(3).standard_normal((64, 256), np.float32)
    layers = stack(range(len(place) + 1), width=256, hidden=1024, seed=24)
    one = [0] * len(place)
    done, alone = (
        td.run_schedule(one_batch(each, False), layers, batch, cluster) for each in (place, one)
    )
    planned, counted = done.traffic.predicted, done.traffic.measured
    same, sent = done.outputs.tobytes() == alone.outputs.tobytes(), crossings * batch.nbytes
    note = f"{crossings} messages x 64 rows x 256 columns x 4 B"
    return [
        td.Check(f"{name}: messages", crossings, planned.count, counted.count, "count", "equal"),
        td.Check(f"{name}: bytes sent", sent, planned.total, counted.total, "bytes", "equal", note),
        td.Check(f"{name}: output has the bits of one worker's", measured=same, rule="true"),
    ]


# -- trainings and states --------------------------------------------------------------------------


def reduced(layout: td.Layout, ranks: int = 4) -> tuple[int, int, int]:
    """(dp, tp, pp) of at most ``ranks``, 1, 2 or 4: what is split most stays split.

    >>> every = td.Layout(dp=4, pp=8), td.Layout(tp=8), td.Layout(dp=4, tp=2, pp=4)
    >>> [reduced(layout) for layout in every]
    [(2, 1, 2), (1, 4, 1), (2, 1, 2)]
    """
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    most = sorted((name for name in degrees if degrees[name] > 1), key=lambda n: -degrees[n])
    most = most[: ranks.bit_length() - 1]
    small = {n: min(ranks // len(most), 1 << degrees[n].bit_length() - 1) for n in most}
    return small.get("dp", 1), small.get("tp", 1), small.get("pp", 1)


def trained(cluster: Cluster, layout: td.Layout, dtype: str = "float32") -> list[td.Check]:
    """A small decoder under ``layout``, reduced: the loss of one device, the bytes foreseen."""
    from tiledask.lab.precision import acceptable
    from tiledask.lab.precision.drift import SAFETY

    text, steps, layers = td.load_text("tales"), 4, 4
    model = td.GPT(text.vocabulary, hidden=32, layers=layers, heads=4, sequence=16)
    shape = reduced(layout, 4 if cluster.slots >= 4 else min(2, cluster.slots))
    options: dict[str, Any] = {"steps": steps, "batch": 8, "progress": False, "timeout": 60.0}
    alone = td.train(model, text, (1, 1, 1), dtype="float32", **options)
    options |= {"microbatches": 2 * shape[2], "zero": min(layout.zero, 3) if shape[0] > 1 else 0}
    split = td.train(model, text, td.Mesh(cluster, shape), dtype=dtype, **options)
    ends = float(alone.losses[-1]), float(split.losses[-1])
    found = acceptable(*ends, steps, dtype, max(2, *shape), layers)
    what = f"{dtype}, trained on dp {shape[0]} x tp {shape[1]} x pp {shape[2]}"
    note = f"GPT({text.vocabulary}, hidden=32, layers={layers}, heads=4, sequence=16), batch=8, "
    note += f"microbatches={options['microbatches']}, zero={options['zero']}; "
    note += "predicted: what round-off explains"
    off = f"{what}: loss after {steps} steps off one device's"
    rows = [td.Check(off, SAFETY * found.likely, None, found.difference, rule="at most", note=note)]
    sent = split.program.traffic.total, None, int(split.to_frame()["bytes_sent"].iloc[0])
    rows.append(td.Check(f"{what}: sent a step", *sent, "bytes", "equal"))
    return rows


def held(
    cluster: Cluster, parameters: int, plans: Mapping[str, tuple[td.Layout, str]], memory: int
) -> list[td.Check]:
    """What workers held, or were refused, of each (layout, recipe) on devices of ``memory``.

    States depend on tp x pp alone, so that many stages are run as as many slices. Parameters and
    bytes are 1000 per one that is run, ten times as many where a worker would hold more.
    """
    from tiledask.distributed.memory.claims import run_claim
    from tiledask.lab.claims import compare_claims

    scale, runs = 1000, {}
    while memory > scale * 160 * 10**6:
        scale *= 10
    for name, (layout, recipe) in plans.items():
        tp, pp = (layout.tp, layout.pp) if layout.pp <= 12 else (layout.tp * layout.pp, 1)
        given = parameters, td.Layout(dp=layout.dp, tp=tp, pp=pp, zero=layout.zero), memory, cluster
        runs[f"{name}, 1:{scale}"] = run_claim(*given, recipe=recipe, scale=scale, timeout=240)
    return [*compare_claims("states alone", runs).rows]
