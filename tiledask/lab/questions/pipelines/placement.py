"""34 and 36: layers in a row on devices, cut evenly or dealt round; wrong cuts judged, both run.

consecutive   [1 2 3 4][5 6 7 8][9 10 11 12]      2 crossings
round robin   1|2|3|1|2|3|1|2|3|1|2|3             11 crossings: chunks of interleaved 1F1B
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb
from typing import TYPE_CHECKING

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PartitionError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.pipelines.one_batch import NEARLY, executed, one_batch
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.pipelines.closed_form import bubble_fraction, bubble_overhead

if TYPE_CHECKING:
    from tiledask.distributed.pipelines.run import PipelineRun

__all__ = ["QUESTION_34", "QUESTION_36", "run_layers"]

SHAPE = {"width": 256, "hidden": 1024, "seed": 24}
"""Of a layer that is really run."""
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


def work_34(layers: int, devices: int, last_cost: float) -> WorkedAnswer:
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


def _batch() -> np.ndarray:
    """What goes in: 64 tokens of the layers' width, float32."""
    return np.random.default_rng(3).standard_normal((64, SHAPE["width"]), np.float32)


def run_layers(cluster: Cluster, place: Sequence[int]) -> "PipelineRun":
    """The run of one forward pass, a layer a stage, each on the device that ``place`` says."""
    from tiledask.distributed.pipelines.stages import stack

    orders = [
        [td.Action("F", layer, 0) for layer, where in enumerate(place) if where == device]
        for device in range(max(place) + 1)
    ]
    schedule = td.Schedule.of(orders, place, "layer by layer")
    return td.run_schedule(schedule, stack(range(len(place) + 1), **SHAPE), _batch(), cluster)


def run_34(cluster: Cluster, layers: int, devices: int, last_cost: float) -> Comparison:
    """Layers of one size, really run under both placements, and on one worker."""
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
        sent = crossings * _batch().nbytes
        same = done.outputs.tobytes() == alone.outputs.tobytes()
        rows += [
            Claim(f"{name}: messages", crossings, planned.count, counted.count, "count", "equal"),
            Claim(f"{name}: bytes sent", sent, planned.total, counted.total, "bytes", "equal"),
            Claim(f"{name}: output has the bits of one worker's", measured=same, rule="true"),
        ]
    return Comparison(f"{layers} layers on {devices} workers, one forward pass", rows)


QUESTION_34 = CourseQuestion(
    number=34,
    title="{layers} sequential layers on {devices} devices",
    asked="A network of {layers} layers in a row is cut over {devices} devices by layer-wise model "
    "parallelism. Which layers does each device get?",
    inputs={
        "layers": Input(24, whole(2, 5000), "layers in a row"),
        "devices": Input(4, whole(2, 1000), "devices, one after the other"),
        "last_cost": Input(1.0, number(above=True), "work of the last layer; others are 1"),
    },
    work=work_34,
    run=run_34,
    largest_run={"layers": 500},
    workers=lambda devices, **_: devices,
)
FORWARD, BACKWARD = 0.2, 0.4
"""Seconds of all layers of a device, for one micro-batch."""


def _places(layers: int, devices: int) -> dict[str, list[int]]:
    """The device of each layer, both ways; PartitionError for layers that cannot be dealt out."""
    if layers % devices:
        raise PartitionError(
            f"as many layers on every device: {layers} layers do not divide by {devices}; use "
            f"{layers - layers % devices} layers"
        )
    return {
        "consecutive": list(td.partition(layers, devices).place),
        "round robin": [layer % devices for layer in range(layers)],
    }


def _orders(layers: int, devices: int, microbatches: int) -> dict[str, tuple[td.Schedule, int]]:
    """(schedule, chunks of a device) of a pipeline that cuts the layers each way."""
    return {
        "1F1B": (td.schedule("1f1b", devices, microbatches), 1),
        "interleaved": (
            td.schedule("interleaved", layers, microbatches, devices=devices),
            layers // devices,
        ),
    }


def _times(chunks: int) -> dict[str, float]:
    return {"forward": FORWARD / chunks, "backward": BACKWARD / chunks}


def _dealt(layers: int, devices: int) -> str:
    """The layers of each device, from 1: "1,4,7,10 | 2,5,8,11 | 3,6,9,12"; of many, some."""
    groups = [[str(n + 1) for n in range(d, layers, devices)] for d in range(devices)]
    short = [",".join(g if len(g) <= 8 else [*g[:3], "...", g[-1]]) for g in groups]
    return " | ".join(short if devices <= 8 else [*short[:3], "...", short[-1]])


def work_36(layers: int, devices: int, microbatches: int) -> WorkedAnswer:
    """The verdict by the rule, crossings and utilisation both ways, and interleaving's bubble."""
    places, p, m = _places(layers, devices), devices, microbatches
    shown = _dealt(layers, p)
    judged = {name: td.judge(place, layers, p) for name, place in places.items()}
    used = {n: td.simulate(one_batch(place)).utilisation for n, place in places.items()}
    few, many = (judged[name].crossings for name in places)
    v = layers // p
    timelines = {
        name: td.simulate(order, **_times(chunks))
        for name, (order, chunks) in _orders(layers, p, m).items()
    }
    lines = [
        f"{shown}: {judged['round robin'].rule or 'legal'}. {judged['round robin'].reason}",
        f"crossings, consecutive: {p} - 1 = {few}",
        f"crossings, round robin: {layers} - 1 = {many}, every layer hands on to another device: "
        f"{many} / {few} = {many / few:.3g} times as many transfers",
        f"one batch at a time both use 1/{p} = {100 / p:.1f} %: dealing alone gains nothing",
        f"with micro-batches the same placement is interleaved 1F1B with v = {layers} / {p} = {v} "
        f"chunks a device",
        f"bubble over ideal time, consecutive: (p - 1) / m = {p - 1} / {m} = "
        f"{100 * bubble_overhead(p, m):.1f} %",
    ]
    if m % p:
        lines.append(
            f"interleaved, simulated: {100 * timelines['interleaved'].bubble_overhead:.1f} % (the "
            f"formula (p - 1) / (v m) is for m a multiple of p, and {m} is none of {p})"
        )
    else:
        lines.append(
            f"bubble over ideal time, interleaved: (p - 1) / (v m) = {p - 1} / ({v} x {m}) = "
            f"{100 * bubble_overhead(p, m, v):.1f} %, 1/{v} of it, at {many / few:.3g} times the "
            "transfers"
        )
    said = f"True: with one layer on each of {p} devices {shown} is layer-wise."
    if not judged["round robin"]:
        said = (
            f"False: {shown} is not layer-wise, for no device has consecutive layers. It crosses "
            f"{many} times where {few} would do, and a single batch uses the same 1/{p}. Only a "
            f"pipeline of micro-batches gains by it."
        )
    return WorkedAnswer(
        said,
        lines,
        {
            "layer-wise": bool(judged["round robin"]),
            "crossings": few,
            "crossings round robin": many,
            "utilisation": used["consecutive"],
            **{f"bubble {name}": t.bubble_overhead for name, t in timelines.items()},
        },
        lambda: td.plots.layers_on_devices(places),
    )


def run_36(cluster: Cluster, layers: int, devices: int, microbatches: int) -> Comparison:
    """Real layers placed both ways; then both as pipelines of actions that take their time."""
    rows, p, m = [], devices, microbatches
    for name, place in _places(layers, p).items():
        crossings = (p if name == "consecutive" else layers) - 1
        judged, done = td.judge(place, layers, p).crossings, run_layers(cluster, place)
        sent = done.traffic.measured.count
        rows.append(Claim(f"{name}: transfers of a pass", crossings, judged, sent, rule="equal"))
        order = one_batch(place)
        each = {"forward": p * FORWARD / layers, "backward": p * BACKWARD / layers}
        t, seen = td.simulate(order, **each), executed(cluster, order, **each).timeline
        shares = 1 / p, t.utilisation, seen.utilisation
        rows.append(Claim(f"{name}: one batch uses", *shares, unit="percent", rule=NEARLY))
    for name, (order, chunks) in _orders(layers, p, m).items():
        times = _times(chunks)
        t, done = td.simulate(order, **times), executed(cluster, order, **times)
        said = None if m % p else 1 - bubble_fraction(p, m, chunks)
        at = f"{name}, {m} micro-batches"
        used = said, t.utilisation, done.timeline.utilisation
        sent = 2 * m * (p * chunks - 1)
        planned, counted = done.traffic.predicted.count, done.traffic.measured.count
        rows += [
            Claim(f"{at}: used", *used, unit="percent", rule=NEARLY),
            Claim(f"{at}: transfers", sent, planned, counted, "count", "equal"),
        ]
    return Comparison(f"{layers} layers on {p} workers", rows)


QUESTION_36 = CourseQuestion(
    number=36,
    title=lambda layers, devices, microbatches: (
        f"True or false: {layers} layers on {devices} devices, {_dealt(layers, devices)}"
    ),
    asked=lambda layers, devices, microbatches: (
        f"{layers} layers are dealt round {devices} devices, a device's behind each bar: "
        f"{_dealt(layers, devices)}. Is that layer-wise model parallelism? (And in a pipeline of "
        f"{microbatches} micro-batches?)"
    ),
    inputs={
        "layers": Input(12, whole(2, 1000), "layers in a row"),
        "devices": Input(3, whole(2, 500), "devices; they divide the layers"),
        "microbatches": Input(3, whole(1, 256), "micro-batches of the pipelines at the end"),
    },
    work=work_36,
    run=run_36,
    largest_run={"layers": 200, "microbatches": 64},
    workers=lambda devices, **_: devices,
)
