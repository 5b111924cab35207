"""16, 19, 20, 22 and 23: every layout of a node, of other GPUs, of two clusters: which fit best,
what is sent where, how nearly more GPUs are faster, and why not."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import sizes
from tiledask.lab.course.question import Names, question
from tiledask.lab.course.sizes import ADAM, GB, decoder, machine
from tiledask.lab.course.words import brief
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.timing.collective_time import bandwidth, p2p
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.units import format_seconds

WIRE, SEQUENCE, NODE = 2, 2048, 8
"""Bytes of a number on its way, tokens of a sequence, GPUs of a node."""


@lru_cache(maxsize=64)
def plans_of(
    billions: float, memory: int, devices: int, per_node: int, batch: int, *links: float
) -> Plans:
    """Every layout of a decoder on such devices, the best first."""
    return td.search(decoder(billions), machine(devices, memory, per_node, *links), batch)


def _best(plan: Plan) -> str:
    if plan.verdict != "fits":
        return "nothing that fits" if plan.verdict == "no" else "nothing that surely fits"
    return f"{brief(plan.layout)}, {format_seconds(plan.seconds)}"


@question(16)
def node(billions: float, memory: int, devices: int, link: float, batch: int) -> Names:
    """All layouts of the node: how many fit, by degree and by memory, and the fastest ones."""
    n = sizes.parameters(billions)
    plans = plans_of(billions, memory, devices, devices, batch, link)
    part, best, frame = 16 * n / devices, plans.best, plans.to_frame(None)
    degrees = ["tp", "pp", "dp", "zero"]
    first = frame[frame["verdict"] == "fits"].groupby(degrees, sort=False).head(1)
    feasible = sorted([*map(int, row)] for row in first[degrees].itertuples(index=False))
    fitting, combinations = plans.counts["fits"], len(feasible)
    listed = [" ".join(map(str, each)) for each in feasible]
    counts = {
        str(gb): plans_of(billions, gb * GB, devices, devices, batch, link).counts["fits"]
        for gb in (24, 40, 48, 80, 141)
    }
    fastest = [(plans[int(at)].peak, _best(plans[int(at)])) for at in first.index[:4]]
    seconds = best.seconds if best.verdict != "no" else None
    described, equal = _best(best), sizes.states(billions, td.Layout(tp=devices))
    tried = {"best": (best.layout, ADAM), "full copies": (td.Layout(dp=devices), ADAM)}
    return locals()


@question(19)
def platform(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> Names:
    """The best layout for GPUs of each size and for more of them, and what binds."""
    n, links = sizes.parameters(billions), (within, between)
    equal = sizes.states(billions, td.Layout(tp=devices))
    best = _best(plans_of(billions, memory, devices, NODE, batch, *links).best)
    limits = td.sensitivity(decoder(billions), machine(devices, memory, NODE, *links), batch)
    first, helping = limits[0], {e.limit: _best(e.after) for e in limits if e.speedup > 1}
    speedups = {each.limit: str(round(each.speedup, 4)) for each in limits}
    decisions = {
        f"{many} x {gb} GB": _best(plans_of(billions, gb * GB, many, NODE, batch, *links).best)
        for gb in (24, 40, 80, 141)
        for many in (devices, 2 * devices, 4 * devices)
    }
    binds, doubled = first.limit if helping else None, _best(first.after)
    tried = {"now": (first.before.layout, ADAM),
             f"{first.limit} doubled": (first.after.layout, ADAM)}  # fmt: skip
    return locals()


def sent_of(model: td.Model, layout: td.Layout, billions: float) -> dict[str, float]:
    """Bytes that a GPU sends in a step, by kind; none for a degree of 1.

    >>> [*sent_of(decoder(13), td.Layout(dp=2, tp=2), 13)]
    ['dp', 'tp']
    """
    t, p, m = layout.tp, layout.pp, layout.microbatches
    rows = layout.microbatch * SEQUENCE * model.hidden * WIRE
    sums = 6 if layout.recompute == "full" else 4  # forward, backward, and forward again
    found = {
        "dp": sizes.gradient_bytes(billions, layout),
        "tp": sums * -(-model.layers // p) * m * 2 * (t - 1) / t * rows,
        "pp": 2 * m * layout.interleave * rows / t,
    }
    return {kind: sent for kind, sent in found.items() if getattr(layout, kind) > 1}


def _by_formula(step: StepEstimate, work: float, billions: float, model: td.Model) -> float:
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
) -> Names:  # fmt: skip
    """The plan, its sums with their bytes, how nearly it scales, and what it waits for.

    The fastest layout on all nodes of which one node can have an equal part of the copies.
    """
    model, links, devices = decoder(billions), (within, between), nodes * per_node
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
    sent, not_near = sent_of(model, layout, billions), share < 0.9
    waits = {name: getattr(large, name) for name in ("bubble", "tp", "dp", "pp", "recompute")}
    listed = [f"{name} {format_seconds(s)}" for name, s in waits.items() if s]
    top, states = max(waits, key=waits.__getitem__), sizes.states(billions, layout)
    limit = td.sensitivity(model, every, batch, sequence=SEQUENCE)[0]
    return locals()


@question(22)
def regression(
    billions: float, memory: int, stages: int, replicas: int, microbatches: int, link: float,
    slower: float,
) -> Names:  # fmt: skip
    """Ring bytes before and after, and the efficiency of each change alone."""
    m, model, layout, fit = microbatches, decoder(billions), td.Layout(), ""
    n = sizes.parameters(billions)
    if m % 2:
        take = f"take an even number, such as microbatches={m + 1}"
        raise ConfigError(f"half of them go to each of twice the replicas; {m} has no half; {take}")
    there = machine(replicas * stages, memory, NODE, between=link)
    lean = td.Layout(dp=replicas, pp=stages, recompute="full", flash_attention=True)
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
    speeds = [f"{name} {100 * one:.0f} %" for name, one in each.items()]
    times = [f"{name} {format_seconds(s.total)}" for name, s in steps.items()]
    worst = min(each, key=each.__getitem__)
    plans = {f"d = {d}": (td.Layout(pp=stages, dp=d), ADAM) for d in (replicas, 2 * replicas)}
    states = sizes.states(billions, plans[f"d = {replicas}"][0])
    sent = [sizes.gradient_bytes(billions, pure) for pure, _ in plans.values()]
    growth, starts = sent[1] / sent[0], states.size <= memory
    return locals()


@lru_cache(maxsize=64)
def common(
    billions: float, nodes: int, *clusters: tuple[int, float]
) -> tuple[int, list[int], td.Layout]:
    """(nodes of each cluster, how many layouts fit each and all, the one whose slowest cluster is
    fastest), from ``nodes`` on, the fewest where there are any; a cluster is (bytes of a GPU,
    bytes/s between nodes)."""
    names, found = [*vars(td.Layout())], []
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
            layout = td.Layout(**dict(zip(fields, best, strict=True)))
            return nodes, [*map(len, (*found, every))], layout
        nodes, found = 2 * nodes, []
    raise ConfigError(f"no layout fits both on up to 16 nodes of {NODE}; take larger GPUs")


@question(23)
def two_clusters(
    billions: float, memory_a: int, memory_b: int, link_a: float, link_b: float, nodes: int
) -> Names:
    """What data parallelism keeps, and the layout that is best for both clusters."""
    clusters, model = {"A": (memory_a, link_a), "B": (memory_b, link_b)}, decoder(billions)
    n = sizes.parameters(billions)
    needed, counts, layout = common(billions, nodes, *clusters.values())
    plans = {
        "data parallel": (td.Layout(dp=NODE * nodes), ADAM),
        "the common layout": (layout, ADAM),
    }
    states = sizes.each_of(billions, plans)
    alone, size = (each.size for each in states.values())
    trains = alone <= memory_a
    peak, sent = td.estimate_memory(model, layout).peak, sizes.gradient_bytes(billions, layout)
    values: dict[str, Any] = {"nodes": needed, "fitting": counts, "layout": str(layout)}
    values["state_bytes"] = size
    for name, (memory, link) in clusters.items():
        there = machine(NODE * needed, memory, NODE, between=link)
        speed = td.estimate_step(model, layout, there).tokens_per_second
        values[name] = {"peak": peak, "sent": sent, "tokens_per_second": speed}
    return locals()
