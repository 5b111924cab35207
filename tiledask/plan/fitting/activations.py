"""What a forward pass leaves behind for the backward pass, tensor by tensor."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from tiledask.plan.inputs.layout import SELECTIVE_OP, Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import holds

__all__ = [
    "LayerBytes",
    "Saved",
    "gradient_bytes",
    "layer_bytes",
    "layer_costs",
    "saved_tensors",
    "tokens_of",
]


@dataclass(frozen=True)
class Saved:
    """A tensor of one layer that is kept, per token of the batch."""

    name: str
    elements: int
    """Elements per token, over the whole layer or on the fullest of tp devices."""
    itemsize: int
    """Bytes per element."""
    sliced: bool
    """Tensor parallelism cuts it (its ``elements`` are one device's); otherwise every
    device holds the whole, unless the sequence is parallel too."""
    core: bool = False
    """In the attention core, which selective recomputation drops."""
    flows: bool = True
    """Whether a gradient of this size flows back into it: not into a mask or a statistic."""


INPUTS = "attention input|attention output input|(shared )?mlp (input|product|activation output)|"
INPUTS += "(kv|query) latent"
"""Names of the tensors that are inputs of a layer's matrix products."""


@lru_cache(maxsize=4096)
def saved_tensors(
    model: Model,
    sequence: int,
    tp: int,
    width: int,
    flash: bool = False,
    mixture: bool | None = None,
    recipe: Recipe | None = None,
) -> tuple[Saved, ...]:
    """Tensors that one layer keeps, as eager execution with fused norms does.

    ``width`` is the bytes of one number; dropout masks take one byte. For a GPT with
    dropout at width 2 they sum to s*b*h*(34 + 5*a*s/h) bytes (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.1); grouped heads, latents, gates and experts change the terms.
    ``flash`` leaves, of the s x s tensors, a single-precision row statistic per head and token
    (Dao et al. 2022, arXiv:2205.14135, algorithm 1). ``mixture`` says which kind of layer of a
    model with experts (default: the last layer's); these are taken to be visited evenly.
    ``recipe``: whose framework keeps some otherwise, inputs of products in FP8 in fewer bytes, and
    inputs of adapters.
    """
    mixture = bool(model.experts) if mixture is None else mixture
    h, ends = model.hidden, ("attention", "mlp")
    tensors = _attention(model, sequence, -(-model.heads // tp), tp, width, flash)
    if mixture:  # each token, its copies for top_k experts, their answers before they are summed
        k = model.top_k * model.imbalance
        each = ceil(k * -(-(model.expert_ffn or model.ffn) // tp))
        tensors += [
            Saved("mlp input", ceil(h * k), width, False),
            *_inside(model, "mlp", each, width),
            Saved("router input", h, width, False),
            Saved("expert outputs", ceil(h * k), width, False),
            Saved("router probabilities", model.experts, 4, False),
        ]
        if model.shared_ffn:
            tensors += _inside(model, "shared mlp", -(-model.shared_ffn // tp), width)
    else:
        inside = _inside(model, "mlp", -(-model.ffn // tp), width)
        if model.layer_norms > 1:  # otherwise it is the attention's input
            tensors += [Saved("mlp input", h, width, False)]
        tensors += inside
    # inputs of the norms, masks of the two dropouts on the residual stream
    if model.norm != "none":
        inputs = ("attention", "mlp", "attention output", "mlp output")[: model.layer_norms]
        tensors += [Saved(f"{at} norm input", h, width, False) for at in inputs]
    if model.dropout:
        tensors += [Saved(f"{at} dropout mask", h, 1, False, flows=False) for at in ends]
    return tuple(tensors if recipe is None else _otherwise(tensors, model, tp, mixture, recipe))


def _otherwise(
    tensors: list[Saved], model: Model, tp: int, mixture: bool, recipe: Recipe
) -> Iterator[Saved]:
    """``tensors`` as the framework of ``recipe`` keeps them."""
    held, fp8 = holds(recipe.framework), recipe.operand_bytes < recipe.compute_bytes
    width = min(held.fp8_input_bytes, recipe.compute_bytes)
    dropped: tuple[str, ...] = () if held.keeps_expert_outputs else ("expert outputs",)
    dropped += ("mlp activated gate", "shared mlp activated gate") if held.fused_gate else ()
    for each in tensors:
        if each.name not in dropped:
            narrow = fp8 and re.fullmatch(INPUTS, each.name)
            yield replace(each, itemsize=width) if narrow else each
    if recipe.adapters is None or not held.adapter_input_bytes:
        return
    for weight in model.mixture_layer if mixture else model.dense_layer:
        if weight.name in recipe.adapters.matrices:
            cut = weight.split and weight.row
            many = (-(-weight.inputs // tp) if cut else weight.inputs) * weight.active
            name = f"{weight.name} adapter input"
            yield Saved(name, many, held.adapter_input_bytes, cut, flows=False)


def _attention(
    model: Model, sequence: int, heads: int, tp: int, width: int, flash: bool
) -> list[Saved]:
    """Inputs of the matrix products and of softmax(q k) v."""
    groups = heads if model.latent else -(-model.kv_heads // tp)
    query, key, value = heads * model.qk_dim, groups * model.qk_dim, groups * model.v_dim
    tensors = [Saved("attention input", model.hidden, width, False)]
    if model.latent:  # each latent before and after its norm, whole on every device
        latents = [("kv", model.kv_lora_rank + model.qk_rope_head_dim, model.kv_lora_rank)]
        if model.q_lora_rank:
            latents += [("query", model.q_lora_rank, model.q_lora_rank)]
        for name, down, normed in latents:
            tensors += [Saved(f"{name} latent norm input", down, width, False)]
            tensors += [Saved(f"{name} latent", normed, width, False)]
    tensors += [
        Saved("query", query, width, True),
        Saved("key", key, width, True),
        Saved("value", value, width, True),
        Saved("attention output input", heads * model.v_dim, width, True),
    ]
    if model.qk_norm:
        tensors += [Saved("query norm input", query, width, True)]
        tensors += [Saved("key norm input", key, width, True)]
    if flash:
        statistic = Saved("softmax row statistic", heads, 4, True, core=True, flows=False)
        return [*tensors, statistic]
    scores = heads * sequence
    tensors += [Saved("softmax output", scores, width, True, core=True)]
    if model.dropout:
        tensors += [
            Saved("softmax dropout mask", scores, 1, True, core=True, flows=False),
            Saved("softmax dropout output", scores, width, True, core=True),
        ]
    return tensors


def _inside(model: Model, name: str, width_inside: int, width: int) -> list[Saved]:
    parts = (
        ("gate", "activated gate", "up", "product")
        if model.mlp == "swiglu"
        else ("activation input", "activation output")
    )
    return [Saved(f"{name} {part}", width_inside, width, True) for part in parts]


def _outputs(
    model: Model, every: tuple[Saved, ...], width: int, flash: bool, mixture: bool
) -> list[Saved]:
    """What operator-level selection keeps of ``every`` tensor: the layer's input, the attention's
    output and every second matrix product: query, value, gate (or up) and, behind a gate, down."""
    tensors = {t.name: t for t in every}
    first = "gate" if model.mlp == "swiglu" else "activation input"
    names = ["query", "value", "attention output input", f"mlp {first}"]
    names += ["softmax row statistic"] if flash else []
    names += [f"shared mlp {first}"] if mixture and model.shared_ffn else []
    kept = [tensors[name] for name in names] + [Saved("layer input", model.hidden, width, False)]
    if mixture:
        kept += [t for t in every if t.name == "expert outputs"]
    elif model.mlp == "swiglu":
        kept += [Saved("mlp output", model.hidden, width, False)]
    return kept


def layer_bytes(
    model: Model,
    layout: Layout,
    sequence: int,
    width: int = 2,
    recompute: str | None = None,
    masks: bool = True,
    mixture: bool | None = None,
    recipe: Recipe | None = None,
) -> int:
    """Bytes that one layer keeps of one micro-batch on one device.

    Without ``masks``, only tensors that a gradient of their size flows back into; ``recipe``:
    whose framework keeps some otherwise. Source: Korthikanti et al. 2022, arXiv:2205.05198,
    Table 2.

    >>> gpt3 = Model(hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200, dropout=True)
    >>> layer_bytes(gpt3, Layout(tp=8), 2048) / (2048 * 12288)  # 10 + 24/t + 5as/(ht)
    23.0
    >>> layer_bytes(gpt3, Layout(tp=8, flash_attention=True), 2048) / (2048 * 12288)
    13.00390625
    """
    recompute = layout.recompute if recompute is None else recompute
    mixture = bool(model.experts) if mixture is None else mixture
    flash, tp = layout.flash_attention, layout.tp
    if recompute == "full":
        return width * model.hidden * tokens_of(layout, sequence)[1]
    every = saved_tensors(model, sequence, tp, width, flash, mixture, recipe)
    core = recompute != "selective"
    if recompute == SELECTIVE_OP:
        kept = _outputs(model, every, width, flash, mixture)
    else:
        kept = [t for t in every if (core or not t.core) and (masks or t.flows)]
    tokens, cut = tokens_of(layout, sequence)
    return sum(t.itemsize * t.elements * (tokens if t.sliced else cut) for t in kept)


class LayerBytes(NamedTuple):
    """Bytes of one layer and one micro-batch on one device."""

    kept: Any
    """From the forward to the backward pass."""
    whole: Any
    """Before any recomputation drops some."""
    gradients: Any
    """At once in the backward pass, at most."""
    served: Any
    """At once in a forward pass alone, at most."""


def layer_costs(
    model: Model, layout: Layout, sequence: int, recipe: Recipe
) -> tuple[LayerBytes, ...]:
    """Of a dense layer and, in a model with experts, of a mixture."""
    width = recipe.compute_bytes

    def layer(mixture: bool) -> LayerBytes:
        run = model, layout, sequence, width
        return LayerBytes(
            layer_bytes(*run, mixture=mixture, recipe=recipe),
            layer_bytes(*run, "none", mixture=mixture, recipe=recipe),
            gradient_bytes(*run, mixture),
            layer_bytes(*run, "none", masks=False, mixture=mixture),
        )

    return tuple(layer(mixture) for mixture in ((False, True) if model.experts else (False,)))


def gradient_bytes(
    model: Model, layout: Layout, sequence: int, width: int = 2, mixture: bool | None = None
) -> int:
    """Bytes of gradients that the backward pass of one layer holds at once, at most.

    It goes from tensor to tensor and drops what it has used: the gradient of the residual
    stream is always there, and beside it at most those of an operation's output and input. The
    fused softmax of training programs writes its input's gradient over its output's, so of the
    s x s tensors it is one.
    """
    tokens, cut = tokens_of(layout, sequence)
    kept = saved_tensors(model, sequence, layout.tp, width, layout.flash_attention, mixture)
    sizes = [t.itemsize * t.elements * (tokens if t.sliced else cut) for t in kept if t.flows]
    return width * model.hidden * cut + sum(sorted(sizes)[-2:])


def tokens_of(layout: Layout, sequence: int) -> tuple[int, int]:
    """Tokens of a micro-batch on one device, context parallelism cuts every sequence; and of them
    those outside the tensor-parallel products, where sequence parallelism cuts it once more."""
    each = -(-sequence // layout.cp)
    shards = layout.tp if layout.sequence_parallel else 1
    return layout.microbatch * each, layout.microbatch * -(-each // shards)
