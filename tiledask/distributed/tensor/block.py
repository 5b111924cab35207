"""A decoder block over ranks: norm, attention, +, norm, feed-forward, +.

    x --norm_1-- attention --(+ x)-- x2 --norm_2-- mlp --(+ x2)-- y

With x on every rank, the sums of its layers are 4 if matrices are fused, 7 if not. With sharded
tokens, what is between the layers, norms included, is sharded as well.
"""

from dataclasses import dataclass
from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.attention import attend, with_angles
from tiledask.distributed.tensor.layer_programs import (
    KeptLayer,
    LayerRule,
    Weights,
    backward,
    forward,
    inside,
)
from tiledask.distributed.tensor.linear import check_dy
from tiledask.distributed.tensor.mlp import feed_forward
from tiledask.distributed.tensor.norms import normed
from tiledask.distributed.tensor.placed import Placed
from tiledask.tile import layers as tile

__all__ = ["DecoderBlock", "decoder_block", "decoder_block_grad"]


@dataclass(frozen=True)
class DecoderBlock:
    """What a decoder block is, besides its weights: LayerNorm and GELU, or RMSNorm and SwiGLU."""

    heads: tile.Heads
    gated: bool = True
    """RMSNorm and SwiGLU."""
    causal: bool = True
    regather: bool = False
    """With sharded tokens, keep only this rank's, and gather them again in the backward."""

    @property
    def norm_kinds(self) -> str:
        """Of the norms' weights: w, and b of a LayerNorm."""
        return "w" if self.gated else "wb"


def decoder_block(
    group: Group,
    x: Placed,
    weights: Weights,
    block: DecoderBlock,
    angles: tile.Angles | None = None,
) -> tuple[Placed, KeptLayer]:
    """(y [b, s, h], kept); y is placed as x is. Weights sharded as `shards.block_layout` says."""
    return forward(_block, group, with_angles(x, angles), _used(weights, block), block)


def decoder_block_grad(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights, block: DecoderBlock
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    check_dy("w_down" if block.gated else "w_2", dy, kept)
    dx, grads = backward(group, dy.local, kept, _used(weights, block))
    assert dx is not None
    return dx, grads


def _used(weights: Weights, block: DecoderBlock) -> Weights:
    """Those that such a block has."""
    rooms = "attention.", "mlp.", *(f"norm_{n}.{kind}" for n in "12" for kind in block.norm_kinds)
    return {name: w for name, w in weights.items() if name.startswith(rooms)}


def _block(
    group: Group, given: tuple[Placed, ...], weights: Weights, block: DecoderBlock
) -> LayerRule:
    x, kernel = given[0], "swiglu" if block.gated else "gelu"
    normed("norm_1", x, inside("norm_1", weights))
    attend(group, x, inside("attention", weights), block.heads)
    normed("norm_2", x, inside("norm_2", weights))
    y = feed_forward(group, x, inside("mlp", weights), kernel)
    told: dict[str, Any] = {"unit": "", "gated": block.gated, "causal": block.causal}
    told |= {"angles": None} if len(given) == 1 else {}
    heads = block.heads.query, block.heads.kv, block.heads.width
    return LayerRule("block", y, told, x, heads, block.regather)
