"""What a forward pass leaves behind for the backward pass, tensor by tensor."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from tiledask.plan.inputs.layout import SELECTIVE_OP, Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import holds

__all__ = ["LayerBytes", "Saved", "layer_bytes", "layer_costs", "saved_tensors", "tokens_of"]


class Saved(NamedTuple):
    """A tensor of one layer that is kept, per token of the batch.

    ``sliced``: tensor parallelism cuts it, and its ``elements`` are those on the fullest of tp
    devices. ``core``: in the attention core, which selective recomputation drops. ``flows``: a
    gradient of this size flows back into it, as none does into a mask or a statistic.
    """

    name: str
    elements: int
    itemsize: int
    sliced: bool
    core: bool = False
    flows: bool = True


INPUTS = "attention input|attention output input|(shared )?mlp (input|product|activation output)|"
INPUTS += "(kv|query) latent"
"""Names of the tensors that are inputs of a layer's matrix products."""
NORMED = ("attention", "mlp", "attention output", "mlp output")
"""What the norms of a layer stand at, as many as it has."""


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
    h, heads = model.hidden, -(-model.heads // tp)
    groups = heads if model.latent else -(-model.kv_heads // tp)
    whole = {"attention input": h}
    sliced = {"query": heads * model.qk_dim, "key": groups * model.qk_dim}
    sliced |= {"value": groups * model.v_dim, "attention output input": heads * model.v_dim}
    if model.latent:  # each latent before and after its norm, whole on every device
        kv, query = model.kv_lora_rank, model.q_lora_rank
        whole |= {"kv latent norm input": kv + model.qk_rope_head_dim, "kv latent": kv}
        whole |= {"query latent norm input": query, "query latent": query} if query else {}
    if model.qk_norm:
        sliced |= {f"{name} norm input": sliced[name] for name in ("query", "key")}
    if mixture:  # each token, its copies for top_k experts, their answers before they are summed
        k = model.top_k * model.imbalance
        copies = ceil(h * k)
        whole |= {"mlp input": copies, "router input": h, "expert outputs": copies}
        sliced |= _inside(model, "mlp", ceil(k * -(-model.expert_ffn // tp)))
        sliced |= _inside(model, "shared mlp", -(-model.shared_ffn // tp))
    else:
        whole |= {"mlp input": h} if model.layer_norms > 1 else {}  # or it is the attention's
        sliced |= _inside(model, "mlp", -(-model.ffn // tp))
    if model.norm != "none":
        whole |= {f"{at} norm input": h for at in NORMED[: model.layer_norms]}
    tensors = [Saved(name, n, width, False) for name, n in whole.items()]
    tensors += [Saved(name, n, width, True) for name, n in sliced.items()]
    if mixture:
        tensors.append(Saved("router probabilities", model.experts, 4, False))
    scores = Saved("softmax output", heads * sequence, width, True, core=True)
    row = Saved("softmax row statistic", heads, 4, True, core=True, flows=False)
    tensors.append(row if flash else scores)
    if model.dropout:  # two on the residual stream, one on the scores
        tensors += [Saved(f"{at} dropout mask", h, 1, False, flows=False) for at in NORMED[:2]]
    if model.dropout and not flash:
        mask = scores._replace(name="softmax dropout mask", itemsize=1, flows=False)
        tensors += [mask, scores._replace(name="softmax dropout output")]
    return tuple(tensors if recipe is None else _otherwise(tensors, model, tp, mixture, recipe))


def _inside(model: Model, name: str, width: int) -> dict[str, int]:
    """What an MLP keeps between its products; nothing of one without width."""
    parts = ("activation input", "activation output")
    if model.mlp == "swiglu":
        parts = ("gate", "activated gate", "up", "product")  # type: ignore[assignment]
    return {f"{name} {part}": width for part in parts} if width else {}


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
            yield each._replace(itemsize=width) if narrow else each
    if recipe.adapters is None or not held.adapter_input_bytes:
        return
    for weight in model.mixture_layer if mixture else model.dense_layer:
        if weight.name in recipe.adapters.matrices:
            cut = weight.split and weight.row
            many = (-(-weight.inputs // tp) if cut else weight.inputs) * weight.active
            name = f"{weight.name} adapter input"
            yield Saved(name, many, held.adapter_input_bytes, cut, flows=False)


def layer_bytes(
    model: Model,
    layout: Layout,
    sequence: int,
    width: int = 2,
    recompute: str | None = None,
    mixture: bool | None = None,
    recipe: Recipe | None = None,
) -> int:
    """Bytes that one layer keeps of one micro-batch on one device.

    ``recipe``: whose framework keeps some otherwise. Source: Korthikanti et al. 2022,
    arXiv:2205.05198, Table 2.

    >>> gpt3 = Model(hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200, dropout=True)
    >>> layer_bytes(gpt3, Layout(tp=8), 2048) / (2048 * 12288)  # 10 + 24/t + 5as/(ht)
    23.0
    >>> layer_bytes(gpt3, Layout(tp=8, flash_attention=True), 2048) / (2048 * 12288)
    13.00390625
    """
    recompute = layout.recompute if recompute is None else recompute
    mixture = bool(model.experts) if mixture is None else mixture
    whole = Saved("layer input", model.hidden, width, False)
    flash, gated = layout.flash_attention, model.mlp == "swiglu"
    kept = saved_tensors(model, sequence, layout.tp, width, flash, mixture, recipe)
    if recompute == "full":
        kept = (whole,)
    elif recompute == "selective":
        kept = tuple(t for t in kept if not t.core)
    elif recompute == SELECTIVE_OP:  # outputs of attention and of every second matrix product
        first = "gate" if gated else "activation input"
        names = {"query", "value", "attention output input", "softmax row statistic"}
        names |= {f"mlp {first}"} | (
            {f"shared mlp {first}", "expert outputs"} if mixture else set()
        )
        ends = [whole._replace(name="mlp output")] * (gated and not mixture)
        kept = (*(t for t in kept if t.name in names), whole, *ends)
    return sum(_sizes(layout, sequence, kept))


def _sizes(layout: Layout, sequence: int, tensors: Iterable[Saved]) -> list[int]:
    """Bytes of each tensor of a micro-batch on one device."""
    tokens, cut = tokens_of(layout, sequence)
    return [t.itemsize * t.elements * (tokens if t.sliced else cut) for t in tensors]


class LayerBytes(NamedTuple):
    """Bytes of one layer and one micro-batch on one device: kept from the forward to the backward
    pass, before any recomputation drops some, and at once in a forward pass alone, at most.

    ``gradients``: at once in the backward pass, which goes from tensor to tensor and drops what it
    has used: of the residual stream, and beside it at most of an operation's output and input. The
    fused softmax of training programs writes its input's gradient over its output's, so of the
    s x s tensors it is one.
    """

    kept: Any
    whole: Any
    gradients: Any
    served: Any


def layer_costs(
    model: Model, layout: Layout, sequence: int, recipe: Recipe
) -> tuple[LayerBytes, ...]:
    """Of a dense layer and, in a model with experts, of a mixture."""
    width, found = recipe.compute_bytes, []
    run, flash = (model, layout, sequence, width), layout.flash_attention
    for mixture in (False, True) if model.experts else (False,):
        every = saved_tensors(model, sequence, layout.tp, width, flash, mixture)
        flows = sorted(_sizes(layout, sequence, (t for t in every if t.flows)))
        stream = width * model.hidden * tokens_of(layout, sequence)[1]
        kept, whole = (
            layer_bytes(*run, recompute, mixture, recipe)
            for recompute in (layout.recompute, "none")
        )
        found.append(LayerBytes(kept, whole, stream + sum(flows[-2:]), sum(flows)))
    return tuple(found)


def tokens_of(layout: Layout, sequence: int) -> tuple[int, int]:
    """Tokens of a micro-batch on one device, context parallelism cuts every sequence; and of them
    those outside the tensor-parallel products, where sequence parallelism cuts it once more."""
    each = -(-sequence // layout.cp)
    shards = layout.tp if layout.sequence_parallel else 1
    return layout.microbatch * each, layout.microbatch * -(-each // shards)
