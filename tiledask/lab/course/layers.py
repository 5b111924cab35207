"""5, 26 to 33, 35, 38 and 39: layers over devices: what each has, what is sent, who waits how long.

columns, activation, rows (5, 30); channels (27); layers in a row (26, 29); a copy each (28)
x --[W_1 columns]-- gelu --[W_2 rows]-- all_reduce -- y       2 sums a block up, 2 down

worker 1   B1↑ .  .  .  .  B1↓      one works, the others wait
worker 2    . B2↑ .  . B2↓  .       idle of a worker = time of the batch - its own work
worker 3    .  . B3↑B3↓ .   .       total idle = p x time - all work
"""

from functools import partial
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import PlacementError
from tiledask.lab.course import runs
from tiledask.lab.course.question import Worked, count, cut_over, question, shares, some
from tiledask.lab.course.runs import one_batch
from tiledask.plan.collectives import convolution as conv
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.layers import Stream, decoder_block
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.program.lenet import BOUNDARIES, PARAMETERS, stages_of
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.plan.units import format_bytes

ITEM = 8
"""Bytes of a float64."""


@question(5)
def feed_forward(d: int, d_h: int, devices: int, tokens: int) -> Worked:
    """The shards, what is concatenated and summed, and why the other order is wrong."""
    cut_over(devices, d=d, d_h=d_h)
    widths, sent = even(d_h, devices), 2 * (devices - 1) * tokens * d * ITEM
    # numbers of a smaller layer where this one is large
    x, weights, _ = runs.feed_forward(*map(min, (d, d_h, tokens), (64, 256, 64)))
    cut = np.array_split(x, devices, 1), np.array_split(weights["w_1"], devices)
    terms, gelu = [a @ w for a, w in zip(*cut, strict=True)], td.tile.gelu
    wrong = float(np.abs(gelu(sum(terms)) - sum(map(gelu, terms))).max())
    return Worked(
        f"Each of {devices} devices has {shares(widths)} of {d_h} columns of W_h; a layer takes 1 "
        f"all-reduce forward and 1 backward, {format_bytes(sent)} each.",
        f"h = [h W^1 ... h W^{devices}], {tokens} x {d} of h on each; GELU sends nothing",
        f"the second matrix by rows: an all-reduce, 2 (M - 1) x {tokens} x {d} x {ITEM} B = "
        f"{format_bytes(sent)} sent by all, in float64; backward one of dX",
        f"rows first would need GELU(a + b) = GELU(a) + GELU(b), up to {wrong:.3g} apart here",
        values={"widths": list(widths), "sent": sent, "wrong order, off by": wrong},
        run=lambda cluster: runs.split_layer(cluster, d, d_h, tokens, devices, sent),
    )


@question(26)
def network(images: int, devices: int) -> Worked:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    from tiledask.distributed.convolution.lenet import LENET

    stages, said, lines, crossed = stages_of(devices), need("network", images, devices, 4), [], []
    for device, (layers, held) in enumerate(zip(stages, said.parameters, strict=True), 1):
        names = " + ".join(f"{LENET[i].name} {LENET[i].size:,}" for i in layers)
        lines.append(f"device {device}: {names} = {held:,} = {100 * held / PARAMETERS:.1f} %")
    for layers in stages[:-1]:
        last = BOUNDARIES[layers[-1]]
        crossed.append(images * last.units * last.each * 4)
        lines.append(f"{last.name}: {images} x {last.units} x {last.each} x 4 B, and back")
    return Worked(
        f"Neighbours wait for each other {said.transfers} times a step; the busiest has "
        f"{said.imbalance:.2g} times the mean work; {format_bytes(2 * sum(crossed))} cross.",
        *lines, f"transfers: 2 x ({devices} - 1), in turn",
        values={"parameters": list(said.parameters), "boundary bytes": crossed,
                "transfers": said.transfers, "bytes": sum(said.sent), "imbalance": said.imbalance},
        run=lambda cluster: runs.lenet(cluster, devices, images, "network"),
    )  # fmt: skip


@question(27)
def layerwise(channels: int, units: int, rows: int, devices: int) -> Worked:
    """Who has which channels; what each way of splitting has to synchronise, and its bytes."""
    cut_over(devices, rows=rows)
    mine, dense = even(channels, devices), even(units, devices)
    one = conv.Convolution(2, channels, channels, (rows, rows), (3, 3), padding=((1, 1), (1, 1)))
    calls = {
        "by output channels": conv.by_output(one, devices, ITEM, gather=True),
        "by input channels": conv.by_input(one, devices, ITEM),
        "out, then in": conv.in_pairs(one, one, devices, ITEM),
        "by rows": conv.in_rows(one, even(rows, devices), ITEM),
    }
    ways = {
        way: {"barriers": len(made), "bytes": sum(sum(call.cost.sent) for call in made)}
        for way, made in calls.items()
    }
    whole, copies = (need(way, 256, devices, 4) for way in ("layerwise", "data parallel"))
    chain = need("network", 256, min(devices, 4), 4)
    more = sum(whole.sent) / sum(chain.sent)
    return Worked(
        f"Each of {devices} devices has {shares(mine)} of {channels} channels. Every layer "
        f"synchronises all devices: {whole.barriers} times in a step of LeNet, where data "
        f"parallelism does once, with {more:.2g} times the bytes of whole layers on devices.",
        f"{shares(mine)} channels each; of {units} outputs of a dense layer {shares(dense)} each",
        *(f"a convolution of 2 images {way}: {found['barriers']} synchronisations, "
          f"{format_bytes(found['bytes'])} in float64" for way, found in ways.items()),
        f"LeNet: {format_bytes(sum(whole.sent))} / {format_bytes(sum(chain.sent))} sent",
        values={"channels": list(mine), "outputs": list(dense), "ways": ways,
                "barriers": [whole.barriers, chain.transfers, copies.barriers],
                "layerwise over network": more},
        run=lambda cluster: runs.lenet(
            cluster, devices, 32, "network", "layerwise", "data parallel"),
    )  # fmt: skip


def _normalised(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    mean = x.sum(axis=0) / len(x)
    same: np.ndarray = (x - mean) / np.sqrt((x**2).sum(axis=0) / len(x) - mean**2 + 1e-5)
    return same


@question(28)
def copies(images: int, devices: int) -> Worked:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    cut_over(devices, images=images)
    k, said, P = devices, need("data parallel", images, devices, 4), PARAMETERS
    x = np.random.default_rng(28).standard_normal((images, 16))
    parts = np.concatenate([_normalised(part) for part in np.array_split(x, devices)])
    off = float(np.abs(parts - _normalised(x)).max())
    mine, sent = even(images, k), 2 * (k - 1) / k * P * 4
    faster = sum(said.flops) / max(said.flops)
    return Worked(
        f"Each of {k} devices computes {shares(mine)} of {images} images, and all synchronise once "
        f"a step: {format_bytes(sent)} sent by each. {faster:.3g} times as fast at best; but each "
        f"keeps all {P:,} parameters, so more devices allow no larger model.",
        f"in a ring each sends 2 (k - 1) / k x P x 4 B = 2 x {k - 1} / {k} x {P:,} x 4 B",
        f"each updates all its weights, {format_bytes(4 * P)}, and all copies stay equal",
        f"batch normalisation by each one's {shares(mine)} samples is off by up to {off:.3g}",
        values={"images": list(mine), "bytes of each": round(sent), "speed-up at best": faster,
                "synchronisations": said.barriers, "batch normalisation off by": off},
        run=lambda cluster: runs.lenet(cluster, devices, images, "data parallel"),
    )  # fmt: skip


@question(29)
def layer_wise(layers: int, workers: int) -> Worked:
    """Consecutive layers on each worker; what each holds, sends and waits."""
    cut, p, order = td.partition(layers, workers), workers, one_batch(range(workers))
    fullest, times = max(cut.sizes) / layers, {"forward": 0.1, "backward": 0.2}
    return Worked(
        f"Consecutive layers on each worker: {cut}. Each holds {shares(cut.sizes)} of {layers} "
        f"layers; {2 * (p - 1)} transfers up and down, and one worker in {p} works at a time.",
        f"the fullest has {max(cut.sizes)} / {layers} = {100 * fullest:.1f} % of the weights",
        f"outputs go up, {p} - 1 = {p - 1} transfers, and gradients the same way down",
        f"every layer needs the one before it, so workers take turns: 1/{p} is used",
        values={"cut": str(cut), "fullest": fullest, "transfers": 2 * (p - 1),
                "utilisation": td.simulate(order).utilisation},
        run=lambda cluster: [
            *runs.placed(cluster, "forward", cut.place, p - 1),
            *runs.timed(cluster, order, [0.3] * p, 0.3 * p, **times)],
    )  # fmt: skip


@question(30)
def split_layers(hidden: int, heads: int, sequence: int, layers: int, workers: int) -> Worked:
    """Shapes of the parts, what is added up, and the bytes of it."""
    if hidden % heads:
        raise PlacementError(f"{heads} heads share a width of {hidden}; take a multiple of {heads}")
    h, t = hidden, workers
    calls = decoder_block(Stream(4, sequence, h, t), heads, heads, h // heads, gated=False).calls
    sums, sent = len(calls), sum(sum(call.cost(ITEM).sent) for call in calls)
    dealt, inner = even(heads, t), even(4 * h, t)
    x = np.random.default_rng(30).standard_normal(2)
    *made, of_sum = (td.tile.gelu(v)[0].item() for v in (x[:1], x[1:], x[:1] + x[1:]))
    return Worked(
        f"Each of {t} workers has {shares(dealt)} of {count(heads, 'head')} and {shares(inner)} of "
        f"{4 * h} inner columns, and all work at once. The price: {layers * sums} all_reduces in "
        f"{count(layers, 'block')}, {format_bytes(layers * sent)} a step.",
        "columns first, rows second: nothing to add in between, then one all_reduce",
        f"rows first would not do: gelu({x[0]:.3g} + {x[1]:.3g}) = {of_sum:.4g}, but "
        f"gelu({x[0]:.3g}) + gelu({x[1]:.3g}) = {sum(made):.4g}",
        f"a block: {sums} x 2 x ({t} - 1) x 4 x {sequence} x {h} x 8 B = {format_bytes(sent)}",
        values={"heads": list(dealt), "columns": list(inner), "all_reduces": layers * sums,
                "bytes": layers * sent, "gelu of a sum": of_sum, "sum of gelus": made[0] + made[1]},
        run=lambda cluster: runs.trained(cluster, Layout(tp=workers)),
    )  # fmt: skip


# -- one batch through workers in a row: the order, and who waits how long -------------------------

LAYER = {"forward": 0.05, "backward": 0.1}
"""Seconds of a layer."""


def _flow(layers: int, workers: int, working: int, unit: str) -> Worked:
    """The cut, the order of all blocks, the states beside one worker, and what is used."""
    if working > workers:
        raise PlacementError(f"workers are 1 to {workers}, got {working}; name one of them")
    cut = td.partition(layers, workers)
    order, (up, down) = one_batch(cut.place), LAYER.values()
    t, before = td.simulate(order, **LAYER), sum(cut.sizes[: working - 1])
    states = runs.meanwhile(t, working - 1)
    busy = [n * (up + down) for n in cut.sizes]
    idle = some([str(w + 1) for w, state in states.items() if state == "idle"])
    return Worked(
        f"The order is B1↑ ... B{layers}↑, B{layers}↓ ... B1↓. While {unit} {working} computes its "
        f"forward, these are idle: {unit} {idle}; {100 / workers:.1f} % used.",
        f"{layers} layers over {workers} {unit}s: {cut}; no block can go earlier",
        f"{unit} {working} computes from {before} x {up:g} = {before * up:g} s on; {unit}s before "
        f"it wait for gradients, those behind it for outputs",
        f"time of the batch {layers} x ({up:g} + {down:g}) = {sum(busy):g} s",
        values={"cut": str(cut), "flow": runs.flow(t), "utilisation": t.utilisation,
                "states": {f"{unit} {w + 1}": state for w, state in states.items()}},
        run=lambda cluster: runs.timed(cluster, order, busy, sum(busy), **LAYER),
        figure=lambda: td.plots.gantt(t, title=f"{layers} layers on {workers} {unit}s, one batch"),
    )  # fmt: skip


question(31)(partial(_flow, unit="worker"))
question(35)(partial(_flow, unit="GPU"))


@question(32)
def decoder_blocks(blocks: int, slot: float) -> Worked:
    """What each worker's two slots of 2L leave."""
    L, order = blocks, one_batch(range(blocks))
    t = td.simulate(order, slot, slot)
    return Worked(
        f"Worker l computes in slots l and {2 * L + 1} - l of {2 * L}, and idles in the other "
        f"{2 * L - 2}: it is used 2 / {2 * L} = 1/{L} = {100 / L:.1f} % of the time.",
        f"{L} blocks up and {L} down: 2 x {L} slots of {slot:g} s, {2 * L * slot:g} s",
        f"worker 1 is busy in slots 1 and {2 * L}, worker {L} in {L} and {L + 1}",
        f"idle: {2 * L} - 2 = {2 * L - 2} slots = {(2 * L - 2) * slot:g} s each",
        values={"slots": 2 * L, "flow": runs.flow(t), "utilisation": t.utilisation,
                "makespan": t.makespan, "idle of each": t.idle_per_device[0]},
        run=lambda cluster: runs.timed(
            cluster, order, [2 * slot] * L, 2 * L * slot, forward=slot, backward=slot),
        figure=lambda: td.plots.gantt(t, title=f"One batch through {L} blocks"),
    )  # fmt: skip


@question(33)
def idle_time(workers: int, forward: float, backward: float) -> Worked:
    """Each waits for all others; together (p - 1) times as long as the batch takes."""
    p, each, order = workers, forward + backward, one_batch(range(workers))
    T, times = p * each, {"forward": forward, "backward": backward}
    return Worked(
        f"Each of {p} workers idles {T - each:g} of {T:g} s, all together {(p - 1) * T:g} s: "
        f"(p - 1) times the batch. Efficiency 1/{p} = {100 / p:.1f} %.",
        f"own work: {forward:g} + {backward:g} = {each:g} s; T = {p} x {each:g} = {T:g} s",
        f"idle of each: T - {each:g} = {T - each:g} s; of all: {p} x {T - each:g} = (p - 1) T",
        f"busy + idle: {T:g} + {p * (T - each):g} = {p} x {T:g}, nothing is left out",
        values={
            "makespan": T,
            "idle of each": T - each,
            "total idle": (p - 1) * T,
            "efficiency": 1 / p,
        },
        run=lambda cluster: runs.timed(cluster, order, [each] * p, T, **times),
        figure=lambda: td.plots.gantt(
            td.simulate(order, **times), title=f"One batch on {p} workers"
        ),
    )


@question(38)
def more_workers(before: int, after: int, compute: float, transfer: float) -> Worked:
    """Utilisation, time and idle device-time with ``before`` and with ``after`` workers."""
    found, lines = {}, []
    for p in (before, after):
        for c in dict.fromkeys((0.0, transfer)):
            t = td.simulate(one_batch(range(p), False), forward=compute / p, latency=c)
            name = f"{p} workers" + ", transfers" * bool(c)
            found[name] = {"time": t.makespan, "utilisation": t.utilisation, "idle": t.idle}
            idle = f"idle {p} x {t.makespan:g} - {compute:g} = {t.idle:g} s"
            took = f"time {compute:g} + {p - 1} x {c:g} = {t.makespan:g} s"
            lines.append(f"{name}: {took}; utilisation {100 * t.utilisation:.1f} %; {idle}")
    sent = [compute + (p - 1) * transfer for p in (before, after)]
    moved = f" ({sent[0]:g} and {sent[1]:g} s with transfers of {transfer:g} s)" * bool(transfer)
    return Worked(
        f"Utilisation goes from {100 / before:.3g} % to {100 / after:.3g} %, and the batch takes "
        f"{compute:g} s before and after{moved}: workers that work in turn only wait.",
        f"each computes {compute:g} s / workers, one after the other", *lines,
        values=found,
        run=lambda cluster: runs.timed(
            cluster, one_batch(range(after), False), [compute / after] * after, sent[1],
            forward=compute / after, latency=transfer),
    )  # fmt: skip


@question(39)
def sequential(
    forward: list[float], backward: list[float], transfer: list[float], seed: int
) -> Worked:
    """Makespan, busy and idle time of each worker, total and efficiency, every sum written out."""
    p, F, B = len(forward), forward, backward
    c = transfer * (p - 1) if len(transfer) == 1 else transfer
    if seed:  # whole tenths, and twentieths
        rng = np.random.default_rng(seed)
        F, B = ((rng.integers(1, most, p) / 10).tolist() for most in (5, 7))
        c = (rng.integers(1, 4, p - 1) / 20).tolist()
    times: dict[str, Any] = {"forward": F, "backward": B, "latency": c}
    order, work, way = one_batch(range(p)), sum(F) + sum(B), sum(c)
    t = td.simulate(order, **times)
    T, busy = work + 2 * way, [f + b for f, b in zip(F, B, strict=True)]
    total, idle = p * T - work, [T - b for b in busy]
    return Worked(
        f"{T:g} s for the batch, {total:g} s of {p} x {T:g} = {p * T:g} device-seconds idle: "
        f"efficiency {100 * work / (p * T):.1f} %.",
        f"forward, backward, 2 x transfers: {sum(F):g} + {sum(B):g} + 2 x {way:g} = {T:g} s",
        *(f"worker {i}: busy {F[i - 1]:g} + {B[i - 1]:g} = {b:g} s, idle {T:g} - {b:g} = "
          f"{T - b:g} s" for i, b in enumerate(busy, 1)),
        f"total idle: {p} x {T:g} - {work:g} s; efficiency: {work:g} / ({p} x {T:g})",
        values={"makespan": T, "busy": busy, "idle": idle, "total idle": total,
                "efficiency": work / (p * T)},
        run=lambda cluster: runs.timed(cluster, order, busy, T, **times),
        figure=lambda: td.plots.gantt(t, title=f"One batch on {p} workers"),
    )  # fmt: skip
