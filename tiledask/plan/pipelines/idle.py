"""Where idle time goes: no work yet, a block on its way, or nobody who starts the action.

    device 1   [ F0 ]............=======------[ F1 ]
                     true idle   transfer  overhead
                                ^ F1 could start: its turn has come, and what it needs is made

An action could start when the action before it on its device had ended and the results that it
uses had been made, wherever that was. Before that moment there was nothing to do. After it, the
device waits for a block as long as one that the action uses is being sent to it, and the rest
is the time of whoever starts actions: the scheduler's messages, a thread that wakes up late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

__all__ = ["Waits", "waits"]

_F, _B, _I, _W, _T = range(5)
"""Kinds as a Timeline's column has them."""


class Spans(Protocol):
    """What is asked of a Timeline."""

    @property
    def devices(self) -> int: ...
    @property
    def device(self) -> np.ndarray: ...
    @property
    def code(self) -> np.ndarray: ...
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
    true_idle: np.ndarray
    """float64 [actions]: seconds from the last end on the device until the action could start."""
    transfer: np.ndarray
    """float64 [actions]: seconds after that in which a block that it uses was on its way."""
    overhead: np.ndarray
    """float64 [actions]: the rest, until it did start."""


def waits(spans: Spans) -> Waits:
    """The Waits of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers': nothing
    else holds it up. Of a measured run, its transfers are the spans of kind T on its device with
    its micro-batch, and as stage the one that made the block: the stage before for a forward,
    the stage behind for a backward. A forward and a backward that start together are done at
    once, and wait together. Compute spans that overlap have no wait between them.
    """
    rows = np.flatnonzero(spans.code < _T)
    device, start = spans.device[rows], spans.start[rows]
    first = np.searchsorted(device, np.arange(spans.devices + 1)).tolist()
    free = np.zeros(len(rows))  # since when the device has been; from 0 before its first action
    for a, b in pairwise(first):
        free[a + 1 : b] = np.maximum.accumulate(spans.end[rows[a:b]])[:-1]
    gap = np.maximum(start - free, 0.0)
    made = _made(spans, rows)
    pair = np.flatnonzero(  # a forward and a backward at once wait for what either uses
        (device[1:] == device[:-1])
        & (start[1:] == start[:-1])
        & (spans.end[rows][1:] == spans.end[rows][:-1])
        & (spans.code[rows][:-1] == _F)
        & np.isin(spans.code[rows][1:], (_B, _I))
        & (spans.end[rows][1:] > start[1:])
    )
    made[pair] = np.maximum(made[pair], made[pair + 1])
    until = np.where(gap > 0, np.clip(made, free, np.maximum(start, free)), free)
    true_idle = np.where(gap > 0, until - free, 0.0)
    held_up = gap - true_idle
    if spans.origin == "simulated":
        transfer = held_up
    else:
        transfer = np.zeros(len(rows))
        arriving = _arriving(spans)
        with_next = set(pair.tolist())
        for k in np.flatnonzero(held_up > 0).tolist():
            ways = []
            for n in (k, k + 1) if k in with_next else (k,):
                j = rows[n]
                side = {_F: -1, _B: 1, _I: 1}.get(int(spans.code[j]), 0)
                key = int(device[k]), int(spans.stage[j]) + side, int(spans.microbatch[j])
                ways += arriving.get(key, []) if side else []
            transfer[k] = _covered(ways, float(until[k]), float(start[k]))
    return Waits(device, true_idle, transfer, held_up - transfer)


def _made(spans: Spans, rows: np.ndarray) -> np.ndarray:
    """When the last of the results that each action uses was made, wherever; -inf if it uses none.

    The rule of needs.py: activations from the stage before; a backward's own activations and the
    gradient from the stage behind; for W what I left.
    """
    code, stage, microbatch = spans.code[rows], spans.stage[rows], spans.microbatch[rows]
    shape = 2 + int(stage.max(initial=0)) + 1, 1 + int(microbatch.max(initial=0))
    activations, gradient = np.full(shape, -np.inf), np.full(shape, -np.inf)  # stage s at row s + 1
    made = spans.end[rows]
    forward, backward = code == _F, (code == _B) | (code == _I)
    activations[stage[forward] + 1, microbatch[forward]] = made[forward]
    gradient[stage[backward] + 1, microbatch[backward]] = made[backward]
    own = np.maximum(activations[stage + 1, microbatch], gradient[stage + 2, microbatch])
    latest: np.ndarray = np.where(
        forward,
        activations[stage, microbatch],
        np.where(backward, own, gradient[stage + 1, microbatch]),
    )
    return latest


def _arriving(spans: Spans) -> dict[tuple[int, int, int], list[tuple[float, float]]]:
    """(device, stage that made it, micro-batch) -> when such a block was on its way."""
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for j in np.flatnonzero(spans.code == _T).tolist():
        key = int(spans.device[j]), int(spans.stage[j]), int(spans.microbatch[j])
        found.setdefault(key, []).append((float(spans.start[j]), float(spans.end[j])))
    return found


def _covered(intervals: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Seconds between ``start`` and ``end`` that lie in some of ``intervals``."""
    seconds, reach = 0.0, start
    for a, b in sorted(intervals):
        a, b = max(a, reach), min(b, end)
        if b > a:
            seconds, reach = seconds + b - a, b
    return seconds
