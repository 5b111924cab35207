"""17. On call: from symptoms to causes, ranked, each with the experiment that tells it from others.

devices idle      a trace       --> td.diagnose           parts of the idle time
losses do not     a training    --> lab.precision.blame   what each experiment makes of the loss
fall, or NaN
"""

from typing import Any, NamedTuple

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.extras import needed_for
from tiledask.lab.claim import COLUMNS
from tiledask.lab.puzzles.fields import choice, numbers, whole
from tiledask.lab.questions.pipelines.one_batch import executed
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.pipelines.closed_form import bubble_fraction
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["QUESTION", "TRAININGS", "FaultyPipeline", "pipelines"]

POLLED = "as polled"
"""No fault is put in: all that is known is how busy each device is."""
POLLS, MOST_DEVICES = 6, 256
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
        "no master weights",
        {"dtype": "bfloat16", "rate": 0.002, "master": False},
    ),
    "steps too long": ("the rate is too high", {"rate": 1.0}),
}
"""Fault of a training -> (its cause, the setting that has it)."""


class FaultyPipeline(NamedTuple):
    """A pipeline with a fault, which td.simulate and a run take."""

    cause: str
    order: td.Schedule
    times: dict[str, Any]

    def simulated(self) -> Timeline:
        return td.simulate(self.order, **self.times)


def pipelines(devices: int, microbatches: int) -> dict[str, FaultyPipeline]:
    """Every fault of a pipeline, injected: name -> FaultyPipeline."""

    def faulty(
        cause: str, name: str, m: int, slowest: float = 1.0, latency: float = 0.0
    ) -> FaultyPipeline:
        forward = [FORWARD] * (devices - 1) + [slowest * FORWARD]
        backward = [2 * t for t in forward]
        times = {"forward": forward, "backward": backward, "latency": latency}
        return FaultyPipeline(cause, td.schedule(name, devices, m), times)

    return {
        "layer by layer": faulty("one at a time", "naive", 1),
        "few micro-batches": faulty("ramp", "1f1b", 2),
        "a slow stage": faulty("imbalance", "1f1b", microbatches, slowest=3.0),
        "slow links": faulty("communication", "1f1b", microbatches, latency=4 * FORWARD),
    }


def work(fault: str, polled: list[float], microbatches: int) -> WorkedAnswer:
    """The symptoms, their causes ranked, and what tells them apart."""
    if fault in TRAININGS:
        return _training(fault)
    p, m = len(polled), microbatches
    if fault != POLLED:
        return _pipeline(pipelines(p, m)[fault].simulated(), m)
    with needed_for("a frame"):
        import pandas as pd

    devices = {f"{at}": [busy] * POLLS for at, busy in enumerate(polled)}
    return _pipeline(pd.DataFrame({"time": range(POLLS)} | devices), m)


def _pipeline(seen: Any, m: int) -> WorkedAnswer:
    """What a Timeline says, or a table of polled shares of the time, about m micro-batches."""
    found = td.diagnose(seen)
    is_trace = isinstance(seen, Timeline)
    busy = (
        [b / seen.makespan for b in seen.busy_per_device]
        if is_trace
        else [float(seen[name][0]) / 100 for name in seen.columns[1:]]
    )
    p = len(busy)
    planned = 1 - bubble_fraction(p, m)
    lines = [
        "symptom: devices busy " + ", ".join(f"{100 * b:.0f} %" for b in busy) + " of the time",
        f"that is {100 * sum(busy) / p:.1f} % on average, and {100 * found.idle_share:.1f} % idle; "
        f"p = {p} equal stages with m = {m} would be busy {m} / ({m} + {p - 1}) = "
        f"{100 * planned:.1f} %",
    ]
    causes = {c.name: c.seconds for c in found.causes if c.seconds > 0}
    shares = {name: seconds / sum(causes.values()) for name, seconds in causes.items()}
    if not is_trace and "unexplained" in shares:  # polls hide the ramp, which the plan foretells
        ramp = min(shares["unexplained"], (1 - planned) / found.idle_share)
        shares |= {"ramp": ramp, "unexplained": shares["unexplained"] - ramp}
    ranked = [[name, share] for name, share in shares.items() if share > 1e-9]
    ranked.sort(key=lambda each: -each[1])
    for at, (name, share) in enumerate(ranked, 1):
        lines.append(f"{at}. {name}: {100 * share:.0f} % of the idle time; to tell: {TELLS[name]}")
    lines += [
        f"experiment, simulated: {r.change}: {found.makespan:.3g} s -> {r.makespan:.3g} s, "
        f"{100 * r.gain:.0f} % saved"
        for r in found.remedies
    ]
    return WorkedAnswer(
        f"{ranked[0][0].capitalize()}, {100 * ranked[0][1]:.0f} % of the idle time: "
        f"{TELLS[ranked[0][0]]}. {found.summary[-1]}",
        tuple(lines),
        {
            "cause": ranked[0][0],
            "ranked": ranked,
            "busy": busy,
            "planned": planned,
            "remedies": {r.change: r.gain for r in found.remedies},
        },
        (lambda: td.plots.gantt(seen, title="What is seen")) if is_trace else None,
    )


def _training(fault: str) -> WorkedAnswer:
    from tiledask.lab.precision import EXPERIMENTS, TrainingSetting, blame

    setting = TrainingSetting(**TRAININGS[fault][1])
    losses, found = setting.run().losses, blame(setting)
    lines = [
        f"symptom: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps, in "
        f"{setting.dtype}",
        f"loss at the end as it was: {found.loss:.4g}",
    ]
    for at, (suspect, after) in enumerate(found.after.items(), 1):
        lines.append(f"{at}. {suspect}? {EXPERIMENTS[suspect][0]}: loss at the end {after:.4g}")
    helped, loss = next(iter(found.after.items()))
    words, experiment = EXPERIMENTS[helped]
    return WorkedAnswer(
        f"The cause is: {found.cause}. With {words} the loss ends at {loss:.4g}, "
        f"and not at {found.loss:.4g}; without any training it is {found.untrained:.4g}.",
        tuple(lines),
        {"cause": found.cause, "ranked": [[s, str(after)] for s, after in found.after.items()]},
        lambda: td.plots.losses({words: experiment(setting).run().losses, "as it was": losses}),
    )


def run(cluster: Cluster, fault: str, polled: list[float], microbatches: int) -> Comparison:
    """The confusion matrix: every fault put in, simulated and executed, and what is diagnosed."""
    from tiledask.lab.precision import TrainingSetting, blame

    rows = []
    for name, each in pipelines(len(polled), min(max(8, microbatches), 64)).items():
        ran = executed(cluster, each.order, **each.times).timeline
        found = td.diagnose(each.simulated()).cause, td.diagnose(ran).cause
        note = "a busy machine adds to what is measured"
        about = {"rule": "equal", "note": note, "compare": COLUMNS[:2]}
        rows.append(Claim(f"{name}: diagnosed", each.cause, *found, **about))
    for name, (cause, setting) in TRAININGS.items():
        found = blame(TrainingSetting(**setting)).cause
        rows.append(Claim(f"{name}: diagnosed", cause, None, found, rule="equal"))
    healthy = blame(TrainingSetting()).cause
    rows.append(Claim("a sound training: diagnosed", "nothing", None, healthy, rule="equal"))
    return Comparison("Every fault injected, and what the diagnosis says without knowing it", rows)


def _percents(value: Any) -> list[float]:
    """A list of shares of the time, in percent, of 2 devices or more."""
    found: list[float] = numbers()(value)
    mean = sum(found) / len(found)
    if not 2 <= len(found) <= MOST_DEVICES or max(found) > 100 or not 1 <= mean <= 99:
        raise ValueError(
            f"must be 2 to {MOST_DEVICES} percentages from 0 to 100, 1 to 99 on average"
        )
    return found


QUESTION = CourseQuestion(
    17,
    "You are on-call for an internal LLM training platform ...",
    lambda fault, polled, microbatches: (
        (
            f"A training on {len(polled)} pipeline devices with {microbatches} micro-batches is "
            f"slow: they are busy {', '.join(f'{busy:g}' for busy in polled)} % of the time. "
            if fault == POLLED
            else f"A training on {len(polled)} devices has a fault ({fault}); the diagnosis is "
            f"not told which. "
        )
        + "Rank the causes, and name the experiment that tells each from the others."
    ),
    {
        "fault": Input(
            POLLED,
            choice((POLLED, *pipelines(2, 2), *TRAININGS)),
            f"{POLLED}, or a fault that is put in: " + ", ".join((*pipelines(2, 2), *TRAININGS)),
        ),
        "polled": Input([24, 24, 24, 96], _percents, "how busy each device is, in percent"),
        "microbatches": Input(8, whole(1, 4096), "micro-batches, where they are not the fault"),
    },
    work,
    run,
    workers=lambda polled, **_: len(polled),
)
