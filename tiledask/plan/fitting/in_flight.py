"""Micro-batches in flight: whose activations a stage holds at its fullest moments.

1F1B on 3 stages, 4 micro-batches; below each action what the stage holds after it:

    stage 0   F0 F1 F2 B0 F3 B1 B2 B3       stage 0 holds at most 3 of them,
              1  2  3  2  3  2  1  0        stage s at most min(p - s, m)
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.schedules import BOTH_WAYS, is_looped, schedule

__all__ = ["InFlight", "alive", "in_flight", "stages_in_flight"]


class InFlight(NamedTuple):
    """What lies on a stage, and for how many micro-batches its activations are held; each number
    is one, or a column."""

    dense: Any
    """Dense layers, both copies' where there are two."""
    mixtures: Any
    embeddings: Any
    """0, 1, or 2 where both copies have theirs here."""
    heads: Any
    tied: Any
    """Heads that are not with the embedding, whose matrix they hold once more if it is tied."""
    has_dense: Any
    """1 with a dense layer, else 0."""
    has_mixture: Any
    has_embedding: Any
    has_head: Any
    has_tied: Any
    kept_dense: Any
    """Dense layers x micro-batches in the fullest state."""
    kept_mixtures: Any
    kept_embeddings: Any
    """Micro-batches whose embedding the stage holds at most; 0 without one."""
    kept_heads: Any


def stages_in_flight(
    layout: Layout,
    kinds: Sequence[tuple[int, int]],
    cost: Sequence[int],
    stages: Sequence[int],
) -> list[InFlight]:
    """The InFlight of each of ``stages``.

    ``kinds``: dense layers and mixtures of each chunk, in model order; ``cost``: bytes kept of
    one of each kind that there is, which decide what state is the fullest; none where no backward
    pass needs any.
    """
    p, m, v, last = layout.pp, layout.microbatches, layout.interleave, layout.last_chunk
    columns = layout.stage_chunks(np.asarray(stages))
    found = []
    for stage, *chunks in zip(stages, *(column.tolist() for column in columns), strict=True):
        dense, mixtures = zip(*(kinds[chunk] for chunk in chunks), strict=True)
        states = _alive(layout.schedule, p, m, v, stage) if cost else ((0,) * len(chunks),)
        held = [(sum(map(mul, state, dense)), sum(map(mul, state, mixtures))) for state in states]
        kept = max(held, key=lambda layers: sum(map(mul, layers, cost)))
        ends = (
            max(state[chunks.index(end)] for state in states) if end in chunks else 0
            for end in (0, last)
        )
        first, heads = chunks.count(0), chunks.count(last)
        items = sum(dense), sum(mixtures), first, heads, 0 if first else heads
        numbers: list[int] = [*items, *(min(n, 1) for n in items), *kept, *ends]
        found.append(InFlight(*numbers))
    return found


def in_flight(layout: Layout, stage: int) -> int:
    """Chunks of a micro-batch whose activations ``stage`` holds at its fullest.

    naive 1; gpipe m; 1f1b min(p - stage, m). Interleaved over v chunks, stage s runs
    2(p-s-1) + (v-1)p forward chunks before its first backward (Megatron-LM's schedule) and
    the first stage holds p*v + p - 1 chunks: L(1 + (p-1)/(pv)) layers (Korthikanti et al.
    2022, section 4.2.3). Other schedules are counted action by action.

    >>> [in_flight(Layout(pp=4, microbatches=8), stage) for stage in range(4)]
    [4, 3, 2, 1]
    >>> in_flight(Layout(pp=4, microbatches=8, interleave=2), 0)
    11
    >>> [in_flight(Layout(pp=4, microbatches=8, schedule="dualpipe"), stage) for stage in range(4)]
    [5, 5, 5, 5]
    """
    return max(map(sum, alive(layout, stage)))


def alive(layout: Layout, stage: int) -> tuple[tuple[int, ...], ...]:
    """The fullest states of ``stage``: micro-batches alive in each of its chunks.

    Where chunks hold unequal numbers of layers, which state is the fullest depends on them.
    An activation is held from its forward to the end of its backward; where that is split,
    to the end of the part for the weights.
    """
    p, m = layout.pp, layout.microbatches
    return _alive(layout.schedule, p, m, layout.interleave, stage)


@lru_cache(maxsize=16384)
def _alive(name: str, p: int, m: int, v: int, stage: int) -> tuple[tuple[int, ...], ...]:
    if v == 1:
        closed = {
            "naive": 1,
            "gpipe": m,
            "looped-bfs": m,
            "1f1b": min(p - stage, m),
            "interleaved": min(p - stage, m),
            "eager-1f1b": min(2 * (p - stage) - 1, m),
        }
        if name in closed:
            return ((closed[name],),)
    if name == "looped-bfs":
        return ((m,) * v,)
    if name == "1f1b":
        return _interleaved(p, m, v, stage)
    # all others repeat themselves: more micro-batches only make the middle longer
    m = min(m, 4 * p * v + m % 2)
    return _counted(name, p, m, v)[stage]


def _interleaved(p: int, m: int, v: int, stage: int) -> tuple[tuple[int, ...], ...]:
    m = min(m, 4 * p)  # the middle of the schedule repeats every p micro-batches
    warmup = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    now, states = [0] * v, set()
    for forward in range(m * v):
        now[forward % (p * v) // p] += 1
        states.add(tuple(now))
        if forward >= warmup:
            now[v - 1 - (forward - warmup) % (p * v) // p] -= 1
    return _fullest(np.array(list(states)))


@lru_cache(maxsize=256)
def _counted(name: str, p: int, m: int, v: int) -> list[tuple[tuple[int, ...], ...]]:
    """For each stage the states that its actions lead through."""
    chunks = 1 if name in BOTH_WAYS else v
    if is_looped(name):
        built = schedule(name, p * chunks, m, devices=p)
    else:
        built = schedule(name, p * chunks, m)
    layout = Layout(pp=p, microbatches=m, schedule=name, interleave=v)
    found = []
    for device in range(p):
        rows = slice(*built.turns[device : device + 2])
        kind, number = built.kind[rows], built.microbatch[rows]
        if name in BOTH_WAYS:
            place = number % 2
        else:  # which of the device's chunks
            place = np.searchsorted(np.array(layout.stage_chunks(device)), built.stage[rows])
        change = np.array([1, -1, 0, -1])[kind]  # F, B, I, W
        steps = np.zeros((len(kind), 2 if name in BOTH_WAYS else v), np.int64)
        steps[np.arange(len(kind)), place] = change
        found.append(_fullest(np.cumsum(steps, axis=0)))
    return found


def _fullest(states: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The rows that no other row reaches in every column."""
    states = np.unique(states, axis=0)
    best = [
        row
        for row in states
        if not ((states >= row).all(axis=1) & (states > row).any(axis=1)).any()
    ]
    return tuple(sorted(tuple(map(int, row)) for row in best))
