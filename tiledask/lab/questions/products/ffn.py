"""5: a feed-forward layer over M devices: columns, activation, rows, and one sum each way."""

from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed import tensor as T
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import each, listed
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.layers import Stream, bytes_by_rank
from tiledask.plan.collectives.layers import mlp as mlp_calls
from tiledask.plan.units import format_bytes
from tiledask.tile import layers as tile

__all__ = ["QUESTION"]

ITEM = 8
"""Bytes of a float64."""
LARGEST_DRAWN = 64, 256, 64
"""d, d_h and tokens of the largest layer that the working draws numbers for."""
CLOSE = 1e-12
"""Largest difference that the order of sums explains, in float64."""


def _drawn(d: int, d_h: int, tokens: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """(x, weights, dy), random."""
    rng = np.random.default_rng(5)
    weights = {
        name: rng.standard_normal(p.shape) / d**0.5
        for name, p in tile.mlp_parameters(d, d_h).items()
    }
    return rng.standard_normal((tokens, d)), weights, rng.standard_normal((tokens, d))


def _wrong_order(d: int, d_h: int, devices: int, tokens: int) -> float:
    """How far the sum of GELUs is from the GELU of the sum, if W_h is cut by rows first; of a
    smaller layer where this one is large."""
    x, weights, _ = _drawn(*map(min, (d, d_h, tokens), LARGEST_DRAWN))
    terms = [
        a @ w
        for a, w in zip(
            np.array_split(x, devices, 1), np.array_split(weights["w_1"], devices), strict=True
        )
    ]
    gelu = td.tile.gelu
    return float(np.abs(gelu(sum(terms)) - sum(map(gelu, terms))).max())


def work(d: int, d_h: int, devices: int, tokens: int) -> WorkedAnswer:
    """The shards, what is concatenated and summed, and why the other order is wrong."""
    if min(d, d_h) < devices:
        raise ConfigError(
            f"W_h is {d} x {d_h}: {devices} devices take {devices} rows and columns or more"
        )
    widths = even(d_h, devices)
    wrong = _wrong_order(d, d_h, devices, tokens)
    sent = 2 * (devices - 1) * tokens * d * ITEM
    smaller = "with a smaller layer's" if max(d - 64, d_h - 256, tokens - 64) > 0 else "with these"
    lines = [
        f"W_h = [W^1 ... W^{devices}], {d_h} columns / {devices} = {d_h / devices:g}: "
        f"{listed(widths)}; W^k has {d} rows and {each(widths)} columns",
        f"h = [h W^1 ... h W^{devices}]: every device needs all of h, {tokens} x {d}, and its own "
        f"columns of W_h; the parts are concatenated, nothing is added",
        "GELU acts on each number: on each device's columns by themselves, and nothing is sent",
        f"the second matrix by rows, {each(widths)} of {d_h} each: {devices} terms of {tokens} x "
        f"{d}, one all-reduce forward, and one of dX backward",
        f"each all-reduce: 2 (M - 1) x {tokens} x {d} x {ITEM} B = {format_bytes(sent)} sent by "
        f"all {devices}, in float64",
        f"rows first would need GELU(a + b) = GELU(a) + GELU(b); {smaller} numbers the two sides "
        f"are up to {wrong:.3g} apart",
    ]
    return WorkedAnswer(
        f"Each of {devices} devices has {each(widths)} of {d_h} columns of W_h; their outputs are "
        f"concatenated. The whole layer takes 1 all-reduce forward and 1 backward, "
        f"{format_bytes(sent)} each.",
        lines,
        {"widths": list(widths), "sent": sent, "wrong order, off by": wrong},
    )


def _program(rank: Any, x: np.ndarray, weights: dict, dy: np.ndarray, whole_numbers: tuple) -> Any:
    """(this device's columns of h W_h, of whole numbers; y, dx and its gradients)."""
    group, there = rank.group(), rank.on_device
    inputs, matrix = map(there, whole_numbers)
    x, dy, weights = there(x), there(dy), {name: there(w) for name, w in weights.items()}
    by_columns, _ = T.column_linear(group, T.replicate(inputs), T.shard(group, matrix, 1))
    layout = T.mlp_layout(weights["w_1"].shape[1], group.size)
    mine = T.shard_weights(group, weights, layout)
    y, kept = T.mlp(group, T.replicate(x), mine)
    dx, grads = T.mlp_grad(group, T.replicate(dy), kept, mine)
    return *(td.tile.to_numpy(each.local) for each in (by_columns, y, dx)), grads


def run(cluster: Cluster, d: int, d_h: int, devices: int, tokens: int) -> Comparison:
    """The layer on workers, forward and backward, beside one device."""
    x, weights, dy = _drawn(d, d_h, tokens)
    rng = np.random.default_rng(6)
    whole_numbers = tuple(rng.integers(-3, 4, n).astype(float) for n in ((tokens, d), (d, d_h)))
    ranks = td.run_ranks(_program, td.Mesh(cluster, (devices,)), x, weights, dy, whole_numbers)
    columns, ys, dxs, grads = zip(*ranks.results, strict=True)
    y, kept = tile.mlp(x, weights)
    dx, expected = tile.mlp_grad(dy, kept, weights)
    made = {"y": ys[0], "dX": dxs[0]} | {f"d{n}": g for n, g in T.put_together(grads).items()}
    alone = {"y": y, "dX": dx} | {f"d{name}": grad for name, grad in expected.items()}
    calls = mlp_calls(Stream(1, tokens, d, ranks=devices))
    sent = 2 * (devices - 1) * tokens * d * ITEM
    same = np.array_equal(np.hstack(columns), whole_numbers[0] @ whole_numbers[1])
    rows = [
        Claim("h concatenated is h W_h, every bit", measured=same, rule="true", note="integers"),
    ]
    for way, planned in (("forward", calls.forward), ("backward", calls.backward)):
        records = ranks.records.where(way)
        counted = len(records.where(kind="all_reduce")) // devices
        moved = sum(bytes_by_rank(planned, devices, ITEM)[0])
        rows += [
            Claim(f"all-reduces, {way}", 1, len(planned), counted, "count", "equal"),
            Claim(f"sent, {way}", sent, moved, sum(r.sent for r in records), "bytes", "equal"),
        ]
    rows += [
        Claim(f"{name} against one device", CLOSE, None,
              float(np.abs(made[name] - alone[name]).max() / np.abs(alone[name]).max()),
              rule="at most", note="largest difference over the largest number")
        for name in alone
    ]  # fmt: skip
    return Comparison(f"A feed-forward layer {d} -> {d_h} -> {d} on {devices} workers", rows)


QUESTION = CourseQuestion(
    number=5,
    title="Example of Tensor Parallelism in an FFN Sub-layer",
    asked="The first matrix of a feed-forward layer, W_h of {d} x {d_h}, is cut by columns over "
    "{devices} devices. What does each compute, how is h put together, and what does the layer "
    "send?",
    inputs={
        "d": Input(64, whole(1, 10**6), "width of h, and of what comes out"),
        "d_h": Input(256, whole(1, 10**6), "columns of W_h"),
        "devices": Input(4, whole(2, 64), "devices, M"),
        "tokens": Input(32, whole(1, 10**6), "rows of h"),
    },
    work=work,
    run=run,
    workers=lambda devices, **_: devices,
    largest_run={"d": 4096, "d_h": 16384, "tokens": 4096},
)
