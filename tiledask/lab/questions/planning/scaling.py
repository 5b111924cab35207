"""20. A plan for 32 GPUs: what is sent where, how nearly it scales from 8, what would help."""

from dataclasses import replace
from typing import NamedTuple

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import SIZES, trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.collective_time import bandwidth, p2p
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION", "Sync", "hops", "syncs"]

SEQUENCE = 2048
WIRE = 2
"""Bytes of a number on its way."""
RECIPE = "mixed-adam-16"
LOOKED_AT = 40
"""Plans among which one divides its copies over the nodes."""
NEAR = 0.9
"""Of ideal speed: what is called near-linear."""
LIMIT = 0.05
"""By which the formula's efficiency may differ from the simulated one."""


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


def work(
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


def run(
    cluster: Cluster,
    billions: float,
    memory: int,
    nodes: int,
    per_node: int,
    within: float,
    between: float,
    batch: int,
) -> Comparison:
    """Efficiency by formula and simulated; sums of a small model counted on workers."""
    found = _Scaled(billions, memory, nodes, per_node, (within, between), batch)
    layout = found.layout
    plain = Layout(dp=layout.dp, tp=layout.tp, pp=layout.pp, zero=layout.zero)
    rows = list(sized.held(cluster, "", billions, {"the plan": (plain, RECIPE, memory)}).rows)
    for name, times in (("", 1), (", twice the batch", 2)):
        shares = found.formula(times), found.efficiency(times)
        words = f"efficiency of {nodes} nodes{name}"
        rows.append(Claim(words, *shares, None, "percent", ("within", LIMIT)))
    one = found.efficiency(), found.efficiency(2)
    rows.append(Claim("twice the batch scales better", None, one[1] >= one[0], rule="true"))
    rows += trained(cluster, "the plan, bf16", layout, dtype="bfloat16")
    rows += _sums(cluster)
    return Comparison("The plan: states at 1:1000, scaling, sums counted", rows)


def _sums(cluster: Cluster) -> list[Claim]:
    """Bytes of the sums over copies and over slices, by formula and counted on workers."""
    text = td.load_text("tales")
    model, rows, counted = td.GPT(text.vocabulary, **SIZES), 8, {}
    for times in (1, 2):
        split = td.train(
            model,
            text,
            td.Mesh(cluster, (2, 2, 1)),
            steps=1,
            batch=times * rows,
            progress=False,
            timeout=240,
        )
        sent = split.layers().reset_index()
        inside = sent[sent["layer"].str.startswith("layer ")]
        counted[times] = inside.groupby("parallel")["bytes"].sum()
    block = rows // 2 * SIZES["sequence"] * SIZES["hidden"] * 4
    tensor = 4 * SIZES["layers"] * 2 * (2 - 1) // 2 * block * 4  # of each of 4 workers
    both = [int(counted[times]["data"]) for times in (1, 2)]
    return [
        Claim(
            "dp 2 x tp 2: 4 sums a layer over tp, bytes a step of all workers",
            tensor,
            None,
            int(counted[1]["tensor"]),
            "bytes",
            "equal",
        ),
        Claim(
            "gradients over dp with twice the batch, as many bytes",
            both[0],
            None,
            both[1],
            "bytes",
            "equal",
            "so half as many a sequence",
        ),
    ]


QUESTION = CourseQuestion(
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
        "billions": sized.size_of(13.0, 30.0),
        "memory": sized.memory_of("80GB", "40GB"),
        "nodes": Input(4, 2, whole(2, 128), "nodes"),
        "per_node": Input(8, 4, whole(2, 8), "GPUs of a node"),
        "within": Input(300e9, 30e9, number(1e6), "bytes/s of a GPU within its node"),
        "between": Input(25e9, 2.5e9, number(1e6), "bytes/s of a GPU between nodes"),
        "batch": Input(256, 1024, whole(1, 100_000), "sequences of a step"),
    },
    work,
    run,
)
