"""Which heads, columns and numbers every rank of a group holds; layouts of layers, by name.

query heads over 4 ranks   0 1 2   3 4 5   6 7   8 9
kv heads that they use     0       0 1     1     1          kv head 1 is on ranks 1, 2 and 3

            by columns                by rows           on every rank
attention   wq wk wv wqkv, b          wo                bo
mlp         w_1 w_gate w_up, b        w_2 w_down        b_2, norms
embedding   w_head                    table
"""

from collections.abc import Sequence
from itertools import pairwise

from tiledask.errors import PlacementError
from tiledask.plan.intervals import Interval, ends_of, even
from tiledask.plan.products.placement import Replicate, Shard, Shards, even_shards

__all__ = [
    *("HeadCounts", "Shardings", "attention_layout", "block_layout", "deal_heads"),
    *("embedding_layout", "mlp_layout", "shards", "side_by_side"),
]


def side_by_side(*shards: Shards) -> Shards:
    """Parts of dimensions that lie behind each other, as gate | up of a fused matrix: each rank has
    its part of each."""
    parts: list[list[Interval]] = [[] for _ in shards[0].parts]
    for offset, each in zip(ends_of(one.extent for one in shards), shards, strict=False):
        for mine, part in zip(parts, each.parts, strict=True):
            for start, stop in part:
                touches = mine and mine[-1][1] == offset + start
                mine.append((mine.pop()[0] if touches else offset + start, offset + stop))
    return Shards(sum(each.extent for each in shards), tuple(map(tuple, parts)))


def deal_heads(query: int, kv: int, ranks: int) -> tuple[Shards, Shards]:
    """(query heads, kv heads) of every rank, counted in heads.

    Query heads are shared out evenly; a rank has every kv head that its query heads look at, so
    with more ranks than kv heads these are on several ranks. A rank without a query head has none.

    >>> [each.parts for each in deal_heads(4, 2, 4)]
    [(((0, 1),), ((1, 2),), ((2, 3),), ((3, 4),)), (((0, 1),), ((0, 1),), ((1, 2),), ((1, 2),))]
    """
    if kv < 1 or query < 1 or query % kv:
        raise PlacementError(
            f"kv heads divide query heads; got {query} query and {kv} kv heads: use a divisor of "
            f"{query}"
        )
    heads, share = even_shards(query, ranks), query // kv
    looks = (tuple((a // share, (b - 1) // share + 1) for a, b in part) for part in heads.parts)
    return heads, Shards(kv, tuple(looks))


def shards(sizes: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """By layer, how many of its numbers each rank keeps.

    A layer is divided as evenly as it can be, and those who get one more take turns, so that
    all layers together are divided as evenly as one array: no rank has more than ceil(P / n).

    >>> shards([5, 5, 5], 4)
    ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1))
    """
    until = [even(total, ranks) for total in ends_of(sizes)]
    return tuple(tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(until))


HeadCounts = tuple[int, int, int]
"""Of an attention layer, on all ranks together: query heads, kv heads, columns of each."""
Shardings = dict[str, Replicate | Shard]
"""Placements by the weight's name. Names that weights do not have, such as biases, may be there."""


def _layout(columns: dict[str, Shards], rows: dict[str, Shards]) -> Shardings:
    """Of the matrices of a layer, and their biases: by columns or by rows."""
    found: Shardings = {f"w{name}": Shard(1, shards) for name, shards in columns.items()}
    found |= {f"b{name}": Shard(0, shards) for name, shards in columns.items()}
    found |= {f"w{name}": Shard(0, shards) for name, shards in rows.items()}
    return found | {f"b{name}": Replicate() for name in rows}


def mlp_layout(inner: int, ranks: int) -> Shardings:
    """The layout of `mlp` and `swiglu_mlp`, gate and up apart or fused, ``inner`` columns wide."""
    shards = even_shards(inner, ranks)
    into = {"_1": shards, "_gate": shards, "_up": shards, "_gate_up": side_by_side(shards, shards)}
    return _layout(into, {"_2": shards, "_down": shards})


def attention_layout(heads: HeadCounts, ranks: int) -> Shardings:
    """The layout of `self_attention`, fused or not; kv heads on every rank that looks at them."""
    query, kv_heads, width = heads
    q, kv = (each.scaled(width) for each in deal_heads(query, kv_heads, ranks))
    return _layout({"q": q, "k": kv, "v": kv, "qkv": side_by_side(q, kv, kv)}, {"o": q})


def embedding_layout(vocabulary: int, ranks: int) -> Shardings:
    """The layout of a table [V, h], by rows, and of ``w_head`` [h, V] to logits, by columns."""
    shards = even_shards(vocabulary, ranks)
    return {"table": Shard(0, shards)} | _layout({"_head": shards}, {})


def block_layout(heads: HeadCounts, inner: int, ranks: int) -> Shardings:
    """The layout of a decoder block, in one dict; the weights of its norms are on every rank."""
    found: Shardings = {f"{n}.{kind}": Replicate() for n in ("norm_1", "norm_2") for kind in "wb"}
    layers = {"attention": attention_layout(heads, ranks), "mlp": mlp_layout(inner, ranks)}
    for name, layer in layers.items():
        found |= {f"{name}.{weight}": placement for weight, placement in layer.items()}
    return found
