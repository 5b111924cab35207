"""2, 3 and 4: one layer larger than a device: which strategies and methods survive, on how many."""

from collections.abc import Callable
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.layer_too_large import (
    LEVELS,
    TOKENS,
    attempt,
    gives,
    small_layer,
)
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.puzzles.fields import whole as whole_number
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import count
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION_2", "QUESTION_3", "QUESTION_4", "ROWS", "bars", "scaled"]

ROWS = 1000
"""Rows of the matrix that is run."""
RUN_BYTES = 3_000_000
"""Bytes of it, about."""
WORDS = {
    "copies": "data parallelism: all weights on every GPU",
    "smaller batches": "gradients accumulated over smaller batches: all weights stay",
    "a layer each": "layers on GPUs of their own: this one is a single layer",
    "columns": "tensor parallelism by columns",
    "rows": "tensor parallelism by rows",
}


def scaled(weights: int, memory: int) -> tuple[int, int, int]:
    """(scale, columns of the matrix that is run, bytes of a device there)."""
    scale = max(1, weights // RUN_BYTES)
    return scale, max(1, round(weights / scale / (4 * ROWS))), memory // scale


def _held(strategy: str, step: str, columns: int, gpus: int) -> tuple[int, int]:
    """Bytes on the fullest GPU: what the step keeps of W, and its part of y."""
    part = {"columns": (ROWS, -(-columns // gpus)), "rows": (-(-ROWS // gpus), columns)}
    rows, mine = part.get(strategy, (ROWS, columns))
    tokens = {"copies": -(-TOKENS // gpus), "smaller batches": 1}.get(strategy, TOKENS)
    return 4 * mine * LEVELS[step] * rows, 4 * mine * tokens


def work_2(weights: int, memory: int, gpus: int, step: str) -> WorkedAnswer:
    """The bytes of each strategy on the fullest GPU, and which have room."""
    arrays, columns = LEVELS[step], weights // (4 * ROWS)
    room = memory // (4 * (arrays * ROWS + TOKENS))
    if columns < gpus or not room:
        raise ConfigError(
            f"W has {columns} columns of {ROWS} rows for {gpus} GPUs, and a GPU has room for "
            f"{room}; give each of them one or more: larger weights, or more memory"
        )
    lines = [
        f"W of {ROWS:,} x {columns:,} takes {format_bytes(weights)}, {weights / memory:.3g} times "
        f"a GPU's {format_bytes(memory)}",
        f"fp32, {step}: {count(arrays, 'array')} of its size, 4 x {arrays} = {4 * arrays} B a "
        f"parameter; and a GPU's part of y, of {TOKENS} tokens; nothing else is counted",
    ]
    held = {name: sum(_held(name, step, columns, gpus)) for name in WORDS}
    for name, words in WORDS.items():
        kept, y = _held(name, step, columns, gpus)
        share, whole_of = format_bytes(weights), {"columns": columns, "rows": ROWS}.get(name)
        if whole_of and whole_of % gpus:
            share += f" x {-(-whole_of // gpus):,} / {whole_of:,}"
        elif whole_of:
            share += f" / {gpus}"
        lines.append(
            f"{words}: {arrays} x {share} + {format_bytes(y)} = {format_bytes(kept + y)}, "
            f"{'fits' if kept + y <= memory else 'out of memory'}"
        )
    survive = [name for name, nbytes in held.items() if nbytes <= memory]
    fewest = count(-(-columns // room), "GPU")
    lines.append(
        f"by columns: {columns:,} columns, of which a GPU holds {room:,}: {fewest} or more"
    )
    shown = ", ".join(survive) if survive else "nothing"
    if "copies" in survive:
        way = "W fits a GPU whole, and need not be cut"
    else:
        way = f"only cutting the matrix itself helps, by columns over {fewest} or more"
    return WorkedAnswer(
        f"Of {len(WORDS)} strategies on {count(gpus, 'GPU')} these fit: {shown}. "
        f"{way[0].upper()}{way[1:]}.",
        lines,
        {"survive": survive, "held": held, "fewest": -(-columns // room)},
        lambda: bars({n: {"W, states, y": b} for n, b in held.items()}, memory, "The fullest GPU"),
    )


def bars(held: dict[str, dict[str, int]], memory: int, title: str) -> Any:
    """The figure of what a GPU holds: name -> bytes by tensor."""
    ledgers = {
        name: Ledger.of(Row(0, tensor, ALWAYS, nbytes) for tensor, nbytes in each.items())
        for name, each in held.items()
    }
    return td.plots.memory_bars(ledgers, memory, place="GPU", title=title)


def run_2(cluster: Cluster, weights: int, memory: int, gpus: int, step: str) -> Comparison:
    """Each strategy on workers whose pools refuse the byte too many, the matrix scaled down."""
    scale, columns, cap = scaled(weights, memory)
    x, w = small_layer(ROWS, columns)
    mesh, rows = td.Mesh(cluster, (gpus,)), []
    words: dict[bool, Any] = {True: "runs", False: "MemoryError"}
    for name in WORDS:
        ran = td.run_ranks(attempt, mesh, name, step, x, w, cap).results
        outs, most = [out for out, _ in ran], max(nbytes for _, nbytes in ran)
        done = all(out is not None for out in outs)
        said = sum(_held(name, step, columns, gpus))
        rule, note = ("equal", "") if done else (None, "measured: when it was refused")
        rows += [
            Claim(f"{name}: outcome", words[said <= cap], None, words[done], rule="equal"),
            Claim(f"{name}: bytes held", said, None, most, "bytes", rule, note),
        ]
        if done:
            same = gives(name, outs, x @ w)
            rows.append(Claim(f"{name}: y is one process's", measured=same, rule="true"))
    title = f"Five strategies on {gpus} workers of {format_bytes(cap)}, at 1:{scale:,}"
    return Comparison(title, rows)


QUESTION_2 = CourseQuestion(
    number=2,
    title="A machine learning engineer, an exceptionally large layer, and no memory left",
    asked=lambda weights, memory, gpus, step: (
        f"One layer's weights take {format_bytes(weights)}. Which strategies have room for "
        f"{'its forward pass' if step == 'forward' else f'a step of {step}'} on "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}?"
    ),
    inputs={
        "weights": Input(28_800_000_000, size, "bytes of the layer's weights"),
        "memory": Input(24_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, whole(1, 64), "GPUs"),
        "step": Input("forward", choice(tuple(LEVELS)), "the forward pass alone, or an optimizer"),
    },
    work=work_2,
    run=run_2,
    workers=lambda gpus, **_: gpus,
)
RECIPES = {
    "fp32-weights": "the weights alone",
    "fp32-sgd": "SGD: weights and gradients",
    "fp32-momentum": "SGD with momentum",
    "fp32-adam": "Adam: weights, gradients, m and v",
}


def work_3(weights: int, memory: int, gpus: int, recipe: str) -> WorkedAnswer:
    """W over the GPUs for each optimizer; the fewest GPUs of each."""
    if weights < 4_000_000:
        raise ConfigError(f"weights of {weights} B are none at 1:1000; give 4MB or more")
    parameters = weights // 4
    lines = [
        f"data parallelism, or a layer to each GPU: {format_bytes(weights)} of weights on each, "
        f"{'more' if weights > memory else 'no more'} than {format_bytes(memory)}",
        f"tensor parallelism: {format_bytes(weights)} / {gpus} = {format_bytes(weights / gpus)} of "
        f"weights on a GPU",
        "states alone: GB = 1e9 bytes; no CUDA context, no activations",
    ]
    fewest, held, states = {}, {}, {}
    for name, words in RECIPES.items():
        each = td.load_recipe(name).bytes_per_parameter
        states[name] = td.formulas.state_bytes(-(-parameters // gpus), name)
        held[name] = sum(states[name].values())
        fewest[name] = td.formulas.minimum_devices(parameters, name, memory)
        lines.append(
            f"{words}: {each} B x {parameters:,} / {gpus} = {format_bytes(held[name])}, "
            f"{'fits' if held[name] <= memory else 'does not fit'}; "
            f"{count(fewest[name], 'GPU')} or more"
        )
    with_context, how = sized.counted(parameters / 1e9, memory, recipe)
    lines.append(f"{recipe} {how}")
    fits, one = held[recipe] <= memory, fewest[recipe] == 1
    cut = f"Cut W: {format_bytes(weights / gpus)} of it on each of {gpus}"
    return WorkedAnswer(
        f"{'W need not be cut' if one else cut}. By states alone, the weights take "
        f"{count(fewest['fp32-weights'], 'GPU')} or more, and {recipe}, "
        f"{format_bytes(held[recipe])} a GPU, {'fits' if fits else 'does not fit'} "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}: it takes "
        f"{count(fewest[recipe], 'GPU')} or more{sized.beside(fewest[recipe], with_context)}.",
        lines,
        {"held": held, "fewest": fewest, "fits": fits},
        lambda: bars(states, memory, "States on a GPU, by recipe"),
    )


def run_3(cluster: Cluster, weights: int, memory: int, gpus: int, recipe: str) -> Comparison:
    """States allocated and stepped on workers, at 1:1000, under the cap."""
    parameters = weights // 4
    fewest = td.formulas.minimum_devices(parameters, recipe, memory)
    plans = {
        "copies, weights": (td.Layout(dp=gpus), "fp32-weights", memory),
        **{f"tp {gpus}, {name}": (td.Layout(tp=gpus), name, memory) for name in RECIPES},
        f"tp {fewest}, {recipe}": (td.Layout(tp=fewest), recipe, memory),
    }
    return sized.held(cluster, "W on workers", parameters / 1e9, plans)


QUESTION_3 = CourseQuestion(
    number=3,
    title="Solving a Memory Bottleneck with Parallelism",
    asked=lambda weights, memory, gpus, recipe: (
        f"Training ({recipe}) stops at one product whose weights need {format_bytes(weights)}, on "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}. Which kind of parallelism makes it fit, "
        f"and why do the others not?"
    ),
    inputs={
        "weights": Input(26_000_000_000, size, "bytes of a layer's weights, fp32"),
        "memory": Input(24_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, whole(1, 64), "GPUs"),
        "recipe": Input("fp32-adam", choice(tuple(RECIPES)), "what training keeps"),
    },
    work=work_3,
    run=run_3,
)
ITEM = 4
"""Bytes of a float32."""


class SplitMethod(NamedTuple):
    """One way to split the layer."""

    cut: Callable[[int, int, int], tuple[int, int]]
    """(inner, columns, ranks) -> the largest block of A on a rank."""
    forward: str
    backward: str


def grid_of(ranks: int) -> tuple[int, int]:
    """The most square grid of ``ranks``, not taller than wide.

    >>> grid_of(2), grid_of(4), grid_of(6)
    ((1, 2), (2, 2), (2, 3))
    """
    p = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return p, ranks // p


def _most(extent: int, parts: int) -> int:
    return -(-extent // parts)


METHODS = {
    "columns of A": SplitMethod(lambda k, n, p: (k, _most(n, p)), "nothing", "all-reduce of dX"),
    "rows of A": SplitMethod(lambda k, n, p: (_most(k, p), n), "all-reduce of Y", "nothing"),
    "rows of X": SplitMethod(lambda k, n, p: (k, n), "nothing", "all-reduce of dA"),
    "whole layers": SplitMethod(lambda k, n, p: (k, n), "Y to the next GPU", "dY back"),
    "blocks of A": SplitMethod(
        lambda k, n, p: (_most(k, grid_of(p)[0]), _most(n, grid_of(p)[1])),
        "panels of X and A",
        "panels of X and A again, sums of dX and dA",
    ),
}


def _sent(rows: int, inner: int, columns: int, gpus: int) -> dict[str, tuple[int, int]]:
    """Method -> (forward, backward): bytes that all GPUs send together, by formula.

    Rings: an all-reduce of s bytes over n sends 2 (n - 1) s, a broadcast or a sum (n - 1) s.
    """
    x, a, y = (ITEM * m * n for m, n in ((rows, inner), (inner, columns), (rows, columns)))
    p, q = grid_of(gpus)
    panels = (q - 1) * x + (p - 1) * a
    ring = 2 * (gpus - 1)
    sent = [(0, ring * x), (ring * y, 0), (0, ring * a), (y, y), (panels, 2 * panels)]
    return dict(zip(METHODS, sent, strict=True))


def work_4(rows: int, inner: int, columns: int, gpus: int, room: int) -> WorkedAnswer:
    """What each method holds of A and sends, and which of them bring A below the room."""
    if min(rows, inner, columns) < gpus:
        raise ConfigError(
            f"rows, inner and columns are cut over {gpus} GPUs, and the smallest is "
            f"{min(rows, inner, columns)}; give each of them {gpus} or more"
        )
    whole_a = ITEM * inner * columns
    lines = [
        f"A is {inner} x {columns} x {ITEM} B = {format_bytes(whole_a)}; a GPU has "
        f"{format_bytes(room)} for it"
    ]
    held, sent = {}, _sent(rows, inner, columns, gpus)
    for name, method in METHODS.items():
        block = method.cut(inner, columns, gpus)
        held[name] = ITEM * prod(block)
        forward, backward = sent[name]
        lines.append(
            f"{name}: {block[0]} x {block[1]} x {ITEM} B = {format_bytes(held[name])} of A on the "
            f"fullest GPU; forward {method.forward}, {format_bytes(forward)}; backward "
            f"{method.backward}, {format_bytes(backward)}"
        )
    fitting = [name for name, nbytes in held.items() if nbytes <= room]
    cut = [name for name, nbytes in held.items() if nbytes < whole_a]
    lines.append(
        f"bytes are those of all {gpus} GPUs together: an all-reduce of s bytes sends "
        f"2 ({gpus} - 1) s, a broadcast or a sum ({gpus} - 1) s"
    )
    verdict = f"{', '.join(fitting)} fit {format_bytes(room)}" if fitting else "none fits"
    if len(fitting) == len(METHODS):
        verdict = f"all fit {format_bytes(room)}: A is not too large"
    return WorkedAnswer(
        f"Those that cut A itself: {', '.join(cut)}. Splitting X, or giving each GPU layers of its "
        f"own, leaves all {format_bytes(whole_a)} of A on a GPU. Of {len(METHODS)}, {verdict}.",
        lines,
        {"bytes of A": held, "fit": fitting, "sent": {k: list(v) for k, v in sent.items()}},
    )


def run_4(
    cluster: Cluster, rows: int, inner: int, columns: int, gpus: int, room: int
) -> Comparison:
    """The forward pass of each method that one product shows, with whole numbers."""
    rng, flat, S, R = np.random.default_rng(4), (gpus,), td.Shard, td.Replicate()
    x, a = (rng.integers(-3, 4, n).astype("float32") for n in ((rows, inner), (inner, columns)))
    ways = {
        "columns of A": (flat, (R,), (S(1),), "gather"),
        "rows of A": (flat, (S(1),), (S(0),), "gather"),
        "rows of X": (flat, (S(0),), (R,), "gather"),
        "blocks of A": (grid_of(gpus), (S(0), S(1)), (S(0), S(1)), "summa"),
    }
    claims, sent = [], _sent(rows, inner, columns, gpus)
    for name, (mesh, of_x, of_a, algorithm) in ways.items():
        X, A = (
            td.distribute(each, td.Mesh(cluster, mesh), placed)
            for each, placed in ((x, of_x), (a, of_a))
        )
        Y = td.matmul(X, A, algorithm=algorithm)
        parts = [Y.traffic]
        if any(isinstance(placed, td.Partial) for placed in Y.placements):
            for placed in (S(0), R):  # an all-reduce: shares are summed, and gathered
                Y = td.redistribute(Y, (placed,))
                parts.append(Y.traffic)
        planned, counted = (
            sum(getattr(part, which).total for part in parts) for which in ("predicted", "measured")
        )
        held, fullest = ITEM * prod(METHODS[name].cut(inner, columns, gpus)), max(A.block_bytes)
        same = bool((td.to_numpy(Y) == x @ a).all())
        claims += [
            Claim(f"{name}: A on the fullest GPU", held, None, fullest, "bytes", "equal"),
            Claim(f"{name}: A fits", held <= room, None, fullest <= room, rule="equal"),
            Claim(f"{name}: sent forward", sent[name][0], planned, counted, "bytes", "equal"),
            Claim(f"{name}: Y has one device's bits", measured=same, rule="true"),
        ]
    return Comparison(f"Y = X A on {gpus} workers", claims)


QUESTION_4 = CourseQuestion(
    number=4,
    title="Analyzing Distributed Matrix Multiplication Strategies",
    asked="Y = X A, {rows} x {inner} by {inner} x {columns}, is to be computed on {gpus} GPUs with "
    "{room} each for A. Which methods make it possible, and what do they send?",
    inputs={
        "rows": Input(64, whole_number(1, 10**6), "rows of X, the tokens"),
        "inner": Input(512, whole_number(1, 10**6), "columns of X, and rows of A"),
        "columns": Input(384, whole_number(1, 10**6), "columns of A"),
        "gpus": Input(2, whole_number(2, 64), "GPUs"),
        "room": Input(500_000, size, "bytes for A on a GPU"),
    },
    work=work_4,
    run=run_4,
    workers=lambda gpus, **_: gpus,
    largest_run={"rows": 4096, "inner": 4096, "columns": 4096},
)
