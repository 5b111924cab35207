"""5, 26 to 33, 35, 38 and 39: layers over devices: what each has, what is sent, who waits how long.

columns, activation, rows (5, 30); channels (27); layers in a row (26, 29); a copy each (28)
x --[W_1 columns]-- gelu --[W_2 rows]-- all_reduce -- y       2 sums a block up, 2 down

worker 0   B1↑ .  .  .  .  B1↓      one works, the others wait
worker 1    . B2↑ .  . B2↓  .       idle of a worker = time of the batch - its own work
worker 2    .  . B3↑B3↓ .   .       total idle = p x time - all work
"""

from functools import partial
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import PlacementError
from tiledask.lab.course import runs
from tiledask.lab.course.question import Names, cut_over, question
from tiledask.lab.course.runs import one_batch
from tiledask.lab.course.words import some
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.program.making.lenet import EACH, NAMES, PARAMETERS, UNITS, need, stages_of

ITEM = 8
"""Bytes of a float64."""


@question(5)
def feed_forward(d: int, d_h: int, devices: int, tokens: int) -> Names:
    """The shards, what is concatenated and summed, and why the other order is wrong."""
    cut_over(devices, d=d, d_h=d_h)
    widths, sent = even(d_h, devices), 2 * (devices - 1) * tokens * d * ITEM
    # numbers of a smaller layer where this one is large
    x, weights, _ = runs.feed_forward(*map(min, (d, d_h, tokens), (64, 256, 64)))
    cut = np.array_split(x, devices, 1), np.array_split(weights["w_1"], devices)
    terms, gelu = [a @ w for a, w in zip(*cut, strict=True)], td.tile.gelu
    wrong = float(np.abs(gelu(sum(terms)) - sum(map(gelu, terms))).max())
    return locals()


@question(26)
def network(images: int, devices: int) -> Names:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    stages, found, one = stages_of(devices), *(need("network", images, n, 4) for n in (devices, 4))
    names = [" + ".join(f"{NAMES[i]} {one.parameters[i]:,}" for i in part) for part in stages]
    held = [(n, n / PARAMETERS, of) for n, of in zip(found.parameters, names, strict=True)]
    last = [(n, UNITS[n], EACH[n]) for n in (NAMES[part[-1]] for part in stages[:-1])]
    crossed = [images * units * each * 4 for _, units, each in last]
    both, sent = 2 * sum(crossed), sum(found.sent)
    return locals()


@question(27)
def layerwise(channels: int, units: int, rows: int, devices: int) -> Names:
    """Who has which channels; what each way of splitting has to synchronise, and its bytes."""
    cut_over(devices, rows=rows)
    mine, dense = even(channels, devices), even(units, devices)
    # 3 x 3 windows, padded: y is as large as x; all ranks send n - 1 times what they gather, and
    # twice that of a sum
    row, others = 2 * channels * rows, devices - 1
    image, dw = row * rows, channels * (9 * channels + 1)
    table = {
        "by output channels": (2, 3 * others * image),  # y gathered, dx summed
        "by input channels": (1, 2 * others * image),  # y summed
        "out, then in": (2, 4 * others * image),  # y and dx summed, of two layers
        "by rows": (3, 4 * others * row + 2 * others * dw),  # a row each way, twice; dw summed
    }
    ways = {
        way: {"barriers": barriers * (devices > 1), "bytes": ITEM * numbers}
        for way, (barriers, numbers) in table.items()
    }
    whole, copies = (need(way, 256, devices, 4) for way in ("layerwise", "data parallel"))
    chain = need("network", 256, min(devices, 4), 4)
    barriers, sent = [whole.barriers, chain.transfers, copies.barriers], sum(whole.sent)
    by_chain = sum(chain.sent)
    more = sent / by_chain
    return locals()


def _normalised(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    mean = x.sum(axis=0) / len(x)
    same: np.ndarray = (x - mean) / np.sqrt((x**2).sum(axis=0) / len(x) - mean**2 + 1e-5)
    return same


@question(28)
def copies(images: int, devices: int) -> Names:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    cut_over(devices, images=images)
    found, P, others = need("data parallel", images, devices, 4), PARAMETERS, devices - 1
    x = np.random.default_rng(28).standard_normal((images, 16))
    parts = np.concatenate([_normalised(part) for part in np.array_split(x, devices)])
    off = float(np.abs(parts - _normalised(x)).max())
    mine, held, sent = even(images, devices), 4 * P, round(2 * others / devices * P * 4)
    faster = sum(found.flops) / max(found.flops)
    return locals()


@question(29)
def layer_wise(layers: int, workers: int) -> Names:
    """Consecutive layers on each worker; what each holds, sends and waits."""
    cut, p, before = td.partition(layers, workers), workers, workers - 1
    order, times = one_batch(range(workers)), {"forward": 0.1, "backward": 0.2}
    largest, transfers, busy, T = max(cut.sizes), 2 * before, [0.3] * p, 0.3 * p
    fullest, utilisation = largest / layers, td.simulate(order).utilisation
    return locals()


@question(30)
def split_layers(hidden: int, heads: int, sequence: int, layers: int, workers: int) -> Names:
    """Shapes of the parts, what is added up, and the bytes of it."""
    if hidden % heads:
        raise PlacementError(f"{heads} heads share a width of {hidden}; take a multiple of {heads}")
    h, t, inner = hidden, workers, 4 * hidden
    of = (heads, heads, h // heads)
    calls = td.layer_calls("decoder_block", ranks=t, batch=4, tokens=sequence, width=h, heads=of)
    sums, sent = len(calls), sum(sum(call.sent) for call in calls)
    dealt, columns = even(heads, t), even(inner, t)
    all_sums, all_sent = layers * sums, layers * sent
    x = np.random.default_rng(30).standard_normal(2)
    *made, of_sum = (td.tile.gelu(v)[0].item() for v in (x[:1], x[1:], x[:1] + x[1:]))
    apart, layout = sum(made), Layout(tp=t)
    return locals()


# -- one batch through workers in a row: the order, and who waits how long -------------------------

LAYER = {"forward": 0.05, "backward": 0.1}
"""Seconds of a layer."""


def _flow(layers: int, workers: int, working: int, unit: str) -> Names:
    """The cut, the order of all blocks, the states beside one worker, and what is used."""
    if working > workers:
        raise PlacementError(f"the question's workers are 1 to {workers}, got {working}")
    cut = td.partition(layers, workers)
    order, (up, down) = one_batch(cut.place), LAYER.values()
    t, number, last = td.simulate(order, **LAYER), working - 1, workers - 1
    before = sum(cut.sizes[:number])
    begins, busy = before * up, [n * (up + down) for n in cut.sizes]
    T, used, flow, times = sum(busy), 1 / workers, runs.flow(t), LAYER
    others = [w for w in range(workers) if w != number]
    states = {f"{unit} {w}": t.state(w, begins + up / 2) for w in others}
    idle = some([w for w in others if states[f"{unit} {w}"] == "idle"])
    return locals()


question(31)(partial(_flow, unit="worker"))
question(35)(partial(_flow, unit="GPU"))


@question(32)
def decoder_blocks(blocks: int, slot: float) -> Names:
    """What each worker's two slots of 2L leave."""
    L, order, slots = blocks, one_batch(range(blocks)), 2 * blocks
    t, used, T, down = td.simulate(order, slot, slot), 1 / L, slots * slot, L - 1
    idle_slots, last, flow = slots - 2, slots - 1, runs.flow(t)
    idle, busy, times = idle_slots * slot, [2 * slot] * L, {"forward": slot, "backward": slot}
    return locals()


@question(33)
def idle_time(workers: int, forward: float, backward: float) -> Names:
    """Each waits for all others; together (p - 1) times as long as the batch takes."""
    p, each, order = workers, forward + backward, one_batch(range(workers))
    T, busy, times = p * each, [each] * p, {"forward": forward, "backward": backward}
    idle, total, waited, efficiency = T - each, (p - 1) * T, p * (T - each), 1 / p
    return locals()


@question(38)
def more_workers(before: int, after: int, compute: float, transfer: float) -> Names:
    """Utilisation, time and idle device-time with ``before`` and with ``after`` workers."""
    found, lines = {}, []
    for p in (before, after):
        for c in dict.fromkeys((0.0, transfer)):
            t = td.simulate(one_batch(range(p), False), forward=compute / p, latency=c)
            name = f"{p} workers" + ", transfers" * bool(c)
            found[name] = {"time": t.makespan, "utilisation": t.utilisation, "idle": t.idle}
            lines.append((name, p, p - 1, c, found[name]))
    sent = [compute + (p - 1) * transfer for p in (before, after)]
    first, last, order = 1 / before, 1 / after, one_batch(range(after), False)
    busy, T = [compute / after] * after, sent[1]
    times = {"forward": compute / after, "latency": transfer}
    return locals()


@question(39)
def sequential(
    forward: list[float], backward: list[float], transfer: list[float], seed: int
) -> Names:
    """Makespan, busy and idle time of each worker, total and efficiency, every sum written out."""
    p, F, B = len(forward), forward, backward
    c = transfer * (p - 1) if len(transfer) == 1 else transfer
    if seed:  # whole tenths, and twentieths
        rng = np.random.default_rng(seed)
        F, B = ((rng.integers(1, most, p) / 10).tolist() for most in (5, 7))
        c = (rng.integers(1, 4, p - 1) / 20).tolist()
    times: dict[str, Any] = {"forward": F, "backward": B, "latency": c}
    order, up, down, sent = one_batch(range(p)), sum(F), sum(B), sum(c)
    t, work = td.simulate(order, **times), up + down
    T, busy = work + 2 * sent, [f + b for f, b in zip(F, B, strict=True)]
    whole, idle = p * T, [T - b for b in busy]
    total, efficiency = whole - work, work / whole
    each = [*zip(F, B, busy, idle, strict=True)]
    return locals()
