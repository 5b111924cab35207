"""11 and 12: micro-batches keep stages busy; with replicas and split layers, all trained.

one batch     B1↑ .  .  B1↓      1/p of the time is used
m of 1/m      m / (m + p - 1) is used; with a overhead each, (m + p - 1)(a + W/m) has a minimum
n = p stages x t slices of each layer x d replicas: only slices and stages divide the memory
"""

from fractions import Fraction
from math import isqrt, sqrt
from typing import NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import choice, number, whole
from tiledask.lab.questions.pipelines.one_batch import NEARLY, executed
from tiledask.lab.questions.planning.sized import convention
from tiledask.lab.questions.question import MOST_WORKERS, CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.pipelines.closed_form import bubble_fraction, bubble_overhead
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION_11", "QUESTION_12"]


def _pieces(m: int, microbatches: int, f: float, b: float, overhead: float) -> dict[str, float]:
    """Seconds of an action, if the batch of ``microbatches`` of f + b seconds is cut in m; half of
    the overhead each way."""
    share = microbatches / m
    return {"forward": f * share + overhead / 2, "backward": b * share + overhead / 2}


def _experiments(p: int, W: Fraction, overhead: float) -> tuple[int, ...]:
    """Three counts to try: the best, a quarter of it and four times as many."""
    best = _best(p, W, overhead)
    return tuple(sorted({max(1, best // 4), best, 4 * best}))


def _seconds(m: int, p: int, W: Fraction, a: float) -> float:
    return float(_exactly(m, p, W, a))


def _best(p: int, W: Fraction, a: float) -> int:
    """The smallest number of those that are fastest: beside sqrt((p - 1) W / a), compared
    exactly."""
    near = isqrt(int((p - 1) * W / Fraction(str(a))))
    return min((max(1, near), near + 1), key=lambda m: _exactly(m, p, W, a))


def _exactly(m: int, p: int, W: Fraction, a: float) -> Fraction:
    return (m + p - 1) * (Fraction(str(a)) + W / m)


def _work(m: int, forward: float, backward: float) -> Fraction:
    """Seconds of the whole batch in a stage, as the times are written."""
    return m * (Fraction(str(forward)) + Fraction(str(backward)))


def _simulated(schedule: str, p: int, m: int, times: dict[str, float]) -> Timeline:
    return td.simulate(td.schedule(schedule, p, m), **times)


def work_12(
    stages: int,
    microbatches: int,
    schedule: str,
    forward: float,
    backward: float,
    overhead: float,
) -> WorkedAnswer:
    """Utilisation, bubble and memory of the schedule; the best number of micro-batches."""
    p, m, each = stages, microbatches, forward + backward
    kept = {"gpipe": m, "1f1b": min(p, m)}
    used, W = m / (m + p - 1), _work(m, forward, backward)
    lines = [
        f"one batch at a time: 1/p = 1/{p} = {100 / p:.1f} % used",
        f"with m = {m} micro-batches the last stage begins p - 1 = {p - 1} turns late: m + p - 1 = "
        f"{m + p - 1} turns of {forward:g} + {backward:g} = {each:g} s, {(m + p - 1) * each:g} s",
        f"used: m / (m + p - 1) = {m} / {m + p - 1} = {100 * used:.1f} %",
        f"bubble over ideal time: (p - 1) / m = {p - 1} / {m} = "
        f"{100 * bubble_overhead(p, m):.1f} % (SC21); of all time: (p - 1) / (m + p - 1) = {p - 1} "
        f"/ {m + p - 1} = {100 * bubble_fraction(p, m):.1f} %",
        f"micro-batches whose activations the fullest stage keeps: GPipe m = {kept['gpipe']}, "
        f"1F1B min(p, m) = {kept['1f1b']}; the time is the same",
    ]
    values = {
        "utilisation": used,
        "makespan": (m + p - 1) * each,
        "bubble": bubble_overhead(p, m),
        "kept": kept[schedule],
    }
    more = "Without overhead, more micro-batches are always better."
    if overhead:
        a, best, exact = overhead, _best(p, W, overhead), sqrt((p - 1) * W / overhead)
        alike = _exactly(best + 1, p, W, a) == _exactly(best, p, W, a)
        which = f"{best}" + f" (or {best + 1}, which takes as long)" * alike
        lines += [
            f"now each micro-batch costs a stage a = {a:g} s beside its share of W = {m} x "
            f"{each:g} = {float(W):g} s: t(m) = (m + p - 1)(a + W/m)",
            f"dt/dm = a - (p - 1) W / m^2 = 0 at m = sqrt((p - 1) W / a) = sqrt({p - 1} x "
            f"{float(W):g} / {a:g}) = {exact:.3g}; of whole numbers the best is {which}",
            *(
                f"t({n}) = ({n} + {p - 1})({a:g} + {float(W):g}/{n}) = {_seconds(n, p, W, a):.4g} s"
                for n in _experiments(p, W, a)
            ),
        ]
        values |= {"best microbatches": best, "best seconds": _seconds(best, p, W, a)}
        more = (
            f"With {a:g} s of overhead for each in a stage, cutting the batch in {which} is the "
            f"fastest: fewer leave a larger bubble, more pay more overhead."
        )
    return WorkedAnswer(
        f"{m} micro-batches on {p} stages use {100 * used:.1f} % of the time, where one batch uses "
        f"{100 / p:.1f} %; {schedule} keeps the activations of {kept[schedule]} at most. {more}",
        lines,
        values,
        lambda: td.plots.gantt(
            _simulated(schedule, p, m, _pieces(m, m, forward, backward, 0.0)),
            title=f"{schedule}, {m} micro-batches on {p} stages",
        ),
    )


def run_12(
    cluster: Cluster,
    stages: int,
    microbatches: int,
    schedule: str,
    forward: float,
    backward: float,
    overhead: float,
) -> Comparison:
    """The schedule on workers; then the three experiments, each micro-batch with its overhead."""
    p, m = stages, microbatches
    times = _pieces(m, m, forward, backward, 0.0)
    t = _simulated(schedule, p, m, times)
    seen = executed(cluster, td.schedule(schedule, p, m), **times).timeline
    shares = m / (m + p - 1), t.utilisation, seen.utilisation
    kept = m if schedule == "gpipe" else min(p, m)
    peaks = max(t.peak_in_flight), max(seen.peak_in_flight)
    rows = [
        Claim(
            f"{schedule}, m = {m}: used",
            *shares,
            unit="percent",
            rule=NEARLY,
        ),
        Claim(f"{schedule}: activations kept at most", kept, *peaks, rule="equal"),
    ]
    took = {}
    W = _work(m, forward, backward)
    for n in _experiments(p, W, overhead) if overhead else ():
        times = _pieces(n, m, forward, backward, overhead)
        simulated = _simulated(schedule, p, n, times).makespan
        done = td.run_schedule(td.schedule(schedule, p, n), cluster=cluster, engine="loop", **times)
        took[n] = done.timeline.makespan
        said = _seconds(n, p, W, overhead)
        rows.append(Claim(f"t({n}) with overhead", said, simulated, took[n], "seconds"))
    if took:
        best = _best(p, W, overhead)
        rows.append(
            Claim(
                "fastest of these counts",
                best,
                min(took, key=lambda n: _seconds(n, p, W, overhead)),
                min(took, key=took.__getitem__),
                rule="equal",
                note="neither the fewest nor the most",
            )
        )
    return Comparison(f"A pipeline of {p} stages on {p} workers", rows)


QUESTION_12 = CourseQuestion(
    number=12,
    title="Pipeline Parallelism",
    asked="A batch is cut into {microbatches} micro-batches that flow through {stages} pipeline "
    "stages by {schedule}. How busy are the devices, how large is the bubble, and what do they "
    "keep? And if every micro-batch also costs a fixed overhead, how many of them give the best "
    "throughput?",
    inputs={
        "stages": Input(4, whole(2, 4096), "stages p, one on each device"),
        "microbatches": Input(8, whole(1, 100_000), "micro-batches m of the batch"),
        "schedule": Input("1f1b", choice(("1f1b", "gpipe")), "their order"),
        "forward": Input(0.03, number(above=True), "seconds of a micro-batch in a stage, up"),
        "backward": Input(0.06, number(above=True), "the same, down"),
        "overhead": Input(0.03, number(), "seconds more for each, in a stage, up and down"),
    },
    work=work_12,
    run=run_12,
    largest_run={"microbatches": 256},
    workers=lambda stages, **_: stages,
)
RECIPE = "mixed-adam-16"
FORWARD, BACKWARD = 0.1, 0.2
"""Seconds of a micro-batch in a stage."""
STEPS = 3
ROUND_OFF = 1e-12
"""Relative difference of float64 losses, where sums are in another order."""


class _Form(NamedTuple):
    """A way to combine them."""

    p: int
    t: int
    d: int
    m: int

    @property
    def ranks(self) -> int:
        return self.p * self.t * self.d

    @property
    def schedule(self) -> td.Schedule:
        """Of one replica."""
        return td.schedule("naive" if self.m == 1 else "1f1b", self.p, self.m)


def _forms(stages: int, tensor: int, replicas: int, microbatches: int) -> dict[str, _Form]:
    p, t, d, m = stages, tensor, replicas, microbatches
    return {
        "MP alone": _Form(p, 1, 1, 1),
        "MP + micro-batches": _Form(p, 1, 1, m),
        "MP + DP": _Form(p, 1, d, m),
        "MP + TP + DP": _Form(p, t, d, m),
    }


def work_11(
    stages: int, tensor: int, replicas: int, microbatches: int, parameters: float
) -> WorkedAnswer:
    """A line for each combination: devices, utilisation, bytes on each."""
    recipe, values = load_recipe(RECIPE), {}
    B = recipe.bytes_per_parameter
    lines = [convention(RECIPE)]
    for name, f in _forms(stages, tensor, replicas, microbatches).items():
        used, held = f.m / (f.m + f.p - 1), B * parameters / (f.p * f.t)
        lines.append(
            f"{name}: n = {f.p} x {f.t} x {f.d} = {f.ranks} devices; m/(m + p - 1) = {f.m} / "
            f"{f.m + f.p - 1} = {100 * used:.1f} % used; {B} B x "
            f"{parameters / 1e9:g} billion / ({f.p} x {f.t}) = {format_bytes(held)} a device"
        )
        values[name] = {"devices": f.ranks, "utilisation": used, "bytes": held}
    lines.append(
        f"replicas do not appear in the bytes: each keeps what one would; with ZeRO-1 the 12 B "
        f"of masters and Adam would be divided by d = {replicas} as well"
    )
    first, second, *_, last = values.values()
    return WorkedAnswer(
        f"Model parallelism alone uses {100 * first['utilisation']:.0f} % of {stages} devices; "
        f"{microbatches} micro-batches raise that to {100 * second['utilisation']:.0f} %; replicas "
        f"multiply throughput and leave the {format_bytes(first['bytes'])} a device as they are; "
        f"splitting layers too makes them {format_bytes(last['bytes'])} on {last['devices']} "
        f"devices.",
        lines,
        values,
    )


def run_11(
    cluster: Cluster,
    stages: int,
    tensor: int,
    replicas: int,
    microbatches: int,
    parameters: float,
) -> Comparison:
    """A small decoder trained under each combination; its pipeline timed on workers."""
    text, rows, timed = td.load_text("tales"), [], set()
    model = td.GPT(text.vocabulary, hidden=16, layers=2 * stages, heads=4, sequence=16)
    options = {"steps": STEPS, "batch": replicas * microbatches, "dtype": "float64"}
    alone = td.train(model, text, (1, 1, 1), microbatches=1, **options)
    for name, f in _forms(stages, tensor, replicas, microbatches).items():
        shape, there = (f.d, f.t, f.p), f.ranks <= cluster.slots
        mesh = td.Mesh(cluster, shape) if there else shape
        done = td.train(model, text, mesh, microbatches=f.m, schedule=f.schedule, **options)
        where = f"on {f.ranks} {'workers' if there else 'ranks, as threads of this process'}"
        apart = float(np.max(np.abs(done.losses / alone.losses - 1)))
        off = f"{name}: losses off one device's"
        rows += [
            Claim(f"{name}: devices p x t x d", f.ranks, None, len(done.held), rule="equal"),
            Claim(off, ROUND_OFF, None, apart, rule="at most", note=where),
        ]
        if (f.p, f.m) not in timed:
            timed.add((f.p, f.m))
            times = {"forward": FORWARD, "backward": BACKWARD}
            seen = executed(cluster, f.schedule, **times).timeline.utilisation
            shares = f.m / (f.m + f.p - 1), td.simulate(f.schedule, **times).utilisation, seen
            rows.append(Claim(f"{name}: used", *shares, unit="percent", rule=NEARLY))
    size = f"{model.size:,} parameters in float64"
    return Comparison(f"Each combination trained for {STEPS} steps, {size}", rows)


QUESTION_11 = CourseQuestion(
    number=11,
    title="Combining Model Parallelism with Other Mechanisms",
    asked="A model of {parameters} parameters is cut into {stages} stages. What does it gain from "
    "{microbatches} micro-batches, from {replicas} replicas, and from splitting each layer in "
    "{tensor} as well: how many devices, how busy, how full?",
    inputs={
        "stages": Input(2, whole(2, 4096), "stages p"),
        "tensor": Input(2, whole(1, 4096), "slices t of each layer"),
        "replicas": Input(2, whole(1, 100_000), "replicas d"),
        "microbatches": Input(4, whole(1, 100_000), "micro-batches m of a replica"),
        "parameters": Input(30e9, number(1), "parameters of the model"),
    },
    work=work_11,
    run=run_11,
    largest_run={"tensor": 4, "replicas": 8, "microbatches": 8},
    workers=lambda stages, replicas, **_: max(stages, min(MOST_WORKERS, stages * replicas)),
)
