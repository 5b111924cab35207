"""2: one layer larger than a device. Every strategy is tried under a cap; which survive?"""

from typing import Any

import numpy as np

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
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION", "ROWS", "scaled"]

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


def _held(strategy: str, step: str, weights: int, gpus: int) -> int:
    """Bytes on the fullest GPU, but for y."""
    return LEVELS[step] * (-(-weights // gpus) if strategy in ("columns", "rows") else weights)


def work(weights: int, memory: int, gpus: int, step: str) -> WorkedAnswer:
    """The bytes of each strategy on the fullest GPU, and which have room."""
    if weights < 4 * ROWS * gpus:
        raise ConfigError(
            f"weights of {weights} B have no column for each of {gpus} GPUs at {ROWS} rows; "
            f"{4 * ROWS * gpus} B or more will do"
        )
    arrays = LEVELS[step]
    lines = [
        f"the matrix W takes {format_bytes(weights)}, {weights / memory:.3g} times a GPU's "
        f"{format_bytes(memory)}",
        f"fp32, {step}: {arrays} array{'s' * (arrays > 1)} of its size, 4 x {arrays} = "
        f"{4 * arrays} B a parameter",
    ]
    held = {name: _held(name, step, weights, gpus) for name in WORDS}
    for name, words in WORDS.items():
        share = f" / {gpus}" if name in ("columns", "rows") else ""
        fits = "fits" if held[name] <= memory else "out of memory"
        lines.append(
            f"{words}: {arrays} x {format_bytes(weights)}{share} = {format_bytes(held[name])}, "
            f"{fits}"
        )
    survive = [name for name, nbytes in held.items() if nbytes <= memory]
    fewest = -(-arrays * weights // memory)
    lines.append(
        f"W by columns needs {arrays} x {format_bytes(weights)} / {format_bytes(memory)}, rounded "
        f"up, = {fewest} GPUs at least"
    )
    shown = ", ".join(survive) if survive else f"none on {gpus} GPUs"
    return WorkedAnswer(
        f"What survives: {shown}. Only cutting the matrix itself helps, over {fewest} GPUs or "
        f"more.",
        lines,
        {"survive": survive, "held": held, "fewest": fewest},
    )


def run(cluster: Cluster, weights: int, memory: int, gpus: int, step: str) -> Comparison:
    """Each strategy on workers whose pools refuse the byte too many, the matrix scaled down."""
    scale, columns, cap = scaled(weights, memory)
    x, w = small_layer(ROWS, columns)
    mesh, rows = td.Mesh(cluster, (gpus,)), []
    for name in WORDS:
        ran = td.run_ranks(attempt, mesh, name, step, x, w, cap).results
        outs = [out for out, _ in ran]
        done = all(out is not None for out in outs)
        parts = np.array_split(w, gpus, {"columns": 1, "rows": 0}.get(name, 0))
        part = parts[0].shape if name in ("columns", "rows") else w.shape
        tokens = {"copies": max(1, TOKENS // gpus), "smaller batches": 1}.get(name, TOKENS)
        said = 4 * (LEVELS[step] * part[0] * part[1] + tokens * part[1])
        fits: dict[str, Any] = {True: "runs", False: "MemoryError"}
        rows.append(Claim(f"{name}: outcome", fits[said <= cap], None, fits[done], rule="equal"))
        most = max(nbytes for _, nbytes in ran)
        rule, note = ("equal", "") if done else (None, "measured: when it was refused")
        rows.append(Claim(f"{name}: bytes held", said, None, most, "bytes", rule, note))
        if done:
            same = gives(name, outs, x @ w)
            rows.append(Claim(f"{name}: y is one process's", measured=same, rule="true"))
    title = f"Five strategies on {gpus} workers of {format_bytes(cap)}, at 1:{scale:,}"
    return Comparison(title, rows)


QUESTION = CourseQuestion(
    number=2,
    title="A machine learning engineer, an exceptionally large layer, and no memory left",
    asked="One layer's weights take 28.8 GB, 1.2 times the memory of a GPU, and training ends out "
    "of memory. Which strategy makes it run on 4 of them?",
    inputs={
        "weights": Input(28_800_000_000, 120_000_000_000, size, "bytes of the layer's weights"),
        "memory": Input(24_000_000_000, 40_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, 2, whole(1, 64), "GPUs"),
        "step": Input("forward", "adam", choice(tuple(LEVELS)), "forward pass, or an optimizer"),
    },
    work=work,
    run=run,
    workers=lambda gpus, **_: gpus,
)
