"""23. One job on two clusters: copies do not fit the first, one configuration fits both."""

from functools import lru_cache

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

NODE = 8
MOST_NODES = 16
BATCH = 64
"""Sequences of a step."""


@lru_cache(maxsize=64)
def common(
    billions: float, memory_a: int, memory_b: int, link_a: float, link_b: float, nodes: int
) -> tuple[int, list[int], list[Layout]]:
    """(nodes of each cluster, how many layouts fit A and B, those that fit both, the one whose
    slower cluster is fastest first): from ``nodes`` on, the fewest where there are any."""
    model = sized.decoder(billions)
    tried = nodes
    while tried <= MOST_NODES:
        found = []
        for memory, link in ((memory_a, link_a), (memory_b, link_b)):
            machine = sized.machine(NODE * tried, memory, NODE, between=link)
            plans = td.search(model, machine, BATCH).to_frame(None)
            fitting = plans[plans["verdict"] == "fits"]
            fields = [name for name in vars(Layout()) if name in fitting]
            rows = fitting[fields].itertuples(index=False, name=None)
            found.append(dict(zip(rows, fitting["by_formula"], strict=True)))
        if both := found[0].keys() & found[1].keys():
            order = sorted(both, key=lambda row: (max(each[row] for each in found), row))
            layouts = [Layout(**dict(zip(fields, row, strict=True))) for row in order]
            return tried, list(map(len, found)), layouts
        tried *= 2
    raise ConfigError(
        f"no layout of a {billions:g}-billion decoder fits {format_bytes(memory_a)} and "
        f"{format_bytes(memory_b)} a GPU on {nodes} to {MOST_NODES} nodes of {NODE}; take larger "
        f"GPUs or fewer parameters"
    )


def work(
    billions: float, memory_a: int, memory_b: int, link_a: float, link_b: float, nodes: int
) -> WorkedAnswer:
    """What data parallelism keeps, and the layout that is best for both clusters."""
    alone, how = sized.states(billions, Layout(dp=NODE * nodes))
    half, plain = sized.states(billions, Layout(dp=NODE * nodes), "fp16-sgd")
    lines = [
        sized.convention(),
        f"data parallel on A, each GPU: {how}, of {format_bytes(memory_a)}: "
        f"{sized.holds(alone, memory_a)}",
        f"fp16 weights and gradients alone: {plain}, {sized.holds(half, memory_a)}",
        f"split over one node: {format_bytes(alone)} / {NODE} = {format_bytes(alone / NODE)} a "
        f"GPU; A has {format_bytes(memory_a)}, B {format_bytes(memory_b)}",
    ]
    needed, counts, layouts = common(billions, memory_a, memory_b, link_a, link_b, nodes)
    if needed > nodes:
        lines.append(f"with {nodes} x {NODE} GPUs no layout fits both clusters")
    lines.append(
        f"with activations, buffers and a CUDA context, as `tiledask fit` counts, {counts[0]:,} "
        f"layouts of {needed} x {NODE} GPUs fit A, {counts[1]:,} B, and {len(layouts):,} both"
    )
    layout = layouts[0]
    model = sized.decoder(billions)
    size, states = sized.states(billions, layout)
    lines.append(f"the best of them for the slower cluster: {sized.brief(layout)}; states {states}")
    values = {
        "nodes": needed,
        "fitting": [*counts, len(layouts)],
        "layout": str(layout),
        "state_bytes": size,
    }
    said, steps = [], {}
    for name, memory, link in (("A", memory_a, link_a), ("B", memory_b, link_b)):
        machine = sized.machine(NODE * needed, memory, NODE, between=link)
        fit = td.fits(model, layout, machine)
        step = td.estimate_step(model, layout, machine)
        steps[name] = step
        sent = sized.gradient_bytes(billions, layout)
        lines.append(
            f"{name}, {link / 1e9:g} GB/s between nodes: {fit.verdict}, "
            f"{format_bytes(fit.memory.peak)} of {format_bytes(memory)}; a GPU sends "
            f"{format_bytes(sent)} for gradients and ZeRO's weights in a step; "
            f"{step.total:.3g} s a step, {step.tokens_per_second:,.0f} tokens/s"
        )
        values[name] = {
            "peak": fit.memory.peak,
            "sent": sent,
            "tokens_per_second": step.tokens_per_second,
        }
        said.append(f"{step.tokens_per_second:,.0f} tokens/s on {name}")
    able = alone <= memory_a
    return WorkedAnswer(
        f"Pure data parallelism keeps {format_bytes(alone)} on every GPU ({format_bytes(half)} "
        f"even without an optimizer), so on {format_bytes(memory_a)} it "
        f"{'trains' if able else 'cannot have trained'}. One configuration for both: "
        f"{sized.brief(layout)} on {needed} x {NODE} GPUs of each, {' and '.join(said)}; with "
        f"bf16, or a dynamic loss scale and fp32 masters, it is stable on both alike.",
        tuple(lines),
        values,
        lambda: td.plots.step_breakdown(steps),
        (f"all of the layout: {layout}",),
    )


def run(
    cluster: Cluster,
    billions: float,
    memory_a: int,
    memory_b: int,
    link_a: float,
    link_b: float,
    nodes: int,
) -> Comparison:
    """The layout held on both and trained in fp16 and bf16; data parallelism refused."""
    needed, _, layouts = common(billions, memory_a, memory_b, link_a, link_b, nodes)
    layout, recipe = layouts[0], "mixed-adam-16"
    plain = Layout(dp=layout.dp, tp=layout.tp, pp=layout.pp, zero=layout.zero)
    plans = {"A, data parallel": (Layout(dp=NODE * nodes), recipe, memory_a)}
    for name, memory in (("A", memory_a), ("B", memory_b)):
        plans[f"{name}, the common layout"] = plain, recipe, memory
    table = sized.held(cluster, "One layout on both clusters", billions, plans)
    model, checked = sized.decoder(billions), layouts[:: max(1, len(layouts) // 50)]
    both = [
        td.fits(model, each, sized.machine(NODE * needed, memory, NODE)).verdict == "fits"
        for each in checked
        for memory in (memory_a, memory_b)
    ]
    rows = [
        Claim(
            f"of {len(checked)} layouts of the search, those that fit A and B one by one",
            2 * len(checked),
            sum(both),
            rule="equal",
        ),
        *trained(cluster, "the common layout, fp16", layout, dtype="float16"),
        *trained(cluster, "the common layout, bf16", layout, dtype="bfloat16"),
    ]
    return Comparison(table.title, (*table.rows, *rows))


QUESTION = CourseQuestion(
    23,
    "Stabilizing and Scaling an LLM Training Job Across Two GPU Clusters",
    "A model of {billions} billion parameters is said to train stably, purely data parallel and in "
    "fp16, on cluster A: {nodes} x 8 GPUs of {memory_a}, {link_a} between nodes. It is to run on "
    "cluster B as well: {nodes} x 8 of {memory_b}, {link_b}. Which one configuration serves both?",
    {
        "billions": sized.size_of(30.0, 13.0),
        "memory_a": sized.memory_of("80GB", "48GB", "a GPU of A"),
        "memory_b": sized.memory_of("40GB", "24GB", "a GPU of B"),
        "link_a": Input(25e9, 5e9, number(1e6), "bytes/s of a GPU between nodes of A"),
        "link_b": Input(12.5e9, 2.5e9, number(1e6), "bytes/s of a GPU between nodes of B"),
        "nodes": Input(1, 4, whole(1, MOST_NODES), "nodes of 8 GPUs in either cluster"),
    },
    work,
    run,
)
