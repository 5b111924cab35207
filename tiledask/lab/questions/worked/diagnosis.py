"""17 and 37: why devices idle or losses do not fall: from symptoms to causes, ranked.

devices idle      a trace       --> td.diagnose           parts of the idle time
losses do not     a training    --> lab.precision.blame   what each experiment makes of the loss
fall, or NaN
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.worked import runs
from tiledask.lab.table import Comparison
from tiledask.plan.diagnosis.diagnose import Diagnosis
from tiledask.plan.pipelines.closed_form import bubble_fraction
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

POLLED = "as polled"
"""No fault is put in: all that is known is how busy each device is."""
FORWARD = 0.03
"""Seconds; backwards take twice as long."""
TELLS = {
    "one at a time": "raise the micro-batches from 1: a pipeline overlaps them, a chain does not",
    "ramp": "sweep the micro-batches m: the idle share falls as (p-1)/(m+p-1)",
    "imbalance": "time every stage: the slowest paces the rest, for every m",
    "communication": "repeat on one node or with smaller messages: idle time falls with their time",
    "overhead": "repeat with larger micro-batches: pauses per action become rarer",
    "unexplained": "record one step with a label around each action",
}
"""Cause of idle time -> the experiment that tells it from the others."""
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradients vanish in fp16": ("the loss scale is too low", {"scale": 2.0**-22}),
    "gradients overflow in fp16": ("the loss scale is too high", {"scale": 2.0**24}),
    "bf16 weights without masters": (
        "no master weights", {"dtype": "bfloat16", "rate": 0.002, "master": False}),
    "steps too long": ("the rate is too high", {"rate": 1.0}),
}  # fmt: skip
"""Fault of a training -> (its cause, the setting that has it)."""
PIPELINES: dict[str, tuple[str, str, int | None, float, float]] = {
    "layer by layer": ("one at a time", "naive", 1, 1.0, 0.0),
    "few micro-batches": ("ramp", "1f1b", 2, 1.0, 0.0),
    "a slow stage": ("imbalance", "1f1b", None, 3.0, 0.0),
    "slow links": ("communication", "1f1b", None, 1.0, 4 * FORWARD),
}
"""Fault of a pipeline -> (its cause, schedule, micro-batches if fixed, how many times slower the
last stage is, seconds of a message)."""


class FaultyPipeline(NamedTuple):
    """A pipeline with a fault, which td.simulate and a run take."""

    cause: str
    order: td.Schedule
    times: dict[str, Any]

    def simulated(self) -> Timeline:
        return td.simulate(self.order, **self.times)


def faulty(fault: str, devices: int, microbatches: int) -> FaultyPipeline:
    """A pipeline that has the fault."""
    cause, name, m, slowest, latency = PIPELINES[fault]
    forward = [FORWARD] * (devices - 1) + [slowest * FORWARD]
    times = {"forward": forward, "backward": [2 * t for t in forward], "latency": latency}
    return FaultyPipeline(cause, td.schedule(name, devices, m or microbatches), times)


def _pipeline(seen: Any, busy: Sequence[float], m: int, run: runs.Run) -> WorkedAnswer:
    """What a Timeline says, or a table of polled shares of the time, about m micro-batches."""
    found, p, is_trace = td.diagnose(seen), len(busy), isinstance(seen, Timeline)
    planned = 1 - bubble_fraction(p, m)
    causes = {c.name: c.seconds for c in found.causes if c.seconds > 0}
    shares = {name: seconds / sum(causes.values()) for name, seconds in causes.items()}
    if not is_trace and "unexplained" in shares:  # polls hide the ramp, which the plan foretells
        ramp = min(shares["unexplained"], (1 - planned) / found.idle_share)
        shares |= {"ramp": ramp, "unexplained": shares["unexplained"] - ramp}
    ranked: list[Any] = [[name, share] for name, share in shares.items() if share > 1e-9]
    ranked.sort(key=lambda each: -each[1])
    first, share = ranked[0]
    return WorkedAnswer(
        f"{first.capitalize()}, {100 * share:.0f} % of the idle time: {TELLS[first]}. "
        f"{found.summary[-1]}",
        [
            f"symptom: devices busy {', '.join(f'{100 * b:.0f} %' for b in busy)} of the time: "
            f"{100 * sum(busy) / p:.1f} % on average, and {100 * found.idle_share:.1f} % idle; p = "
            f"{p} equal stages with m = {m} would be busy {m} / ({m} + {p - 1}) = "
            f"{100 * planned:.1f} %",
            *(
                f"{at}. {name}: {100 * part:.0f} % of the idle time; to tell: {TELLS[name]}"
                for at, (name, part) in enumerate(ranked, 1)
            ),
            *(
                f"experiment, simulated: {r.change}: {found.makespan:.3g} s -> {r.makespan:.3g} s, "
                f"{100 * r.gain:.0f} % saved"
                for r in found.remedies
            ),
            "polled now and then or traced, what is known is who was busy: no labels are read",
        ],
        {
            "cause": first,
            "ranked": ranked,
            "busy": [*busy],
            "planned": planned,
            "remedies": {r.change: r.gain for r in found.remedies},
        },
        run,
        p,
        (lambda: td.plots.gantt(seen, title="What is seen")) if is_trace else None,
    )


def _training(fault: str, run: runs.Run, workers: int) -> WorkedAnswer:
    from tiledask.lab.precision import EXPERIMENTS, TrainingSetting, blame

    setting = TrainingSetting(**TRAININGS[fault][1])
    losses, found = setting.run().losses, blame(setting)
    helped, loss = next(iter(found.after.items()))
    words, experiment = EXPERIMENTS[helped]
    return WorkedAnswer(
        f"The cause is: {found.cause}. With {words} the loss ends at {loss:.4g}, and not at "
        f"{found.loss:.4g}; without any training it is {found.untrained:.4g}.",
        [
            f"symptom: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps, in "
            f"{setting.dtype}; at the end as it was {found.loss:.4g}",
            *(
                f"{at}. {suspect}? {EXPERIMENTS[suspect][0]}: loss at the end {after:.4g}"
                for at, (suspect, after) in enumerate(found.after.items(), 1)
            ),
        ],
        {"cause": found.cause, "ranked": [[s, str(after)] for s, after in found.after.items()]},
        run,
        workers,
        lambda: td.plots.losses({words: experiment(setting).run().losses, "as it was": losses}),
    )


@question(
    17,
    "You are on-call for an internal LLM training platform ...",
    "The devices of a pipeline, {microbatches} micro-batches a step, are busy {polled} % of the "
    "time; or a training has a fault that is put in ({fault}). Rank the causes, and name the "
    "experiment that tells each from the others.",
    fault=Input(
        f"{POLLED}, or a fault that is put in: {', '.join((*PIPELINES, *TRAININGS))}",
        choices=(POLLED, *PIPELINES, *TRAININGS),
    ),
    polled="how busy each device is, in percent",
    microbatches=Input("micro-batches, where they are not the fault", 1, 4096),
)
def on_call(
    fault: str = POLLED, polled: Sequence[float] = (24, 24, 24, 96), microbatches: int = 8
) -> WorkedAnswer:
    """The symptoms, their causes ranked, and what tells them apart."""
    import pandas as pd

    p, m = len(polled), microbatches
    if not 2 <= p <= 256 or max(polled) > 100 or not 1 <= sum(polled) / p <= 99:
        raise ConfigError("polled is 2 to 256 percentages from 0 to 100, 1 to 99 on average")

    def run(cluster: Cluster) -> Comparison:
        """The confusion matrix: every fault put in, simulated and executed, and diagnosed."""
        from tiledask.lab.precision import TrainingSetting, blame

        rows, compare = [], ("predicted", "simulated")
        for name in PIPELINES:
            each = faulty(name, p, min(max(8, m), 64))
            ran = runs.pipelined(cluster, each.order, **each.times).timeline
            found = td.diagnose(each.simulated()).cause, td.diagnose(ran).cause
            note = "a busy machine adds to what is measured"
            rows.append(
                Claim(f"{name}: diagnosed", each.cause, *found, rule="equal", note=note,
                      compare=compare)
            )  # fmt: skip
        sound: dict[str, Any] = {"a sound training": ("nothing", {})}
        for name, (cause, setting) in {**TRAININGS, **sound}.items():
            found_cause = blame(TrainingSetting(**setting)).cause
            rows.append(Claim(f"{name}: diagnosed", cause, None, found_cause, rule="equal"))
        return Comparison("Every fault injected, and what the diagnosis says of it", rows)

    if fault in TRAININGS:
        return _training(fault, run, p)
    if fault in PIPELINES:
        seen = faulty(fault, p, m).simulated()
        return _pipeline(seen, [b / seen.makespan for b in seen.busy_per_device], m, run)
    columns = {f"{at}": [float(busy)] * 6 for at, busy in enumerate(polled)}
    return _pipeline(pd.DataFrame({"time": range(6)} | columns), [b / 100 for b in polled], m, run)


# -- 37: what a trace says of the plan behind it, and what would help ------------------------------

FOUND = ("naive", "gpipe", "1f1b")
"""Orders of the random plans."""


def _diagnosed(timeline: Timeline) -> Diagnosis:
    """The diagnosis from who was busy when alone: no labels of stages or micro-batches."""
    computes = timeline.kind != TRANSFER
    return td.diagnose(timeline.to_frame()[computes][["device", "start", "end"]])


@cache
def _found_again(plans: int, seed: int = 0) -> int:
    """How many of ``plans`` random ones have their devices, micro-batches and imbalance told from
    the trace alone."""
    rng, found = np.random.default_rng(seed), 0
    for k in range(plans):
        p, m = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        forward = rng.uniform(0.5, 1.5, p)
        order = td.schedule(FOUND[k % len(FOUND)], p, m)
        d = _diagnosed(td.simulate(order, forward, 2 * forward))
        same = (d["devices"].value, d["microbatches"].value) == (p, m)
        imbalance = float(forward.max() / forward.mean() - 1)
        found += same and abs(d["imbalance"].value - imbalance) < 1e-6
    return found


def is_pipelined(found: Diagnosis) -> bool:
    """Whether the best remedy has more micro-batches than before, in an order in which several
    stages work at once."""
    best, m = found.remedies[0], found["microbatches"].value
    more = best.plan.schedule.microbatches > m and "micro-batches" in best.change
    return more and best.plan.schedule.name != "naive" and "schedule" in best.change


@question(
    37,
    "Diagnosing Parallel Processing Inefficiency",
    "{devices} accelerators hold a model in consecutive parts, the last with {uneven} of the "
    "others' work, and micro-batches ({microbatches}) pass through them. Monitoring shows that one "
    "works and the others wait. What is the cause, and what is the remedy? (Also of {plans} random "
    "plans.)",
    devices=Input("accelerators, one after the other", 2, 32),
    microbatches=Input("micro-batches, one after the other", 1, 64, run=16),
    uneven=Input("work of the last device; others are 1", 0.1),
    plans=Input("random plans whose traces are read as well", 1, 1000),
)
def diagnosis(
    devices: int = 4, microbatches: int = 1, uneven: float = 1.0, plans: int = 100
) -> WorkedAnswer:
    """What the trace of such a plan tells, the cause of its idle time, and the best remedies."""
    p, m, work = devices, microbatches, [1.0] * (devices - 1) + [uneven]
    order, scale = td.schedule("naive", p, m), p / (m * sum(work))
    times = {
        name: [seconds * scale * each for each in work]
        for name, seconds in {"forward": 0.4, "backward": 0.8}.items()
    }
    t = td.simulate(order, **times)
    d, found = _diagnosed(t), _found_again(plans)
    best, after = d.remedies[0], d.remedies[0].plan
    n = after.schedule.microbatches
    busy = ", ".join(f"{100 * seconds / t.makespan:.0f} %" for seconds in t.busy_per_device)
    lines = [
        f"the trace: {p} devices, busy {busy} of {t.makespan:g} s; all together {t.busy:g} / ({p} "
        f"x {t.makespan:g}) = {100 * t.utilisation:.1f} %; no two work at once: layer-wise "
        f"execution, about 1/{p} = {100 / p:.1f} % each",
        f"told from the trace: p = {d['devices'].value}, m = {d['microbatches'].value}, order "
        f"{d['schedule'].value}, imbalance {100 * d['imbalance'].value:.1f} % (max over mean, "
        "minus 1)",
        *(f"{c.name}: {c.seconds:.4g} s idle, {c.words}" for c in d.causes if c.seconds > 0),
        f"best remedy: {best.change}: a pipelined schedule, in which a stage works on the next "
        f"micro-batch while others have this one: {t.makespan:.4g} s -> {best.makespan:.4g} s, "
        f"{100 * best.gain:.1f} % saved, utilisation {100 * (1 - best.idle_share):.1f} %"
        + f", by the formula {n} / ({n} + {p - 1})"
        * (uneven == 1 and after.schedule.stages == p),
        *(f"instead: {r.change}: {100 * r.gain:.1f} % saved" for r in d.remedies[1:]),
    ]

    def run(cluster: Cluster) -> Comparison:
        """The plan run and its trace diagnosed; then the best remedy run too."""
        seen = runs.pipelined(cluster, order, **times).timeline
        told = _diagnosed(seen)
        mended = runs.pipelined(cluster, after.schedule, **after.times).timeline
        saved = best.gain, None, 1 - mended.makespan / seen.makespan
        imbalance = max(work) * p / sum(work) - 1, round(d["imbalance"].value, 9)
        rows = [
            Claim(f"{name} told from the trace", v, d[name].value, told[name].value, rule="equal")
            for name, v in {"devices": p, "microbatches": m}.items()
        ]
        rows += [
            Claim("imbalance told from the trace", *imbalance, told["imbalance"].value, "percent",
                  ("within", 0.1)),
            Claim("cause", "one at a time", d.cause, told.cause, rule="equal"),
            Claim("the advice names micro-batches and a pipelined schedule", rule="true",
                  measured=is_pipelined(told), note=told.remedies[0].change),
            Claim("saved by the remedy", *saved, "percent"),
            Claim("faster with the remedy", measured=mended.makespan < seen.makespan, rule="true"),
            Claim("random plans told from their traces", plans, found, rule="equal"),
        ]  # fmt: skip
        return Comparison(f"Idle accelerators, diagnosed and mended on {p} workers", rows)

    return WorkedAnswer(
        f"{100 * t.utilisation:.3g} % of {p} devices in use: layer-wise execution, in which they "
        f"work one at a time, makes {100 * d.causes[0].seconds / d.idle:.0f} % of the idle time. "
        f"Cut the batch into micro-batches and run them in a pipelined schedule: {best.change}, "
        f"{100 * best.gain:.0f} % of the time saved.",
        lines,
        {
            "utilisation": t.utilisation,
            "devices": d["devices"].value,
            "microbatches told": d["microbatches"].value,
            "imbalance": d["imbalance"].value,
            "cause": d.cause,
            "remedy": best.change,
            "gain": best.gain,
            "plans told": found,
        },
        run,
        devices,
        lambda: td.plots.gantt(t, after.timeline, titles=["as it is", best.change]),
        [f"of {plans} random plans, {found} are told from their traces alone"],
    )
