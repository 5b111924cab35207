"""20 and 22: what is sent where, how nearly more GPUs are faster, and why not; what would help."""

from dataclasses import replace
from functools import partial
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.collective_time import bandwidth, p2p
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION_20", "QUESTION_22", "Sync", "hops", "syncs"]

SEQUENCE = 2048
WIRE = 2
"""Bytes of a number on its way."""
RECIPE = "mixed-adam-16"
LOOKED_AT = 40
"""Plans among which one divides its copies over the nodes."""
NEAR = 0.9
"""Of ideal speed: what is called near-linear."""


class Sync(NamedTuple):
    """A kind of synchronisation."""

    name: str
    when: str
    bytes: float
    """That a GPU sends in a step."""
    rule: str


def syncs(model: Model, layout: Layout, billions: float, sequence: int = SEQUENCE) -> list[Sync]:
    """What a GPU sends in a step, by kind; none for a degree of 1.

    >>> [each.name for each in syncs(sized.decoder(13), Layout(dp=2, tp=2), 13)]
    ['dp', 'tp']
    """
    d, t, m = layout.dp, layout.tp, layout.microbatches
    rows = layout.microbatch * sequence * model.hidden * WIRE
    layers, n = -(-model.layers // layout.pp), f"{billions:g}e9"
    found = []
    if d > 1:
        moved = sized.gradient_bytes(billions, layout)
        slices = f" / {t * layout.pp}" if t * layout.pp > 1 else ""
        passes = moved * d / (d - 1) / (sized.parameters(billions) / t / layout.pp)
        when = "every micro-batch" if layout.zero > 1 and m > 1 else "once a step"
        rule = f"({d} - 1) / {d} x {passes:g} B x {n}{slices} = {format_bytes(moved)}"
        found.append(
            Sync("dp", f"gradients{' and weights' * bool(layout.zero)}, {when}", moved, rule)
        )
    if t > 1:
        sums = 6 if layout.recompute == "full" else 4  # forward, backward, and forward again
        moved = sums * layers * m * 2 * (t - 1) / t * rows
        rule = (
            f"{sums} sums x {layers} layers x {m} micro-batches x 2 ({t} - 1) / {t} x "
            f"{format_bytes(rows)} = {format_bytes(moved)}"
        )
        found.append(Sync("tp", "every layer and micro-batch", moved, rule))
    if layout.pp > 1:
        moved = 2 * m * layout.interleave * rows / t
        v = f" x interleave {layout.interleave}" if layout.interleave > 1 else ""
        rule = f"2 x {m} micro-batches{v} x {format_bytes(rows / t)} = {format_bytes(moved)}"
        found.append(Sync("pp", "blocks to the next stage and back", moved, rule))
    return found


def hops(model: Model, layout: Layout, machine: ClusterSpec, sequence: int = SEQUENCE) -> float:
    """Seconds in which a step's blocks go to the next stage and their gradients come back."""
    block = layout.microbatch * sequence * model.hidden * WIRE / layout.tp
    once = p2p(block, layout.pp, layout.tp * layout.dp, machine)
    return 2 * layout.microbatches * layout.interleave * float(once)


class _Scaled:
    """The fastest layout on all nodes, and the same work with fewer copies on one of them."""

    def __init__(
        self, billions: float, memory: int, nodes: int, per_node: int, links: tuple, batch: int
    ):
        self.billions, self.nodes, self.per_node = billions, nodes, per_node
        self.model = sized.decoder(billions)
        self.machine = sized.machine(nodes * per_node, memory, per_node, *links)
        self.one = sized.machine(per_node, memory, per_node, *links)
        plans = td.search(self.model, self.machine, batch, sequence=SEQUENCE)
        fitting = (p.layout for p in plans[:LOOKED_AT] if p.verdict == "fits")
        layout = next((each for each in fitting if each.dp % nodes == 0), None)
        if layout is None:
            raise ConfigError(
                f"no layout that fits {nodes} nodes of {per_node} GPUs of "
                f"{format_bytes(memory)} has a multiple of {nodes} copies, to be compared with one "
                f"node; the best is {plans.best.layout}, {plans.best.verdict}: take larger GPUs "
                f"or a smaller model"
            )
        self.layout: Layout = layout

    def times(self, sequences: int = 1) -> tuple[StepEstimate, StepEstimate]:
        """(on one node, on all) with ``sequences`` times the batch."""
        m = self.layout.microbatches * sequences
        large = replace(self.layout, microbatches=m)
        small = replace(large, dp=self.layout.dp // self.nodes, microbatches=m * self.nodes)
        return (
            td.estimate_step(self.model, small, self.one, sequence=SEQUENCE),
            td.estimate_step(self.model, large, self.machine, sequence=SEQUENCE),
        )

    def efficiency(self, sequences: int = 1) -> float:
        """Speed on all nodes over ``nodes`` times that on one, simulated."""
        small, large = self.times(sequences)
        return small.total / large.total / self.nodes

    def formula(self, sequences: int = 1) -> float:
        """The same, if work is shared out, and ring, ramp and blocks between stages are added."""
        small, large = self.times(sequences)
        done = small.compute + small.recompute + small.tp
        spent = []
        for step, machine, share in ((small, self.one, 1), (large, self.machine, self.nodes)):
            ring = 0.0
            if step.layout.dp > 1:
                speed = bandwidth(step.layout.dp, step.layout.tp, machine)
                ring = sized.gradient_bytes(self.billions, step.layout) / float(speed)
            sent = ring + hops(self.model, step.layout, machine)
            spent.append(done / share + sent + small.bubble + small.optimizer)
        return spent[0] / spent[1] / self.nodes


def work_20(
    billions: float,
    memory: int,
    nodes: int,
    per_node: int,
    within: float,
    between: float,
    batch: int,
) -> WorkedAnswer:
    """The plan, its sums with their bytes, how nearly it scales, and what it waits for."""
    found = _Scaled(billions, memory, nodes, per_node, (within, between), batch)
    layout, model = found.layout, found.model
    small, large = found.times()
    peak = td.estimate_memory(model, layout, sequence=SEQUENCE).peak
    lines = [
        f"the fastest layout that fits {nodes} x {per_node} GPUs of {format_bytes(memory)} with "
        f"{batch} sequences a step (activations, buffers and a CUDA context counted, as in "
        f"`tiledask fit`; GB = 1e9 bytes): {sized.brief(layout)}",
        f"states a GPU: {sized.states(billions, layout)[1]}; with activations {format_bytes(peak)}",
    ]
    spans = {"dp": layout.dp * layout.tp, "tp": layout.tp, "pp": layout.devices}
    sent = {}
    for each in syncs(model, layout, billions):
        sent[each.name] = each.bytes
        where = "within a node" if spans[each.name] <= per_node else "between nodes too"
        lines.append(f"{each.name}, {each.when}, {where}: {each.rule}")
    share, formula, doubled = found.efficiency(), found.formula(), found.efficiency(2)
    waits = {name: getattr(large, name) for name in ("bubble", "tp", "dp", "pp", "recompute")}
    top = max(waits, key=waits.__getitem__)
    lines += [
        f"on one node, dp {small.layout.dp}: {format_seconds(small.total)} a step; on {nodes}: "
        f"{format_seconds(large.total)}",
        f"efficiency: {format_seconds(small.total)} / ({nodes} x {format_seconds(large.total)}) = "
        f"{100 * share:.1f} %; by formula, with the work shared out and the ring on top: "
        f"{100 * formula:.1f} %",
        f"of {format_seconds(large.total)}: compute {format_seconds(large.compute)}, "
        + ", ".join(f"{name} {format_seconds(s)}" for name, s in waits.items() if s),
        "with twice the batch, so that as many bytes go with twice the work: "
        f"{100 * doubled:.1f} %",
    ]
    limits = td.sensitivity(model, found.machine, batch, sequence=SEQUENCE)
    helped = [f"{each.limit} {each.speedup:.2f}" for each in limits if each.speedup > 1]
    lines.append(f"a limit doubled makes it so many times as fast: {', '.join(helped) or 'none'}")
    near = f"{'' if share >= NEAR else 'not '}near-linear ({100 * NEAR:.0f} % or more)"
    waiting = f"The most waiting is for {top} ({100 * waits[top] / large.total:.1f} % of a step)"
    if not waits[top]:
        waiting = "Nothing waits"
    return WorkedAnswer(
        f"{sized.brief(layout)}, micro-batches of {layout.microbatch}. From {per_node} to "
        f"{nodes * per_node} GPUs it scales at {100 * share:.1f} %, {near}. {waiting}; with twice "
        f"the batch it scales at {100 * doubled:.1f} %. Of all limits, "
        + (f"{limits[0].limit} doubled help most" if limits[0].speedup > 1 else "none helps")
        + ". bf16 is stable as it is, fp16 with a dynamic loss scale and fp32 masters.",
        tuple(lines),
        {
            "layout": str(layout),
            "sent": sent,
            "seconds": large.total,
            "efficiency": share,
            "efficiency_by_formula": formula,
            "waits_for": top,
            "limit": limits[0].limit,
        },
        lambda: td.plots.step_breakdown({"one node": small, f"{nodes} nodes": large}),
        (f"all of the layout: {layout}", *map(str, limits)),
    )


def run_20(
    cluster: Cluster,
    billions: float,
    memory: int,
    nodes: int,
    per_node: int,
    within: float,
    between: float,
    batch: int,
) -> Comparison:
    """The plan held; and trained as small as it can be: its sums counted."""
    layout = _Scaled(billions, memory, nodes, per_node, (within, between), batch).layout
    plans = {"the plan": (sized.plain(layout), RECIPE, memory)}
    rows = trained(cluster, "the plan, bf16", layout, dtype="bfloat16")
    return sized.held(cluster, "The plan", billions, plans, *rows)


QUESTION_20 = CourseQuestion(
    20,
    "Designing a Distributed Training Plan Under Memory, Throughput, and Stability Constraints",
    lambda billions, memory, nodes, per_node, within, between, batch: (
        f"A model of {billions:g} billion parameters is to be trained on {nodes} nodes of "
        f"{per_node} GPUs of {format_bytes(memory)}, {batch} sequences a step, with links of "
        f"{format_bytes(within)}/s in a node and {format_bytes(between)}/s between. Which plan "
        f"fits, where is each gradient summed and with how many bytes, and does it scale "
        f"near-linearly from {per_node} to {nodes * per_node} GPUs?"
    ),
    {
        "billions": sized.size_of(13.0),
        "memory": sized.memory_of("80GB"),
        "nodes": Input(4, whole(2, 128), "nodes"),
        "per_node": Input(8, whole(2, 8), "GPUs of a node"),
        "within": Input(300e9, number(1e6), "bytes/s of a GPU within its node"),
        "between": Input(25e9, number(1e6), "bytes/s of a GPU between nodes"),
        "batch": Input(256, whole(1, 100_000), "sequences of a step"),
    },
    work_20,
    run_20,
)
NODE = 8


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


def work_22(
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


def run_22(
    cluster: Cluster, billions: float, memory: int, stages: int, replicas: int, **others: Any
) -> Comparison:
    """States before and after, held or refused; errors of sums over more and more ranks."""
    from tiledask.lab.precision import FORMATS, sum_error

    plans = {
        f"d = {d}, ZeRO-{zero}": (Layout(pp=stages, dp=d, zero=zero), "mixed-adam-16", memory)
        for d, zero in ((replicas, 0), (replicas, 1), (2 * replicas, 1))
    }
    rows = []
    for dtype, d in product(("float16", "float32"), (2, 4, 8, 16)):
        program, mesh = partial(sum_error, dtype=dtype), (d,)
        ring = None
        if d <= cluster.slots:
            ring = td.run_ranks(program, td.Mesh(cluster, mesh), timeout=240).results[0][0]
        most, played = (d - 1) * sqrt(d) * FORMATS[dtype].roundoff, td.run_threads(program, d)
        name = f"error of {dtype} sums over {d} ranks"
        note = "predicted: every addition rounded the wrong way"
        rows.append(Claim(name, most, played.results[0][1], ring, rule="at most", note=note))
    return sized.held(cluster, "Before and after", billions, plans, *rows)


QUESTION_22 = CourseQuestion(
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
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("80GB"),
        "stages": Input(4, whole(2, 512), "GPUs of a replica, as stages"),
        "replicas": Input(8, whole(2, 4096), "replicas before they are doubled"),
        "microbatches": Input(8, whole(1, 1024), "micro-batches of a replica, before"),
        "link": Input(25e9, number(1e6), "bytes/s of a GPU between nodes"),
        "slower": Input(2.0, number(1.0), "by how much the links to further nodes are slower"),
    },
    work_22,
    run_22,
    largest_run={"stages": 32, "replicas": 256, "microbatches": 256},
)
