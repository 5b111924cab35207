"""2: one layer larger than a device. Every strategy is tried under a cap; which survive?"""

from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.planning.layer_too_large import (
    LEVELS,
    TOKENS,
    attempt,
    gives,
    small_layer,
)
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import count
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION", "ROWS", "bars", "scaled"]

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


def work(weights: int, memory: int, gpus: int, step: str) -> WorkedAnswer:
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


def run(cluster: Cluster, weights: int, memory: int, gpus: int, step: str) -> Comparison:
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


QUESTION = CourseQuestion(
    number=2,
    title="A machine learning engineer, an exceptionally large layer, and no memory left",
    asked=lambda weights, memory, gpus, step: (
        f"One layer's weights take {format_bytes(weights)}. Which strategies have room for "
        f"{'its forward pass' if step == 'forward' else f'a step of {step}'} on "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}?"
    ),
    inputs={
        "weights": Input(28_800_000_000, 120_000_000_000, size, "bytes of the layer's weights"),
        "memory": Input(24_000_000_000, 40_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, 2, whole(1, 64), "GPUs"),
        "step": Input(
            "forward", "adam", choice(tuple(LEVELS)), "the forward pass alone, or an optimizer"
        ),
    },
    work=work,
    run=run,
    workers=lambda gpus, **_: gpus,
)
