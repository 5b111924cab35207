"""5 and 26 to 30: layers over devices: what each has, what is added up and sent.

columns, activation, rows (5, 30); channels (27); layers in a row (26, 29); a copy each (28)
x --[W_1 columns]-- gelu --[W_2 rows]-- all_reduce -- y       2 sums a block up, 2 down
"""

import numpy as np

import tiledask as td
from tiledask.errors import PlacementError
from tiledask.lab.questions import runs
from tiledask.lab.questions.question import Working, count, cut_over, question, shares
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
def feed_forward(d: int, d_h: int, devices: int, tokens: int) -> Working:
    """The shards, what is concatenated and summed, and why the other order is wrong."""
    cut_over(devices, d=d, d_h=d_h)
    widths, sent = even(d_h, devices), 2 * (devices - 1) * tokens * d * ITEM
    # numbers of a smaller layer where this one is large
    x, weights, _ = runs.feed_forward(*map(min, (d, d_h, tokens), (64, 256, 64)))
    cut = np.array_split(x, devices, 1), np.array_split(weights["w_1"], devices)
    terms, gelu = [a @ w for a, w in zip(*cut, strict=True)], td.tile.gelu
    wrong = float(np.abs(gelu(sum(terms)) - sum(map(gelu, terms))).max())
    return Working(
        f"Each of {devices} devices has {shares(widths)} of {d_h} columns of W_h; their outputs "
        f"are concatenated. The whole layer takes 1 all-reduce forward and 1 backward, "
        f"{format_bytes(sent)} each.",
        [
            f"h = [h W^1 ... h W^{devices}]: every device needs all of h, {tokens} x {d}, and its "
            f"own columns of W_h: {shares(widths)} each; GELU acts on each number: nothing is sent",
            f"the second matrix by rows: {devices} terms of {tokens} x {d}, one all-reduce "
            f"forward, and one of dX backward, each 2 (M - 1) x {tokens} x {d} x {ITEM} B = "
            f"{format_bytes(sent)} sent by all {devices}, in float64",
            f"rows first would need GELU(a + b) = GELU(a) + GELU(b), up to {wrong:.3g} apart here",
        ],
        {"widths": list(widths), "sent": sent, "wrong order, off by": wrong},
        lambda cluster: runs.split_layer(cluster, d, d_h, tokens, devices, sent),
    )


@question(26)
def network(images: int, devices: int) -> Working:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    from tiledask.distributed.convolution.lenet import LENET

    stages, said, lines, crossed = stages_of(devices), need("network", images, devices, 4), [], []
    for device, (layers, held) in enumerate(zip(stages, said.parameters, strict=True), 1):
        names = " + ".join(f"{LENET[i].name} {LENET[i].size:,}" for i in layers)
        lines.append(f"device {device}: {names} = {held:,} = {100 * held / PARAMETERS:.1f} %")
    for device, layers in enumerate(stages[:-1], 2):
        last = BOUNDARIES[layers[-1]]
        crossed.append(images * last.units * last.each * 4)
        lines.append(
            f"{last.name} -> device {device}: {images} x {last.units} x {last.each} x 4 B = "
            f"{format_bytes(crossed[-1])}, and its gradient back"
        )
    work = ", ".join(f"device {d} {f / 1e6:,.1f} MFLOP" for d, f in enumerate(said.flops, 1))
    return Working(
        f"A device needs a fraction of the memory, at most "
        f"{100 * max(said.parameters) / PARAMETERS:.0f} %; neighbours wait for each other "
        f"{said.transfers} times a step; the busiest device has {said.imbalance:.2g} times the "
        f"mean work; {format_bytes(2 * sum(crossed))} of activations and gradients cross.",
        [
            *lines,
            f"transfers: 2 x ({devices} - 1) = {said.transfers}, in turn",
            f"work: {work}; busiest over mean: {said.imbalance:.3g}",
        ],
        {"parameters": list(said.parameters), "boundary bytes": crossed,
         "transfers": said.transfers, "bytes": sum(said.sent), "imbalance": said.imbalance},
        lambda cluster: runs.lenet(cluster, devices, images, "network"),
    )  # fmt: skip


@question(27)
def layerwise(channels: int, units: int, rows: int, devices: int) -> Working:
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
    return Working(
        f"Each of {devices} devices has {shares(mine)} of {channels} channels. All results come "
        f"out as on one device, but every layer synchronises all devices: {whole.barriers} times "
        f"in a step of LeNet, where data parallelism does once, with {more:.2g} times the bytes of "
        f"whole layers on devices.",
        [
            f"{channels} channels / {devices} devices: {shares(mine)} channels each; {units} "
            f"outputs of a fully connected layer: {shares(dense)} each",
            *(f"a convolution of 2 images {way}: {found['barriers']} synchronisations, "
              f"{format_bytes(found['bytes'])} in float64" for way, found in ways.items()),
            f"LeNet, 256 images: a gather for each of 4 layers, 3 sums back: 4 + 3 = "
            f"{whole.barriers} synchronisations a step; layer by layer {chain.transfers} messages; "
            f"{format_bytes(sum(whole.sent))} / {format_bytes(sum(chain.sent))} = {more:.3g}",
        ],
        {"channels": list(mine), "outputs": list(dense), "ways": ways,
         "barriers": [whole.barriers, chain.transfers, copies.barriers],
         "layerwise over network": more},
        lambda cluster: runs.lenet(cluster, devices, 32, "network", "layerwise", "data parallel"),
    )  # fmt: skip


def _normalised(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    mean = x.sum(axis=0) / len(x)
    same: np.ndarray = (x - mean) / np.sqrt((x**2).sum(axis=0) / len(x) - mean**2 + 1e-5)
    return same


@question(28)
def copies(images: int, devices: int) -> Working:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    cut_over(devices, images=images)
    k, said, P = devices, need("data parallel", images, devices, 4), PARAMETERS
    x = np.random.default_rng(28).standard_normal((images, 16))
    parts = np.concatenate([_normalised(part) for part in np.array_split(x, devices)])
    off = float(np.abs(parts - _normalised(x)).max())
    mine, sent = even(images, k), 2 * (k - 1) / k * P * 4
    faster = sum(said.flops) / max(said.flops)
    return Working(
        f"Each of {k} devices computes {shares(mine)} of {images} images, and all synchronise once "
        f"a step: {format_bytes(sent)} sent by each. {faster:.3g} times as fast at best; but each "
        f"keeps all {P:,} parameters, so more devices allow no larger model.",
        [
            f"1, 2. the batch is cut, {shares(mine)} images each, for a loss and gradients each",
            f"3, 4. gradients are added up: in a ring each sends 2 (k - 1) / k x P x 4 B = 2 x "
            f"{k - 1} / {k} x {P:,} x 4 B = {format_bytes(sent)}, and has the sum",
            f"5. each updates all its weights, {format_bytes(4 * P)}, and all copies stay equal",
            f"not the same as one device: batch normalisation with the mean and variance of its "
            f"own {shares(mine)} random samples is off by up to {off:.3g}",
        ],
        {"images": list(mine), "bytes of each": round(sent), "synchronisations": said.barriers,
         "speed-up at best": faster, "batch normalisation off by": off},
        lambda cluster: runs.lenet(cluster, devices, images, "data parallel"),
    )  # fmt: skip


@question(29)
def layer_wise(layers: int, workers: int) -> Working:
    """Consecutive layers on each worker; what each holds, sends and waits."""
    cut, p, order = td.partition(layers, workers), workers, runs.one_batch(range(workers))
    t, fullest = td.simulate(order), max(cut.sizes) / layers
    times = {"forward": 0.1, "backward": 0.2}
    return Working(
        f"Consecutive layers on each worker: {cut}. Each holds {shares(cut.sizes)} of {layers} "
        f"layers; the batch goes up and down through all of them, {2 * (p - 1)} transfers, and one "
        f"worker in {p} works: {100 / p:.1f} %.",
        [
            f"the fullest worker has {max(cut.sizes)} / {layers} = {100 * fullest:.1f} % of the "
            f"weights",
            f"outputs go up, {p} - 1 = {p - 1} transfers, and gradients the same way down",
            f"every layer needs the one before it, so workers take turns: 1/{p} is used",
        ],
        {"cut": str(cut), "fullest": fullest, "transfers": 2 * (p - 1),
         "utilisation": t.utilisation},
        lambda cluster: [
            *runs.placed(cluster, "forward", cut.place, p - 1),
            *runs.timed(cluster, order, [0.3] * p, 0.3 * p, **times)],
    )  # fmt: skip


@question(30)
def split_layers(hidden: int, heads: int, sequence: int, layers: int, workers: int) -> Working:
    """Shapes of the parts, what is added up, and the bytes of it."""
    if hidden % heads:
        raise PlacementError(
            f"{heads} heads share the width, got {hidden}; take a multiple of {heads}"
        )
    h, t, size = hidden, workers, 4 * sequence * hidden * ITEM
    stream = Stream(4, sequence, h, t)
    calls = decoder_block(stream, heads, heads, h // heads, gated=False).calls
    sums, sent = len(calls), sum(sum(call.cost(ITEM).sent) for call in calls)
    dealt, inner = even(heads, t), even(4 * h, t)
    x = np.random.default_rng(30).standard_normal(2)
    *made, of_sum = (td.tile.gelu(v)[0].item() for v in (x[:1], x[1:], x[:1] + x[1:]))
    return Working(
        f"Each of {t} workers has {shares(dealt)} of {count(heads, 'head')} and {shares(inner)} of "
        f"{4 * h} inner columns in every layer, and all work at once. The price: {sums} "
        f"all_reduces a block, {layers * sums} in {count(layers, 'block')}, "
        f"{format_bytes(layers * sent)} a step.",
        [
            "columns first, rows second: nothing to add in between, then one all_reduce",
            f"rows first would not do: gelu({x[0]:.3g} + {x[1]:.3g}) = {of_sum:.4g}, but "
            f"gelu({x[0]:.3g}) + gelu({x[1]:.3g}) = {sum(made):.4g}",
            f"each of 4 x {sequence} x {h} x 8 B = {format_bytes(size)}; a ring sends 2 x "
            f"({t} - 1) times that, a block {sums} times: {format_bytes(sent)}",
        ],
        {"heads": list(dealt), "columns": list(inner), "all_reduces": layers * sums,
         "bytes": layers * sent, "gelu of a sum": of_sum, "sum of gelus": made[0] + made[1]},
        lambda cluster: runs.trained(cluster, Layout(tp=workers)),
    )  # fmt: skip
