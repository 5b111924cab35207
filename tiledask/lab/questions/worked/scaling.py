"""20 and 22: what is sent where, how nearly more GPUs are faster, and why not."""

from dataclasses import replace
from functools import partial
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.sizes import (
    ADAM,
    BILLIONS,
    COUNTED,
    GB,
    LINK,
    MEMORY,
    brief,
    decoder,
    gradient_bytes,
    holds,
    machine,
)  # fmt: skip
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.collective_time import bandwidth, p2p
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

SEQUENCE = 2048
WIRE = 2
"""Bytes of a number on its way."""
NODE = 8
WITHIN = replace(LINK, meaning="bytes/s of a GPU within its node")
BATCH = Input("sequences of a step", 1, 100_000)


class Sync(NamedTuple):
    """A kind of synchronisation."""

    name: str
    when: str
    bytes: float
    """That a GPU sends in a step."""
    rule: str


def syncs(model: Model, layout: Layout, billions: float) -> list[Sync]:
    """What a GPU sends in a step, by kind; none for a degree of 1.

    >>> [each.name for each in syncs(decoder(13), Layout(dp=2, tp=2), 13)]
    ['dp', 'tp']
    """
    d, t, p, m = layout.dp, layout.tp, layout.pp, layout.microbatches
    rows = layout.microbatch * SEQUENCE * model.hidden * WIRE
    found = []
    if d > 1:
        moved = gradient_bytes(billions, layout)
        passes = moved * d / (d - 1) / (sizes.parameters(billions) / t / p)
        when = "every micro-batch" if layout.zero > 1 and m > 1 else "once a step"
        slices = f" / {t * p}" * (t * p > 1)
        rule = f"({d} - 1) / {d} x {passes:g} B x {billions:g}e9{slices} = {format_bytes(moved)}"
        what = f"gradients{' and weights' * bool(layout.zero)}, {when}"
        found.append(Sync("dp", what, moved, rule))
    if t > 1:
        sums = 6 if layout.recompute == "full" else 4  # forward, backward, and forward again
        layers = -(-model.layers // p)
        moved = sums * layers * m * 2 * (t - 1) / t * rows
        rule = (
            f"{sums} sums x {layers} layers x {m} micro-batches x 2 ({t} - 1) / {t} x "
            f"{format_bytes(rows)} = {format_bytes(moved)}"
        )
        found.append(Sync("tp", "every layer and micro-batch", moved, rule))
    if p > 1:
        moved = 2 * m * layout.interleave * rows / t
        v = f" x interleave {layout.interleave}" * (layout.interleave > 1)
        rule = f"2 x {m} micro-batches{v} x {format_bytes(rows / t)} = {format_bytes(moved)}"
        found.append(Sync("pp", "blocks to the next stage and back", moved, rule))
    return found


# -- 20: does a plan scale? ------------------------------------------------------------------------

NEAR = 0.9
"""Of ideal speed: what is called near-linear."""


def hops(model: Model, step: StepEstimate) -> float:
    """Seconds in which a step's blocks go to the next stage and their gradients come back."""
    layout = step.layout
    block = layout.microbatch * SEQUENCE * model.hidden * WIRE / layout.tp
    once = p2p(block, layout.pp, layout.tp * layout.dp, step.cluster)
    return 2 * layout.microbatches * layout.interleave * float(once)


@question(
    20,
    "Designing a Distributed Training Plan Under Memory, Throughput, and Stability Constraints",
    "A model of {billions} billion parameters is to be trained on {nodes} nodes of {per_node} GPUs "
    "of {memory}, {batch} sequences a step, with links of {within} in a node and {between} "
    "between. Which plan fits, where is each gradient summed and with how many bytes, and does it "
    "scale near-linearly from one node to all?",
    billions=BILLIONS,
    memory=MEMORY,
    nodes=Input("nodes", 2, 128),
    per_node=Input("GPUs of a node", 2, 8),
    within=WITHIN,
    between=LINK,
    batch=BATCH,
)
def scaling(
    billions: float = 13.0,
    memory: int = 80 * GB,
    nodes: int = 4,
    per_node: int = 8,
    within: float = 300e9,
    between: float = 25e9,
    batch: int = 256,
) -> WorkedAnswer:
    """The plan, its sums with their bytes, how nearly it scales, and what it waits for.

    The fastest layout on all nodes of which one node can have an equal part of the copies.
    """
    model, room, links = decoder(billions), format_bytes(memory), (within, between)
    every = machine(nodes * per_node, memory, per_node, *links)
    one = machine(per_node, memory, per_node, *links)
    plans = td.search(model, every, batch, sequence=SEQUENCE)
    shared = (p.layout for p in plans[:40] if p.verdict == "fits" and p.layout.dp % nodes == 0)
    layout = next(shared, None)
    if layout is None:
        raise ConfigError(
            f"no layout that fits {nodes} nodes of {per_node} GPUs of {room} has a multiple of "
            f"{nodes} copies, to be compared with one node; the best is {plans.best.layout}, "
            f"{plans.best.verdict}: take larger GPUs or a smaller model"
        )

    def steps(times: int = 1) -> tuple[StepEstimate, StepEstimate]:
        """(on one node, on all) with ``times`` the batch."""
        m = layout.microbatches * times
        small = replace(layout, dp=layout.dp // nodes, microbatches=m * nodes)
        return (
            td.estimate_step(model, small, one, sequence=SEQUENCE),
            td.estimate_step(model, replace(layout, microbatches=m), every, sequence=SEQUENCE),
        )

    small, large = steps()
    share = small.total / large.total / nodes
    again = steps(2)
    doubled = again[0].total / again[1].total / nodes
    # by formula: work is shared out, and ring, ramp and blocks between stages are added
    done, spent = small.compute + small.recompute + small.tp, []
    for step, by in ((small, 1), (large, nodes)):
        ring = 0.0
        if step.layout.dp > 1:
            speed = bandwidth(step.layout.dp, step.layout.tp, step.cluster)
            ring = gradient_bytes(billions, step.layout) / float(speed)
        sent = ring + hops(model, step)
        spent.append(done / by + sent + small.bubble + small.optimizer)
    formula = spent[0] / spent[1] / nodes
    sums = syncs(model, layout, billions)
    spans = {"dp": layout.dp * layout.tp, "tp": layout.tp, "pp": layout.devices}
    waits = {name: getattr(large, name) for name in ("bubble", "tp", "dp", "pp", "recompute")}
    top = max(waits, key=waits.__getitem__)
    limits = td.sensitivity(model, every, batch, sequence=SEQUENCE)
    helped = [f"{each.limit} {each.speedup:.2f}" for each in limits if each.speedup > 1]
    peak = td.estimate_memory(model, layout, sequence=SEQUENCE).peak
    waiting = "Nothing waits"
    if waits[top]:
        waiting = (
            f"The most waiting is for {top} ({100 * waits[top] / large.total:.1f} % of a step)"
        )
    plan = {"the plan": (sizes.plain(layout), ADAM, memory)}
    return WorkedAnswer(
        f"{brief(layout)}, micro-batches of {layout.microbatch}. From {per_node} to "
        f"{nodes * per_node} GPUs it scales at {100 * share:.1f} %, {'not ' * (share < NEAR)}"
        f"near-linear ({100 * NEAR:.0f} % or more). {waiting}; with twice the batch it scales at "
        f"{100 * doubled:.1f} %. Of all limits, "
        f"{f'{limits[0].limit} doubled help most' if helped else 'none helps'}. bf16 is stable as "
        f"it is, fp16 with a dynamic loss scale and fp32 masters.",
        [
            f"the fastest layout that fits {nodes} x {per_node} GPUs of {room} with {batch} "
            f"sequences a step, {COUNTED} (GB = 1e9 bytes): {brief(layout)}",
            f"states a GPU: {sizes.states(billions, layout)[1]}; with activations "
            f"{format_bytes(peak)}",
            *(
                f"{each.name}, {each.when}, "
                f"{'within a node' if spans[each.name] <= per_node else 'between nodes too'}: "
                f"{each.rule}"
                for each in sums
            ),
            f"efficiency: {format_seconds(small.total)} on one node, dp {small.layout.dp} / "
            f"({nodes} x {format_seconds(large.total)}) = {100 * share:.1f} %; by formula, with "
            f"the work shared out and the ring on top: {100 * formula:.1f} %; with twice the "
            f"batch, so that as many bytes go with twice the work: {100 * doubled:.1f} %",
            f"of {format_seconds(large.total)}: compute {format_seconds(large.compute)}, "
            + ", ".join(f"{name} {format_seconds(s)}" for name, s in waits.items() if s),
            f"a limit doubled makes it so many times as fast: {', '.join(helped) or 'none'}",
        ],
        {
            "layout": str(layout),
            "sent": {each.name: each.bytes for each in sums},
            "seconds": large.total,
            "efficiency": share,
            "efficiency_by_formula": formula,
            "waits_for": top,
            "limit": limits[0].limit,
        },
        lambda cluster: runs.held(
            cluster, "The plan", sizes.parameters(billions), plan,
            runs.trained(cluster, "the plan, bf16", layout, "bfloat16"),
        ),
        figure=lambda: td.plots.step_breakdown({"one node": small, f"{nodes} nodes": large}),
        more=(f"all of the layout: {layout}", *map(str, limits)),
    )  # fmt: skip


# -- 22: why not faster? ---------------------------------------------------------------------------


@question(
    22,
    "Diagnosing a Scaling Regression in Hybrid Parallel LLM Training",
    "A model of {billions} billion parameters is trained with {stages} GPUs of {memory} a replica. "
    "Replicas are doubled from {replicas}, and so are the micro-batches, from {microbatches}. It "
    "speeds up by less than it should, and becomes unstable. Is it because of more communication?",
    billions=BILLIONS,
    memory=MEMORY,
    stages=Input("GPUs of a replica, as stages", 2, 512, run=32),
    replicas=Input("replicas before they are doubled", 2, 4096, run=256),
    microbatches=Input("micro-batches of a replica, before", 1, 1024, run=256),
    link=LINK,
    slower=Input("by how much the links to further nodes are slower", 1),
)
def regression(
    billions: float = 30.0,
    memory: int = 80 * GB,
    stages: int = 4,
    replicas: int = 8,
    microbatches: int = 8,
    link: float = 25e9,
    slower: float = 2.0,
) -> WorkedAnswer:
    """Ring bytes before and after, and the efficiency of each change alone."""
    m, model = microbatches, decoder(billions)
    if m % 2:
        raise ConfigError(
            f"the same global batch on twice the replicas is half of the microbatches on each, and "
            f"{m} has no half; take an even number, such as microbatches={m + 1}"
        )

    def there(layout: Layout, slow: float = 1.0) -> ClusterSpec:
        return machine(layout.devices, memory, NODE, between=link / slow)

    kept: dict[str, Any] = {"pp": stages, "recompute": "full", "flash_attention": True}
    layouts = [Layout(dp=replicas, zero=zero, **kept) for zero in range(4)]
    fitting = [each for each in layouts if td.fits(model, each, there(each)).verdict == "fits"]
    layout = [*fitting, layouts[-1]][0]

    def step(times: int, m: int, slow: float = 1.0) -> StepEstimate:
        changed = replace(layout, dp=layout.dp * times, microbatches=m)
        return td.estimate_step(model, changed, there(changed, slow))

    def parts(of: StepEstimate) -> str:
        bubble, gradients = 100 * of.bubble / of.total, 100 * of.dp / of.total
        took = format_seconds(of.total)
        return f"{took} a step ({bubble:.0f} % bubble, {gradients:.1f} % gradients)"

    changes = {  # times the replicas, micro-batches, by how much links are slower
        "replicas x 2, the same work each": (2, m, 1.0),
        "replicas x 2, the same global batch": (2, m // 2, 1.0),
        "micro-batches x 2": (1, 2 * m, 1.0),
        f"replicas x 2, links {slower:g} times slower": (2, m, slower),
        "all together": (2, 2 * m, slower),
    }
    before = step(1, m)
    steps = {name: step(*change) for name, change in changes.items()}
    gains = {
        name: after.tokens_per_second / before.tokens_per_second for name, after in steps.items()
    }
    each = {name: gains[name] / times for name, (times, *_) in changes.items()}
    worst = min(each, key=each.__getitem__)
    pure = {d: Layout(pp=stages, dp=d) for d in (replicas, 2 * replicas)}
    size, plain = sizes.states(billions, pure[replicas])
    sent = [gradient_bytes(billions, one) for one in pure.values()]
    grown = sent[1] / sent[0]
    why = ": a step of less work has the same sums and ramp" * (worst == [*changes][1])

    def run(cluster: Cluster) -> Comparison:
        """States before and after, held or refused; errors of sums over more and more ranks."""
        from tiledask.lab.precision import FORMATS, sum_error

        rows = []
        for dtype, d in product(("float16", "float32"), (2, 4, 8, 16)):
            program, ring = partial(sum_error, dtype=dtype), None
            if d <= cluster.slots:
                ring = td.run_ranks(program, td.Mesh(cluster, (d,)), timeout=240).results[0][0]
            most, played = (d - 1) * sqrt(d) * FORMATS[dtype].roundoff, td.run_threads(program, d)
            name = f"error of {dtype} sums over {d} ranks"
            note = "predicted: every addition rounded the wrong way"
            rows.append(Claim(name, most, played.results[0][1], ring, rule="at most", note=note))
        plans = {
            f"d = {d}, ZeRO-{zero}": (Layout(pp=stages, dp=d, zero=zero), ADAM, memory)
            for d, zero in ((replicas, 0), (replicas, 1), (2 * replicas, 1))
        }
        return runs.held(cluster, "Before and after", sizes.parameters(billions), plans, rows)

    return WorkedAnswer(
        f"More communication is not the whole story: a GPU sends {grown:.3g} times as much for "
        f"twice the replicas ({format_bytes(sent[0])} to {format_bytes(sent[1])}). Speed per GPU, "
        f"of that before: {'; '.join(f'{name} {100 * one:.0f} %' for name, one in each.items())}. "
        f"The worst is {worst}{why}. A batch 4 times as large and fp16 sums over more replicas can "
        f"make it unstable.",
        [
            sizes.convention(),
            f"a replica on {stages} GPUs: {plain} a GPU of {format_bytes(memory)}, "
            f"{holds(size, memory)}: "
            f"{'as described it does not start' if size > memory else 'it can start'}",
            *(
                f"d = {d}: with ZeRO-1 {sizes.states(billions, replace(one, zero=1))[1]}; a ring "
                f"sends 2 (d-1)/d x 2 B x {billions:g}e9 / {stages} = {format_bytes(moved)} a GPU "
                f"and step, {format_seconds(moved / link)} at {link / 1e9:g} GB/s"
                for (d, one), moved in zip(pure.items(), sent, strict=True)
            ),
            f"simulated before, {brief(before.layout)}"
            + " (no ZeRO stage fits with activations)" * (not fitting)
            + f": {parts(before)}",
            *(
                f"{name}: {parts(after)}, {gains[name]:.3g} times the tokens/s: "
                f"{100 * each[name]:.1f} % of the speed per GPU before"
                for name, after in steps.items()
            ),
            "the global batch grows 2 x 2 = 4-fold: gradient noise falls by sqrt(4) = 2, and a "
            "rate that is scaled with the batch is 4 times as high; fp16 sums of d replicas are "
            "rounded d - 1 times: errors grow with d; fp32 sums are 2^13 = 8192 times finer",
        ],
        {
            "replica_bytes": size,
            "ring_bytes": sent,
            "ring_growth": grown,
            "layout": str(before.layout),
            "efficiency": each,
            "seconds": before.total,
        },
        run,
        figure=lambda: td.plots.step_breakdown({"before": before, **steps}, shares=True),
    )
