"""11, 12, 17, 34, 36 and 37: layers in a row: where to cut them, how micro-batches flow, why they
idle.

one batch     B1↑ .  .  B1↓      1/p of the time is used
m of 1/m      m / (m + p - 1) is used; with a overhead each, (m + p - 1)(a + W/m) has a minimum
consecutive   [1 2 3 4][5 6 7 8][9 10 11 12]      2 crossings
round robin   1|2|3|1|2|3|1|2|3|1|2|3             11 crossings: chunks of interleaved 1F1B
"""

from fractions import Fraction
from math import comb, inf, isfinite, isqrt
from statistics import fmean
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs, sizes
from tiledask.lab.course.question import Names, question
from tiledask.lab.course.words import some
from tiledask.plan.diagnosis.diagnose import CAUSES, Diagnosis
from tiledask.plan.formulas import bubble_fraction, bubble_overhead
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline


@question(11)
def combined(
    stages: int, tensor: int, replicas: int, microbatches: int, parameters: float
) -> Names:
    """A line for each combination: devices, utilisation, bytes on each."""
    whole, p = td.load_recipe(sizes.ADAM).bytes_per_parameter * parameters, stages
    values, lines = {}, {}
    for name, t, d, m in (
        ("MP alone", 1, 1, 1),
        ("MP + micro-batches", 1, 1, microbatches),
        ("MP + DP", 1, replicas, microbatches),
        ("MP + TP + DP", tensor, replicas, microbatches),
    ):
        used, each = m / (m + p - 1), whole / (p * t)
        values[name] = {"devices": p * t * d, "utilisation": used, "bytes": each}
        lines[name] = t, d, m, m + p - 1, each
    first, second, _, last = values.values()
    layout = Layout(dp=replicas, tp=tensor, pp=p)
    return locals()


@question(12)
def pipeline(
    stages: int, microbatches: int, schedule: str, forward: float, backward: float, overhead: float
) -> Names:
    """Utilisation, bubble and memory of the schedule; the best number of micro-batches."""
    p, m, each, a = stages, microbatches, forward + backward, Fraction(str(overhead))
    kept, turns, alone = m if schedule == "gpipe" else min(p, m), m + p - 1, 1 / p
    used, work = m / turns, m * (Fraction(str(forward)) + Fraction(str(backward)))
    over_ideal, of_all, W = bubble_overhead(p, m), bubble_fraction(p, m), float(work)

    def seconds(n: int) -> Fraction:
        return (n + p - 1) * (a + work / n)

    values = {"utilisation": used, "makespan": turns * each, "bubble": over_ideal, "kept": kept}
    more = "Without overhead, more micro-batches are always better."
    if overhead:  # the best is beside sqrt((p - 1) W / a), compared exactly
        near = isqrt(int((p - 1) * work / a))
        best = min((max(1, near), near + 1), key=seconds)
        alike = f" (or {best + 1}, which takes as long)" * (seconds(best + 1) == seconds(best))
        values |= {"best microbatches": best, "best seconds": float(seconds(best))}
        more = f"With {overhead:g} s of overhead for each, cut in {best}{alike} is fastest."
    return locals()


@question(34)
def cut_layers(layers: int, devices: int, last_cost: float) -> Names:
    """The exact cut, the best of all splits beside it, and typical wrong answers judged."""
    costs = [1.0] * (layers - 1) + [last_cost]
    cut, robin = td.partition(costs, devices), [layer % devices for layer in range(layers)]
    groups = [f"{part[0] + 1}-{part[-1] + 1}" for part in cut.layers]
    places = {"the cut": list(cut.place), "round robin": robin}
    judged = {name: td.judge(place, layers, devices, costs) for name, place in places.items()}
    few, many = (found.crossings or 0 for found in judged.values())
    verdicts = {
        name: f"{found.rule or 'legal'}. {found.reason.rstrip('.').split('. ')[0]}"
        for name, found in judged.items()
    }
    layers_less, devices_less, splits = layers - 1, devices - 1, comb(layers - 1, devices - 1)
    shown = f"{splits:,}" if splits < 10**12 else f"about 1e{len(str(splits)) - 1}"
    work, mean = sum(costs), sum(costs) / devices
    parts, extents = some(groups, " | ", 32), some(cut.sizes, most=32)
    return locals()


@question(36)
def dealt_round(layers: int, devices: int, microbatches: int) -> Names:
    """The verdict by the rule, crossings and utilisation both ways, and interleaving's bubble."""
    p, m, v = devices, microbatches, layers // devices
    cut, robin = list(td.partition(layers, p).place), [layer % p for layer in range(layers)]
    shown = some([some(range(d + 1, layers + 1, p), ",", 8) for d in range(p)], " | ", 8)
    plain = td.simulate(td.schedule("1f1b", p, m), forward=0.2, backward=0.4)
    looped = td.simulate(td.schedule("interleaved", layers, m, devices=p), 0.2 / v, 0.4 / v)
    few, many = (td.judge(place, layers, p).crossings or 0 for place in (cut, robin))
    verdict, used = td.judge(robin, layers, p), td.simulate(runs.one_batch(cut)).utilisation
    legal, rule = bool(verdict), verdict.rule or "legal"
    answer = f"True: with one layer on each of {p} devices {shown} is layer-wise."
    if not verdict:
        answer = f"False: {shown} crosses {many} times where {few} would do, and a single batch "
        answer += f"uses the same 1/{p}. Only a pipeline of micro-batches gains by it."
    not_so = bubble_overhead(p, m)
    return locals()


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


IN_TURN = 1.05
"""Shares of time that devices work, all together, of which each waits for the turn of others."""
RECORD = (
    "To tell more: record one training step with torch.profiler on every rank and give the folder."
)


def faulty(fault: str, devices: int, microbatches: int) -> Timeline:
    """A pipeline that has the fault."""
    name, m, slowest, latency = PIPELINES[fault]
    forward = [0.03] * (devices - 1) + [slowest * 0.03]
    backward = [2 * seconds for seconds in forward]
    times: dict[str, Any] = {"forward": forward, "backward": backward, "latency": latency * 0.03}
    return td.simulate(td.schedule(name, devices, m or microbatches), **times)


def _end(dtype: str, rate: float, scale: float, master: bool) -> float:
    """The mean loss at the end of a small training; infinite if it is no number."""
    from tiledask.lab.precision.small import Small, train

    small, rule = Small(16, inner=32, blocks=1), td.tile.optimizers.SGD(rate)
    run = train(dtype, 32, rule=rule, times=scale, master=master, small=small)
    loss = fmean(run.losses[-8:])
    return loss if isfinite(loss) else inf


def _training(fault: str, p: int, m: int) -> Names:
    """The cause of a training's fault: every suspect has an experiment, and the one that helps
    most names it."""
    setting: dict[str, Any] = {"dtype": "float16", "rate": 0.02, "scale": 1.0, "master": True}
    setting |= TRAININGS[fault]
    scale, rate = setting["scale"], setting["rate"]
    experiments: dict[str, tuple[str, dict[str, Any]]] = {
        "the loss scale is too low": ("loss scale x 2^16", {"scale": scale * 2**16}),
        "the loss scale is too high": ("loss scale / 2^16", {"scale": scale / 2**16}),
        "no master weights": ("masters in fp32", {"master": True}),
        "the rate is too high": ("rate / 10", {"rate": rate / 10}),
    }
    ends = {name: _end(**setting | change) for name, (_, change) in experiments.items()}
    after = dict(sorted(ends.items(), key=lambda each: each[1]))
    loss, untrained = _end(**setting), _end("float32", 1e-12, 1.0, True)
    cause, least = next(iter(after.items()))
    helped = experiments[cause][0]
    if untrained - least <= 1.1 * max(0.0, untrained - loss):
        cause = "nothing"
    answer = f"The cause is: {cause}. With {helped} the loss ends at {least:.4g}, and not at "
    answer += f"{loss:.4g}; without any training it is {untrained:.4g}."
    lines = [f"{n}? {experiments[n][0]}: the loss ends at {end:.4g}" for n, end in after.items()]
    values = {"cause": cause, "ranked": [[name, str(end)] for name, end in after.items()]}
    return locals()


@question(17)
def on_call(fault: str, polled: list[float], microbatches: int) -> Names:
    """The symptoms, their causes ranked, and what tells them apart."""
    p, m = len(polled), microbatches
    if not 2 <= p <= 256 or not 0 < min(polled) <= max(polled) <= 100 or sum(polled) > 99 * p:
        raise ConfigError("polled is 2 to 256 percentages above 0, of 100 at most, 99 on average")
    if fault in TRAININGS:
        return _training(fault, p, m)
    busy, planned = [share / 100 for share in polled], 1 - bubble_fraction(p, m)
    seen, record, words = None, RECORD, CAUSES
    if fault in PIPELINES:
        seen = faulty(fault, p, m)
        busy = [seconds / seen.makespan for seconds in seen.busy_per_device]
    elif sum(busy) < IN_TURN:
        seen = in_turn(busy)
    found = td.diagnose(seen) if seen is not None else None
    if found:
        causes = {name: seconds for name, seconds in found.causes.items() if seconds > 0}
        shares = {name: seconds / sum(causes.values()) for name, seconds in causes.items()}
        record = found.summary[-1] if fault in PIPELINES else RECORD
    else:  # such shares say how much each device works, and not when: the ramp is the plan's
        uneven, idle = p * max(busy) - sum(busy), p - sum(busy)
        ramp = min(idle - uneven, p * (1 - planned))
        shares = {"imbalance": uneven / idle, "ramp": ramp / idle}
        shares["unexplained"], words = 1 - sum(shares.values()), CAUSES | {"ramp": ""}
    ranked = sorted((n for n in shares if shares[n] > 1e-9), key=lambda name: -shares[name])
    first, remedies = ranked[0], found.remedies if found else ()
    answer = f"{first.capitalize()}, {100 * shares[first]:.0f} % of the idle time. "
    answer += record
    lines = [
        f"symptom: devices busy {', '.join(f'{100 * b:.0f} %' for b in busy)} of the time; "
        f"p = {p} equal stages with m = {m} would be busy {100 * planned:.1f} %",
        *(f"{n}: {100 * shares[n]:.0f} % of the idle time; {words[n]}" for n in ranked),
        *(f"simulated: {r.change}: {100 * r.gain:.0f} % saved" for r in remedies),
    ]
    values: dict[str, Any] = {"cause": first, "busy": busy, "planned": planned}
    values["ranked"] = [[name, shares[name]] for name in ranked]
    values["remedies"] = {r.change: r.gain for r in remedies}
    return locals()


def in_turn(busy: list[float]) -> Timeline:
    """One micro-batch through devices that are busy for such shares of the time: what no device
    works is the way of results, and a backward takes twice a forward."""
    hop = max(0.0, 1 - sum(busy)) / (2 * (len(busy) - 1))
    forward, backward = ([part * share / 3 for share in busy] for part in (1, 2))
    return td.simulate(td.schedule("naive", len(busy), 1), forward, backward, hop)


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
        d = diagnosed(td.simulate(td.schedule(name, p, m), forward, 2 * forward))
        same = (d["devices"].value, d["microbatches"].value) == (p, m)
        imbalance = float(forward.max() / forward.mean() - 1)
        found += same and abs(d["imbalance"].value - imbalance) < 1e-6
    return found


@question(37)
def diagnosis(devices: int, microbatches: int, uneven: float, plans: int) -> Names:
    """What the trace of such a plan tells, the cause of its idle time, and the best remedies."""
    p, m, work = devices, microbatches, [1.0] * (devices - 1) + [uneven]
    order, scale = td.schedule("naive", p, m), p / (m * sum(work))
    times = {"forward": [0.4 * scale * each for each in work]}
    times["backward"] = [0.8 * scale * each for each in work]
    t = td.simulate(order, **times)
    d, found = diagnosed(t), _found_again(plans)
    best, causes = d.remedies[0], [(n, s, CAUSES[n]) for n, s in d.causes.items() if s > 0]
    cause, part = causes[0][0], causes[0][1] / d.idle
    of = {name: d[name].value for name in ("devices", "microbatches", "imbalance", "schedule")}
    return locals()
