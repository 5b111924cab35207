"""A decoder block over ranks: norm, attention, +, norm, feed-forward, +.

    x --norm_1-- attention --(+ x)-- x2 --norm_2-- mlp --(+ x2)-- y

With x on every rank, the sums of its layers are 4 if matrices are fused, 7 if not. With sharded
tokens, what is between the layers, norms included, is sharded as well.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.attention import (
    KeptShardedSelfAttention,
    self_attention,
    self_attention_grad,
)
from tiledask.distributed.tensor.elementwise import add
from tiledask.distributed.tensor.mlp import mlp, mlp_grad, swiglu_mlp, swiglu_mlp_grad
from tiledask.distributed.tensor.named_linear import Weights
from tiledask.distributed.tensor.norms import (
    KeptShardedNorm,
    layer_norm,
    layer_norm_grad,
    rms_norm,
    rms_norm_grad,
)
from tiledask.distributed.tensor.placed import Placed
from tiledask.tile import layers as tile

__all__ = ["DecoderBlock", "KeptBlock", "decoder_block", "decoder_block_grad"]


@dataclass(frozen=True)
class DecoderBlock:
    """What a decoder block is, besides its weights: LayerNorm and GELU, or RMSNorm and SwiGLU."""

    heads: tile.Heads
    gated: bool = True
    """RMSNorm and SwiGLU."""
    causal: bool = True
    regather: bool = False
    """With sharded tokens, keep only this rank's, and gather them again in the backward."""


class KeptBlock(NamedTuple):
    """What the block keeps."""

    norm_1: KeptShardedNorm
    attention: KeptShardedSelfAttention
    norm_2: KeptShardedNorm
    mlp: Any


def decoder_block(
    group: Group,
    x: Placed,
    weights: Weights,
    block: DecoderBlock,
    angles: tile.Angles | None = None,
) -> tuple[Placed, KeptBlock]:
    """(y [b, s, h], kept); y is placed as x is. Weights sharded as `shards.block_layout` says."""
    attention, feed = _inside(weights, "attention"), _inside(weights, "mlp")
    a, norm_1 = _norm(group, x, weights, block, "norm_1")
    a, kept_attention = self_attention(
        group, a, attention, block.heads, angles, block.causal, regather=block.regather
    )
    x2 = add(x, a)
    m, norm_2 = _norm(group, x2, weights, block, "norm_2")
    layer = swiglu_mlp if block.gated else mlp
    m, kept_mlp = layer(group, m, feed, regather=block.regather)
    return add(x2, m), KeptBlock(norm_1, kept_attention, norm_2, kept_mlp)


def decoder_block_grad(
    group: Group, dy: Placed, kept: KeptBlock, weights: Weights, block: DecoderBlock
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    attention, feed = _inside(weights, "attention"), _inside(weights, "mlp")
    layer_grad = swiglu_mlp_grad if block.gated else mlp_grad
    grads: Weights = {}
    dm, of_mlp = layer_grad(group, dy, kept.mlp, feed)
    dx2 = add(dy, _norm_grad(group, dm, kept.norm_2, weights, block, "norm_2", grads))
    da, of_attention = self_attention_grad(group, dx2, kept.attention, attention)
    dx = add(dx2, _norm_grad(group, da, kept.norm_1, weights, block, "norm_1", grads))
    for name, found in (("attention", of_attention), ("mlp", of_mlp)):
        grads |= {f"{name}.{weight}": grad for weight, grad in found.items()}
    return dx, grads


def _norm(
    group: Group, x: Placed, weights: Weights, block: DecoderBlock, name: str
) -> tuple[Placed, KeptShardedNorm]:
    mine = _inside(weights, name)
    if block.gated:
        return rms_norm(group, x, mine["w"], name=name)
    return layer_norm(group, x, mine["w"], mine.get("b"), name=name)


def _norm_grad(
    group: Group,
    dy: Placed,
    kept: KeptShardedNorm,
    weights: Weights,
    block: DecoderBlock,
    name: str,
    grads: Weights,
) -> Placed:
    mine = _inside(weights, name)
    if block.gated:
        dx, dw = rms_norm_grad(group, dy, kept, mine["w"])
        grads[f"{name}.w"] = dw
        return dx
    dx, dw, db = layer_norm_grad(group, dy, kept, mine["w"], mine.get("b"))
    grads |= {f"{name}.w": dw} if db is None else {f"{name}.w": dw, f"{name}.b": db}
    return dx


def _inside(weights: Weights, name: str) -> Weights:
    """The weights whose name begins with ``name``, without it."""
    start = f"{name}."
    return {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
