"""Layers whose weights are sharded over the ranks of a group, forward and backward.

block.py            a decoder block of them
  attention.py        by heads; kv heads that several ranks share
  mlp.py              feed-forward, plain and gated
  norms.py            LayerNorm, RMSNorm of tokens that may be sharded
  by_name.py          the linear layers inside of a layer
  linear.py           column-parallel, row-parallel
  embedding.py        a table sharded by rows
  cross_entropy.py    the loss of logits that never meet
summa.py            linear on a grid of ranks: x, w and y each in blocks; 2-D and 2.5-D
elementwise.py      bends, sums, biases: what is wrong on a Partial
conjugates.py       f and g, and their forms for tokens that are sharded
shards.py           who holds what of all weights; checkpoints under another layout
compared.py         what layers were planned to call beside what was counted
placed.py           a block that says what it is a part of

One convention, that of tiledask/tile/layers, with the group before all:

    y, kept        = f(group, x, weights..., options)
    dx, dweights.. = f_grad(group, dy, kept, weights...)

Everything that goes in and comes out is a `Placed`: it knows whether it is replicated, a shard or
an addend of a sum, and what would be silently wrong raises PlacementError. x may be on every rank,
or sharded along its tokens (sequence parallel): y then lies as x does.
"""

from tiledask.dist.tensor.attention import self_attention, self_attention_grad
from tiledask.dist.tensor.block import Block, decoder_block, decoder_block_grad
from tiledask.dist.tensor.compared import compared
from tiledask.dist.tensor.conjugates import f, f_grad, g, g_grad, gathered, scattered
from tiledask.dist.tensor.cross_entropy import cross_entropy, cross_entropy_grad
from tiledask.dist.tensor.elementwise import (
    add,
    add_bias,
    bend,
    bend_grad,
    softmax,
    softmax_grad,
    swiglu,
    swiglu_grad,
)
from tiledask.dist.tensor.embedding import embedding, embedding_grad
from tiledask.dist.tensor.linear import (
    column_linear,
    column_linear_grad,
    row_linear,
    row_linear_grad,
)
from tiledask.dist.tensor.mlp import mlp, mlp_grad, swiglu_mlp, swiglu_mlp_grad
from tiledask.dist.tensor.norms import layer_norm, layer_norm_grad, rms_norm, rms_norm_grad
from tiledask.dist.tensor.placed import Placed, check_window, partial, replicate, shard, sharded
from tiledask.dist.tensor.shards import (
    attention_layout,
    block_layout,
    deal,
    draw_sharded,
    embedding_layout,
    mlp_layout,
    put_together,
    swiglu_layout,
    whole_of,
)
from tiledask.dist.tensor.summa import GridBlock, RankGrid, summa_linear, summa_linear_grad

__all__ = [
    "Block",
    "GridBlock",
    "Placed",
    "RankGrid",
    "add",
    "add_bias",
    "attention_layout",
    "bend",
    "bend_grad",
    "block_layout",
    "check_window",
    "column_linear",
    "column_linear_grad",
    "compared",
    "cross_entropy",
    "cross_entropy_grad",
    "deal",
    "decoder_block",
    "decoder_block_grad",
    "draw_sharded",
    "embedding",
    "embedding_grad",
    "embedding_layout",
    "f",
    "f_grad",
    "g",
    "g_grad",
    "gathered",
    "layer_norm",
    "layer_norm_grad",
    "mlp",
    "mlp_grad",
    "mlp_layout",
    "partial",
    "put_together",
    "replicate",
    "rms_norm",
    "rms_norm_grad",
    "row_linear",
    "row_linear_grad",
    "scattered",
    "self_attention",
    "self_attention_grad",
    "shard",
    "sharded",
    "softmax",
    "softmax_grad",
    "summa_linear",
    "summa_linear_grad",
    "swiglu",
    "swiglu_grad",
    "swiglu_layout",
    "swiglu_mlp",
    "swiglu_mlp_grad",
    "whole_of",
]
