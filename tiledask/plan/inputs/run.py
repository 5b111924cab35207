"""What is run: a model, a layout and a sequence that can go together."""

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.weights import Weight
from tiledask.plan.units import divisors
from tiledask.plan.whole import whole_number

__all__ = ["Item", "caches", "check_held", "check_run", "check_trains"]
__all__ += ["chunk_kinds", "item_parameters", "precision_of", "tokens_of"]

LONGEST = 2**30
"""Tokens of the longest sequence that is believed."""


def check_run(model: Model, layout: Layout, sequence: int | None) -> int:
    """The sequence, by default the usual one; ConfigError for what the model cannot be run with."""
    if not isinstance(layout, Layout):
        raise ConfigError(f"a layout is a td.Layout, such as td.Layout(tp=8), got {short(layout)}")
    meant = "is it a number of tokens, not of bytes or of a whole batch?"
    sequence = model.usual_sequence if sequence is None else sequence
    sequence = whole_number("sequence", sequence, 1, LONGEST, of="tokens", way_out=meant)
    if 0 < model.positions < sequence:
        raise ConfigError(
            f"{model.name} has learned {model.positions:,} positions, and not {sequence:,}; use a "
            f"sequence of {model.positions:,} or less, or a model with rotary positions"
        )
    if layout.cp > sequence:
        raise ConfigError(f"cp={layout.cp} cannot cut {sequence} tokens; use {sequence} or less")
    model.check_tp(layout.tp)
    for name, least in (("ep", 1), ("expert_tp", 0)) if not model.experts else ():
        if (degree := getattr(layout, name)) > least:
            none = f"is for experts and {model.name} has none; leave it out"
            raise ConfigError(f"{name}={degree} {none}")
    if model.experts % layout.ep:
        rule = f"ep={layout.ep} does not divide the {model.experts} experts of {model.name}"
        raise ConfigError(f"{rule}; ep may be one of {divisors(model.experts)}")
    layout.chunk_layers(model.layers)
    return sequence


def caches(recipe: Recipe, cached: int) -> Recipe:
    """``recipe`` with keys and values of ``cached`` tokens, or of as many as it says."""
    meant = "tokens of all sequences that a copy serves"
    cached = whole_number("cached", cached or recipe.cached, 0, LONGEST**2, of=meant)
    if cached and recipe.trains:
        serve = "serve with 'fp16-weights', 'int8-weights' or 'int4-weights'"
        raise ConfigError(f"recipe {recipe.name!r} trains, and keeps no keys and values; {serve}")
    return replace(recipe, cached=cached)


def precision_of(device: Device, recipe: Recipe, width: int = 0) -> str:
    """The precision of ``device`` that the products of ``recipe`` run in, or numbers of ``width``
    bytes; ConfigError where it has none.

    >>> from tiledask.plan.inputs.hardware import load_device
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> [precision_of(load_device(name), load_recipe("mixed-adam-16")) for name in ("H100", "T4")]
    ['bf16', 'fp16']
    """
    width = width or recipe.operand_bytes
    order = {4: ("tf32", "fp32"), 2: ("bf16", "fp16"), 1: ("fp8",)}.get(width, ())
    peaks = dict(device.peak_flops)
    if found := next((name for name in order if name in peaks), ""):
        return found
    usual = "'mixed-adam-16'" if recipe.trains else "'fp16-weights'"
    raise ConfigError(
        f"recipe {recipe.name!r} multiplies in {' or '.join(order)}, and {device.name} has no "
        f"units for that but for {', '.join(peaks)}; use {usual}, or a device such as H100"
    )


def check_held(recipe: Recipe, model: Model, layout: Layout) -> None:
    """Refuse weights that nothing brings to the device, and adapters beside no matrix."""
    if recipe.offloads_weights and layout.zero != 3:
        raise ConfigError(
            f"recipe {recipe.name!r} keeps its weights off the device, from where zero=3 alone "
            f"brings them, got zero={layout.zero}; offload optimizer states alone"
        )
    every = (weight for kind in model.layer_kinds for weight in kind.weights)
    there = list(dict.fromkeys(weight.name for weight in every if weight.inputs))
    if missing := [name for name in recipe.adapters if name not in there]:
        raise ConfigError(
            f"adapters are to stand beside {missing[0]!r}, and a layer of this model has "
            f"{', '.join(there)}; name some of these in td.lora(matrices=...)"
        )


def chunk_kinds(model: Model, layout: Layout) -> list[tuple[int, ...]]:
    """How many layers of each of the model's kinds each chunk has, in model order."""
    ends = accumulate(layout.chunk_layers(model.layers), initial=0)
    kinds = range(len(model.layer_kinds))
    return [tuple(map(model.kind_of[a:b].count, kinds)) for a, b in pairwise(ends)]


def check_trains(recipe: Recipe, timed: bool = False) -> None:
    """Refuse a recipe that only serves; if ``timed`` one whose step has no time model, too."""
    if not recipe.trains:
        raise ConfigError(
            f"recipe {recipe.name} keeps no gradients: it serves, and this is for training; use a "
            f"recipe such as 'mixed-adam-16'"
        )
    if timed and recipe.places:
        raise ConfigError(
            f"recipe {recipe.name!r} offloads states to {' and '.join(recipe.places)}, and how "
            f"long their way takes is not modelled; td.fits tells whether they have room"
        )


def tokens_of(n: Layout | Numbers, sequence: int) -> tuple[Any, Any]:
    """Tokens of a micro-batch on one device; and those of them outside tp's products."""
    each = -(-sequence // n.cp)
    shards = 1 + (n.tp - 1) * n.sequence_parallel
    return n.microbatch * each, n.microbatch * -(-each // shards)


class Item(NamedTuple):
    """A layer of a kind, or an end of the model, on the fullest device of its stage: its
    parameters, and a layer's bytes of one micro-batch; each number is one, or a column."""

    dense: Any  # Those that every data-parallel device holds a copy of
    expert: Any  # Those of experts, which are sharded over expert parallelism
    dense_adapters: Any
    expert_adapters: Any
    largest: Any  # Parameters of its largest weight, of a single expert
    matrices: Any  # Parameters of its matrices, of a single expert
    kept: Any = 0  # Bytes from the forward to the backward pass
    whole: Any = 0  # The same, before any recomputation drops some
    gradients: Any = 0
    """At once in the backward pass, which drops what it has used: of the residual stream, and
    beside it at most of an operation's output and input; of the s x s tensors it is one."""
    served: Any = 0  # At once in a forward pass alone, at most


@lru_cache(maxsize=16384)
def item_parameters(
    model: Model, recipe: Recipe, tp: int, ep: int, expert_tp: int
) -> tuple[tuple[int, ...], ...]:
    """Those of an Item: a layer of each kind, the embedding, the head and the tied copy in it; of
    ``expert_tp`` slices of each expert."""
    # the last of several stages holds the table again, where the output projection is that matrix
    copy = (Weight("token embedding copy", model.vocab, model.hidden),) if model.tied else ()
    items = *(kind.weights for kind in model.layer_kinds), model.embedding, model.head, copy
    every = list[tuple[int, ...]]()
    for weights in items:
        dense, expert, largest, matrices = [0, 0], [0, 0], 0, 0
        for w in weights:
            slices, found = (tp, dense) if w.copies == 1 else (expert_tp, expert)
            one = w.count(slices, w.copies)
            found[0] += w.count(slices, ep)
            if w.inputs and w.name in recipe.adapters:
                found[1] += w.adapter(recipe.rank, slices, ep)
            largest, matrices = max(largest, one), matrices + one * (w.inputs > 0)
        every.append((dense[0], expert[0], dense[1], expert[1], largest, matrices))
    return tuple(every)
