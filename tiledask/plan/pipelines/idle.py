"""Where idle time goes: no work yet, a block on its way, or nobody who starts the action.

    rank 1     [ F0 ]............=======------[ F1 ]
                     true idle   transfer  overhead
                                ^ F1 could start: its turn has come, and what it needs is made

An action could start when the action before it on its device had ended and the results that it
uses had been made, wherever that was. Before that moment there was nothing to do. After it, the
device waits for a block as long as one that the action uses is being sent to it, and the rest is
the time of whoever starts actions: the scheduler's messages, a thread that wakes up late.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

__all__ = ["COMPUTE", "KINDS", "TRANSFER", "Waits", "waits"]

COMPUTE = ("F", "B", "I", "W", "U", "M")
"""Kinds of compute, PyTorch's letters: forward, full backward, input gradient, weight gradient; and
of no stage the update of a training, and the panels of a blocked product (M, multiply)."""
TRANSFER = "T"
"""A block on its way to the device; it may overlap compute and is never counted as busy. Its stage
and micro-batch are those of the action that made it, or -1 where that is not known."""
KINDS = (*COMPUTE, TRANSFER)
"""The kinds of a Timeline's spans; its column of kinds holds positions in them."""

_F, _B, _I, _T = map(KINDS.index, ("F", "B", "I", TRANSFER))


class Spans(Protocol):
    """What is asked of a Timeline."""

    @property
    def devices(self) -> int: ...
    @property
    def device(self) -> np.ndarray: ...
    @property
    def code(self) -> np.ndarray: ...
    @property
    def computes(self) -> np.ndarray: ...
    @property
    def stage(self) -> np.ndarray: ...
    @property
    def microbatch(self) -> np.ndarray: ...
    @property
    def start(self) -> np.ndarray: ...
    @property
    def end(self) -> np.ndarray: ...
    @property
    def origin(self) -> str: ...


@dataclass(frozen=True)
class Waits:
    """How long each compute span was waited for, in the order of a Timeline's compute spans."""

    device: np.ndarray
    """int32 [actions]."""
    free: np.ndarray
    """float64 [actions]: when everything before it on the device had ended; 0 before the first."""
    ready: np.ndarray
    """float64 [actions]: when it could start; as ``free`` where nothing was waited for."""
    true_idle: np.ndarray
    """float64 [actions]: ready - free, seconds."""
    transfer: np.ndarray
    """float64 [actions]: seconds after that in which a block that it uses was on its way."""
    overhead: np.ndarray
    """float64 [actions]: the rest, until it did start."""
    arriving: np.ndarray
    """float64 [n, 3]: (action, start, end) of every piece of ``transfer``, in order, apart."""
    uses: np.ndarray
    """int64 [actions, 2]: the actions whose results it uses, -1 for none."""
    pairs: np.ndarray
    """int64: the actions that are done at once with the one after them."""


def waits(spans: Spans) -> Waits:
    """The Waits of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers': nothing else
    holds it up. Of a measured run, its transfers are the spans of kind T on its device
    with its micro-batch, and as stage the one that made the block: the stage before for a forward,
    the stage behind for a backward. A forward and a backward that start together are done at
    once, and wait together. Compute spans that overlap have no wait between them.
    """
    rows = np.flatnonzero(spans.computes)
    device, start = spans.device[rows], spans.start[rows]
    first = np.searchsorted(device, np.arange(spans.devices + 1)).tolist()
    free = np.zeros(len(rows))  # since when the device has been; from 0 before its first action
    for a, b in pairwise(first):
        free[a + 1 : b] = np.maximum.accumulate(spans.end[rows[a:b]])[:-1]
    gap = np.maximum(start - free, 0.0)
    uses = _uses(spans, rows)
    made = np.append(spans.end[rows], -np.inf)[uses].max(axis=1)
    pair = np.flatnonzero(  # a forward and a backward at once wait for what either uses
        (device[1:] == device[:-1])
        & (start[1:] == start[:-1])
        & (spans.end[rows][1:] == spans.end[rows][:-1])
        & (spans.code[rows][:-1] == _F)
        & np.isin(spans.code[rows][1:], (_B, _I))
        & (spans.end[rows][1:] > start[1:])
    )
    made[pair] = np.maximum(made[pair], made[pair + 1])
    ready = np.where(gap > 0, np.clip(made, free, np.maximum(start, free)), free)
    true_idle = ready - free
    held_up = np.where(gap > 0, start - ready, 0.0)
    late = np.flatnonzero(held_up > 0)
    pieces: Iterable[tuple[float, float, float]]
    if spans.origin == "simulated":
        pieces = zip(late.tolist(), ready[late].tolist(), start[late].tolist(), strict=True)
    else:
        pieces = _arriving(spans, rows, pair, late, ready)
    arriving = np.array([*pieces], float).reshape(-1, 3)
    seconds = arriving[:, 2] - arriving[:, 1]
    transfer = np.bincount(arriving[:, 0].astype(np.int64), seconds, minlength=len(rows))
    overhead = held_up - transfer
    return Waits(device, free, ready, true_idle, transfer, overhead, arriving, uses, pair)


def _uses(spans: Spans, rows: np.ndarray) -> np.ndarray:
    """Positions in ``rows`` of the actions whose results each action uses, -1 for none: [rows, 2].

    The rule of needs.py: activations from the stage before; a backward's own activations and the
    gradient from the stage behind; for W what I left.
    """
    code, stage, microbatch = spans.code[rows], spans.stage[rows], spans.microbatch[rows]
    shape = 2 + int(stage.max(initial=0)) + 1, 1 + int(microbatch.max(initial=0))
    activations, gradient = np.full(shape, -1), np.full(shape, -1)  # stage s at row s + 1
    forward, backward = code == _F, (code == _B) | (code == _I)
    activations[stage[forward] + 1, microbatch[forward]] = np.flatnonzero(forward)
    gradient[stage[backward] + 1, microbatch[backward]] = np.flatnonzero(backward)
    own = np.where(
        forward,
        activations[stage, microbatch],
        np.where(backward, activations[stage + 1, microbatch], gradient[stage + 1, microbatch]),
    )
    return np.stack([own, np.where(backward, gradient[stage + 2, microbatch], -1)], axis=1)


def _arriving(
    spans: Spans, rows: np.ndarray, pairs: np.ndarray, late: np.ndarray, ready: np.ndarray
) -> Iterator[tuple[float, float, float]]:
    """(action, start, end) while a block that one of the actions ``late`` uses is on its way."""
    # (device, stage that made it, micro-batch) -> when such a block was on its way
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for j in np.flatnonzero(spans.code == _T).tolist():
        key = int(spans.device[j]), int(spans.stage[j]), int(spans.microbatch[j])
        found.setdefault(key, []).append((float(spans.start[j]), float(spans.end[j])))
    with_next = set(pairs.tolist())
    for k in late.tolist():
        ways = []
        for j in rows[k : k + 2] if k in with_next else rows[k : k + 1]:
            side = {_F: -1, _B: 1, _I: 1}.get(int(spans.code[j]), 0)
            key = int(spans.device[j]), int(spans.stage[j]) + side, int(spans.microbatch[j])
            ways += found.get(key, []) if side else []
        reach, start = float(ready[k]), float(spans.start[rows[k]])
        for a, b in sorted(ways):
            a, b = max(a, reach), min(b, start)
            if b > a:
                reach = b
                yield k, a, b
