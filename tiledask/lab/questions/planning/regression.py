"""22. Twice the replicas and micro-batches, and less than twice the speed: each effect alone."""

from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaling import hops
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.collective_time import bandwidth, latency
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION"]

NODE = 8
EXACT = 0.02
"""By which a formula for equal stages may differ from the stages as they are, simulated."""
DRAWS, ROWS = 12, 8
"""Gradients, and rows of each, of which the noise is measured."""


class _Job:
    """The training before and after, its seconds by formula and simulated."""

    def __init__(self, billions: float, memory: int, stages: int, replicas: int, link: float):
        self.billions, self.memory, self.stages = billions, memory, stages
        self.model, self.link = sized.decoder(billions), link
        kept = {"pp": stages, "recompute": "full", "flash_attention": True}
        layouts = [Layout(dp=replicas, zero=zero, **kept) for zero in range(4)]
        fitting = [
            each
            for each in layouts
            if td.fits(self.model, each, self.machine(each)).verdict == "fits"
        ]
        self.fits = bool(fitting)
        self.layout = fitting[0] if fitting else layouts[-1]

    def machine(self, layout: Layout, slower: float = 1.0) -> ClusterSpec:
        speed = self.link / slower
        return sized.machine(layout.devices, self.memory, NODE, between=speed)

    def changed(self, times: int = 1, m: int = 1) -> Layout:
        return replace(self.layout, dp=self.layout.dp * times, microbatches=m)

    def simulated(self, layout: Layout, slower: float = 1.0) -> StepEstimate:
        return td.estimate_step(self.model, layout, self.machine(layout, slower))

    def formula(self, layout: Layout, slower: float, before: StepEstimate) -> float:
        """Seconds: (m + p - 1) micro-batches, the ring over its narrowest link, the update."""
        parts, machine, d = before.parts, self.machine(layout, slower), layout.dp
        m, old = layout.microbatches, before.layout.microbatches
        ramp = parts.bubble / ((parts.compute + parts.recompute + parts.pp) / old)  # p - 1
        each = (parts.compute + parts.recompute) / old + hops(self.model, layout, machine) / m
        ring = sized.gradient_bytes(self.billions, layout) / bandwidth(d, 1, machine)
        wait = 2 * latency(d, 1, machine)
        return float((m + ramp) * each + ring + wait + parts.optimizer)


def _effects(m: int, slower: float) -> dict[str, tuple[int, int, float]]:
    """What changes -> (times the replicas, micro-batches, by how much links are slower)."""
    if m % 2:
        raise ConfigError(
            f"the same global batch on twice the replicas is half of the microbatches on each, and "
            f"{m} has no half; take an even number, such as microbatches={m + 1}"
        )
    return {
        "replicas x 2, the same work each": (2, m, 1.0),
        "replicas x 2, the same global batch": (2, m // 2, 1.0),
        "micro-batches x 2": (1, 2 * m, 1.0),
        f"replicas x 2, links {slower:g} times slower": (2, m, slower),
        "all together": (2, 2 * m, slower),
    }


def work(
    billions: float,
    memory: int,
    stages: int,
    replicas: int,
    microbatches: int,
    link: float,
    slower: float,
) -> WorkedAnswer:
    """Ring bytes before and after, and the efficiency of each change alone."""
    job = _Job(billions, memory, stages, replicas, link)
    size, plain = sized.states(billions, Layout(pp=stages, dp=replicas))
    lines = [
        sized.convention(),
        f"a replica on {stages} GPUs: {plain} a GPU of {format_bytes(memory)}, "
        f"{sized.holds(size, memory)}"
        + (f": {'as described it does not start' if size > memory else 'it can start'}"),
    ]
    sent = []
    for d in (replicas, 2 * replicas):
        layout = Layout(pp=stages, dp=d)
        _, sharded = sized.states(billions, replace(layout, zero=1))
        sent.append(sized.gradient_bytes(billions, layout))
        lines.append(
            f"d = {d}: with ZeRO-1 {sharded}; a ring sends 2 (d-1)/d x 2 B x {billions:g}e9 / "
            f"{stages} = {format_bytes(sent[-1])} a GPU and step, "
            f"{format_seconds(sent[-1] / link)} at {link / 1e9:g} GB/s"
        )
    grown = sent[1] / sent[0]
    before = job.simulated(job.changed(m=microbatches))
    lines += [
        f"{grown:.3g} times the bytes for twice the replicas: not twice as many",
        f"simulated before, {sized.brief(before.layout)}"
        + ("" if job.fits else " (no ZeRO stage fits with activations)")
        + f": {format_seconds(before.total)} a step, of it "
        f"{100 * before.bubble / before.total:.0f} % bubble and "
        f"{100 * before.dp / before.total:.1f} % gradients, all that no computing hides",
    ]
    efficiency, steps = {}, {"before": before}
    for name, (times, m, slow) in _effects(microbatches, slower).items():
        after = job.simulated(job.changed(times, m), slow)
        steps[name] = after
        gain = after.tokens_per_second / before.tokens_per_second
        efficiency[name] = gain / times
        lines.append(
            f"{name}: {format_seconds(after.total)} a step "
            f"({100 * after.bubble / after.total:.0f} % bubble, "
            f"{100 * after.dp / after.total:.1f} % gradients), {gain:.3g} times the tokens/s on "
            f"{f'{times} times the' if times > 1 else 'as many'} GPUs: "
            f"{100 * efficiency[name]:.1f} % of the speed per GPU before"
        )
    lines += [
        "the global batch grows 2 x 2 = 4-fold: gradient noise falls by sqrt(4) = 2, and a rate "
        "that is scaled with the batch is 4 times as high: unstable if it was near its limit",
        "fp16 sums of d replicas are rounded d - 1 times: errors grow with d; fp32 sums are "
        "2^13 = 8192 times finer",
    ]
    worst = min(efficiency, key=efficiency.__getitem__)
    return WorkedAnswer(
        f"More communication is not the whole story: a GPU sends {grown:.3g} times as much for "
        f"twice the replicas ({format_bytes(sent[0])} to {format_bytes(sent[1])}). Speed per GPU, "
        f"of that before: "
        + "; ".join(f"{name} {100 * each:.0f} %" for name, each in efficiency.items())
        + f". The worst is {worst}"
        + (
            ": a step of less work has the same sums and ramp"
            if worst == "replicas x 2, the same global batch"
            else ""
        )
        + ". A batch 4 times as large and fp16 sums over more replicas can make it unstable.",
        tuple(lines),
        {
            "replica_bytes": size,
            "ring_bytes": sent,
            "ring_growth": grown,
            "layout": str(before.layout),
            "efficiency": efficiency,
            "seconds": before.total,
        },
        lambda: td.plots.step_breakdown(steps, shares=True),
    )


def _noise(rows: int) -> float:
    """The variance of gradients of ``rows`` rows of the small network, about their mean."""
    from tiledask.lab.precision.replicas import SMALL
    from tiledask.lab.precision.small import gradients
    from tiledask.tile.datasets import load_images
    from tiledask.tile.layers import initialise

    weights, digits = initialise(SMALL.parameters(), 0), load_images("digits")
    drawn = []
    for step in range(DRAWS):
        x, labels = digits.batch(0, step, rows)
        _, found = gradients(weights, SMALL, x.reshape(rows, -1), labels, 1, 1.0)
        drawn.append(np.concatenate([g.ravel() for g in found.values()]))
    return float(np.var(drawn, axis=0, ddof=1).sum())


def run(
    cluster: Cluster,
    billions: float,
    memory: int,
    stages: int,
    replicas: int,
    microbatches: int,
    link: float,
    slower: float,
) -> Comparison:
    """Each change by formula and simulated; errors of sums and noise of gradients, measured."""
    from tiledask.lab.precision import FORMATS, sum_error

    job = _Job(billions, memory, stages, replicas, link)
    plans = {
        f"d = {d}, ZeRO-{zero}": (Layout(pp=stages, dp=d, zero=zero), "mixed-adam-16", memory)
        for d, zero in ((replicas, 0), (replicas, 1), (2 * replicas, 1))
    }
    rows = list(sized.held(cluster, "", billions, plans).rows)
    before = job.simulated(job.changed(m=microbatches))
    own = job.formula(before.layout, 1.0, before)
    for name, (times, m, slow) in _effects(microbatches, slower).items():
        layout = job.changed(times, m)
        after = job.simulated(layout, slow)
        work_done = layout.sequences / before.layout.sequences / times
        rows.append(
            Claim(
                f"{name}: share of ideal speed",
                work_done * own / job.formula(layout, slow, before),
                after.tokens_per_second / before.tokens_per_second / times,
                None,
                "percent",
                ("within", EXACT),
            )
        )
    errors: dict[tuple[str, int], float] = {}
    for dtype in ("float16", "float32"):
        for d in (2, 4, 8, 16):
            mesh = td.Mesh(cluster, (d,)) if d <= cluster.slots else None
            program = partial(sum_error, dtype=dtype)
            played = td.run_threads(program, d)
            ring = None if mesh is None else td.run_ranks(program, mesh, timeout=240).results[0][0]
            errors[dtype, d] = played.results[0][1]
            rows.append(
                Claim(
                    f"error of {dtype} sums over {d} ranks",
                    (d - 1) * sqrt(d) * FORMATS[dtype].roundoff,
                    errors[dtype, d],
                    ring,
                    rule="at most",
                    note="predicted: every addition rounded the wrong way",
                )
            )
    rows.append(
        Claim(
            "fp16's error at 16 ranks over that at 2",
            1.0,
            errors["float16", 16] / errors["float16", 2],
            rule="at least",
        )
    )
    rows.append(
        Claim(
            "noise of gradients, over that of a 4 times larger batch",
            4.0,
            None,
            _noise(ROWS) / _noise(4 * ROWS),
            rule=("ratio", 0.7, 1.4),
            note="variance, the small network",
        )
    )
    return Comparison("Each effect alone; states at 1:1000; sums over replicas", rows)


QUESTION = CourseQuestion(
    22,
    "Diagnosing a Scaling Regression in Hybrid Parallel LLM Training",
    lambda billions, memory, stages, replicas, microbatches, link, slower: (
        f"A model of {billions:g} billion parameters is trained with {stages} GPUs of "
        f"{format_bytes(memory)} a replica. Replicas are doubled from {replicas} to {2 * replicas} "
        f"({2 * replicas * stages} GPUs), and so are the micro-batches, from {microbatches}. It "
        f"speeds up by less than it should, and becomes unstable. Is it because of more "
        f"communication?"
    ),
    {
        "billions": sized.size_of(30.0, 13.0),
        "memory": sized.memory_of("80GB", "40GB"),
        "stages": Input(4, 8, whole(2, 512), "GPUs of a replica, as stages"),
        "replicas": Input(8, 4, whole(2, 4096), "replicas before they are doubled"),
        "microbatches": Input(8, 32, whole(1, 1024), "micro-batches of a replica, before"),
        "link": Input(25e9, 5e9, number(1e6), "bytes/s of a GPU between nodes"),
        "slower": Input(2.0, 4.0, number(1.0), "by how much the links to further nodes are slower"),
    },
    work,
    run,
    largest_run={"stages": 32, "replicas": 256, "microbatches": 256},
)
