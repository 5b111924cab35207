"""How the weights of layers are placed on the ranks of a tensor-parallel group, by name.

            by columns                by rows           on every rank
attention   wq wk wv wqkv, b          wo                bo
mlp         w_1 w_gate w_up, b        w_2 w_down        b_2, norms
embedding   w_head                    table

``heads`` of a layer: what has the numbers of its query and kv heads, and the width of each.
"""

from typing import Any, NamedTuple

from tiledask.plan.collectives.shards import deal_heads, side_by_side
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.plan.products.shards import Shards, even_shards

__all__ = [
    *("HeadCounts", "Shardings", "attention_layout", "block_layout", "embedding_layout"),
    *("mlp_layout", "swiglu_layout"),
]


class HeadCounts(NamedTuple):
    """The heads of an attention layer, on all ranks together."""

    query: int
    kv: int
    width: int
    """Columns of each."""


Shardings = dict[str, Replicate | Shard]
"""Placements by the weight's name. Names that weights do not have, such as biases, may be there."""


def mlp_layout(inner: int, ranks: int) -> Shardings:
    """The layout of `mlp` with ``inner`` columns between its matrices."""
    shards = even_shards(inner, ranks)
    return _by_columns("_1", shards) | _by_rows("_2", shards)


def swiglu_layout(inner: int, ranks: int) -> Shardings:
    """The layout of `swiglu_mlp`, gate and up apart or fused."""
    shards = even_shards(inner, ranks)
    both = side_by_side(shards, shards)
    into = _by_columns("_gate", shards) | _by_columns("_up", shards)
    return into | _by_columns("_gate_up", both) | _by_rows("_down", shards)


def attention_layout(heads: Any, ranks: int) -> Shardings:
    """The layout of `self_attention`, fused or not; kv heads on every rank that looks at them."""
    q, kv = (each.scaled(heads.width) for each in deal_heads(heads.query, heads.kv, ranks))
    into = _by_columns("q", q) | _by_columns("k", kv) | _by_columns("v", kv)
    return into | _by_columns("qkv", side_by_side(q, kv, kv)) | _by_rows("o", q)


def embedding_layout(vocabulary: int, ranks: int) -> Shardings:
    """The layout of a table [V, h], by rows, and of ``w_head`` [h, V] to logits, by columns."""
    shards = even_shards(vocabulary, ranks)
    return {"table": Shard(0, shards)} | _by_columns("_head", shards)


def block_layout(heads: Any, inner: int, ranks: int) -> Shardings:
    """The layout of a decoder block, in one dict; the weights of its norms are on every rank."""
    norms: Shardings = {f"{n}.{kind}": Replicate() for n in ("norm_1", "norm_2") for kind in "wb"}
    feed = mlp_layout(inner, ranks) | swiglu_layout(inner, ranks)
    layers = {"attention": attention_layout(heads, ranks), "mlp": feed}
    return norms | {f"{name}.{w}": at for name, layer in layers.items() for w, at in layer.items()}


def _by_columns(name: str, shards: Shards) -> Shardings:
    return {f"w{name}": Shard(1, shards), f"b{name}": Shard(0, shards)}


def _by_rows(name: str, shards: Shards) -> Shardings:
    return {f"w{name}": Shard(0, shards), f"b{name}": Replicate()}
