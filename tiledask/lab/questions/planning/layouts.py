"""16, 19 and 23: every layout of a node, of other GPUs, of two clusters: which fit and is best."""

from functools import lru_cache
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import trained
from tiledask.lab.questions.planning.scaling import syncs
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.choosing.sensitivity import Relaxed
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION_16", "QUESTION_19", "QUESTION_23"]

RECIPE = "mixed-adam-16"
MEMORIES = (24, 40, 48, 80, 141)
"""GB of GPUs that a node may have."""
SHOWN = 4
DEGREES = ["tp", "pp", "dp", "zero"]


@lru_cache(maxsize=64)
def _plans(billions: float, memory: int, devices: int, link: float, batch: int) -> Plans:
    machine = sized.machine(devices, memory, devices, within=link)
    return td.search(sized.decoder(billions), machine, batch)


def work_16(billions: float, memory: int, devices: int, link: float, batch: int) -> WorkedAnswer:
    """All layouts of the node: how many fit, by degree and by memory, and the fastest ones."""
    n, plans = sized.parameters(billions), _plans(billions, memory, devices, link, batch)
    model, room = sized.decoder(billions), format_bytes(memory)
    lines = [
        f"states, {RECIPE}: 16 B x {billions:g}e9 = {format_bytes(16 * n)} (GB = 1e9 bytes); a "
        f"full copy {sized.holds(16 * n, memory)}; / {devices} GPUs = "
        f"{format_bytes(16 * n / devices)}",
        f"with activations, buffers and a CUDA context, as `tiledask fit` counts: of "
        f"{plans.considered:,} layouts for {batch} sequences a step {plans.counts['fits']:,} fit, "
        f"{plans.counts['tight']:,} fit barely",
    ]
    frame = plans.to_frame(None)
    fitting = frame[frame["verdict"] == "fits"]
    best_of = fitting.groupby(DEGREES, sort=False).head(1)
    feasible = [list(map(int, row)) for row in best_of[DEGREES].itertuples(index=False)]
    lines.append(
        f"{len(feasible)} combinations of tp, pp, dp and ZeRO fit: "
        + ("; ".join(f"{t} {p} {d} {z}" for t, p, d, z in sorted(feasible)) or "none")
    )
    for at in best_of.index[:SHOWN]:
        plan = plans[int(at)]
        sent = ", ".join(
            f"{s.name} {format_bytes(s.bytes)}" for s in syncs(model, plan.layout, billions)
        )
        lines.append(
            f"{sized.brief(plan.layout)}: {format_bytes(plan.peak)} a GPU, bubble "
            f"{100 * plan.step.bubble / plan.step.total:.1f} %, "
            f"a GPU sends {sent or 'nothing'}, {format_seconds(plan.seconds)} a step"
        )
    counts = {}
    for gb in MEMORIES:
        there = _plans(billions, gb * 10**9, devices, link, batch)
        counts[str(gb)] = there.counts["fits"]
        lines.append(
            f"{devices} x {gb} GB: {format_bytes(16 * n / devices)} of states a GPU, "
            + (
                f"{counts[str(gb)]:,} fit, best {sized.brief(there.best.layout)}"
                if counts[str(gb)]
                else "nothing fits"
            )
        )
    best = plans.best
    if best.verdict == "fits":
        answer = (
            f"It fits: {len(feasible)} combinations do, the fastest {sized.brief(best.layout)} "
            f"with {format_bytes(best.peak)} a GPU, {format_seconds(best.seconds)} for "
            f"{batch} sequences ({best.step.tokens_per_second:,.0f} tokens/s)."
        )
    else:
        answer = (
            f"{'Nothing fits surely' if best.verdict == 'tight' else 'Nothing fits'}: the nearest, "
            f"{sized.brief(best.layout)}, needs {format_bytes(best.peak)} and overhead, of {room}; "
            f"the states alone, over {sized.gpus(devices)}, are {format_bytes(16 * n / devices)}."
        )
    return WorkedAnswer(
        answer,
        tuple(lines),
        {
            "states_each": 16 * n / devices,
            "fitting": plans.counts["fits"],
            "feasible": sorted(feasible),
            "best": str(best.layout),
            "verdict": best.verdict,
            "seconds": best.seconds if best.verdict != "no" else None,
            "fitting_by_memory": counts,
        },
        lambda: td.plots.feasibility(plans),
    )


def run_16(
    cluster: Cluster, billions: float, memory: int, devices: int, **others: Any
) -> Comparison:
    """The best plan held, and trained; a full copy refused."""
    layout = _plans(billions, memory, devices, **others).best.layout
    plans = {
        "the best": (sized.plain(layout), RECIPE, memory),
        "full copies": (Layout(dp=devices), RECIPE, memory),
    }
    rows = trained(cluster, "the best plan", layout)
    return sized.held(cluster, "The best plan and a full copy", billions, plans, *rows)


QUESTION_16 = CourseQuestion(
    16,
    "Your team must train a {billions}B-parameter LLM on a ...",
    "A model of {billions} billion parameters is to be trained on one node of {devices} GPUs of "
    "{memory}, {batch} sequences a step. Which "
    "degrees of tensor, pipeline and data parallelism and of ZeRO fit, and which is best?",
    {
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("80GB"),
        "devices": Input(8, whole(1, 72), "GPUs of the node"),
        "link": Input(300e9, number(1e6), "bytes/s of a GPU to the others"),
        "batch": Input(64, whole(1, 100_000), "sequences of a step"),
    },
    work_16,
    run_16,
    largest_run={"devices": 16},
)
MEMORIES_19 = (24, 40, 80, 141)
"""GB of the GPUs in the table."""
NODES = (1, 2, 4)
"""Times the GPUs at hand."""


@lru_cache(maxsize=64)
def _plans_19(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> Plans:
    machine = sized.machine(devices, memory, 8, within, between)
    return td.search(sized.decoder(billions), machine, batch)


@lru_cache(maxsize=64)
def _limits(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> tuple[Relaxed, ...]:
    machine = sized.machine(devices, memory, 8, within, between)
    return tuple(td.sensitivity(sized.decoder(billions), machine, batch))


def _said(plan: Plan) -> str:
    if plan.verdict != "fits":
        return "nothing that fits" if plan.verdict == "no" else "nothing that surely fits"
    return f"{sized.brief(plan.layout)}, {format_seconds(plan.seconds)}"


def _changed(relaxed: Relaxed) -> str:
    """What a limit doubled changes, in a line."""
    gain = "" if not _fits(relaxed.before) else f", {relaxed.speedup:.3g} times as fast"
    return f"{relaxed.limit} x 2: {_said(relaxed.after)}{gain}"


def _fits(plan: Plan) -> bool:
    return plan.verdict == "fits"


def work_19(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> WorkedAnswer:
    """The best layout for GPUs of each size and for more of them, and what binds."""
    links = within, between
    n, best = sized.parameters(billions), _plans_19(billions, memory, devices, *links, batch).best
    lines = [
        f"states, {RECIPE}: 16 B x {billions:g}e9 / {sized.gpus(devices)} = "
        f"{format_bytes(16 * n / devices)} of {format_bytes(memory)} (GB = 1e9 bytes), "
        f"{sized.holds(16 * n / devices, memory)}; below activations, buffers and a CUDA context "
        f"count too, as in `tiledask fit`; seconds are of a step",
        f"at hand, {devices} x {format_bytes(memory)}: {_said(best)}",
    ]
    decisions = {}
    for gb in MEMORIES_19:
        cells = []
        for times in NODES:
            plan = _plans_19(billions, gb * 10**9, devices * times, *links, batch).best
            decisions[f"{devices * times} x {gb} GB"] = _said(plan)
            cells.append(f"{devices * times} GPUs: {_said(plan)}")
        lines.append(f"{gb} GB: {'; '.join(cells)}")
    limits = _limits(billions, memory, devices, *links, batch)
    lines += [_changed(each) for each in limits if each.speedup > 1]
    none = [each.limit for each in limits if each.speedup <= 1]
    lines += [f"doubled alone, these change nothing: {', '.join(none)}"] if none else []
    first = limits[0]
    if not _fits(first.before) and first.speedup > 1:
        advice = f"what binds is {first.limit}: doubled, {_said(first.after)}"
    elif first.speedup > 1:
        advice = f"what binds is {first.limit}: doubled, a step takes {first.after.seconds:.3g} s"
    else:
        advice = "no limit that is doubled alone makes a plan fit"
    now = f"run {_said(best)}" if _fits(best) else "nothing fits"
    return WorkedAnswer(
        f"On {devices} GPUs of {format_bytes(memory)}, with {batch} sequences a step: {now}. "
        f"{advice[0].upper()}{advice[1:]}.",
        tuple(lines),
        {
            "best": _said(best),
            "decisions": decisions,
            "binds": first.limit if first.speedup > 1 else None,
            "speedups": {r.limit: str(round(r.speedup, 4)) for r in limits},
        },
    )


def run_19(cluster: Cluster, billions: float, memory: int, **others: Any) -> Comparison:
    """The best plans before and after the binding limit is doubled: held, and the last trained."""
    first = _limits(billions, memory, **others)[0]
    after, roomy = first.after.layout, first.after.found.cluster.device.memory_bytes
    plans = {
        "now": (sized.plain(first.before.layout), RECIPE, memory),
        f"{first.limit} doubled": (sized.plain(after), RECIPE, roomy),
        f"{first.limit} doubled, memory as it is": (sized.plain(after), RECIPE, memory),
    }
    rows = trained(cluster, "the best plan with it", after)
    return sized.held(cluster, "Best plans", billions, plans, *rows)


QUESTION_19 = CourseQuestion(
    19,
    "You're advising an internal platform team that must ...",
    "A platform team has {devices} GPUs of {memory} for a model of {billions} billion parameters. "
    "What should it run, "
    "what would other GPUs or more of them change, and which limit binds?",
    {
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("40GB"),
        "devices": Input(8, whole(1, 1024), "GPUs at hand, 8 in a node"),
        "within": Input(300e9, number(1e6), "bytes/s of a GPU within its node"),
        "between": Input(25e9, number(1e6), "bytes/s of a GPU between nodes"),
        "batch": Input(64, whole(1, 100_000), "sequences of a step"),
    },
    work_19,
    run_19,
    largest_run={"devices": 256},
)
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


def work_23(
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


def run_23(
    cluster: Cluster, billions: float, memory_a: int, memory_b: int, nodes: int, **links: float
) -> Comparison:
    """The layout held on both and trained in fp16 and bf16; data parallelism refused."""
    _, _, layouts = common(billions, memory_a, memory_b, nodes=nodes, **links)
    layout, recipe = layouts[0], "mixed-adam-16"
    plans = {"A, data parallel": (Layout(dp=NODE * nodes), recipe, memory_a)}
    for name, memory in (("A", memory_a), ("B", memory_b)):
        plans[f"{name}, the common layout"] = sized.plain(layout), recipe, memory
    rows = trained(cluster, "the common layout, fp16", layout, dtype="float16")
    rows += trained(cluster, "the common layout, bf16", layout, dtype="bfloat16")
    return sized.held(cluster, "One layout on both clusters", billions, plans, *rows)


QUESTION_23 = CourseQuestion(
    23,
    "Stabilizing and Scaling an LLM Training Job Across Two GPU Clusters",
    "A model of {billions} billion parameters is said to train stably, purely data parallel and in "
    "fp16, on cluster A: {nodes} x 8 GPUs of {memory_a}, {link_a} between nodes. It is to run on "
    "cluster B as well: {nodes} x 8 of {memory_b}, {link_b}. Which one configuration serves both?",
    {
        "billions": sized.size_of(30.0),
        "memory_a": sized.memory_of("80GB", "a GPU of A"),
        "memory_b": sized.memory_of("40GB", "a GPU of B"),
        "link_a": Input(25e9, number(1e6), "bytes/s of a GPU between nodes of A"),
        "link_b": Input(12.5e9, number(1e6), "bytes/s of a GPU between nodes of B"),
        "nodes": Input(1, whole(1, MOST_NODES), "nodes of 8 GPUs in either cluster"),
    },
    work_23,
    run_23,
)
