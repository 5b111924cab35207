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

from tiledask.plan.arrays import unbeaten
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.run import chunk_kinds
from tiledask.plan.pipelines.schedules import BOTH_WAYS, layout_schedule

__all__ = ["InFlight", "alive", "stages_in_flight"]


class InFlight(NamedTuple):
    """What lies on a stage: layers, ends (of both copies where there are two), heads that hold a
    tied matrix once more; and layers x micro-batches in the fullest state, micro-batches whose
    embedding and head are held at most. Each number is one, or a column."""

    dense: Any
    mixtures: Any
    embeddings: Any
    heads: Any
    tied: Any
    kept_dense: Any
    kept_mixtures: Any
    kept_embeddings: Any
    kept_heads: Any


def stages_in_flight(
    model: Model, layout: Layout, stages: Sequence[int], cost: Sequence[int]
) -> list[InFlight]:
    """What each of ``stages`` holds in the state that keeps most. ``cost``: bytes kept of one layer
    of each kind that there is; none where no backward pass needs any."""
    p, m, v, last = layout.pp, layout.microbatches, layout.interleave, layout.last_chunk
    kinds, found = chunk_kinds(model, layout), []
    columns = (column.tolist() for column in layout.stage_chunks(np.asarray(stages)))
    for stage, *chunks in zip(stages, *columns, strict=True):
        dense, mixtures = zip(*(kinds[chunk] for chunk in chunks), strict=True)
        states = alive(layout.schedule, p, m, v, stage) if cost else ((0,) * len(chunks),)
        layers = sorted({(sum(map(mul, dense, n)), sum(map(mul, mixtures, n))) for n in states})
        fullest = max(layers, key=lambda each: sum(map(mul, cost, each)))
        most = dict(zip(chunks, map(max, zip(*states, strict=True)), strict=True))
        first, heads = chunks.count(0), chunks.count(last)
        items = sum(dense), sum(mixtures), first, heads, 0 if first else heads
        found.append(InFlight(*items, *fullest, most.get(0, 0), most.get(last, 0)))
    return found


@lru_cache(maxsize=16384)
def alive(name: str, p: int, m: int, v: int, stage: int) -> tuple[tuple[int, ...], ...]:
    """The fullest states of ``stage`` under a schedule: micro-batches alive in each of its chunks.

    naive 1; gpipe m; 1f1b min(p - stage, m). Interleaved over v chunks, stage s runs
    2(p-s-1) + (v-1)p forward chunks before its first backward (Megatron-LM's schedule) and
    the first stage holds p*v + p - 1 chunks (Korthikanti et al. 2022, section 4.2.3). Other
    schedules are counted action by action: an activation is held from its forward to the end of
    its backward; where that is split, to the end of the part for the weights.

    >>> [alive("1f1b", 4, 8, 1, stage) for stage in range(4)]
    [((4,),), ((3,),), ((2,),), ((1,),)]
    """
    if name in ("gpipe", "looped-bfs"):
        return ((m,) * v,)
    if name in ("naive", "1f1b"):
        most = 1 if name == "naive" else min(p - stage, m)
        return ((most,),) if v == 1 else _interleaved(p, m, v, stage)
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
    built = layout_schedule(name, p * (1 if name in BOTH_WAYS else v), m, p)
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
    return tuple(sorted(tuple(states[n].tolist()) for n in unbeaten(-states)))
