"""34: layers in a row, cut evenly over devices. The best cut, the wrong ones judged, both run."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from math import comb

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison

__all__ = ["QUESTION"]

MANY = 32
LISTED = 100_000
"""Splits that are looked at one by one; of more, the exact method alone says which is best."""


def _round_robin(layers: int, devices: int) -> list[int]:
    return [layer % devices for layer in range(layers)]


def _some(parts: Iterable[str], between: str) -> str:
    """All parts, or the first and the last of many."""
    every = list(parts)
    return between.join(every if len(every) <= MANY else [*every[:3], "...", every[-1]])


def _counted(n: int) -> str:
    return f"{n:,}" if n < 10**12 else f"about 1e{len(str(n)) - 1}"


def _first(reason: str) -> str:
    """The first sentence: what is wrong."""
    return f"{reason.rstrip('.').split('. ')[0]}."


def work(layers: int, devices: int, last_cost: float) -> WorkedAnswer:
    """The exact cut, the best of all splits beside it, and typical wrong answers judged."""
    costs = [1.0] * (layers - 1) + [last_cost]
    cut = td.partition(costs, devices)
    robin = _round_robin(layers, devices)
    groups = [f"{part[0] + 1}-{part[-1] + 1}" for part in cut.layers]
    options = {
        "the cut": " | ".join(groups),
        "round robin": robin,
        "first two swapped": " | ".join([groups[1], groups[0], *groups[2:]]),
        "last device idle": " | ".join([*groups[:-2], f"{cut.layers[-2][0] + 1}-{layers}", ""]),
    }
    judged = {name: td.judge(answer, layers, devices, costs) for name, answer in options.items()}
    splits = comb(layers - 1, devices - 1)
    lines = [
        f"{layers} layers, the last of cost {last_cost:g}: {layers - 1} + {last_cost:g} = "
        f"{sum(costs):g}; / "
        f"{devices} devices = {sum(costs) / devices:g} a device on average",
        f"contiguous splits, none empty: C({layers - 1}, {devices - 1}) = {_counted(splits)}",
    ]
    if splits <= LISTED:
        more = Fraction(str(last_cost)) - 1  # of the last layer: compared exactly
        fullest = [
            max(*(b - a for a, b in pairwise(s)), s[-1] - s[-2] + more)
            for s in td.contiguous_splits(layers, devices)
        ]
        least = min(fullest)
        lines.append(
            f"all {len(fullest):,} listed: the fullest device has {float(least):g} at least, in "
            f"{fullest.count(least)} of them"
        )
    lines += [
        f"{name}: {'legal' if verdict else verdict.rule}. {_first(verdict.reason)}"
        for name, verdict in judged.items()
    ]
    contiguous, scattered = judged["the cut"].crossings, judged["round robin"].crossings
    lines.append(
        f"crossings from device to device: {devices} - 1 = {contiguous} in one cut, "
        f"{layers} - 1 = {scattered} in round robin"
    )
    return WorkedAnswer(
        f"{_some(groups, ' | ')}: sizes {_some(map(str, cut.sizes), ', ')}, {contiguous} "
        f"crossings; the fullest device has {cut.bottleneck:g} layers' work.",
        lines,
        {
            "sizes": list(cut.sizes),
            "fullest": cut.bottleneck,
            "splits": splits,
            "crossings": contiguous,
            "crossings round robin": scattered,
        },
        lambda: td.plots.layers_on_devices({"contiguous": cut.place, "round robin": robin}),
    )


def run(cluster: Cluster, layers: int, devices: int, last_cost: float) -> Comparison:
    """Layers of one size, really run under both placements, and on one worker."""
    from tiledask.lab.tour.layers import batch, run_layers

    cut = td.partition([1.0] * (layers - 1) + [last_cost], devices)
    placements = {
        "the cut": (list(cut.place), devices - 1),
        "round robin": (_round_robin(layers, devices), layers - 1),
    }
    alone = run_layers(cluster, [0] * layers)
    rows = []
    for name, (place, crossings) in placements.items():
        done = run_layers(cluster, place)
        counted, planned = done.traffic.measured, done.traffic.predicted
        sent = crossings * batch().nbytes
        same = done.outputs.tobytes() == alone.outputs.tobytes()
        rows += [
            Claim(f"{name}: messages", crossings, planned.count, counted.count, "count", "equal"),
            Claim(f"{name}: bytes sent", sent, planned.total, counted.total, "bytes", "equal"),
            Claim(f"{name}: output has the bits of one worker's", measured=same, rule="true"),
        ]
    return Comparison(f"{layers} layers on {devices} workers, one forward pass", rows)


QUESTION = CourseQuestion(
    number=34,
    title="{layers} sequential layers on {devices} devices",
    asked="A network of {layers} layers in a row is cut over {devices} devices by layer-wise model "
    "parallelism. Which layers does each device get?",
    inputs={
        "layers": Input(24, 12, whole(2, 5000), "layers in a row"),
        "devices": Input(4, 3, whole(2, 1000), "devices, one after the other"),
        "last_cost": Input(1.0, 4.0, number(above=True), "work of the last layer; others are 1"),
    },
    work=work,
    run=run,
    largest_run={"layers": 500},
    workers=lambda devices, **_: devices,
)
