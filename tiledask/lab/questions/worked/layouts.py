"""16, 19 and 23: every layout of a node, of other GPUs, of two clusters: which fit best."""

from functools import lru_cache

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.shares import count
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.scaling import BATCH, NODE, WITHIN, syncs
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
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds


@lru_cache(maxsize=64)
def plans_of(
    billions: float, memory: int, devices: int, per_node: int, batch: int, *links: float
) -> Plans:
    """Every layout of a decoder on such devices, the best first."""
    return td.search(decoder(billions), machine(devices, memory, per_node, *links), batch)


# -- 16 and 19: of a node, and of other GPUs -------------------------------------------------------

DEGREES = ["tp", "pp", "dp", "zero"]


@question(
    16,
    "Your team must train a {billions}B-parameter LLM on a ...",
    "A model of {billions} billion parameters is to be trained on one node of {devices} GPUs of "
    "{memory}, {batch} sequences a step. Which degrees of tensor, pipeline and data parallelism "
    "and of ZeRO fit, and which is best?",
    billions=BILLIONS,
    memory=MEMORY,
    devices=Input("GPUs of the node", 1, 72, run=16),
    link=Input("bytes/s of a GPU to the others", 1e6),
    batch=BATCH,
)
def node(
    billions: float = 30.0,
    memory: int = 80 * GB,
    devices: int = 8,
    link: float = 300e9,
    batch: int = 64,
) -> WorkedAnswer:
    """All layouts of the node: how many fit, by degree and by memory, and the fastest ones."""
    n, model, gpus = sizes.parameters(billions), decoder(billions), count(devices, "GPU")
    plans = plans_of(billions, memory, devices, devices, batch, link)
    part, best = format_bytes(16 * n / devices), plans.best
    frame = plans.to_frame(None)
    first = frame[frame["verdict"] == "fits"].groupby(DEGREES, sort=False).head(1)
    feasible = sorted([*map(int, row)] for row in first[DEGREES].itertuples(index=False))
    lines = [
        f"states, {ADAM}: 16 B x {billions:g}e9 = {format_bytes(16 * n)} (GB = 1e9 bytes); a full "
        f"copy {holds(16 * n, memory)}; / {gpus} = {part}",
        f"{COUNTED}: of {plans.considered:,} layouts for {batch} sequences a step "
        f"{plans.counts['fits']:,} fit, {plans.counts['tight']:,} fit barely",
        f"{len(feasible)} combinations of tp, pp, dp and ZeRO fit: "
        + ("; ".join(" ".join(map(str, each)) for each in feasible) or "none"),
    ]
    for plan in (plans[int(at)] for at in first.index[:4]):
        sent = [f"{s.name} {format_bytes(s.bytes)}" for s in syncs(model, plan.layout, billions)]
        lines.append(
            f"{brief(plan.layout)}: {format_bytes(plan.peak)} a GPU, bubble "
            f"{100 * plan.step.bubble / plan.step.total:.1f} %, a GPU sends "
            f"{', '.join(sent) or 'nothing'}, {format_seconds(plan.seconds)} a step"
        )
    counts = {}
    for gb in (24, 40, 48, 80, 141):
        there = plans_of(billions, gb * GB, devices, devices, batch, link)
        fits = counts[str(gb)] = there.counts["fits"]
        found = f"{fits:,} fit, best {brief(there.best.layout)}" if fits else "nothing fits"
        lines.append(f"{devices} x {gb} GB: {part} of states a GPU, {found}")
    if best.verdict == "fits":
        answer = (
            f"It fits: {len(feasible)} combinations do, the fastest {brief(best.layout)} with "
            f"{format_bytes(best.peak)} a GPU, {format_seconds(best.seconds)} for {batch} "
            f"sequences ({best.step.tokens_per_second:,.0f} tokens/s)."
        )
    else:
        answer = (
            f"{'Nothing fits surely' if best.verdict == 'tight' else 'Nothing fits'}: the nearest, "
            f"{brief(best.layout)}, needs {format_bytes(best.peak)} and overhead, of "
            f"{format_bytes(memory)}; the states alone, over {gpus}, are {part}."
        )
    tried = {
        "the best": (sizes.plain(best.layout), ADAM),
        "full copies": (Layout(dp=devices), ADAM),
    }
    return WorkedAnswer(
        answer,
        lines,
        {
            "states_each": 16 * n / devices,
            "fitting": plans.counts["fits"],
            "feasible": feasible,
            "best": str(best.layout),
            "verdict": best.verdict,
            "seconds": best.seconds if best.verdict != "no" else None,
            "fitting_by_memory": counts,
        },
        lambda cluster: runs.held(
            cluster, "The best plan and a full copy", n, runs.under(tried, memory),
            runs.trained(cluster, "the best plan", best.layout),
        ),
        figure=lambda: td.plots.feasibility(plans),
    )  # fmt: skip


def _best(plan: Plan) -> str:
    if plan.verdict != "fits":
        return "nothing that fits" if plan.verdict == "no" else "nothing that surely fits"
    return f"{brief(plan.layout)}, {format_seconds(plan.seconds)}"


@question(
    19,
    "You're advising an internal platform team that must ...",
    "A platform team has {devices} GPUs of {memory} for a model of {billions} billion parameters. "
    "What should it run, what would other GPUs or more of them change, and which limit binds?",
    billions=BILLIONS,
    memory=MEMORY,
    devices=Input("GPUs at hand, 8 in a node", 1, 1024, run=256),
    within=WITHIN,
    between=LINK,
    batch=BATCH,
)
def platform(
    billions: float = 30.0,
    memory: int = 40 * GB,
    devices: int = 8,
    within: float = 300e9,
    between: float = 25e9,
    batch: int = 64,
) -> WorkedAnswer:
    """The best layout for GPUs of each size and for more of them, and what binds."""
    n, links = sizes.parameters(billions), (within, between)
    best = plans_of(billions, memory, devices, NODE, batch, *links).best
    there = machine(devices, memory, NODE, *links)
    limits = tuple(td.sensitivity(decoder(billions), there, batch))
    first, helping = limits[0], [each for each in limits if each.speedup > 1]
    table = {
        gb: {
            devices * times: _best(
                plans_of(billions, gb * GB, devices * times, NODE, batch, *links).best
            )
            for times in (1, 2, 4)
        }
        for gb in (24, 40, 80, 141)
    }
    none = [each.limit for each in limits if each.speedup <= 1]
    part, fits_now = 16 * n / devices, first.before.verdict == "fits"
    lines = [
        f"states, {ADAM}: 16 B x {billions:g}e9 / {count(devices, 'GPU')} = {format_bytes(part)} "
        f"of {format_bytes(memory)} (GB = 1e9 bytes), {holds(part, memory)}; below, {COUNTED}; "
        f"seconds are of a step",
        f"at hand, {devices} x {format_bytes(memory)}: {_best(best)}",
        *(
            f"{gb} GB: " + "; ".join(f"{many} GPUs: {found}" for many, found in row.items())
            for gb, row in table.items()
        ),
        *(
            f"{each.limit} x 2: {_best(each.after)}"
            + f", {each.speedup:.3g} times as fast" * fits_now
            for each in helping
        ),
        *([f"doubled alone, these change nothing: {', '.join(none)}"] if none else []),
    ]
    advice = "No limit that is doubled alone makes a plan fit"
    if helping:
        then = f"a step takes {first.after.seconds:.3g} s" if fits_now else _best(first.after)
        advice = f"What binds is {first.limit}: doubled, {then}"

    def run(cluster: Cluster) -> Comparison:
        """The best plans before and after the binding limit is doubled."""
        after, name = first.after.layout, f"{first.limit} doubled"
        roomy = first.after.found.cluster.device.memory_bytes
        plans = {
            "now": (sizes.plain(first.before.layout), ADAM, memory),
            name: (sizes.plain(after), ADAM, roomy),
            f"{name}, memory as it is": (sizes.plain(after), ADAM, memory),
        }
        rows = runs.trained(cluster, "the best plan with it", after)
        return runs.held(cluster, "Best plans", n, plans, rows)

    now = f"run {_best(best)}" if best.verdict == "fits" else "nothing fits"
    return WorkedAnswer(
        f"On {devices} GPUs of {format_bytes(memory)}, with {batch} sequences a step: {now}. "
        f"{advice}.",
        lines,
        {
            "best": _best(best),
            "decisions": {
                f"{many} x {gb} GB": found
                for gb, row in table.items()
                for many, found in row.items()
            },
            "binds": first.limit if helping else None,
            "speedups": {each.limit: str(round(each.speedup, 4)) for each in limits},
        },
        run,
    )


# -- 23: one layout for two clusters ---------------------------------------------------------------

MOST_NODES, SEQUENCES = 16, 64


@lru_cache(maxsize=64)
def common(
    billions: float, nodes: int, *clusters: tuple[int, float]
) -> tuple[int, list[int], list[Layout]]:
    """(nodes of each cluster, how many layouts fit each, those that fit all, the one whose slowest
    cluster is fastest first), from ``nodes`` on, the fewest where there are any; a cluster is
    (bytes of a GPU, bytes/s between nodes)."""
    while nodes <= MOST_NODES:
        found = []
        for memory, link in clusters:
            there = machine(NODE * nodes, memory, NODE, between=link)
            plans = td.search(decoder(billions), there, SEQUENCES).to_frame(None)
            fitting = plans[plans["verdict"] == "fits"]
            fields = [name for name in vars(Layout()) if name in fitting]
            rows = fitting[fields].itertuples(index=False, name=None)
            found.append(dict(zip(rows, fitting["by_formula"], strict=True)))
        if every := set.intersection(*map(set, found)):
            order = sorted(every, key=lambda row: (max(each[row] for each in found), row))
            layouts = [Layout(**dict(zip(fields, row, strict=True))) for row in order]
            return nodes, list(map(len, found)), layouts
        nodes *= 2
    raise ConfigError(
        f"no layout of a {billions:g}-billion decoder fits "
        f"{' and '.join(format_bytes(memory) for memory, _ in clusters)} a GPU on up to "
        f"{MOST_NODES} nodes of {NODE}; take larger GPUs or fewer parameters"
    )


@question(
    23,
    "Stabilizing and Scaling an LLM Training Job Across Two GPU Clusters",
    "A model of {billions} billion parameters is said to train stably, purely data parallel and in "
    "fp16, on cluster A: {nodes} x 8 GPUs of {memory_a}, {link_a} between nodes. It is to run on "
    "cluster B as well: {nodes} x 8 of {memory_b}, {link_b}. Which one configuration serves both?",
    billions=BILLIONS,
    memory_a=Input("memory of a GPU of A (GB = 1e9 bytes)"),
    memory_b=Input("memory of a GPU of B (GB = 1e9 bytes)"),
    link_a=Input("bytes/s of a GPU between nodes of A", 1e6),
    link_b=Input("bytes/s of a GPU between nodes of B", 1e6),
    nodes=Input("nodes of 8 GPUs in either cluster", 1, MOST_NODES),
)
def two_clusters(
    billions: float = 30.0,
    memory_a: int = 80 * GB,
    memory_b: int = 40 * GB,
    link_a: float = 25e9,
    link_b: float = 12.5e9,
    nodes: int = 1,
) -> WorkedAnswer:
    """What data parallelism keeps, and the layout that is best for both clusters."""
    clusters = {"A": (memory_a, link_a), "B": (memory_b, link_b)}
    needed, counts, layouts = common(billions, nodes, *clusters.values())
    layout, model, copies = layouts[0], decoder(billions), Layout(dp=NODE * nodes)
    alone, how = sizes.states(billions, copies)
    half, plain = sizes.states(billions, copies, "fp16-sgd")
    size, states = sizes.states(billions, layout)
    sent = gradient_bytes(billions, layout)
    fits, steps = {}, {}
    for name, (memory, link) in clusters.items():
        there = machine(NODE * needed, memory, NODE, between=link)
        fits[name] = td.fits(model, layout, there)
        steps[name] = td.estimate_step(model, layout, there)
    speeds = {name: step.tokens_per_second for name, step in steps.items()}
    plans = {"A, data parallel": (copies, ADAM, memory_a)}
    for name, (memory, _) in clusters.items():
        plans[f"{name}, the common layout"] = sizes.plain(layout), ADAM, memory

    def run(cluster: Cluster) -> Comparison:
        """The layout held on both and trained in fp16 and bf16; data parallelism refused."""
        rows = [
            row
            for dtype in ("float16", "bfloat16")
            for row in runs.trained(cluster, f"the common layout, {dtype}", layout, dtype)
        ]
        n = sizes.parameters(billions)
        return runs.held(cluster, "One layout on both clusters", n, plans, rows)

    return WorkedAnswer(
        f"Pure data parallelism keeps {format_bytes(alone)} on every GPU ({format_bytes(half)} "
        f"even without an optimizer), so on {format_bytes(memory_a)} it "
        f"{'trains' if alone <= memory_a else 'cannot have trained'}. One configuration for both: "
        f"{brief(layout)} on {needed} x {NODE} GPUs of each, "
        f"{' and '.join(f'{speed:,.0f} tokens/s on {name}' for name, speed in speeds.items())}; "
        f"with bf16, or a dynamic loss scale and fp32 masters, it is stable on both alike.",
        [
            sizes.convention(),
            f"data parallel on A, each GPU: {how}, of {format_bytes(memory_a)}: "
            f"{holds(alone, memory_a)}; fp16 weights and gradients alone: {plain}, "
            f"{holds(half, memory_a)}",
            f"split over one node: {format_bytes(alone)} / {NODE} = {format_bytes(alone / NODE)} a "
            f"GPU; A has {format_bytes(memory_a)}, B {format_bytes(memory_b)}",
            *(
                [f"with {nodes} x {NODE} GPUs no layout fits both clusters"]
                if needed > nodes
                else []
            ),
            f"{COUNTED}, {counts[0]:,} layouts of {needed} x {NODE} GPUs fit A, {counts[1]:,} B, "
            f"and {len(layouts):,} both; the best of them for the slower cluster: "
            f"{brief(layout)}; states {states}",
            *(
                f"{name}, {link / 1e9:g} GB/s between nodes: {fits[name].verdict}, "
                f"{format_bytes(fits[name].memory.peak)} of {format_bytes(memory)}; a GPU sends "
                f"{format_bytes(sent)} for gradients and ZeRO's weights in a step; "
                f"{steps[name].total:.3g} s a step, {speeds[name]:,.0f} tokens/s"
                for name, (memory, link) in clusters.items()
            ),
        ],
        {
            "nodes": needed,
            "fitting": [*counts, len(layouts)],
            "layout": str(layout),
            "state_bytes": size,
            **{
                name: {
                    "peak": fits[name].memory.peak,
                    "sent": sent,
                    "tokens_per_second": speeds[name],
                }
                for name in clusters
            },
        },
        run,
        figure=lambda: td.plots.step_breakdown(steps),
        more=(f"all of the layout: {layout}",),
    )
