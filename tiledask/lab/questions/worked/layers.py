"""2, 3, 5, 27 and 30: one layer over devices: what each has, what is added up and sent.

too large for one device (2, 3); columns, activation, rows (5, 30); channels (27)
x --[W_1 columns]-- gelu --[W_2 rows]-- all_reduce -- y       2 sums a block up, 2 down
"""

from math import prod
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.ranks.rank import Rank
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.shares import count, each, listed
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.runs import lenet
from tiledask.lab.questions.worked.sizes import GB
from tiledask.lab.table import Comparison
from tiledask.plan.collectives import convolution as conv
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.layers import Stream, bytes_by_rank, decoder_block, mlp
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.plan.units import format_bytes

ITEM = 8
"""Bytes of a float64."""

# -- 2 and 3: one layer larger than a device -------------------------------------------------------

ROWS, TOKENS, RUN_BYTES = 1000, 8, 3_000_000
"""Rows of the matrix and of the batch, and bytes of the matrix that is run, about."""
ARRAYS = {"forward": 1, "sgd": 2, "momentum": 3, "adam": 4}
"""Arrays as large as the weights: these, their gradient, and what the optimizer keeps, in fp32."""
STRATEGIES = {
    "copies": "data parallelism: all weights on every GPU",
    "smaller batches": "gradients accumulated over smaller batches: all weights stay",
    "a layer each": "layers on GPUs of their own: this one is a single layer",
    "columns": "tensor parallelism by columns",
    "rows": "tensor parallelism by rows",
}
GPU_MEMORY, GPUS = Input("bytes of a GPU"), Input("GPUs", 1, 64)


@question(
    2,
    "A machine learning engineer, an exceptionally large layer, and no memory left",
    "One layer's weights take {weights}. Which strategies have room for a step of it ({step}) on "
    "{gpus} GPUs of {memory}?",
    weights="bytes of the layer's weights",
    memory=GPU_MEMORY,
    gpus=GPUS,
    step=Input("the forward pass alone, or an optimizer", choices=tuple(ARRAYS)),
)
def large_layer(
    weights: int = 28_800_000_000, memory: int = 24 * GB, gpus: int = 4, step: str = "forward"
) -> WorkedAnswer:
    """The bytes of each strategy on the fullest GPU, and which have room."""
    arrays, columns = ARRAYS[step], weights // (4 * ROWS)
    room = memory // (4 * (arrays * ROWS + TOKENS))
    if columns < gpus or not room:
        raise ConfigError(
            f"W has {columns} columns of {ROWS} rows for {gpus} GPUs, and a GPU has room for "
            f"{room}; give each of them one or more: larger weights, or more memory"
        )

    def parts(strategy: str, columns: int) -> tuple[int, int]:
        """Bytes on the fullest GPU: what the step keeps of W, and its part of y."""
        part = {"columns": (ROWS, -(-columns // gpus)), "rows": (-(-ROWS // gpus), columns)}
        rows, mine = part.get(strategy, (ROWS, columns))
        tokens = {"copies": -(-TOKENS // gpus), "smaller batches": 1}.get(strategy, TOKENS)
        return 4 * mine * arrays * rows, 4 * mine * tokens

    def line(name: str) -> str:
        kept, y = parts(name, columns)
        share, whole = format_bytes(weights), {"columns": columns, "rows": ROWS}.get(name)
        if whole:
            uneven = f" x {-(-whole // gpus):,} / {whole:,}"
            share += uneven if whole % gpus else f" / {gpus}"
        return (
            f"{STRATEGIES[name]}: {arrays} x {share} + {format_bytes(y)} = "
            f"{format_bytes(kept + y)}, {'fits' if kept + y <= memory else 'out of memory'}"
        )

    held = {name: sum(parts(name, columns)) for name in STRATEGIES}
    survive = [name for name, nbytes in held.items() if nbytes <= memory]
    fewest = count(-(-columns // room), "GPU")
    way = f"Only cutting the matrix itself helps, by columns over {fewest} or more"
    if "copies" in survive:
        way = "W fits a GPU whole, and need not be cut"

    def run(cluster: Cluster) -> Comparison:
        """Each strategy on workers whose pools refuse the byte too many, the matrix scaled down."""
        scale = max(1, weights // RUN_BYTES)
        small, cap = max(1, round(weights / scale / (4 * ROWS))), memory // scale
        x, w = runs.whole_numbers(2, (TOKENS, ROWS), (ROWS, small))
        rows, ends = [], {True: "runs", False: "MemoryError"}
        for name in STRATEGIES:
            ran = td.run_ranks(
                runs.attempted, td.Mesh(cluster, (gpus,)), name, arrays, x, w, cap
            ).results
            outs, most = [out for out, _ in ran], max(nbytes for _, nbytes in ran)
            done, said = all(out is not None for out in outs), sum(parts(name, small))
            rule, note = ("equal", "") if done else (None, "measured: when it was refused")
            rows += [
                Claim(f"{name}: outcome", ends[said <= cap], None, ends[done], rule="equal"),
                Claim(f"{name}: bytes held", said, None, most, "bytes", rule, note),
            ]
            if done:
                joined: dict[str, Any] = {"columns": np.hstack, "rows": sum}
                y = joined.get(name, lambda every: every[0])(outs)
                same = np.array_equal(y, (x @ w)[: len(y)])
                rows.append(Claim(f"{name}: y is one process's", measured=same, rule="true"))
        title = f"Five strategies on {gpus} workers of {format_bytes(cap)}, at 1:{scale:,}"
        return Comparison(title, rows)

    return WorkedAnswer(
        f"Of {len(STRATEGIES)} strategies on {count(gpus, 'GPU')} these fit: "
        f"{', '.join(survive) or 'nothing'}. {way}.",
        [
            f"W of {ROWS:,} x {columns:,} takes {format_bytes(weights)}, {weights / memory:.3g} "
            f"times a GPU's {format_bytes(memory)}",
            f"fp32, {step}: {count(arrays, 'array')} of its size, 4 x {arrays} = {4 * arrays} B a "
            f"parameter; and a GPU's part of y, of {TOKENS} tokens; nothing else is counted",
            *map(line, STRATEGIES),
            f"by columns: {columns:,} columns, of which a GPU holds {room:,}: {fewest} or more",
        ],
        {"survive": survive, "held": held, "fewest": -(-columns // room)},
        run,
        gpus,
        lambda: sizes.bars_of(
            {name: {"W, states, y": n} for name, n in held.items()}, memory, "The fullest GPU"
        ),
    )


OPTIMIZERS = {
    "fp32-weights": "the weights alone",
    "fp32-sgd": "SGD: weights and gradients",
    "fp32-momentum": "SGD with momentum",
    "fp32-adam": "Adam: weights, gradients, m and v",
}


@question(
    3,
    "Solving a Memory Bottleneck with Parallelism",
    "Training ({recipe}) stops at one product whose weights need {weights}, on {gpus} GPUs of "
    "{memory}. Which kind of parallelism makes it fit, and why do the others not?",
    weights="bytes of a layer's weights, fp32",
    memory=GPU_MEMORY,
    gpus=GPUS,
    recipe=Input("what training keeps", choices=tuple(OPTIMIZERS)),
)
def bottleneck(
    weights: int = 26 * GB, memory: int = 24 * GB, gpus: int = 4, recipe: str = "fp32-adam"
) -> WorkedAnswer:
    """W over the GPUs for each optimizer; the fewest GPUs of each."""
    if weights < 4_000_000:
        raise ConfigError(f"weights of {weights} B are none at 1:1000; give 4MB or more")
    n = weights // 4
    each_of = {name: td.load_recipe(name).bytes_per_parameter for name in OPTIMIZERS}
    states = {name: td.formulas.state_bytes(-(-n // gpus), name) for name in OPTIMIZERS}
    held = {name: sum(by.values()) for name, by in states.items()}
    fewest = {name: td.formulas.minimum_devices(n, name, memory) for name in OPTIMIZERS}
    few, fits = fewest[recipe], held[recipe] <= memory
    _, how, context = sizes.with_context(n / 1e9, memory, few, recipe)
    cut = f"Cut W: {format_bytes(weights / gpus)} of it on each of {gpus}"
    plans = {
        "copies, weights": (Layout(dp=gpus), "fp32-weights", memory),
        **{f"tp {gpus}, {name}": (Layout(tp=gpus), name, memory) for name in OPTIMIZERS},
        f"tp {few}, {recipe}": (Layout(tp=few), recipe, memory),
    }
    return WorkedAnswer(
        f"{'W need not be cut' if few == 1 else cut}. By states alone, the weights take "
        f"{count(fewest['fp32-weights'], 'GPU')} or more, and {recipe}, "
        f"{format_bytes(held[recipe])} a GPU, {'fits' if fits else 'does not fit'} "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}: it takes {count(few, 'GPU')} or "
        f"more{context}.",
        [
            f"data parallelism, or a layer to each GPU: {format_bytes(weights)} of weights on "
            f"each, {'more' if weights > memory else 'no more'} than {format_bytes(memory)}",
            f"tensor parallelism: {format_bytes(weights)} / {gpus} = "
            f"{format_bytes(weights / gpus)} of weights on a GPU",
            "states alone: GB = 1e9 bytes; no CUDA context, no activations",
            *(
                f"{words}: {each_of[name]} B x {n:,} / {gpus} = {format_bytes(held[name])}, "
                f"{'fits' if held[name] <= memory else 'does not fit'}; "
                f"{count(fewest[name], 'GPU')} or more"
                for name, words in OPTIMIZERS.items()
            ),
            f"{recipe} {how}",
        ],
        {"held": held, "fewest": fewest, "fits": fits},
        lambda cluster: runs.held(cluster, "W on workers", n, plans),
        figure=lambda: sizes.bars_of(states, memory, "States on a GPU, by recipe"),
    )


# -- 5: a feed-forward layer: columns, activation, rows, and one sum each way ----------------------


def _layer(d: int, d_h: int, tokens: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """(x, weights, dy), random."""
    rng = np.random.default_rng(5)
    shapes = {name: p.shape for name, p in td.tile.layers.mlp_parameters(d, d_h).items()}
    weights = {name: rng.standard_normal(shape) / d**0.5 for name, shape in shapes.items()}
    return rng.standard_normal((tokens, d)), weights, rng.standard_normal((tokens, d))


def _split_layer(rank: Rank, x: np.ndarray, weights: dict[str, np.ndarray], dy: np.ndarray) -> Any:
    """(y, dx and this device's gradients)."""
    T, group, there = td.tensor, rank.group(), rank.on_device
    mine = T.shard_weights(
        group,
        {name: there(w) for name, w in weights.items()},
        T.mlp_layout(weights["w_1"].shape[1], group.size),
    )
    y, kept = T.mlp(group, T.replicate(there(x)), mine)
    dx, grads = T.mlp_grad(group, T.replicate(there(dy)), kept, mine)
    return td.tile.to_numpy(y.local), td.tile.to_numpy(dx.local), grads


@question(
    5,
    "Example of Tensor Parallelism in an FFN Sub-layer",
    "The first matrix of a feed-forward layer, W_h of {d} x {d_h}, is cut by columns over "
    "{devices} devices. What does each compute, how is h put together, and what does the layer "
    "send?",
    d=Input("width of h, and of what comes out", run=4096),
    d_h=Input("columns of W_h", run=16384),
    devices=Input("devices, M", 2, 64),
    tokens=Input("rows of h", run=4096),
)
def feed_forward(d: int = 64, d_h: int = 256, devices: int = 4, tokens: int = 32) -> WorkedAnswer:
    """The shards, what is concatenated and summed, and why the other order is wrong."""
    if min(d, d_h) < devices:
        raise ConfigError(
            f"W_h is {d} x {d_h}: {devices} devices take {devices} rows and columns or more"
        )
    widths, sent = even(d_h, devices), 2 * (devices - 1) * tokens * d * ITEM
    # numbers of a smaller layer where this one is large
    x, weights, _ = _layer(*map(min, (d, d_h, tokens), (64, 256, 64)))
    cut = np.array_split(x, devices, 1), np.array_split(weights["w_1"], devices)
    terms, gelu = [a @ w for a, w in zip(*cut, strict=True)], td.tile.gelu
    wrong = float(np.abs(gelu(sum(terms)) - sum(map(gelu, terms))).max())
    smaller = "with a smaller layer's" if max(d - 64, d_h - 256, tokens - 64) > 0 else "with these"

    def run(cluster: Cluster) -> Comparison:
        """The layer on workers, forward and backward, beside one device."""
        x, weights, dy = _layer(d, d_h, tokens)
        ranks = td.run_ranks(_split_layer, td.Mesh(cluster, (devices,)), x, weights, dy)
        ys, dxs, grads = zip(*ranks.results, strict=True)
        y, kept = td.tile.layers.mlp(x, weights)
        dx, expected = td.tile.layers.mlp_grad(dy, kept, weights)
        made = {"y": ys[0], "dX": dxs[0], **td.tensor.put_together(grads)}
        calls, rows = mlp(Stream(1, tokens, d, ranks=devices)), []
        for way, planned in (("forward", calls.forward), ("backward", calls.backward)):
            records = ranks.records.where(way)
            sums = len(records.where(kind="all_reduce")) // devices
            moved = sum(bytes_by_rank(planned, devices, ITEM)[0]), sum(r.sent for r in records)
            rows += [
                Claim(f"all-reduces, {way}", 1, len(planned), sums, "count", "equal"),
                Claim(f"sent, {way}", sent, *moved, "bytes", "equal"),
            ]
        note = "largest difference over the largest number"
        for name, alone in {"y": y, "dX": dx, **expected}.items():
            off = float(np.abs(made[name] - alone).max() / np.abs(alone).max())
            about = f"{name} against one device"
            rows.append(Claim(about, runs.ROUND_OFF, None, off, rule="at most", note=note))
        return Comparison(f"A feed-forward layer {d} -> {d_h} -> {d} on {devices} workers", rows)

    return WorkedAnswer(
        f"Each of {devices} devices has {each(widths)} of {d_h} columns of W_h; their outputs are "
        f"concatenated. The whole layer takes 1 all-reduce forward and 1 backward, "
        f"{format_bytes(sent)} each.",
        [
            f"W_h = [W^1 ... W^{devices}], {d_h} columns / {devices} = {d_h / devices:g}: "
            f"{listed(widths)}; W^k has {d} rows and {each(widths)} columns",
            f"h = [h W^1 ... h W^{devices}]: every device needs all of h, {tokens} x {d}, and its "
            f"own columns of W_h; the parts are concatenated, nothing is added",
            "GELU acts on each number: on each device's columns by themselves, and nothing is sent",
            f"the second matrix by rows, {each(widths)} of {d_h} each: {devices} terms of "
            f"{tokens} x {d}, one all-reduce forward, and one of dX backward",
            f"each all-reduce: 2 (M - 1) x {tokens} x {d} x {ITEM} B = {format_bytes(sent)} sent "
            f"by all {devices}, in float64",
            f"rows first would need GELU(a + b) = GELU(a) + GELU(b); {smaller} numbers the two "
            f"sides are up to {wrong:.3g} apart",
        ],
        {"widths": list(widths), "sent": sent, "wrong order, off by": wrong},
        run,
        devices,
    )


# -- 27: every layer of a network on all devices ---------------------------------------------------

SHARED = Input("devices that share each layer", 2, 64)
CONV_IMAGES, LENET_IMAGES, LENET_LAYERS = 2, 32, 4


@question(
    27,
    "Layerwise Partitioning",
    lambda channels, units, rows, devices: (
        f"A convolution of {rows} x {rows} images has {channels} channels, and {devices} GPUs work "
        f"on each layer together, with {each(even(channels, devices))} channels each; a fully "
        f"connected layer is split by its {units} outputs. How often must they synchronise, and "
        f"how much do they transfer?"
    ),
    channels=Input("channels, in and out", 1, 16384, run=256),
    units=Input("outputs of a fully connected layer", 1, 100_000),
    rows=Input("rows and columns of an image", 4, 4096, run=64),
    devices=SHARED,
)
def layerwise(
    channels: int = 64, units: int = 128, rows: int = 11, devices: int = 4
) -> WorkedAnswer:
    """Who has which channels; what each way of splitting has to synchronise, and its bytes."""
    if rows < devices:
        raise ConfigError(
            f"{rows} rows are fewer than {devices} devices, and by rows each takes one or more; "
            f"give at least {devices} rows"
        )
    shares, dense = even(channels, devices), even(units, devices)
    one = conv.Convolution(
        CONV_IMAGES, channels, channels, (rows, rows), (3, 3), padding=((1, 1), (1, 1))
    )
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
    kinds = {
        way: " + ".join(f"{call.label.replace('/', ' ')} {call.kind}" for call in made)
        for way, made in calls.items()
    }
    whole, copies = (need(way, 256, devices, 4) for way in ("layerwise", "data parallel"))
    fewer = min(devices, LENET_LAYERS)
    chain = need("network", 256, fewer, 4)
    more = sum(whole.sent) / sum(chain.sent)
    return WorkedAnswer(
        f"Each of {devices} devices has {each(shares)} of {channels} channels. All results come "
        f"out as on one device, but every layer synchronises all devices: {whole.barriers} times "
        f"in a step of LeNet, where data parallelism does once, with {more:.2g} times the bytes of "
        f"whole layers on devices.",
        [
            f"{channels} channels / {devices} devices: {listed(shares)}; a fully connected layer "
            f"of {units} outputs: {listed(dense)}",
            f"a convolution of {channels} to {channels} channels, 3x3, {CONV_IMAGES} images of "
            f"{rows} x {rows}, float64: y has "
            f"{format_bytes(CONV_IMAGES * channels * rows * rows * ITEM)}",
            *(
                f"{way}: {kinds[way]}; synchronisations: {found['barriers']}, sent by all: "
                f"{format_bytes(found['bytes'])}"
                for way, found in ways.items()
            ),
            f"all of LeNet by output units, 256 images: a gather for each of 4 layers, 3 sums "
            f"back: 4 + 3 = {whole.barriers} synchronisations a step; layer by layer on {fewer} "
            f"devices {chain.transfers} messages and no synchronisation of all; data parallelism "
            f"{copies.barriers}",
            f"bytes of a step: layerwise {format_bytes(sum(whole.sent))}, network "
            f'{format_bytes(sum(chain.sent))}: {more:.3g} times (d2l: "potentially even larger")',
        ],
        {
            "channels": list(shares),
            "outputs": list(dense),
            "ways": ways,
            "barriers": [whole.barriers, chain.transfers, copies.barriers],
            "layerwise over network": more,
        },
        lambda cluster: lenet(cluster, devices, LENET_IMAGES),
        devices,
    )


# -- 30: every worker has a part of every layer ----------------------------------------------------

BATCH_ROWS = 4


@question(
    30,
    "Tensor Parallelism",
    "Each of {layers} layers of a Transformer, {hidden} wide with {heads} heads, is split over "
    "{workers} workers and trained on 4 rows of {sequence} tokens in float64. Who has what, what "
    "must be added up, and what does a step transfer?",
    hidden=Input("width of the model, a multiple of the heads", 1, 65536, run=512),
    heads=Input("attention heads", 1, 1024),
    sequence=Input("tokens of a row", run=512),
    layers=Input("blocks", 1, 1000, run=32),
    workers=Input("workers that share each layer", 2, 64),
)
def split_layers(
    hidden: int = 16, heads: int = 4, sequence: int = 16, layers: int = 2, workers: int = 4
) -> WorkedAnswer:
    """Shapes of the parts, what is added up, and the bytes of it."""
    if hidden % heads:
        raise PlacementError(
            f"{heads} heads share the width, got {hidden}; take a multiple of {heads}"
        )
    h, t, size = hidden, workers, BATCH_ROWS * sequence * hidden * ITEM
    stream = Stream(BATCH_ROWS, sequence, h, t)
    calls = decoder_block(stream, heads, heads, h // heads, gated=False).calls
    sums, sent = len(calls), sum(sum(call.cost(ITEM).sent) for call in calls)
    dealt, inner = even(heads, t), even(4 * h, t)
    x = np.random.default_rng(30).standard_normal(2)
    *made, of_sum = (td.tile.gelu(v)[0].item() for v in (x[:1], x[1:], x[:1] + x[1:]))

    def run(cluster: Cluster) -> Comparison:
        """A small decoder trained on all workers by tensor parallelism, and on one device."""
        model = {"hidden": hidden, "layers": layers, "heads": heads, "sequence": sequence}
        done, losses, gpt = runs.decoder(td.Mesh(cluster, (1, workers, 1)), "", BATCH_ROWS, model)
        blocks = done.records.where("layer ", step=0)
        planned = [call for mine in done.planned for call in mine if "layer " in call.label]
        held = max(
            ITEM * sum(prod(s) for u in gpt.units for s in gpt.shapes(u, workers, r).values())
            for r in range(workers)
        )
        note = f"{100 * held / (ITEM * gpt.size):.1f} % of all: norms and positions are on each"
        seen = max(each["weights"] for each in done.held)
        rows = [
            Claim("all_reduces of all blocks in a step", layers * sums, len(planned) // workers,
                  len(blocks.where(rank=0)), "count", "equal"),
            Claim("bytes of them, all workers", layers * sent, sum(call.sent for call in planned),
                  sum(record.sent for record in blocks), "bytes", "equal"),
            Claim("weights of the fullest worker", held, None, seen, "bytes", "equal", note),
            losses,
        ]  # fmt: skip
        return Comparison(f"A decoder of {layers} blocks split over {workers} workers", rows)

    return WorkedAnswer(
        f"Each of {t} workers has {each(dealt)} of {count(heads, 'head')} and {each(inner)} of "
        f"{4 * h} inner columns in every layer, and all work at once. The price: {sums} "
        f"all_reduces a block, {layers * sums} in {count(layers, 'block')}, "
        f"{format_bytes(layers * sent)} a step.",
        [
            f"a block's matrices: {h} x {3 * h}, {h} x {h}, {h} x {4 * h}, {4 * h} x {h}: 12 x "
            f"{h}^2 = {12 * h * h:,} weights",
            f"attention by heads: {heads} on {t} workers: {listed(dealt)}; the inner {4 * h} "
            f"columns: {listed(inner)}",
            "columns first, rows second: x [W1 | W2] = [x W1 | x W2], nothing to add; the second "
            "matrix then makes partial sums: one all_reduce",
            f"rows first would not do: gelu({x[0]:.3g} + {x[1]:.3g}) = {of_sum:.4g}, but "
            f"gelu({x[0]:.3g}) + gelu({x[1]:.3g}) = {sum(made):.4g}",
            f"a block: 2 sums up (attention, feed-forward) and 2 down = {sums}; "
            f"{count(layers, 'block')}: {layers} x {sums} = {layers * sums} a step",
            f"each of {BATCH_ROWS} x {sequence} x {h} x 8 B = {format_bytes(size)}; in a ring all "
            f"together send 2 x ({t} - 1) x {format_bytes(size)} = "
            f"{format_bytes(2 * (t - 1) * size)}, in a block {sums} times that: "
            f"{format_bytes(sent)}",
            f"all {t} workers compute at once; in layer-wise model parallelism 1/{t} = "
            f"{100 / t:.1f} % of them would",
        ],
        {
            "heads": list(dealt),
            "columns": list(inner),
            "all_reduces": layers * sums,
            "bytes": layers * sent,
            "gelu of a sum": of_sum,
            "sum of gelus": made[0] + made[1],
        },
        run,
        workers,
    )
