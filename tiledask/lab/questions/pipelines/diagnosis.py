"""37: why are the accelerators idle? What a trace says of the plan behind it, and what would help.

trace  -->  p, m, order, imbalance  -->  cause  -->  remedy, predicted  -->  the same, run
"""

from functools import cache

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.pipelines.one_batch import executed
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.diagnosis.diagnose import Diagnosis
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["QUESTION"]

FORWARD, BACKWARD = 0.4, 0.8
"""Seconds of a device's layers, for a whole batch."""
FINER = (2, 4, 16)
"""Numbers of micro-batches whose gain is predicted beside the best remedy's."""
FOUND = ("naive", "gpipe", "1f1b")
"""Orders of the random plans."""


def _plan(p: int, m: int, uneven: float) -> tuple[td.Schedule, dict[str, list[float]]]:
    """One micro-batch after the other through p stages, the last with ``uneven`` times the work."""
    work = [1.0] * (p - 1) + [uneven]
    times = {"forward": FORWARD, "backward": BACKWARD}
    scale = p / (m * sum(work))
    return td.schedule("naive", p, m), {
        name: [seconds * scale * each for each in work] for name, seconds in times.items()
    }


def _busy(devices: int, uneven: float) -> str:
    """Shares of the time: "25 %", or "20 % and the last 40 %"."""
    each, last = (100 * work / (devices - 1 + uneven) for work in (1.0, uneven))
    return f"{each:.0f} %" + ("" if uneven == 1 else f" and the last {last:.0f} %")


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


def work(devices: int, microbatches: int, uneven: float, plans: int) -> WorkedAnswer:
    """What the trace of such a plan tells, the cause of its idle time, and the best remedies."""
    p, m = devices, microbatches
    order, times = _plan(p, m, uneven)
    t = td.simulate(order, **times)
    d = _diagnosed(t)
    best = d.remedies[0]
    after = best.plan.schedule
    found = _found_again(plans)
    busy = ", ".join(f"{100 * seconds / t.makespan:.0f} %" for seconds in t.busy_per_device)
    lines = [
        f"the trace: {p} devices, busy {busy} of {t.makespan:g} s; all together "
        f"{t.busy:g} / ({p} x {t.makespan:g}) = {100 * t.utilisation:.1f} %",
        f"no two work at once: {t.busy:g} s of work takes {t.makespan:g} s, so each waits for all "
        f"others: layer-wise execution, about 1/{p} = {100 / p:.1f} % each",
        f"told from the trace: p = {d['devices'].value}, m = {d['microbatches'].value}, order "
        f"{d['schedule'].value}, imbalance {100 * d['imbalance'].value:.1f} % (max over mean, "
        "minus 1)",
        *(f"{c.name}: {c.seconds:.4g} s idle, {c.words}" for c in d.causes if c.seconds > 0),
        f"best remedy: {best.change}: a pipelined schedule, in which a stage works on the next "
        f"micro-batch while others have this one",
        f"predicted: {t.makespan:.4g} s -> {best.makespan:.4g} s, 1 - {best.makespan:.4g} / "
        f"{t.makespan:.4g} = {100 * best.gain:.1f} % saved, utilisation "
        f"{100 * (1 - best.idle_share):.1f} %",
    ]
    if uneven == 1 and after.stages == p:
        n = after.microbatches
        lines.append(
            f"by the formula: m / (m + p - 1) = {n} / ({n} + {p - 1}) = "
            f"{100 * n / (n + p - 1):.1f} %"
        )
    for n in FINER:
        cut = {name: [seconds * m / n for seconds in each] for name, each in times.items()}
        finer = td.simulate("1f1b", p, n, **cut)
        lines.append(
            f"1F1B with {n} micro-batches: {finer.makespan:.4g} s, 1 - {finer.makespan:.4g} / "
            f"{t.makespan:.4g} = {100 * (1 - finer.makespan / t.makespan):.1f} % saved, "
            f"{100 * finer.utilisation:.1f} % used"
        )
    lines += [f"instead: {r.change}: {100 * r.gain:.1f} % saved" for r in d.remedies[1:]]
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
        lambda: td.plots.gantt(t, best.plan.timeline, titles=["as it is", best.change]),
        (
            f"of {plans} random plans, {found} have devices, micro-batches and imbalance (to 1e-6) "
            f"told from their traces alone",
        ),
    )


def run(cluster: Cluster, devices: int, microbatches: int, uneven: float, plans: int) -> Comparison:
    """The plan run and its trace diagnosed; then the best remedy run too."""
    p, m = devices, microbatches
    order, times = _plan(p, m, uneven)
    t, seen = td.simulate(order, **times), executed(cluster, order, **times).timeline
    said, found = _diagnosed(t), _diagnosed(seen)
    after = said.remedies[0].plan
    mended = executed(cluster, after.schedule, **after.times).timeline
    work = [1.0] * (p - 1) + [uneven]
    uneven_share = max(work) * p / sum(work) - 1
    names = {"devices": p, "microbatches": m}
    rows = [
        *(
            Claim(f"{n} told from the trace", v, said[n].value, found[n].value, rule="equal")
            for n, v in names.items()
        ),
        Claim(
            "imbalance told from the trace",
            uneven_share,
            round(said["imbalance"].value, 9),
            found["imbalance"].value,
            "percent",
            ("within", 0.1),
        ),
        Claim("cause", "one at a time", said.cause, found.cause, rule="equal"),
        Claim(
            "the advice names micro-batches and a pipelined schedule",
            measured=_is_pipelined(found),
            rule="true",
            note=found.remedies[0].change,
        ),
        Claim("time as it is", None, t.makespan, seen.makespan, "seconds"),
        Claim("time with the remedy", None, after.makespan, mended.makespan, "seconds"),
        Claim(
            "saved by the remedy",
            said.remedies[0].gain,
            None,
            1 - mended.makespan / seen.makespan,
            "percent",
        ),
        Claim("faster with the remedy", measured=mended.makespan < seen.makespan, rule="true"),
        Claim("random plans told from their traces", plans, _found_again(plans), rule="equal"),
    ]
    return Comparison(f"Idle accelerators, diagnosed and mended on {p} workers", rows)


def _is_pipelined(found: Diagnosis) -> bool:
    """Whether the best remedy has more micro-batches than before, in an order in which several
    stages work at once."""
    best, m = found.remedies[0], found["microbatches"].value
    more = best.plan.schedule.microbatches > m and "micro-batches" in best.change
    return more and best.plan.schedule.name != "naive" and "schedule" in best.change


QUESTION = CourseQuestion(
    number=37,
    title="Diagnosing Parallel Processing Inefficiency",
    asked=lambda devices, microbatches, uneven, plans: (
        f"{devices} accelerators hold a model in consecutive parts, and {microbatches} "
        f"micro-batch{'es pass' if microbatches > 1 else ' passes'} through them. Monitoring shows "
        f"them {_busy(devices, uneven)} busy: one works, the others wait. What is the cause, and "
        f"what is the remedy?"
    ),
    inputs={
        "devices": Input(4, whole(2, 32), "accelerators, one after the other"),
        "microbatches": Input(1, whole(1, 64), "micro-batches, one after the other"),
        "uneven": Input(1.0, number(0.1), "work of the last device; others are 1"),
        "plans": Input(100, whole(1, 1000), "random plans whose traces are read as well"),
    },
    work=work,
    run=run,
    largest_run={"microbatches": 16},
    workers=lambda devices, **_: devices,
)
