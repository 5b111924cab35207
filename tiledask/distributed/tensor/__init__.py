"""Layers whose weights are sharded over the ranks of a group, forward and backward.

block.py            a decoder block and its layers: norms; attention by heads; feed-forward
vocabulary.py       an embedding sharded by rows; the loss of logits that never meet
linear.py           the linear layers inside of a layer: column-parallel, row-parallel
elementwise.py      activations, sums, biases
propagate.py        who may be placed how, by one rule of letters
f_g.py              f and g, and their forms for tokens that are sharded
layer_programs.py   each is a program of one layer, run on the group
shards.py           who holds what of all weights; checkpoints under another layout
placed.py           a block that says what it is a part of: an array, and a Tiling of plan/products

One convention, that of tiledask/tile/layers, with the group before all:

    y, kept        = f(group, x, weights..., options)
    dx, dweights.. = f_grad(group, dy, kept, weights...)

Everything that goes in and comes out is a `Placed`: it knows whether it is
replicated, a shard or a partial sum, and what would be silently wrong raises PlacementError. x may
be on every rank, or sharded along its tokens (sequence parallel): y is then placed as x is.
"""

from tiledask.distributed.tensor.block import (
    DecoderBlock,
    decoder_block,
    decoder_block_grad,
    layer_norm,
    mlp,
    mlp_grad,
    rms_norm,
    self_attention,
    self_attention_grad,
    swiglu_mlp,
    swiglu_mlp_grad,
)
from tiledask.distributed.tensor.elementwise import (
    activate,
    add,
    add_bias,
)
from tiledask.distributed.tensor.f_g import f, g, gathered
from tiledask.distributed.tensor.linear import (
    column_linear,
    column_linear_grad,
    row_linear,
    row_linear_grad,
)
from tiledask.distributed.tensor.placed import (
    Placed,
    partial,
    replicate,
    shard,
)
from tiledask.distributed.tensor.shards import (
    attention_layout,
    block_layout,
    draw_sharded,
    embedding_layout,
    mlp_layout,
    put_together,
    shard_weights,
    swiglu_layout,
    whole_of,
)
from tiledask.distributed.tensor.vocabulary import (
    cross_entropy,
    cross_entropy_grad,
    embedding,
    embedding_grad,
)

__all__ = [
    "DecoderBlock",
    "Placed",
    "activate",
    "add",
    "add_bias",
    "attention_layout",
    "block_layout",
    "column_linear",
    "column_linear_grad",
    "cross_entropy",
    "cross_entropy_grad",
    "decoder_block",
    "decoder_block_grad",
    "draw_sharded",
    "embedding",
    "embedding_grad",
    "embedding_layout",
    "f",
    "g",
    "gathered",
    "layer_norm",
    "mlp",
    "mlp_grad",
    "mlp_layout",
    "partial",
    "put_together",
    "replicate",
    "rms_norm",
    "row_linear",
    "row_linear_grad",
    "self_attention",
    "self_attention_grad",
    "shard",
    "shard_weights",
    "swiglu_layout",
    "swiglu_mlp",
    "swiglu_mlp_grad",
    "whole_of",
]
