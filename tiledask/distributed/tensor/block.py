"""A decoder block over ranks, and its layers: norm, attention, +, norm, feed-forward, +.

    x --norm_1-- attention --(+ x)-- x2 --norm_2-- mlp --(+ x2)-- y

With x on every rank, the sums of its layers are 4 if matrices are fused, 7 if not. With sharded
tokens, what is between the layers, norms included, is sharded as well: no rank sees all of them,
so the gradient of a norm's weight is a partial sum on each, and is summed.

Attention is by heads: each rank has some of the query heads, and the kv heads that these look at.

10 query heads on 4 ranks, 5 kv heads           rank    0        1        2       3
                                                query   0 1 2    3 4 5    6 7     8 9
                                                kv      0 1      1 2      3       4

A kv head on several ranks is computed on each of them; each finds the part of its gradient that
comes from its own query heads, and these parts are added among the ranks that have the head.

The feed-forward layer is by columns, then by rows, with a sum each way:

    x --w_1[:, mine]-- gelu --w_2[mine, :]-- sum y
    x --w_gate[:, mine]-- silu --(times)-- w_down[mine, :]-- sum y
      '--w_up[:, mine]----------'

Gate and up in one matrix, w_gate_up, have one sum of dx in the backward; apart they have two.
"""

from dataclasses import dataclass
from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.linear import OF_A_SUM, by_columns, by_rows
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights
from tiledask.distributed.tensor.propagate import propagate, refuse, same_placement
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.shards import deal_heads, side_by_side
from tiledask.plan.products.placement import Shard
from tiledask.plan.products.shards import Shards
from tiledask.tile import layers as tile
from tiledask.tile.layers.linear import check_weights

__all__ = [
    "DecoderBlock",
    "decoder_block",
    "decoder_block_grad",
    "layer_norm",
    "mlp",
    "mlp_grad",
    "rms_norm",
    "self_attention",
    "self_attention_grad",
    "swiglu_mlp",
    "swiglu_mlp_grad",
]


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
    return forward(_block, group, _with_angles(x, angles), _used(weights, block), block)


def decoder_block_grad(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights, block: DecoderBlock
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    return backward(group, dy, kept, _used(weights, block))


def _used(weights: Weights, block: DecoderBlock) -> Weights:
    """All, if such a block has them. Raises ConfigError for one that would do nothing in it."""
    rooms = "attention.", "mlp.", *(f"norm_{n}.{kind}" for n in "12" for kind in block.norm_kinds)
    if unknown := sorted(name for name in weights if not name.startswith(rooms)):
        raise ConfigError(
            f"a decoder block has weights {', '.join(rooms)}..., and none called "
            f"{', '.join(unknown)}; leave {'it' if len(unknown) == 1 else 'them'} out"
        )
    return dict(weights)


def _block(
    group: Group, given: tuple[Placed, ...], weights: Weights, block: DecoderBlock
) -> LayerRule:
    x, kernel = given[0], "swiglu" if block.gated else "gelu"
    _normed(group, "norm_1", x, _inside("norm_1", weights))
    _attend(group, x, _inside("attention", weights), block.heads)
    _normed(group, "norm_2", x, _inside("norm_2", weights))
    y = _feed(group, x, _inside("mlp", weights), kernel)
    told: dict[str, Any] = {"unit": "", "gated": block.gated, "causal": block.causal}
    told |= {"angles": None} if len(given) == 1 else {}
    heads = block.heads.query, block.heads.kv, block.heads.width
    name = "w_down" if block.gated else "w_2"
    return LayerRule("block", y, told, name, OF_A_SUM, x, "", heads, block.regather)


def _inside(room: str, weights: Weights) -> Weights:
    """The weights of a layer of the block, as it calls them."""
    start = f"{room}."
    return {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}


# -- attention -------------------------------------------------------------------------------------


def self_attention(
    group: Group,
    x: Placed,
    weights: Weights,
    heads: tile.Heads,
    angles: tile.Angles | None = None,
    causal: bool = True,
    scale: float | None = None,
    *,
    regather: bool = False,
) -> tuple[Placed, KeptLayer]:
    """(y [b, s, h], kept) for x [b, s, h]; y is placed as x is.

    ``heads`` are those of the whole layer; weights sharded as `shards.attention_layout` says.
    ``angles`` are of all tokens: every rank has all of them when it attends.
    """
    given = _with_angles(x, angles)
    return forward(_attention, group, given, weights, heads, causal, scale, regather)


self_attention_grad = backward
"""(dx, the gradient of each weight by its name); kv heads' are whole on each of their ranks."""


def _with_angles(x: Placed, angles: tile.Angles | None) -> tuple[Placed, ...]:
    """What a layer is given that turns its heads by ``angles``."""
    return (x,) if angles is None else (x, Placed.of(angles, EVERYWHERE, ()))


def _attention(
    group: Group,
    given: tuple[Placed, ...],
    weights: Weights,
    heads: tile.Heads,
    causal: bool,
    scale: float | None,
    regather: bool,
) -> LayerRule:
    y = _attend(group, given[0], weights, heads)
    told: dict[str, Any] = {"unit": "", "causal": causal, "scale": scale}
    told |= {"angles": None} if len(given) == 1 else {}
    counts = heads.query, heads.kv, heads.width
    name, room = "wo", "attention."
    return LayerRule("self_attention", y, told, name, OF_A_SUM, given[0], room, counts, regather)


def _attend(group: Group, x: Placed, weights: Weights, heads: tile.Heads) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    if len(x.shape) != 3:
        raise PlacementError(f"attention takes x [batch, tokens, width], got {x}")
    query, kv = _by_heads(heads, group.size)
    names = ["qkv"] if "wqkv" in weights else ["q", "k", "v"]
    check_weights(weights, [*names, "o"])
    wanted = {"wq": query, "wk": kv, "wv": kv, "wqkv": side_by_side(query, kv, kv), "wo": query}
    for name, shards in wanted.items():
        if name in weights and weights[name].shards != shards:
            refuse(
                "self_attention",
                f"{name} must be sharded by heads, {shards}; got "
                f"{weights[name].shards or weights[name]}: take attention_layout",
            )
    for name in names:
        by_columns(group, f"w{name}", x, weights[f"w{name}"], weights.get(f"b{name}"))
    c = Placed.of(None, Shard(2), (*x.shape[:2], query.extent), query)
    return by_rows(group, "wo", c, weights["wo"], weights.get("bo"), x.placement, x.shards)


def _by_heads(heads: tile.Heads, ranks: int) -> tuple[Shards, Shards]:
    """(columns of query heads, columns of kv heads) of every rank."""
    if tuple(heads.kv_of) != tile.shared_heads(heads.query, heads.kv):
        raise PlacementError(
            f"over ranks, equally many neighbouring query heads share a kv head; got kv_of="
            f"{heads.kv_of} of {heads.query} query and {heads.kv} kv heads: leave kv_of out"
        )
    query, kv = deal_heads(heads.query, heads.kv, ranks)
    return query.scaled(heads.width), kv.scaled(heads.width)


# -- the feed-forward layer ------------------------------------------------------------------------


def mlp(
    group: Group, x: Placed, weights: Weights, activation: str = "gelu", *, regather: bool = False
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h]; y is placed as x is. Weights as `shards.mlp_layout` places them."""
    return forward(_mlp, group, (x,), weights, activation, regather)


def swiglu_mlp(
    group: Group, x: Placed, weights: Weights, *, regather: bool = False
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h], placed as x is. Weights as `shards.swiglu_layout` places them."""
    return forward(_mlp, group, (x,), weights, "swiglu", regather)


mlp_grad = swiglu_mlp_grad = backward
"""(dx, the gradient of each weight by its name)."""


def _mlp(
    group: Group, given: tuple[Placed], weights: Weights, kernel: str, regather: bool
) -> LayerRule:
    (x,) = given
    if kernel != "swiglu":
        tile.find_activation(kernel)
    y = _feed(group, x, weights, kernel)
    told: dict[str, Any] = {"unit": "", "kernel": kernel}
    name = "w_down" if kernel == "swiglu" else "w_2"
    return LayerRule("feed_forward", y, told, name, OF_A_SUM, x, "mlp.", regather=regather)


def _feed(group: Group, x: Placed, weights: Weights, kernel: str) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    gated, fused = kernel == "swiglu", "w_gate_up" in weights
    into = ["_1"] if not gated else ["_gate_up"] if fused else ["_gate", "_up"]
    last = "_down" if gated else "_2"
    check_weights(weights, [*into, last])
    made = [by_columns(group, f"w{n}", x, weights[f"w{n}"], weights.get(f"b{n}")) for n in into]
    z = _half(made[0], weights) if gated and fused else made[0]
    if len(made) == 2:
        same_placement("swiglu", "gate", made[0], "up", made[1])
    w, b = weights[f"w{last}"], weights.get(f"b{last}")
    return by_rows(group, f"w{last}", z, w, b, x.placement, x.shards)


def _half(both: Placed, weights: Weights) -> Placed:
    """The placement of the gate, and of what it is multiplied with."""
    _, inner = weights["w_down"].split
    if both.shards != side_by_side(inner, inner):
        refuse(
            "swiglu_mlp",
            f"w_gate_up must be sharded as gate and up each are, {side_by_side(inner, inner)}, "
            f"so that every rank has what it multiplies; got {both.shards}: take swiglu_layout",
        )
    return Placed.of(None, both.placement, (*both.shape[:-1], inner.extent), inner)


# -- norms -----------------------------------------------------------------------------------------


def layer_norm(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    eps: float = 1e-5,
    name: str = "layer_norm",
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h], on every rank or sharded along its tokens; w and b on every rank.

    ``name`` labels the collective of the backward.
    """
    return forward(_norm, group, (x,), {"w": w, "b": b}, False, eps, name)


def rms_norm(
    group: Group, x: Placed, w: Placed, eps: float = 1e-6, name: str = "rms_norm"
) -> tuple[Placed, KeptLayer]:
    """(y, kept), as `layer_norm`, without a mean and a bias."""
    return forward(_norm, group, (x,), {"w": w}, True, eps, name)


def _norm(
    group: Group, given: tuple[Placed], weights: Weights, gated: bool, eps: float, name: str
) -> LayerRule:
    (x,) = given
    y = _normed(group, name, x, weights)
    told: dict[str, Any] = {"unit": "", "name": "norm", "label": name, "gated": gated, "eps": eps}
    return LayerRule("norm", y, told, name, "", x, "norm.")


def _normed(group: Group, name: str, x: Placed, weights: Weights) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    why = (
        "the norm of a sum is not the sum of norms, nor is that of a token's columns that of its "
        "own part; sum first, by g(group, x), or gather it, or shard its tokens"
    )
    propagate(group, name, "*H H H", why, x=x, w=weights["w"], b=weights.get("b"))
    return x.spec
