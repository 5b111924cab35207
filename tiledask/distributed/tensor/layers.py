"""Layers over ranks, forward and backward: each a rule of placements and a program's method.

column   x [.., in] --w[:, mine]--> y [.., mine]                   dx is a sum over ranks
row      x [.., mine] --w[mine, :]--> partial sum of y [.., out]   y is a sum over ranks

Every rank uses the same x, each for its own columns, so dx is the sum of what they find: the
backward of f, which is nothing forward, must add. The y that each rank contributes to a sum moves
the loss as much as the sum does, so dy goes back unchanged: the backward of g, the sum, must not
add. Where it does, every rank gets t dy, and its dW is exactly t times too large.

A feed-forward layer is a column and a row, with a sum each way; gate and up in one matrix have one
sum of dx, apart they have two. Attention is by heads: each rank has some of the query heads, and
the kv heads that these look at.

10 query heads on 4 ranks, 5 kv heads           rank    0        1        2       3
                                                query   0 1 2    3 4 5    6 7     8 9
                                                kv      0 1      1 2      3       4

A kv head on several ranks is computed on each of them; each finds the part of its gradient that
comes from its own query heads, and these parts are added among the ranks that have the head.

    x --norm_1-- attention --(+ x)-- x2 --norm_2-- mlp --(+ x2)-- y        a decoder block

With sharded tokens, what is between the layers, norms included, is sharded as well: no rank sees
all of them, so the gradient of a norm's weight is a partial sum on each, and is summed. Of the
embedding each rank adds the rows that it has. Of the loss, logits never meet; 3 numbers a token
are summed up:

    rank 0  z[:, 0..V/t]   largest    sum of exp, target's logit       dz[:, 0..V/t]
    rank 1  z[:, V/t..]      |          |                              dz[:, V/t..]
                         all_reduce   all_reduce                       nothing to wait for

(Shoeybi et al., arXiv:1909.08053, section 3; tile/layers/cross_entropy.py has the formulas.)
"""

from functools import lru_cache
from math import log
from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights, replicate
from tiledask.distributed.tensor.propagate import check_order, need, propagate, refuse
from tiledask.distributed.tensor.run_layer import KeptLayer, LayerRule, backward, forward
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import HeadCounts, block_layout
from tiledask.plan.products.placement import Partial, Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.layers.cross_entropy import check_count

__all__ = ["column_linear", "column_linear_grad", "cross_entropy"]
__all__ += ["cross_entropy_grad", "decoder_block", "decoder_block_grad", "embedding"]
__all__ += ["embedding_grad", "g", "mlp", "mlp_grad", "row_linear", "row_linear_grad"]
__all__ += ["self_attention", "self_attention_grad", "swiglu_mlp", "swiglu_mlp_grad"]

AS_Y = "it is placed as y is"
OF_A_SUM = (
    f"{AS_Y}. The gradient of a partial sum is that of the sum itself: an all_reduce of it would "
    "make dw t times too large"
)
"""Why dy must be placed as y is, where rows of a matrix made a sum."""
COLUMNS = (
    "w and b are sharded along their columns, shard(group, w, 1) and shard(group, b, 0), and take "
    "all of x: sum a Partial first, by g(group, x); where x is sharded along its columns use "
    "row_linear, or all_gather it"
)
ROWS = (
    "every rank has its own rows of w, shard(group, w, 0), which multiply its own columns of x: "
    "take shard(group, x, -1), or column_linear; b is on every rank, added once, after the sum"
)
TWICE = (
    "it is the same on every rank, so its sum is {0} times too large; leave the all_reduce out. "
    "If it is this rank's partial sum, say so: partial(x)"
)
ALONE = tile.Heads(1, 1, 1)
TOKENS = "sum a Partial first, by g(group, x); of shards, only those of tokens go in and come out"


def g(group: Group, y: Placed) -> Placed:
    """The sum over the ranks of the Partial ``y``, Replicate. Refuses what is no partial sum.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import partial
    >>> run_threads(lambda rank: g(rank.group(), partial(np.ones(1))).local.tolist(), 4).results
    [[4.0], [4.0], [4.0], [4.0]]
    """
    need("g (all_reduce)", "y", y, (Partial,), TWICE.format(group.size))
    return replicate(group.all_reduce(y.local) if group.size > 1 else y.local)


# -- linear layers ---------------------------------------------------------------------------------


def column_linear(
    group: Group, x: Placed, w: Placed, b: Placed | None = None
) -> tuple[Placed, KeptLayer]:
    """(y [..., out] sharded along its columns, kept) for w [in, out] and b [out], sharded so.

    x [..., in] is on every rank, or sharded along its tokens: then it is gathered. An x that is
    sharded along its columns is refused.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import replicate, shard
    >>> def program(rank):
    ...     group = rank.group()
    ...     w = shard(group, np.arange(6.0).reshape(2, 3), 1)
    ...     return column_linear(group, replicate(np.ones((1, 2))), w)[0].local.tolist()
    >>> run_threads(program, 2).results
    [[[3.0, 5.0]], [[7.0]]]
    """
    name = "column_linear"
    y = propagate(group, name, "*K Kn! n! -> *n!", COLUMNS, x=x, w=w, b=b)
    check_order(name, "x", x)
    rule = LayerRule(name, name, y, AS_Y, Placed(None, x.tiling))
    return forward(group, rule, (x,), {"w": w, "b": b}, unit="", names=("w",), labels=(name,))


def row_linear(
    group: Group, x: Placed, w: Placed, b: Placed | None = None
) -> tuple[Placed, KeptLayer]:
    """(y [..., out] on every rank, kept) for x [..., in] and w [in, out], both sharded along in,
    alike.

    b is on every rank, added once, after the sum. An x that every rank has in full is refused.
    """
    name = "row_linear"
    partial = propagate(group, name, "*k! k!N N -> *N", ROWS, x=x, w=w, b=b)
    check_order(name, "w", w)
    y = Placed.of(None, EVERYWHERE, partial.shape)
    rule = LayerRule(name, name, y, OF_A_SUM, y)
    return forward(group, rule, (x,), {"w": w, "b": b}, unit="", w="w", label=name)


def column_linear_grad(
    group: Group, dy: Placed, kept: KeptLayer, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, placed as x was, dw and db, placed as w and b are); so of `row_linear`."""
    dx, grads = backward(group, dy, kept, {"w": w, "b": b})
    return dx, grads["w"], grads["b"]


row_linear_grad = column_linear_grad


# -- feed-forward, attention, decoder block --------------------------------------------------------

LAYERS = {
    "mlp": ("feed_forward", "mlp.", "mlp_layout"),
    "swiglu_mlp": ("feed_forward", "mlp.", "mlp_layout"),
    "self_attention": ("self_attention", "attention.", "attention_layout"),
    "decoder_block": ("block", "", "block_layout"),
}
"""Name -> (the method that writes it, what that puts before the weights' names, their layout)."""


def mlp(
    group: Group, x: Placed, weights: Weights, activation: str = "gelu"
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h]; y is placed as x is. Weights as `mlp_layout` places them."""
    tile.find_activation(activation)
    return _of_layout(group, "mlp", x, weights, kernel=activation)


def swiglu_mlp(group: Group, x: Placed, weights: Weights) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h]; y is placed as x is. Weights as `mlp_layout` places them."""
    return _of_layout(group, "swiglu_mlp", x, weights, kernel="swiglu")


def self_attention(
    group: Group,
    x: Placed,
    weights: Weights,
    heads: tile.Heads,
) -> tuple[Placed, KeptLayer]:
    """(y [b, s, h], kept) for x [b, s, h]; y is placed as x is.

    ``heads`` are those of the whole layer; weights as `attention_layout` places them.
    """
    return _of_layout(group, "self_attention", x, weights, heads, angles=None)


def decoder_block(
    group: Group,
    x: Placed,
    weights: Weights,
    heads: tile.Heads,
    gated: bool = True,
    regather: bool = False,
) -> tuple[Placed, KeptLayer]:
    """(y [b, s, h], kept); y is placed as x is. Weights as `block_layout` places them.

    ``gated``: RMSNorm and SwiGLU, else LayerNorm and GELU. ``regather``: of sharded tokens keep
    only this rank's, and gather them again in the backward.
    """
    of = heads, regather
    return _of_layout(group, "decoder_block", x, weights, *of, gated=gated, angles=None)


mlp_grad = swiglu_mlp_grad = self_attention_grad = decoder_block_grad = backward
"""(dx, the gradient of each weight by its name); kv heads' are whole on each of their ranks."""


def _of_layout(
    group: Group,
    name: str,
    x: Placed,
    weights: Weights,
    heads: tile.Heads = ALONE,
    regather: bool = False,
    **options: Any,
) -> tuple[Placed, KeptLayer]:
    tile.shared_heads(heads.query, heads.kv)  # refuses heads that cannot be shared
    writer, prefix, _ = LAYERS[name]
    y = propagate(group, name, "*H -> *H", TOKENS, x=x)
    check_order(name, "x", x)
    gated = options.get("kernel") == "swiglu" or options.get("gated", False)
    _check_layout(group, name, weights, heads, gated)
    if "angles" in options and x.ndim != 3:
        raise PlacementError(f"attention takes x [batch, tokens, width], got {x}")
    rule = LayerRule(writer, name, y, OF_A_SUM, y, prefix, heads, regather)
    return forward(group, rule, (x,), weights, unit="", **options)


def _check_layout(
    group: Group, layer: str, weights: Weights, heads: HeadCounts, gated: bool
) -> None:
    """Refuse weights that are unknown, or placed in another way."""
    _, prefix, layout = LAYERS[layer]
    named = {f"{prefix}{name}": w for name, w in weights.items()}
    last, inner = "mlp.w_down" if gated else "mlp.w_2", 1
    if prefix != "attention.":
        if last not in named:
            refuse(layer, f"{last} is missing; {layout} names its weights")
        inner = named[last].shape[0]
    placements = _layout(heads, inner, group.size)
    for name, w in named.items():
        if w is None:
            continue
        need(layer, name, w, (Replicate, Shard, Partial), "")
        wanted = placements.get(name)
        if wanted is None:
            refuse(layer, f"{name} is none of its weights, which {layout} names; leave it out")
        split = (wanted.dim, wanted.shards) if isinstance(wanted, Shard) else (None, None)
        if (w.dim, w.shards) != split or isinstance(w.placement, Partial):
            refuse(
                layer,
                f"{name} must be {wanted} ({split[1] or 'whole'}), got {w} "
                f"({w.shards or 'whole'}): take {layout}",
            )


_layout = lru_cache(256)(block_layout)


# -- embedding and loss ----------------------------------------------------------------------------


def embedding(group: Group, tokens: Any, table: Placed) -> tuple[Placed, KeptLayer]:
    """(y [..., h] on every rank, kept) for tokens [...], which every rank has, and a table [V, h]
    in Shard(0). Raises KernelError for tokens outside of V."""
    why, ids = "each rank has its part of dimension 0", replicate(tokens)
    partial = propagate(group, "embedding", "* v!H -> *H", why, tokens=ids, table=table)
    check_order("embedding", "table", table)
    y = Placed.of(None, EVERYWHERE, partial.shape)
    rule = LayerRule("embedding", "embedding", y, tokens=y)
    return forward(group, rule, (ids,), {"table": table}, counts=table.split[1].counts)


def embedding_grad(group: Group, dy: Placed, kept: KeptLayer, table: Placed) -> Placed:
    """dtable, placed as the table is."""
    dtable: Placed = backward(group, dy, kept, {"table": table})[1]["table"]
    return dtable


def cross_entropy(
    group: Group, logits: Placed, targets: Any
) -> tuple[Any, tuple[KeptLayer, float]]:
    """(loss, kept): the same scalar on every rank; logits [..., V] in Shard(-1), targets [...].

    The mean over the targets that are not -100, as tile's `cross_entropy`. Replicated logits are
    refused: every rank would count every class.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import shard
    >>> def program(rank):
    ...     logits = shard(rank.group(), np.zeros((2, 5)), -1)
    ...     return round(float(cross_entropy(rank.group(), logits, np.array([4, -100]))[0]), 4)
    >>> run_threads(program, 2).results  # log 5
    [1.6094, 1.6094]
    """
    count = tile.count_targets(targets, logits.shape[-1])
    check_count(count)
    why = (
        f"each of {group.size} ranks would count every class, and the loss would be larger by "
        f"ln {group.size} = {log(group.size):.4f}; hand over what column_linear gives without "
        f"gathering it, or use tiledask.tile.layers.cross_entropy on all of it"
    )
    propagate(group, "cross_entropy", "*v! -> *", why, logits=logits)
    check_order("cross_entropy", "logits", logits)
    rule = LayerRule("loss", "cross_entropy", Placed.of(None, EVERYWHERE, ()))
    counts, given = logits.split[1].counts, (logits, replicate(targets))
    y, kept = forward(group, rule, given, {}, counts=counts, count=1.0)
    return y.local / count, (kept, count)


def cross_entropy_grad(group: Group, dloss: float, kept: tuple[KeptLayer, float]) -> Placed:
    """dlogits, placed as the logits are. Nothing is exchanged."""
    layer, count = kept
    dlogits: Placed = backward(group, Placed.of(dloss / count, EVERYWHERE, ()), layer, {})[0]
    return dlogits
