"""What forward passes leave for the backward pass: a layer's tensors, of micro-batches in flight.

stage 0   F0 F1 F2 B0 F3 B1 B2 B3       stage 0 holds at most 3 of them,
          1  2  3  2  3  2  1  0        stage s at most min(p - s, m)
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from operator import mul
from typing import Any

import numpy as np

from tiledask.plan.arrays import unbeaten
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.kinds import Saved
from tiledask.plan.inputs.layout import SELECTIVE_OP, Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import chunk_kinds, tokens_of
from tiledask.plan.pipelines.schedules import BOTH_WAYS, layout_schedule

__all__ = ["alive", "layer_bytes", "layer_costs", "saved_tensors", "stages_in_flight"]

INPUTS = "attention input|attention output input|(shared )?mlp (input|product|activation output)"
INPUTS += "|(kv|query) latent|(mamba2?|delta|conv) output input"
"""Names of the tensors that are inputs of a layer's matrix products."""


@lru_cache(maxsize=4096)
def saved_tensors(
    model: Model,
    sequence: int,
    tp: int,
    width: int,
    flash: bool = False,
    kind: int = -1,
    recipe: Recipe | None = None,
) -> tuple[Saved, ...]:
    """Tensors that one layer keeps, as eager execution with fused norms does: their ``units`` are
    the numbers of a token on the fullest of ``tp`` devices.

    ``width`` is the bytes of one number; dropout masks take one byte. For a GPT with dropout at
    width 2 they sum to s*b*h*(34 + 5*a*s/h) bytes (Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.1). ``flash`` leaves, of the s x s tensors, a single-precision row statistic per head
    and token (Dao et al. 2022, arXiv:2205.14135, algorithm 1). ``kind``: the layer's place
    in ``model.layer_kinds``. ``recipe``: whose framework keeps some otherwise.
    """
    found, tensors = model.layer_kinds[kind], list[Saved]()
    for each in (each for each in found.kept if each.op < 2):
        many = ceil(each.size * (-(-each.units // tp) if each.split else each.units))
        tensors.append(each._replace(units=many, size=1, itemsize=each.itemsize or width))
    for core in (core for core in found.cores if core.visible and core.v):
        heads = -(-core.heads // tp)
        scores = Saved("softmax output", heads * sequence, core=True, itemsize=width)
        row = Saved("softmax row statistic", heads, core=True, flows=False, itemsize=4, op=1)
        tensors.append(row if flash else scores)
        if model.dropout and not flash:
            mask = scores._replace(name="softmax dropout mask", itemsize=1, flows=False)
            tensors += [mask, scores._replace(name="softmax dropout output")]
    if recipe is None:
        return tuple(tensors)
    held, fp8 = memory_of(recipe.framework), recipe.operand_bytes < recipe.compute_bytes
    narrow = min(held.fp8_input_bytes, recipe.compute_bytes)
    dropped = [] if held.keeps_expert_outputs else ["expert outputs"]
    dropped += ["mlp activated gate", "shared mlp activated gate"] * held.fused_gate
    tensors = [
        each._replace(itemsize=narrow) if fp8 and re.fullmatch(INPUTS, each.name) else each
        for each in tensors
        if each.name not in dropped
    ]
    beside = recipe.adapters if held.adapter_input_bytes else ()
    for weight in (w for w in found.weights if w.name in beside):
        cut = weight.split and weight.row
        many = (-(-weight.inputs // tp) if cut else weight.inputs) * weight.active
        given: dict[str, Any] = {"flows": False, "itemsize": held.adapter_input_bytes}
        tensors.append(Saved(f"{weight.name} adapter input", many, 1, cut, **given))
    return tuple(tensors)


def layer_bytes(
    model: Model,
    layout: Layout,
    sequence: int,
    width: int = 2,
    recompute: str | None = None,
    kind: int = -1,
    recipe: Recipe | None = None,
) -> int:
    """Bytes that one layer keeps of one micro-batch on one device.

    ``kind``, ``recipe``: as of ``saved_tensors``. Source: Korthikanti et al. 2022, Table 2.

    >>> gpt3 = Model(hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200, dropout=True)
    >>> layer_bytes(gpt3, Layout(tp=8), 2048) / (2048 * 12288)  # 10 + 24/t + 5as/(ht)
    23.0
    >>> layer_bytes(gpt3, Layout(tp=8, flash_attention=True), 2048) / (2048 * 12288)
    13.00390625
    """
    recompute, flash = recompute or layout.recompute, layout.flash_attention
    whole = Saved("layer input", model.hidden * model.streams, split=False, itemsize=width)
    kept = saved_tensors(model, sequence, layout.tp, width, flash, kind, recipe)
    if recompute == "full":
        kept = (whole,)
    elif recompute == "selective":
        kept = tuple(t for t in kept if not t.core)
    elif recompute == SELECTIVE_OP:  # outputs of attention and of every second matrix product
        ends = 1 + any(each.op == 2 for each in model.layer_kinds[kind].kept)
        kept = (*(t for t in kept if t.op), *[whole] * ends)
    return sum(_sizes(layout, sequence, kept))


def _sizes(layout: Layout, sequence: int, tensors: Iterable[Saved]) -> list[int]:
    tokens, cut = tokens_of(layout, sequence)
    return [t.itemsize * t.units * (tokens if t.split else cut) for t in tensors]


def layer_costs(
    model: Model, layout: Layout, sequence: int, recipe: Recipe
) -> list[tuple[int, int, int, int]]:
    """The bytes of an Item, (kept, whole, gradients, served), of a layer of each kind."""
    width, found = recipe.compute_bytes, []
    run, flash = (model, layout, sequence, width), layout.flash_attention
    stream = width * model.hidden * model.streams * tokens_of(layout, sequence)[1]
    for kind in range(len(model.layer_kinds)):
        every = saved_tensors(model, sequence, layout.tp, width, flash, kind)
        flows = sorted(_sizes(layout, sequence, (t for t in every if t.flows)))
        kept, whole = (layer_bytes(*run, again, kind, recipe) for again in (None, "none"))
        found.append((kept, whole, stream + sum(flows[-2:]), sum(flows)))
    return found


def stages_in_flight(
    model: Model, layout: Layout, stages: Sequence[int], cost: Sequence[int]
) -> list[tuple[int, ...]]:
    """What lies on each of ``stages``, where a layer of each kind keeps ``cost`` bytes; none where
    no backward pass needs any.

    layers of each kind | embeddings | heads | of these with a tied matrix once more
    layers of each kind x micro-batches, in the fullest state | micro-batches whose embedding is
    held, at most | the same of the head
    """
    p, m, v, last = layout.pp, layout.microbatches, layout.interleave, layout.chunks - 1
    kinds, found = chunk_kinds(model, layout), []
    columns = (column.tolist() for column in layout.stage_chunks(np.asarray(stages)))
    for stage, *chunks in zip(stages, *columns, strict=True):
        each = [*zip(*(kinds[chunk] for chunk in chunks), strict=True)]  # of each kind, by chunk
        states = alive(layout.schedule, p, m, v, stage) if cost else ((0,) * len(chunks),)
        layers = sorted({tuple(sum(map(mul, kind, n)) for kind in each) for n in states})
        fullest = max(layers, key=lambda kept: sum(map(mul, cost, kept)))
        most = dict(zip(chunks, map(max, zip(*states, strict=True)), strict=True))
        first, heads = chunks.count(0), chunks.count(last)
        items = *map(sum, each), first, heads, 0 if first else heads
        found.append((*items, *fullest, most.get(0, 0), most.get(last, 0)))
    return found


@lru_cache(maxsize=16384)
def alive(name: str, p: int, m: int, v: int, stage: int) -> tuple[tuple[int, ...], ...]:
    """The fullest states of ``stage`` under a schedule: micro-batches alive in each of its chunks.

    Interleaved over v chunks, stage s runs 2(p-s-1) + (v-1)p forward chunks before its first
    backward (Megatron-LM). Other schedules are counted action by action.

    >>> [alive("1f1b", 4, 8, 1, stage) for stage in range(4)]
    [((4,),), ((3,),), ((2,),), ((1,),)]
    """
    if name in ("gpipe", "looped-bfs"):
        return ((m,) * v,)
    if name in ("naive", "1f1b") and v == 1:
        return ((1 if name == "naive" else min(p - stage, m),),)
    if name in ("naive", "1f1b"):
        m = min(m, 4 * p)  # the middle of the schedule repeats every p micro-batches
        warmup = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
        now, states = [0] * v, set()
        for forward in range(m * v):
            now[forward % (p * v) // p] += 1
            states.add(tuple(now))
            if forward >= warmup:
                now[v - 1 - (forward - warmup) % (p * v) // p] -= 1
        every = np.array(list(states))
    else:  # repeats itself: more micro-batches only make the middle longer
        every = _states(name, p, min(m, 4 * p * v + m % 2), v)[stage]
    # those that no other reaches in every column
    return tuple(sorted(tuple(every[n].tolist()) for n in unbeaten(-every)))


@lru_cache(maxsize=256)
def _states(name: str, p: int, m: int, v: int) -> list[np.ndarray]:
    """Of each stage the states that its actions lead through, a row each."""
    two, found = name in BOTH_WAYS, []
    built = layout_schedule(name, p * (1 if two else v), m, p)
    layout = Layout(pp=p, microbatches=m, schedule=name, interleave=v)
    for device in range(p):
        rows = slice(*built.turns[device : device + 2])
        kind, chunks = built.kind[rows], np.array(layout.stage_chunks(device))
        place = built.microbatch[rows] % 2 if two else np.searchsorted(chunks, built.stage[rows])
        steps = np.zeros((len(kind), len(chunks)), np.int64)
        steps[np.arange(len(kind)), place] = np.array([1, -1, 0, -1])[kind]  # F, B, I, W
        found.append(np.unique(np.cumsum(steps, axis=0), axis=0))
    return found
