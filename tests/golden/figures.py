"""Golden values of figures: their words, and where what has a name is drawn, in which colours."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tiledask as td
from golden.store import GoldenSet, digest
from tiledask.lab import plots, sweep
from tiledask.plan.collectives.shards import deal_heads
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic

GB = 10**9
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def cut(shape: tuple[int, int], *placements) -> Tiling:
    """A matrix on 2 x 2 ranks."""
    return Tiling(shape, (2, 2), placements)


def pipeline(devices: int, microbatches: int, forward=1.0, backward=2.0) -> Timeline:
    """GPipe as it might be measured: a transfer of no length before what another device makes."""
    made = td.simulate(td.schedule("gpipe", devices, microbatches), forward, backward)
    spans = list(made.to_frame().itertuples(index=False, name=None))
    ends = {"F": 0, "B": devices - 1}
    come = [(d, "T", s, m, start, start) for d, k, s, m, start, _ in spans if d != ends[k]]
    return Timeline.of(devices, spans + come, origin="measured")


def held(name: str, devices: int, microbatches: int):
    timeline = sweep.same_work(name, devices, microbatches)
    return td.memory_over_time(timeline, devices / timeline.schedule.stages)


def dense(ranks: int) -> Traffic:
    every = [(i, j, 123_456_789 * (i + j)) for i in range(ranks) for j in range(ranks)]
    return Traffic.of(ranks, every)


def steps(model: str, cluster: str, batch: int, sequence: int) -> dict:
    """The best plan of each (tp, pp), five at most."""
    best = {}
    for plan in td.search(model, cluster, batch, sequence=sequence)[:200]:
        best.setdefault((plan.layout.tp, plan.layout.pp), plan)
    return {str(plan.layout): plan.step for plan in [*best.values()][:5]}


FORMULA = [
    ("x", (24, 32), R),
    ("W1", (32, 127), S1),
    "= GELU of",
    ("x W1", (24, 127), S1),
    ("W2", (127, 32), S0),
    "=",
    ("partial", (24, 32), Partial()),
    "all_reduce",
    ("y", (24, 32), 2),
]
KEYS = Shard(1, deal_heads(query=10, kv=2, ranks=4)[1])
FULL = Ledger.of(
    Row(place, tensor, ALWAYS, 400 * GB) for place in range(4) for tensor in ("weights", "variance")
)
SPLIT = Ledger.of(
    row
    for place in range(6)
    for row in (
        Row(place, "weights", ALWAYS, 10 * GB),
        Row(place, "optimizer", ALWAYS, 20 * GB),
        Row(place, "activations", "forward", (12 - 2 * place) * GB),
        Row(place, "activations", "backward", 1 * GB),
    )
)
RING = Traffic.of(4, [(i, (i + 1) % 4, 16_777_216) for i in range(4)])
SLOW_END = [  # device 1 takes twice as long, gets a block late, and starts late
    *((0, "F", 0, i, float(i), i + 1.0) for i in range(2)),
    (1, "T", 0, 0, 1.25, 1.75),
    *((1, "F", 1, i, 2 + 6.0 * i, 4 + 6.0 * i) for i in range(2)),
    *((1, "B", 1, i, 4 + 6.0 * i, 8 + 6.0 * i) for i in range(2)),
    *((0, "B", 0, i, 8 + 6.0 * i, 10 + 6.0 * i) for i in range(2)),
]
EVERY_CAUSE = Timeline.of(2, SLOW_END, origin="measured")
ENDS = [(d, i, 3.0 * i + d) for d in range(2) for i in range(3)]
AT_ONCE = [(d, *f, i, at, at + 3) for d, i, at in ENDS for f in (("F", d), ("B", 3 - d))]
STAYS = {"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": [("killed", 0.3, 0.3)]}
MANY = {x: x for x in range(1, 61)}
SPREAD = {
    "four workers": {64: 2e-3, 256: 2e-3, 2048: 0.3},
    "one process": {64: 1e-5, 256: 4e-4, 2048: 0.5},
}

FIGURES: dict[str, Callable[[], Any]] = {
    "gantt": lambda: plots.gantt(pipeline(4, 8), pipeline(4, 8, 1.1, 2.3), titles=["a", "b"]),
    "gantt, 16 x 24": lambda: plots.gantt(pipeline(16, 24)),
    "gantt, a part": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32), between=(10, 30)),
    "gantt, 8 x 32 in a V": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32)),
    "gantt, of many": lambda: plots.gantt(pipeline(2, 300)),
    "gantt, named": lambda: plots.gantt(EVERY_CAUSE, lanes=["one", "two", "three"]),
    "gantt, two at once": lambda: plots.gantt(Timeline.of(2, AT_ONCE)),
    "gantt of every cause": lambda: plots.gantt(EVERY_CAUSE, sweep.same_work("zb-v", 4, 8)),
    "memory timeline": lambda: plots.memory_timeline(
        {n: held(n, 4, 8) for n in ("gpipe", "1f1b", "zb-v")}, unit="activations"
    ),
    "slots": lambda: plots.slots(STAYS, title="A worker dies"),
    "memory": lambda: plots.memory_bars({"full copy": FULL, "split": SPLIT}, 40 * GB),
    "memory, split": lambda: plots.memory_bars(SPLIT, 40 * GB),
    "memory, by hand": lambda: plots.memory_bars({"mine": {"A": GB}, "b": {"A": 7 * GB, "B": GB}}),
    "step": lambda: plots.step_breakdown(steps("mixtral-8x7b", "32xH100", 256, 4096)),
    "curves": lambda: plots.curves(SPREAD, xlabel="n", ylabel="seconds", title="n x n x n"),
    "curves, marks": lambda: plots.curves(
        {"scale": {0: 24, 1: 23}}, marks={"out": {0: 24}}, log="", xlabel="step", ylabel="power"
    ),
    "curves, many": lambda: plots.curves(
        {"few": {1: 1, 60: 60}, "many": MANY}, marks={"at": {10: 30}}, xlabel="bytes", ylabel="y"
    ),
    "placements": lambda: plots.placements({"forward": FORMULA, "backward": FORMULA}, 4),
    "placements, shared": lambda: plots.placements({"keys": [("keys", (32, 2), KEYS)]}, 4),
    "owners": lambda: plots.owners({"A": cut((5, 8), S0, S1), "B": cut((5, 8), R, S1)}),
    "owners, thin": lambda: plots.owners(
        {"A": Tiling((6400, 720), (64, 8), (S0, S1)), "B": Tiling((720, 6400), (8, 64), (S0, S1))}
    ),
    "corner": lambda: plots.corner(*(cut((600, 600), S0, S1) for _ in "XAY")),
    "corner, partial": lambda: plots.corner(
        cut((90, 80), R, S1), cut((80, 70), R, S0), cut((90, 70), R, Partial())
    ),
    "step of a tile": lambda: plots.tile_step(500, 700, 300, 32, (7, 12, 5)),
    "step, two levels": lambda: plots.tile_step(512, 512, 384, (256, 256, 384), inner=32),
    "step, small": lambda: plots.tile_step(13, 11, 9, (5, 4, 4), (2, 2, 2), inner=2),
    "layers": lambda: plots.layers_on_devices({"a": [0, 0, 1, 1], "b": [n % 4 for n in range(40)]}),
    "traffic, hosts": lambda: plots.traffic_matrix({"ring": RING, "on": RING.on("AABB")}),
    "traffic": lambda: plots.traffic_matrix({"ring": RING, "and more": RING + dense(4)}),
    "cut, right": lambda: td.task("24-uneven").draw("1-6 | 7-13 | 14-20 | 21-24"),
    "cut, over memory": lambda: td.task("24-memory-cap").draw("1-6 | 7-12 | 13-18 | 19-24"),
    "cut, layer twice": lambda: td.task("24-on-4").draw("1-6 | 6-12 | 13-18 | 19-23"),
    "cut, costly": lambda: td.task("costly-cuts").draw("1-5 | 6-8 | 9-12 | 13-16"),
    "ladder, no answer": lambda: td.tasks.idle_level(3, 5).draw("x"),
    "ladder, a wrong field": lambda: td.tasks.idle_level(3, 5).draw("1, 2, 3, 4"),
    "traffic, 40": lambda: plots.traffic_matrix({"dense": dense(40)}),
}


def rounded(*arrays: Any) -> list[float]:
    """All numbers of them, to six digits."""
    return [float(f"{x:.6g}") + 0.0 for each in arrays for x in np.ravel(each)]


def drawn(axes: Any) -> Iterator[tuple[str, list[Any]]]:
    """(its name or kind, where it is and its colours) of everything in the axes."""
    for each in axes.collections:
        colours = each.get_facecolor(), each.get_edgecolor()
        places = [path.vertices for path in each.get_paths()]
        yield str(each.get_gid()), rounded(*places, *colours)
    for each in axes.patches:
        yield str(each.get_gid()), rounded(each.get_bbox().bounds, each.get_facecolor())
    for each in axes.lines:
        style = each.get_color(), each.get_marker(), each.get_linestyle()
        yield f"line {each.get_gid()}", [*map(str, style), *rounded(each.get_xydata())]
    for each in axes.texts:
        yield "text", [each.get_text(), each.get_color(), *rounded(each.get_position())]
    for each in axes.images:
        yield "image", rounded(each.get_array())


def picture(name: str) -> list[dict[str, Any]]:
    """Of each axes its limits, its words, and how many there are of each name, with a digest."""
    found = []
    for axes in FIGURES[name]().axes:
        parts: dict[str, list[Any]] = {}
        for gid, part in drawn(axes):
            parts.setdefault(gid, []).append(part)
        ticks = [t.get_text() for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        legend = axes.get_legend()
        said = [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *ticks]
        said += [t.get_text() for t in legend.get_texts()] if legend else []
        limits = rounded(axes.get_xlim(), axes.get_ylim())
        counts = {gid: [len(each), digest(each)] for gid, each in parts.items()}
        found.append({"words": said, "limits": limits, "parts": counts})
    return found


LARGE = "16 x 24|in a V|a part|of many|thin|40"
"""Of figures that take long: they are looked at when all rows are."""


def pictures(given: dict[str, Any]) -> Any:
    return {n: picture(n) for n in FIGURES if bool(re.search(LARGE, n)) == given["large"]}


SETS = (GoldenSet("figures", pictures),)
