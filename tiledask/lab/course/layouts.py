"""16, 19, 20, 22 and 23: every layout of a node, of other GPUs, of two clusters: which fit best,
what is sent where, how nearly more GPUs are faster, and why not."""

from dataclasses import replace
from functools import lru_cache

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs, sizes
from tiledask.lab.course.question import Worked, question
from tiledask.lab.course.sizes import ADAM, COUNTED, GB, brief, decoder, holds, machine
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.collective_time import bandwidth, p2p
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

WIRE, SEQUENCE, NODE = 2, 2048, 8
"""Bytes of a number on its way, tokens of a sequence, GPUs of a node."""


@lru_cache(maxsize=64)
def plans_of(
    billions: float, memory: int, devices: int, per_node: int, batch: int, *links: float
) -> Plans:
    """Every layout of a decoder on such devices, the best first."""
    return td.search(decoder(billions), machine(devices, memory, per_node, *links), batch)


def sent_of(model: Model, layout: Layout, billions: float) -> dict[str, float]:
    """Bytes that a GPU sends in a step, by kind; none for a degree of 1.

    >>> [*sent_of(decoder(13), Layout(dp=2, tp=2), 13)]
    ['dp', 'tp']
    """
    t, p, m = layout.tp, layout.pp, layout.microbatches
    rows = layout.microbatch * SEQUENCE * model.hidden * WIRE
    found = {}
    if layout.dp > 1:
        found["dp"] = sizes.gradient_bytes(billions, layout)
    if t > 1:
        sums = 6 if layout.recompute == "full" else 4  # forward, backward, and forward again
        found["tp"] = sums * -(-model.layers // p) * m * 2 * (t - 1) / t * rows
    if p > 1:
        found["pp"] = 2 * m * layout.interleave * rows / t
    return found


@question(16)
def node(billions: float, memory: int, devices: int, link: float, batch: int) -> Worked:
    """All layouts of the node: how many fit, by degree and by memory, and the fastest ones."""
    n = sizes.parameters(billions)
    plans = plans_of(billions, memory, devices, devices, batch, link)
    part, best, frame = 16 * n / devices, plans.best, plans.to_frame(None)
    degrees = ["tp", "pp", "dp", "zero"]
    first = frame[frame["verdict"] == "fits"].groupby(degrees, sort=False).head(1)
    feasible = sorted([*map(int, row)] for row in first[degrees].itertuples(index=False))
    counts = {
        str(gb): plans_of(billions, gb * GB, devices, devices, batch, link).counts["fits"]
        for gb in (24, 40, 48, 80, 141)
    }
    tried = {"best": (best.layout, ADAM), "full copies": (Layout(dp=devices), ADAM)}
    return Worked(
        f"{len(feasible)} combinations fit; the best, {_best(best)}, needs "
        f"{format_bytes(best.peak)} and overhead, of {format_bytes(memory)}.",
        *_states(billions, memory, devices),
        f"of {plans.considered:,} layouts {plans.counts['fits']:,} fit; as tp pp dp ZeRO: "
        f"{'; '.join(' '.join(map(str, each)) for each in feasible) or 'none'}",
        *(f"{format_bytes(plans[int(at)].peak)} a GPU, {_best(plans[int(at)])} a step"
          for at in first.index[:4]),
        values={"states_each": part, "fitting": plans.counts["fits"], "feasible": feasible,
                "best": str(best.layout), "verdict": best.verdict, "fitting_by_memory": counts,
                "seconds": best.seconds if best.verdict != "no" else None},
        run=lambda cluster: [
            *runs.trained(cluster, best.layout), *runs.held(cluster, n, tried, memory)],
    )  # fmt: skip


def _states(billions: float, memory: int, devices: int) -> list[str]:
    """What an equal share of all states takes, and what is counted below."""
    size, how = sizes.states(billions, Layout(tp=devices))
    return [sizes.convention(), f"{how} a GPU, {holds(size, memory)}; below, {COUNTED}"]


def _best(plan: Plan) -> str:
    if plan.verdict != "fits":
        return "nothing that fits" if plan.verdict == "no" else "nothing that surely fits"
    return f"{brief(plan.layout)}, {format_seconds(plan.seconds)}"


@question(19)
def platform(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> Worked:
    """The best layout for GPUs of each size and for more of them, and what binds."""
    links = (within, between)
    best = _best(plans_of(billions, memory, devices, NODE, batch, *links).best)
    limits = td.sensitivity(decoder(billions), machine(devices, memory, NODE, *links), batch)
    first, helping = limits[0], [each for each in limits if each.speedup > 1]
    decisions = {
        f"{many} x {gb} GB": _best(plans_of(billions, gb * GB, many, NODE, batch, *links).best)
        for gb in (24, 40, 80, 141)
        for many in (devices, 2 * devices, 4 * devices)
    }
    advice = f"What binds is {first.limit}: doubled, {_best(first.after)} a step"
    tried = {"now": (first.before.layout, ADAM),
             f"{first.limit} doubled": (first.after.layout, ADAM)}  # fmt: skip
    return Worked(
        f"The best on {devices} GPUs of {format_bytes(memory)}, with {batch} sequences a step: "
        f"{best}. {advice if helping else 'No limit that is doubled alone makes a plan fit'}.",
        *_states(billions, memory, devices),
        *(f"{many}: {found}" for many, found in decisions.items()),
        *(f"{each.limit} x 2: {_best(each.after)}" for each in helping),
        values={"best": best, "decisions": decisions, "binds": first.limit if helping else None,
                "speedups": {each.limit: str(round(each.speedup, 4)) for each in limits}},
        run=lambda cluster: [
            *runs.trained(cluster, first.after.layout),
            *runs.held(cluster, sizes.parameters(billions), tried, memory)],
    )  # fmt: skip


def _by_formula(step: StepEstimate, work: float, billions: float, model: Model) -> float:
    """Seconds of a step of so much ``work`` on a device: ring and blocks are added."""
    layout, there, ring = step.layout, step.cluster, 0.0
    if layout.dp > 1:
        sent = sizes.gradient_bytes(billions, layout)
        ring = sent / float(bandwidth(layout.dp, layout.tp, there))
    block = layout.microbatch * SEQUENCE * model.hidden * WIRE / layout.tp
    once = float(p2p(block, layout.pp, layout.tp * layout.dp, there))
    return work + ring + 2 * layout.microbatches * layout.interleave * once


@question(20)
def scaling(
    billions: float, memory: int, nodes: int, per_node: int, within: float, between: float,
    batch: int,
) -> Worked:  # fmt: skip
    """The plan, its sums with their bytes, how nearly it scales, and what it waits for.

    The fastest layout on all nodes of which one node can have an equal part of the copies.
    """
    model, links = decoder(billions), (within, between)
    one, every = (machine(n * per_node, memory, per_node, *links) for n in (1, nodes))
    plans = td.search(model, every, batch, sequence=SEQUENCE)
    shared = (p.layout for p in plans[:40] if p.verdict == "fits" and p.layout.dp % nodes == 0)
    layout = next(shared, None)
    if layout is None:
        why = f"no layout that fits has a multiple of {nodes} copies, to be compared with one node"
        raise ConfigError(f"{why}; the best is {plans.best.layout}: take larger GPUs")
    copies = replace(layout, dp=layout.dp // nodes, microbatches=layout.microbatches * nodes)
    small, large = (
        td.estimate_step(model, each, there, sequence=SEQUENCE)
        for each, there in ((copies, one), (layout, every))
    )
    share = small.total / large.total / nodes
    # by formula: work is shared out, and ring, ramp and blocks between stages are added
    work, more = small.compute + small.recompute + small.tp, small.bubble + small.optimizer
    alone = _by_formula(small, work, billions, model) + more
    formula = alone / (_by_formula(large, work / nodes, billions, model) + more) / nodes
    sent = sent_of(model, layout, billions)
    waits = {name: getattr(large, name) for name in ("bubble", "tp", "dp", "pp", "recompute")}
    top = max(waits, key=waits.__getitem__)
    limit = td.sensitivity(model, every, batch, sequence=SEQUENCE)[0]
    return Worked(
        f"{brief(layout)}. From {per_node} to {nodes * per_node} GPUs it scales at "
        f"{100 * share:.1f} %, {'not ' * (share < 0.9)}near-linear (90 % or more); most waiting "
        f"is for {top}; {limit.limit} doubled is {limit.speedup:.2f} times as fast.",
        f"{sizes.convention()}; {sizes.states(billions, layout)[1]} a GPU",
        f"the fastest layout that fits with {batch} sequences a step, {COUNTED}: {layout}",
        *(f"{name}: {format_bytes(nbytes)} sent a step" for name, nbytes in sent.items()),
        f"efficiency: {format_seconds(small.total)} on one node / ({nodes} x "
        f"{format_seconds(large.total)}); by formula {100 * formula:.1f} %",
        ", ".join(f"{name} {format_seconds(s)}" for name, s in waits.items() if s),
        values={"layout": str(layout), "sent": sent, "seconds": large.total, "efficiency": share,
                "efficiency_by_formula": formula, "waits_for": top, "limit": limit.limit},
        run=lambda cluster: runs.trained(cluster, layout, "bfloat16"),
    )  # fmt: skip


@question(22)
def regression(
    billions: float, memory: int, stages: int, replicas: int, microbatches: int, link: float,
    slower: float,
) -> Worked:  # fmt: skip
    """Ring bytes before and after, and the efficiency of each change alone."""
    m, model, layout, fit = microbatches, decoder(billions), Layout(), ""
    if m % 2:
        take = f"take an even number, such as microbatches={m + 1}"
        raise ConfigError(f"half of them go to each of twice the replicas; {m} has no half; {take}")
    there = machine(replicas * stages, memory, NODE, between=link)
    lean = Layout(dp=replicas, pp=stages, recompute="full", flash_attention=True)
    for zero in range(4):  # the first that fits, or the leanest
        if fit != "fits":
            layout = replace(lean, zero=zero)
            fit = td.fits(model, layout, there).verdict

    def step(times: int, m: int, slow: float = 1.0) -> StepEstimate:
        changed = replace(layout, dp=replicas * times, microbatches=m)
        there = machine(changed.devices, memory, NODE, between=link / slow)
        return td.estimate_step(model, changed, there)

    changes = {  # times the replicas, micro-batches, by how much links are slower
        "replicas x 2, the same work each": (2, m, 1.0),
        "replicas x 2, the same global batch": (2, m // 2, 1.0),
        "micro-batches x 2": (1, 2 * m, 1.0),
        f"replicas x 2, links {slower:g} times slower": (2, m, slower),
        "all together": (2, 2 * m, slower),
    }
    before, steps = step(1, m), {name: step(*change) for name, change in changes.items()}
    each = {
        name: after.tokens_per_second / before.tokens_per_second / changes[name][0]
        for name, after in steps.items()
    }
    speeds = "; ".join(f"{name} {100 * one:.0f} %" for name, one in each.items())
    plans = {f"d = {d}": (Layout(pp=stages, dp=d), ADAM) for d in (replicas, 2 * replicas)}
    size, plain = sizes.states(billions, plans[f"d = {replicas}"][0])
    sent = [sizes.gradient_bytes(billions, pure) for pure, _ in plans.values()]
    start = "as described it does not start" if size > memory else "it can start"
    return Worked(
        f"More communication is not the whole story: a GPU sends {sent[1] / sent[0]:.3g} times as "
        f"much for twice the replicas ({format_bytes(sent[0])} to {format_bytes(sent[1])}). Speed "
        f"per GPU, of that before: {speeds}. The worst is {min(each, key=each.__getitem__)}. ",
        sizes.convention(),
        f"a replica on {stages} GPUs: {plain}, {holds(size, memory)}: {start}",
        f"a ring sends 2 (d-1)/d x 2 B x {billions:g}e9 / {stages} a GPU and step",
        f"simulated, {brief(before.layout)}: {format_seconds(before.total)} a step before, "
        + ", ".join(f"{name} {format_seconds(s.total)}" for name, s in steps.items()),
        values={"replica_bytes": size, "ring_bytes": sent, "ring_growth": sent[1] / sent[0],
                "layout": str(before.layout), "efficiency": each, "seconds": before.total},
        run=lambda cluster: runs.held(cluster, sizes.parameters(billions), plans, memory),
    )  # fmt: skip


@lru_cache(maxsize=64)
def common(
    billions: float, nodes: int, *clusters: tuple[int, float]
) -> tuple[int, list[int], Layout]:
    """(nodes of each cluster, how many layouts fit each and all, the one whose slowest cluster is
    fastest), from ``nodes`` on, the fewest where there are any; a cluster is (bytes of a GPU,
    bytes/s between nodes)."""
    names, found = [*vars(Layout())], []
    while nodes <= 16:
        for memory, link in clusters:
            there = machine(NODE * nodes, memory, NODE, between=link)
            plans = td.search(decoder(billions), there, 64).to_frame(None)
            fitting = plans[plans["verdict"] == "fits"]
            fields = [name for name in names if name in fitting]
            rows = fitting[fields].itertuples(index=False, name=None)
            found.append(dict(zip(rows, fitting["by_formula"], strict=True)))
        if every := set.intersection(*map(set, found)):
            best = min(every, key=lambda row: (max(each[row] for each in found), row))
            return (
                nodes,
                [*map(len, (*found, every))],
                Layout(**dict(zip(fields, best, strict=True))),
            )
        nodes, found = 2 * nodes, []
    raise ConfigError(f"no layout fits both on up to 16 nodes of {NODE}; take larger GPUs")


@question(23)
def two_clusters(
    billions: float, memory_a: int, memory_b: int, link_a: float, link_b: float, nodes: int
) -> Worked:
    """What data parallelism keeps, and the layout that is best for both clusters."""
    clusters = {"A": (memory_a, link_a), "B": (memory_b, link_b)}
    needed, counts, layout = common(billions, nodes, *clusters.values())
    model = decoder(billions)
    plans = {"data parallel": (Layout(dp=NODE * nodes), ADAM), "the common layout": (layout, ADAM)}
    states, lines = sizes.each_of(billions, memory_a, plans)
    speeds = {
        name: td.estimate_step(
            model, layout, machine(NODE * needed, memory, NODE, between=link)
        ).tokens_per_second
        for name, (memory, link) in clusters.items()
    }
    alone, size = states.values()
    peak, sent = td.estimate_memory(model, layout).peak, sizes.gradient_bytes(billions, layout)
    return Worked(
        f"Pure data parallelism keeps {format_bytes(alone)} on every GPU, so on "
        f"{format_bytes(memory_a)} it {'trains' if alone <= memory_a else 'cannot have trained'}. "
        f"One configuration for both: {brief(layout)} on {needed} x {NODE} GPUs of each.",
        sizes.convention(),
        *lines,
        f"{COUNTED}, {counts[0]:,} layouts of {needed} x {NODE} GPUs fit A, {counts[1]:,} B, "
        f"and {counts[2]:,} both; the best of them for the slower cluster: {layout}",
        f"a GPU sends {format_bytes(sent)} a step: "
        + ", ".join(f"{speed:,.0f} tokens/s on {name}" for name, speed in speeds.items()),
        values={"nodes": needed, "fitting": counts, "layout": str(layout), "state_bytes": size,
                **{name: {"peak": peak, "sent": sent, "tokens_per_second": speed}
                   for name, speed in speeds.items()}},
        run=lambda cluster: [
            *runs.trained(cluster, layout, "float16"),
            *runs.held(cluster, sizes.parameters(billions), plans, memory_b)],
    )  # fmt: skip
