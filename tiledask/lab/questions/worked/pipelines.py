"""11, 12, 34, 36 and 37: layers in a row on devices: where to cut them, and how micro-batches flow.

one batch     B1↑ .  .  B1↓      1/p of the time is used
m of 1/m      m / (m + p - 1) is used; with a overhead each, (m + p - 1)(a + W/m) has a minimum
consecutive   [1 2 3 4][5 6 7 8][9 10 11 12]      2 crossings
round robin   1|2|3|1|2|3|1|2|3|1|2|3             11 crossings: chunks of interleaved 1F1B
"""

from fractions import Fraction
from itertools import pairwise
from math import comb, isqrt, sqrt
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PartitionError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import MOST_WORKERS, Input, WorkedAnswer, question
from tiledask.lab.questions.shares import some
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.runs import one_batch
from tiledask.lab.questions.worked.sizes import ADAM
from tiledask.lab.table import Comparison
from tiledask.plan.pipelines.closed_form import bubble_fraction, bubble_overhead
from tiledask.plan.units import format_bytes

# -- 11 and 12: micro-batches, alone and combined --------------------------------------------------


@question(
    11,
    "Combining Model Parallelism with Other Mechanisms",
    "A model of {parameters} parameters is cut into {stages} stages. What does it gain from "
    "{microbatches} micro-batches, from {replicas} replicas, and from splitting each layer in "
    "{tensor} as well: how many devices, how busy, how full?",
    stages=Input("stages p", 2, 4096),
    tensor=Input("slices t of each layer", 1, 4096, run=4),
    replicas=Input("replicas d", 1, 100_000, run=8),
    microbatches=Input("micro-batches m of a replica", 1, 100_000, run=8),
    parameters=Input("parameters of the model", 1),
)
def combined(
    stages: int = 2,
    tensor: int = 2,
    replicas: int = 2,
    microbatches: int = 4,
    parameters: float = 30e9,
) -> WorkedAnswer:
    """A line for each combination: devices, utilisation, bytes on each."""
    B, p = td.load_recipe(ADAM).bytes_per_parameter, stages
    forms = {  # slices, replicas, micro-batches
        "MP alone": (1, 1, 1),
        "MP + micro-batches": (1, 1, microbatches),
        "MP + DP": (1, replicas, microbatches),
        "MP + TP + DP": (tensor, replicas, microbatches),
    }
    values = {
        name: {
            "devices": p * t * d,
            "utilisation": m / (m + p - 1),
            "bytes": B * parameters / (p * t),
        }
        for name, (t, d, m) in forms.items()
    }
    first, second, _, last = values.values()

    def run(cluster: Cluster) -> Comparison:
        """A small decoder trained under each combination; its pipeline timed on workers."""
        rows, times = [], {"forward": 0.1, "backward": 0.2}
        model = {"hidden": 16, "layers": 2 * p, "heads": 4, "sequence": 16}
        for name, (t, d, m) in forms.items():
            n, order = p * t * d, td.schedule("naive" if m == 1 else "1f1b", p, m)
            mesh = td.Mesh(cluster, (d, t, p)) if n <= cluster.slots else (d, t, p)
            how = {"microbatches": m, "schedule": order}
            batch = replicas * microbatches
            done, losses, _ = runs.decoder(mesh, f"{name}: ", batch, model, **how)
            rows += [Claim(f"{name}: devices", n, None, len(done.held), rule="equal"), losses]
            if t == d == 1:
                both = td.simulate(order, **times), runs.pipelined(cluster, order, **times).timeline
                rows.append(runs.used_claim(f"{name}: used", m / (m + p - 1), *both))
        return Comparison("Each combination trained, on workers or as threads", rows)

    return WorkedAnswer(
        f"Model parallelism alone uses {100 * first['utilisation']:.0f} % of {p} devices; "
        f"{microbatches} micro-batches raise that to {100 * second['utilisation']:.0f} %; replicas "
        f"multiply throughput and leave the {format_bytes(first['bytes'])} a device as they are; "
        f"splitting layers too makes them {format_bytes(last['bytes'])} on {last['devices']} "
        f"devices.",
        [
            sizes.convention(),
            *(
                f"{name}: n = {p} x {t} x {d} = {p * t * d} devices; m/(m + p - 1) = {m} / "
                f"{m + p - 1} = {100 * m / (m + p - 1):.1f} % used; {B} B x {parameters / 1e9:g} "
                f"billion / ({p} x {t}) = {format_bytes(values[name]['bytes'])} a device"
                for name, (t, d, m) in forms.items()
            ),
            f"replicas do not appear in the bytes: each keeps what one would; with ZeRO-1 the 12 B "
            f"of masters and Adam would be divided by d = {replicas} as well",
        ],
        values,
        run,
        max(stages, min(MOST_WORKERS, stages * replicas)),
    )


@question(
    12,
    "Pipeline Parallelism",
    "A batch is cut into {microbatches} micro-batches that flow through {stages} pipeline stages "
    "by {schedule}. How busy are the devices, how large is the bubble, and what do they keep? And "
    "if every micro-batch also costs a fixed overhead, how many of them give the best throughput?",
    stages=Input("stages p, one on each device", 2, 4096),
    microbatches=Input("micro-batches m of the batch", 1, 100_000, run=256),
    schedule=Input("their order", choices=("1f1b", "gpipe")),
    forward="seconds of a micro-batch in a stage, up",
    backward="seconds of the same, down",
    overhead=Input("seconds more for each, in a stage, up and down", 0),
)
def pipeline(
    stages: int = 4,
    microbatches: int = 8,
    schedule: str = "1f1b",
    forward: float = 0.03,
    backward: float = 0.06,
    overhead: float = 0.03,
) -> WorkedAnswer:
    """Utilisation, bubble and memory of the schedule; the best number of micro-batches."""
    p, m, each, a = stages, microbatches, forward + backward, Fraction(str(overhead))
    kept = {"gpipe": m, "1f1b": min(p, m)}
    used, W = m / (m + p - 1), m * (Fraction(str(forward)) + Fraction(str(backward)))

    def seconds(n: int) -> Fraction:
        return (n + p - 1) * (a + W / n)

    def pieces(n: int, a: float) -> dict[str, Any]:
        """Seconds of an action, if the batch is cut in n; half of the overhead each way."""
        return {"forward": forward * m / n + a / 2, "backward": backward * m / n + a / 2}

    values = {
        "utilisation": used,
        "makespan": (m + p - 1) * each,
        "bubble": bubble_overhead(p, m),
        "kept": kept[schedule],
    }
    lines = [
        f"one batch at a time: 1/p = 1/{p} = {100 / p:.1f} % used",
        f"with m = {m} micro-batches the last stage begins p - 1 = {p - 1} turns late: m + p - 1 = "
        f"{m + p - 1} turns of {forward:g} + {backward:g} = {each:g} s, {(m + p - 1) * each:g} s",
        f"used: m / (m + p - 1) = {m} / {m + p - 1} = {100 * used:.1f} %; bubble over ideal time: "
        f"(p - 1) / m = {p - 1} / {m} = {100 * bubble_overhead(p, m):.1f} % (SC21); of all time: "
        f"(p - 1) / (m + p - 1) = {100 * bubble_fraction(p, m):.1f} %",
        f"micro-batches whose activations the fullest stage keeps: GPipe m = {kept['gpipe']}, "
        f"1F1B min(p, m) = {kept['1f1b']}; the time is the same",
    ]
    tries: list[int] = []
    more = "Without overhead, more micro-batches are always better."
    if overhead:  # the best is beside sqrt((p - 1) W / a), compared exactly
        near = isqrt(int((p - 1) * W / a))
        best = min((max(1, near), near + 1), key=seconds)
        tries = sorted({max(1, best // 4), best, 4 * best})
        alike = seconds(best + 1) == seconds(best)
        which = f"{best}" + f" (or {best + 1}, which takes as long)" * alike
        lines += [
            f"now each micro-batch costs a stage a = {overhead:g} s beside its share of W = {m} x "
            f"{each:g} = {float(W):g} s: t(m) = (m + p - 1)(a + W/m), least at m = "
            f"sqrt((p - 1) W / a) = sqrt({p - 1} x {float(W):g} / {overhead:g}) = "
            f"{sqrt((p - 1) * W / overhead):.3g}; of whole numbers the best is {which}",
            *(
                f"t({n}) = ({n} + {p - 1})({overhead:g} + {float(W):g}/{n}) = "
                f"{float(seconds(n)):.4g} s"
                for n in tries
            ),
        ]
        values |= {"best microbatches": best, "best seconds": float(seconds(best))}
        more = (
            f"With {overhead:g} s of overhead for each in a stage, cutting the batch in {which} is "
            f"the fastest: fewer leave a larger bubble, more pay more overhead."
        )

    def run(cluster: Cluster) -> Comparison:
        """The schedule on workers; then the three experiments, each with its overhead."""
        order, times, took = td.schedule(schedule, p, m), pieces(m, 0.0), {}
        t, seen = td.simulate(order, **times), runs.pipelined(cluster, order, **times).timeline
        peaks = kept[schedule], max(t.peak_in_flight), max(seen.peak_in_flight)
        rows = [
            runs.used_claim(f"{schedule}, m = {m}: used", used, t, seen),
            Claim(f"{schedule}: activations kept at most", *peaks, rule="equal"),
        ]
        for n in tries:
            order, times = td.schedule(schedule, p, n), pieces(n, overhead)
            done = td.run_schedule(order, cluster=cluster, engine="loop", **times)
            took[n] = done.timeline.makespan
            said = float(seconds(n)), td.simulate(order, **times).makespan
            rows.append(Claim(f"t({n}) with overhead", *said, took[n], "seconds"))
        if tries:
            found = best, min(took, key=seconds), min(took, key=took.__getitem__)
            rows.append(Claim("fastest of these counts", *found, rule="equal"))
        return Comparison(f"A pipeline of {p} stages on {p} workers", rows)

    return WorkedAnswer(
        f"{m} micro-batches on {p} stages use {100 * used:.1f} % of the time, where one batch uses "
        f"{100 / p:.1f} %; {schedule} keeps the activations of {kept[schedule]} at most. {more}",
        lines,
        values,
        run,
        stages,
        lambda: td.plots.gantt(
            td.simulate(td.schedule(schedule, p, m), **pieces(m, 0.0)),
            title=f"{schedule}, {m} micro-batches on {p} stages",
        ),
    )


# -- 34 and 36: cut evenly, or dealt round ---------------------------------------------------------

LISTED = 100_000
"""Splits that are looked at one by one; of more, the exact method alone says which is best."""


@question(
    34,
    "{layers} sequential layers on {devices} devices",
    "A network of {layers} layers in a row is cut over {devices} devices by layer-wise model "
    "parallelism. Which layers does each device get?",
    layers=Input("layers in a row", 2, 5000, run=500),
    devices=Input("devices, one after the other", 2, 1000),
    last_cost="work of the last layer; others are 1",
)
def cut_layers(layers: int = 24, devices: int = 4, last_cost: float = 1.0) -> WorkedAnswer:
    """The exact cut, the best of all splits beside it, and typical wrong answers judged."""
    costs = [1.0] * (layers - 1) + [last_cost]
    cut, robin = td.partition(costs, devices), [layer % devices for layer in range(layers)]
    groups = [f"{part[0] + 1}-{part[-1] + 1}" for part in cut.layers]
    answers: dict[str, Any] = {
        "the cut": " | ".join(groups),
        "round robin": robin,
        "first two swapped": " | ".join([groups[1], groups[0], *groups[2:]]),
        "last device idle": " | ".join([*groups[:-2], f"{cut.layers[-2][0] + 1}-{layers}", ""]),
    }
    judged = {name: td.judge(answer, layers, devices, costs) for name, answer in answers.items()}
    few, many = (judged[name].crossings or 0 for name in ("the cut", "round robin"))
    splits = comb(layers - 1, devices - 1)
    shown = f"{splits:,}" if splits < 10**12 else f"about 1e{len(str(splits)) - 1}"
    lines = [
        f"{layers} layers, the last of cost {last_cost:g}: {layers - 1} + {last_cost:g} = "
        f"{sum(costs):g}; / {devices} devices = {sum(costs) / devices:g} a device on average",
        f"contiguous splits, none empty: C({layers - 1}, {devices - 1}) = {shown}",
    ]
    if splits <= LISTED:
        more = Fraction(str(last_cost)) - 1  # of the last layer: compared exactly
        fullest = [
            max(Fraction(max(b - a for a, b in pairwise(s))), s[-1] - s[-2] + more)
            for s in td.contiguous_splits(layers, devices)
        ]
        least = min(fullest)
        lines.append(
            f"all {splits:,} listed: the fullest device has {float(least):g} at least, in "
            f"{fullest.count(least)} of them"
        )
    lines += [
        f"{name}: {found.rule or 'legal'}. {found.reason.rstrip('.').split('. ')[0]}."
        for name, found in judged.items()
    ]
    lines.append(
        f"crossings from device to device: {devices} - 1 = {few} in one cut, {layers} - 1 = {many} "
        f"in round robin"
    )
    placed = {"the cut": (list(cut.place), few), "round robin": (robin, many)}
    return WorkedAnswer(
        f"{some(groups, ' | ', 32)}: sizes {some([*map(str, cut.sizes)], most=32)}, {few} "
        f"crossings; the fullest device has {cut.bottleneck:g} layers' work.",
        lines,
        {
            "sizes": list(cut.sizes),
            "fullest": cut.bottleneck,
            "splits": splits,
            "crossings": few,
            "crossings round robin": many,
        },
        lambda cluster: Comparison(
            f"{layers} layers on {devices} workers, one forward pass",
            [row for name, how in placed.items() for row in runs.placed(cluster, name, *how)],
        ),
        devices,
        lambda: td.plots.layers_on_devices({"contiguous": cut.place, "round robin": robin}),
    )


def _dealt(layers: int, devices: int) -> str:
    """The layers of each device, from 1: "1,4,7,10 | 2,5,8,11 | 3,6,9,12"; of many, some."""
    groups = [[str(n + 1) for n in range(d, layers, devices)] for d in range(devices)]
    return some([some(group, ",", 8) for group in groups], " | ", 8)


@question(
    36,
    lambda layers, devices, microbatches: (
        f"True or false: {layers} layers on {devices} devices, {_dealt(layers, devices)}"
    ),
    lambda layers, devices, microbatches: (
        f"{layers} layers are dealt round {devices} devices, a device's behind each bar: "
        f"{_dealt(layers, devices)}. Is that layer-wise model parallelism? (And in a pipeline of "
        f"{microbatches} micro-batches?)"
    ),
    layers=Input("layers in a row", 2, 1000, run=200),
    devices=Input("devices; they divide the layers", 2, 500),
    microbatches=Input("micro-batches of the pipelines at the end", 1, 256, run=64),
)
def dealt_round(layers: int = 12, devices: int = 3, microbatches: int = 3) -> WorkedAnswer:
    """The verdict by the rule, crossings and utilisation both ways, and interleaving's bubble."""
    if layers % devices:
        raise PartitionError(
            f"as many layers on every device: {layers} layers do not divide by {devices}; use "
            f"{layers - layers % devices} layers"
        )
    p, m, v, shown = devices, microbatches, layers // devices, _dealt(layers, devices)
    places = {
        "consecutive": list(td.partition(layers, p).place),
        "round robin": [layer % p for layer in range(layers)],
    }
    orders = {
        "1F1B": (td.schedule("1f1b", p, m), 1),
        "interleaved": (td.schedule("interleaved", layers, m, devices=p), v),
    }
    times = {name: {"forward": 0.2 / c, "backward": 0.4 / c} for name, (_, c) in orders.items()}
    found = {name: td.simulate(order, **times[name]) for name, (order, _) in orders.items()}
    few, many = (td.judge(place, layers, p).crossings or 0 for place in places.values())
    verdict = td.judge(places["round robin"], layers, p)
    used = td.simulate(one_batch(places["consecutive"])).utilisation
    by_formula = (
        f"(p - 1) / (v m) = {p - 1} / ({v} x {m}) = {100 * bubble_overhead(p, m, v):.1f} %, 1/{v} "
        f"of it, at {many / few:.3g} times the transfers"
    )
    if m % p:
        by_formula = (
            f"simulated: {100 * found['interleaved'].bubble_overhead:.1f} % (the formula "
            f"(p - 1) / (v m) is for m a multiple of p, and {m} is none of {p})"
        )
    answer = f"True: with one layer on each of {p} devices {shown} is layer-wise."
    if not verdict:
        answer = (
            f"False: {shown} is not layer-wise, for no device has consecutive layers. It crosses "
            f"{many} times where {few} would do, and a single batch uses the same 1/{p}. Only a "
            f"pipeline of micro-batches gains by it."
        )

    def run(cluster: Cluster) -> Comparison:
        """Real layers placed both ways; then both as pipelines of actions that take their time."""
        rows = []
        for (name, place), crossings in zip(places.items(), (p - 1, layers - 1), strict=True):
            rows += runs.placed(cluster, name, place, crossings)
        for name, (order, chunks) in orders.items():
            done, at = runs.pipelined(cluster, order, **times[name]), f"{name}, {m} micro-batches"
            share = None if m % p else 1 - bubble_fraction(p, m, chunks)
            sent = done.traffic.predicted.count, done.traffic.measured.count
            rows += [
                runs.used_claim(f"{at}: used", share, found[name], done.timeline),
                Claim(f"{at}: transfers", 2 * m * (p * chunks - 1), *sent, "count", "equal"),
            ]
        return Comparison(f"{layers} layers on {p} workers", rows)

    return WorkedAnswer(
        answer,
        [
            f"{shown}: {verdict.rule or 'legal'}. {verdict.reason}",
            f"crossings: consecutive {p} - 1 = {few}; round robin {layers} - 1 = {many}, every "
            f"layer hands on to another device: {many / few:.3g} times as many transfers",
            f"one batch at a time both use 1/{p} = {100 / p:.1f} %: dealing alone gains nothing",
            f"with micro-batches the same placement is interleaved 1F1B with v = {layers} / {p} = "
            f"{v} chunks a device; bubble over ideal time, consecutive: (p - 1) / m = {p - 1} / "
            f"{m} = {100 * bubble_overhead(p, m):.1f} %; interleaved: {by_formula}",
        ],
        {
            "layer-wise": bool(verdict),
            "crossings": few,
            "crossings round robin": many,
            "utilisation": used,
            **{f"bubble {name}": t.bubble_overhead for name, t in found.items()},
        },
        run,
        devices,
        lambda: td.plots.layers_on_devices(places),
    )
