"""11, 12, 17, 34, 36 and 37: layers in a row: where to cut them, how micro-batches flow, why they
idle.

one batch     B1↑ .  .  B1↓      1/p of the time is used
m of 1/m      m / (m + p - 1) is used; with a overhead each, (m + p - 1)(a + W/m) has a minimum
consecutive   [1 2 3 4][5 6 7 8][9 10 11 12]      2 crossings
round robin   1|2|3|1|2|3|1|2|3|1|2|3             11 crossings: chunks of interleaved 1F1B
"""

from collections.abc import Callable
from fractions import Fraction
from math import comb, isqrt
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs, sizes
from tiledask.lab.course.question import Worked, question, some
from tiledask.plan.diagnosis.diagnose import Diagnosis
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.closed_form import bubble_fraction, bubble_overhead
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.units import format_bytes


@question(11)
def combined(
    stages: int, tensor: int, replicas: int, microbatches: int, parameters: float
) -> Worked:
    """A line for each combination: devices, utilisation, bytes on each."""
    whole, p = td.load_recipe(sizes.ADAM).bytes_per_parameter * parameters, stages
    values, lines = {}, [sizes.convention()]
    for name, t, d, m in (
        ("MP alone", 1, 1, 1),
        ("MP + micro-batches", 1, 1, microbatches),
        ("MP + DP", 1, replicas, microbatches),
        ("MP + TP + DP", tensor, replicas, microbatches),
    ):
        used, each = m / (m + p - 1), whole / (p * t)
        values[name] = {"devices": p * t * d, "utilisation": used, "bytes": each}
        lines.append(
            f"{name}: {p} x {t} x {d} devices; m/(m + p - 1) = {m} / {m + p - 1} used; "
            f"{format_bytes(whole)} / ({p} x {t}) = {format_bytes(each)} a device"
        )
    first, second, _, last = values.values()
    return Worked(
        f"Model parallelism alone uses {100 * first['utilisation']:.0f} % of {p} devices, with "
        f"{microbatches} micro-batches {100 * second['utilisation']:.0f} %; only splitting layers "
        f"lowers {format_bytes(first['bytes'])} a device to {format_bytes(last['bytes'])}.",
        *lines,
        values=values,
        run=lambda cluster: [
            *runs.idle(cluster, p, 1, "naive"), *runs.idle(cluster, p, microbatches),
            *runs.trained(cluster, Layout(dp=replicas, tp=tensor, pp=p))],
    )  # fmt: skip


@question(12)
def pipeline(
    stages: int, microbatches: int, schedule: str, forward: float, backward: float, overhead: float
) -> Worked:
    """Utilisation, bubble and memory of the schedule; the best number of micro-batches."""
    p, m, each, a = stages, microbatches, forward + backward, Fraction(str(overhead))
    kept = m if schedule == "gpipe" else min(p, m)
    used, W = m / (m + p - 1), m * (Fraction(str(forward)) + Fraction(str(backward)))

    def seconds(n: int) -> Fraction:
        return (n + p - 1) * (a + W / n)

    values = {"utilisation": used, "makespan": (m + p - 1) * each, "bubble": bubble_overhead(p, m),
              "kept": kept}  # fmt: skip
    lines = [
        f"m + p - 1 = {m + p - 1} turns of {forward:g} + {backward:g} = {each:g} s",
        f"used: m / (m + p - 1) = {100 * used:.1f} %; bubble over ideal time: (p - 1) / m = "
        f"{100 * bubble_overhead(p, m):.1f} %; of all time: {100 * bubble_fraction(p, m):.1f} %",
        "the fullest stage keeps the activations of m by GPipe, of min(p, m) by 1F1B",
    ]
    more = "Without overhead, more micro-batches are always better."
    if overhead:  # the best is beside sqrt((p - 1) W / a), compared exactly
        near = isqrt(int((p - 1) * W / a))
        best = min((max(1, near), near + 1), key=seconds)
        alike = f" (or {best + 1}, which takes as long)" * (seconds(best + 1) == seconds(best))
        lines.append(
            f"{overhead:g} s more for each, beside its share of W = {float(W):g} s: t(m) = "
            f"(m + p - 1)(a + W/m), least near sqrt((p - 1) W / a)"
        )
        values |= {"best microbatches": best, "best seconds": float(seconds(best))}
        more = f"With {overhead:g} s of overhead for each, cut in {best}{alike} is fastest."
    return Worked(
        f"{m} micro-batches on {p} stages use {100 * used:.1f} % of the time, where one batch uses "
        f"{100 / p:.1f} %; {schedule} keeps the activations of {kept} at most. {more}",
        *lines,
        values=values,
        run=lambda cluster: runs.idle(cluster, p, m, schedule),
        figure=lambda: td.plots.gantt(
            td.simulate(schedule, p, m, forward=forward, backward=backward)
        ),
    )


@question(34)
def cut_layers(layers: int, devices: int, last_cost: float) -> Worked:
    """The exact cut, the best of all splits beside it, and typical wrong answers judged."""
    costs = [1.0] * (layers - 1) + [last_cost]
    cut, robin = td.partition(costs, devices), [layer % devices for layer in range(layers)]
    groups = [f"{part[0] + 1}-{part[-1] + 1}" for part in cut.layers]
    places = {"the cut": list(cut.place), "round robin": robin}
    judged = {name: td.judge(place, layers, devices, costs) for name, place in places.items()}
    few, many = (found.crossings or 0 for found in judged.values())
    splits = comb(layers - 1, devices - 1)
    shown = f"{splits:,}" if splits < 10**12 else f"about 1e{len(str(splits)) - 1}"
    return Worked(
        f"{some(groups, ' | ', 32)}: sizes {some([*map(str, cut.sizes)], most=32)}, {few} "
        f"crossings; the fullest device has {cut.bottleneck:g} layers' work.",
        f"contiguous splits, none empty: C({layers - 1}, {devices - 1}) = {shown}; on average "
        f"{sum(costs):g} / {devices} = {sum(costs) / devices:g} a device",
        *(f"{name}: {found.rule or 'legal'}. {found.reason.rstrip('.').split('. ')[0]}."
          for name, found in judged.items()),
        values={"sizes": list(cut.sizes), "fullest": cut.bottleneck, "splits": splits,
                "crossings": few, "crossings round robin": many},
        run=lambda cluster: [
            *runs.placed(cluster, "the cut", cut.place, few),
            *runs.placed(cluster, "round robin", robin, many)],
        figure=lambda: td.plots.layers_on_devices(places),
    )  # fmt: skip


@question(36)
def dealt_round(layers: int, devices: int, microbatches: int) -> Worked:
    """The verdict by the rule, crossings and utilisation both ways, and interleaving's bubble."""
    p, m, v = devices, microbatches, layers // devices
    cut, robin = list(td.partition(layers, p).place), [layer % p for layer in range(layers)]
    groups = [[str(n + 1) for n in range(d, layers, p)] for d in range(p)]
    shown = some([some(group, ",", 8) for group in groups], " | ", 8)
    plain = td.simulate("1f1b", p, m, forward=0.2, backward=0.4)
    looped = td.simulate(td.schedule("interleaved", layers, m, devices=p), 0.2 / v, 0.4 / v)
    few, many = (td.judge(place, layers, p).crossings or 0 for place in (cut, robin))
    verdict, used = td.judge(robin, layers, p), td.simulate(runs.one_batch(cut)).utilisation
    answer = f"True: with one layer on each of {p} devices {shown} is layer-wise."
    if not verdict:
        answer = f"False: {shown} crosses {many} times where {few} would do, and a single batch "
        answer += f"uses the same 1/{p}. Only a pipeline of micro-batches gains by it."
    return Worked(
        answer,
        f"{shown}: {verdict.rule or 'legal'}. {verdict.reason}",
        f"crossings: consecutive {p} - 1 = {few}; round robin {layers} - 1 = {many}",
        f"with micro-batches it is interleaved 1F1B, {v} chunks a device; bubble over ideal "
        f"time {100 * looped.bubble_overhead:.1f} %, (p - 1) / (v m) for m a multiple of p, "
        f"and not (p - 1) / m = {100 * bubble_overhead(p, m):.1f} %",
        values={"layer-wise": bool(verdict), "crossings": few, "crossings round robin": many,
                "utilisation": used, "bubble 1F1B": plain.bubble_overhead,
                "bubble interleaved": looped.bubble_overhead},
        run=lambda cluster: [
            *runs.placed(cluster, "consecutive", cut, p - 1),
            *runs.placed(cluster, "round robin", robin, layers - 1)],
    )  # fmt: skip


# -- 17 and 37: why devices idle or losses do not fall ---------------------------------------------

TRAININGS: dict[str, dict[str, Any]] = {
    "gradients vanish in fp16": {"scale": 2.0**-22},
    "gradients overflow in fp16": {"scale": 2.0**24},
    "bf16 weights without masters": {"dtype": "bfloat16", "rate": 0.002, "master": False},
    "steps too long": {"rate": 1.0},
}
"""Fault of a training -> the setting that has it."""
PIPELINES: dict[str, tuple[str, int | None, float, float]] = {
    "layer by layer": ("naive", 1, 1.0, 0.0),
    "few micro-batches": ("1f1b", 2, 1.0, 0.0),
    "a slow stage": ("1f1b", None, 3.0, 0.0),
    "slow links": ("1f1b", None, 1.0, 4.0),
}
"""Fault of a pipeline -> (schedule, micro-batches if fixed, how many times slower the last stage
is, how long a message takes, both in forwards)."""


def faulty(fault: str, devices: int, microbatches: int) -> Timeline:
    """A pipeline that has the fault."""
    name, m, slowest, latency = PIPELINES[fault]
    forward = [0.03] * (devices - 1) + [slowest * 0.03]
    backward = [2 * seconds for seconds in forward]
    return td.simulate(name, devices, m or microbatches, forward=forward, backward=backward,
                       latency=latency * 0.03)  # fmt: skip


def _training(fault: str, run: Callable[[Any], list[Any]]) -> Worked:
    """The cause of a training's fault, found by experiments."""
    from tiledask.lab.precision import EXPERIMENTS, TrainingSetting, blame

    found = blame(TrainingSetting(**TRAININGS[fault]))
    (helped, loss), *_ = after = [*found.after.items()]
    return Worked(
        f"The cause is: {found.cause}. With {EXPERIMENTS[helped][0]} the loss ends at {loss:.4g}, "
        f"and not at {found.loss:.4g}; without any training it is {found.untrained:.4g}.",
        *(f"{name}? {EXPERIMENTS[name][0]}: the loss ends at {end:.4g}" for name, end in after),
        values={"cause": found.cause, "ranked": [[name, str(end)] for name, end in after]},
        run=run,
    )


@question(17)
def on_call(fault: str, polled: list[float], microbatches: int) -> Worked:
    """The symptoms, their causes ranked, and what tells them apart."""
    import pandas as pd

    p, m = len(polled), microbatches
    if not 2 <= p <= 256 or max(polled) > 100 or not 1 <= sum(polled) / p <= 99:
        raise ConfigError("polled is 2 to 256 percentages from 0 to 100, 1 to 99 on average")
    if fault in TRAININGS:
        return _training(fault, lambda cluster: runs.idle(cluster, p, m))
    columns = {f"{at}": [busy] * 6 for at, busy in enumerate(polled)}
    seen: Any = pd.DataFrame({"time": range(6)} | columns)
    busy = [share / 100 for share in polled]
    if fault in PIPELINES:
        seen = faulty(fault, p, m)
        busy = [seconds / seen.makespan for seconds in seen.busy_per_device]
    found, planned = td.diagnose(seen), 1 - bubble_fraction(p, m)
    causes = {c.name: c.seconds for c in found.causes if c.seconds > 0}
    shares = {name: seconds / sum(causes.values()) for name, seconds in causes.items()}
    if fault not in PIPELINES and "unexplained" in shares:  # polls hide the ramp
        ramp = min(shares["unexplained"], (1 - planned) / found.idle_share)
        shares |= {"ramp": ramp, "unexplained": shares["unexplained"] - ramp}
    ranked = sorted((n for n in shares if shares[n] > 1e-9), key=lambda name: -shares[name])
    first, words = ranked[0], {cause.name: cause.words for cause in found.causes}
    return Worked(
        f"{first.capitalize()}, {100 * shares[first]:.0f} % of the idle time. {found.summary[-1]}",
        f"symptom: devices busy {', '.join(f'{100 * b:.0f} %' for b in busy)} of the time; "
        f"p = {p} equal stages with m = {m} would be busy {100 * planned:.1f} %",
        *(f"{n}: {100 * shares[n]:.0f} % of the idle time; {words.get(n, '')}" for n in ranked),
        *(f"simulated: {r.change}: {100 * r.gain:.0f} % saved" for r in found.remedies),
        values={"cause": first, "ranked": [[name, shares[name]] for name in ranked], "busy": busy,
                "planned": planned, "remedies": {r.change: r.gain for r in found.remedies}},
        run=lambda cluster: runs.idle(cluster, p, m),
    )  # fmt: skip


def diagnosed(timeline: Timeline) -> Diagnosis:
    """The diagnosis from who was busy when alone: no labels of stages or micro-batches."""
    computes = timeline.kind != TRANSFER
    return td.diagnose(timeline.to_frame()[computes][["device", "start", "end"]])


def _found_again(plans: int) -> int:
    """How many of ``plans`` random ones have their devices, micro-batches and imbalance told from
    the trace alone."""
    rng, found = np.random.default_rng(0), 0
    for k in range(plans):
        p, m = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        forward = rng.uniform(0.5, 1.5, p)
        name = ("naive", "gpipe", "1f1b")[k % 3]
        d = diagnosed(td.simulate(name, p, m, forward=forward, backward=2 * forward))
        same = (d["devices"].value, d["microbatches"].value) == (p, m)
        imbalance = float(forward.max() / forward.mean() - 1)
        found += same and abs(d["imbalance"].value - imbalance) < 1e-6
    return found


@question(37)
def diagnosis(devices: int, microbatches: int, uneven: float, plans: int) -> Worked:
    """What the trace of such a plan tells, the cause of its idle time, and the best remedies."""
    p, m, work = devices, microbatches, [1.0] * (devices - 1) + [uneven]
    order, scale = td.schedule("naive", p, m), p / (m * sum(work))
    times = {"forward": [0.4 * scale * each for each in work]}
    times["backward"] = [0.8 * scale * each for each in work]
    t = td.simulate(order, **times)
    d, found = diagnosed(t), _found_again(plans)
    best, after = d.remedies[0], d.remedies[0].plan
    return Worked(
        f"{100 * t.utilisation:.3g} % of {p} devices in use; {d.cause} makes "
        f"{100 * d.causes[0].seconds / d.idle:.0f} % of the idle time: {best.change}.",
        f"the trace: {p} devices, busy {t.busy:g} / ({p} x {t.makespan:g}), none at once",
        f"told from it: p = {d['devices'].value}, m = {d['microbatches'].value}, order "
        f"{d['schedule'].value}; of {plans} random plans, {found} are told from theirs",
        *(f"{c.name}: {c.seconds:.4g} s idle, {c.words}" for c in d.causes if c.seconds > 0),
        *(f"remedy: {r.change}: {100 * r.gain:.1f} % saved" for r in d.remedies),
        values={"utilisation": t.utilisation, "devices": d["devices"].value,
                "microbatches told": d["microbatches"].value, "imbalance": d["imbalance"].value,
                "cause": d.cause, "remedy": best.change, "gain": best.gain, "plans told": found},
        run=lambda cluster: runs.timed(cluster, order, t.busy_per_device, t.makespan, **times),
        figure=lambda: td.plots.gantt(t, after.timeline, titles=["as it is", best.change]),
    )  # fmt: skip
