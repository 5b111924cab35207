"""The attention layer: projections to heads, rotary positions, attention, projection back.

    x [b, s, h] --wq--> q --rotate--.
                --wk--> k --rotate--attention-- c [b, s, heads e] --wo--> y [b, s, h]
                --wv--> v ----------'

Weights go by name: wq, wk, wv, or the three side by side as wqkv [h, q | k | v]; and wo. Biases
bq, bk, bv or bqkv, and bo, where they are there. A device that holds some heads passes their
columns of wq, wk, wv and their rows of wo, and what comes out is its term of the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.attention import (
    attend,
    attend_grad,
    by_head,
    merged,
    shared_heads,
)
from tiledask.tile.layers.by_name import Saved
from tiledask.tile.layers.linear import Arrays, apply, apply_grad, check_weights, fuse
from tiledask.tile.layers.operands import check_shape, rounded, wide
from tiledask.tile.layers.parameters import Parameter, matrix
from tiledask.tile.layers.rotary import Angles, rotate, rotate_grad

__all__ = [
    "Heads",
    "fuse_qkv",
    "self_attention",
    "self_attention_grad",
    "self_attention_parameters",
]


@dataclass(frozen=True)
class Heads:
    """How many heads the weights at hand have; the kv head of each query head.

    >>> Heads(query=4, kv=2, width=8).kv_of
    (0, 0, 1, 1)
    """

    query: int
    kv: int
    width: int
    """Columns of a head."""
    kv_of: Sequence[int] = ()
    """The kv head of each query head; left out, equally many neighbours share a kv head."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise KernelError(f"a head has 1 column or more, got width={self.width}")
        kv_of = self.kv_of or shared_heads(self.query, self.kv)
        object.__setattr__(self, "kv_of", tuple(kv_of))

    @property
    def columns(self) -> dict[str, int]:
        """Columns of wq, wk and wv."""
        kv = self.kv * self.width
        return {"q": self.query * self.width, "k": kv, "v": kv}


def self_attention_parameters(
    hidden: int, heads: Heads, fused: bool = False, bias: bool = False
) -> dict[str, Parameter]:
    """The weights by name, with deviations of 1/sqrt(rows).

    >>> {n: p.shape for n, p in self_attention_parameters(16, Heads(4, 2, 4), fused=True).items()}
    {'wqkv': (16, 32), 'wo': (16, 16)}
    """
    columns = heads.columns
    into = {"qkv": sum(columns.values())} if fused else columns
    made: dict[str, Parameter] = {}
    for name, count in into.items():
        made |= matrix(name, hidden, count, bias)
    return made | matrix("o", columns["q"], hidden, bias)


def self_attention(
    x: Array,
    weights: Arrays,
    heads: Heads,
    angles: Angles | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """(y [b, s, h], saved) for x [b, s, h]; with ``angles``, q and k are turned by them.

    >>> import numpy as np
    >>> heads = Heads(query=1, kv=1, width=2)
    >>> eye = {name: np.eye(2) for name in ("wq", "wk", "wv", "wo")}
    >>> self_attention(np.ones((1, 3, 2)), eye, heads)[0].tolist()
    [[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]]
    """
    check_shape("x", x, (None, None, None), "batch, tokens, width")
    columns = heads.columns
    names = {"qkv": sum(columns.values())} if "wqkv" in weights else columns
    check_weights(weights, [*names, "o"])
    for name, count in names.items():
        why = f"columns of {heads.query} query and {heads.kv} kv heads of {heads.width}"
        check_shape(f"w{name}", weights[f"w{name}"], (None, count), why)
    parts = [apply(x, weights, name) for name in names]
    if len(parts) == 1:  # fused
        end, kv = columns["q"], columns["k"]
        both = parts[0]
        parts = [both[..., :end], both[..., end : end + kv], both[..., end + kv :]]
    q, k, v = (by_head(part, heads.width) for part in parts)
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    c, p = attend(q, k, v, heads.kv_of, causal, scale)
    c = merged(c)
    core = {"q": q, "k": k, "v": v, "p": p, "kv_of": heads.kv_of, "scale": scale}
    return apply(c, weights, "o"), {"x": x, "c": c, "core": core, "angles": angles}


def self_attention_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    angles, core = saved["angles"], saved["core"]
    dc = apply_grad(dy, saved["c"], weights, "o", grads)
    dq, dk, dv = attend_grad(by_head(dc, core["v"].shape[-1]), **core)
    if angles is not None:
        dq, dk = rotate_grad(dq, angles), rotate_grad(dk, angles)
    parts = {"q": merged(dq), "k": merged(dk), "v": merged(dv)}
    if "wqkv" in weights:
        parts = {"qkv": array_namespace(dq).concatenate(list(parts.values()), axis=-1)}
    terms = [apply_grad(part, saved["x"], weights, name, grads) for name, part in parts.items()]
    dx = sum(map(wide, terms[1:]), start=wide(terms[0]))
    return rounded(dx, dy), grads


def fuse_qkv(weights: Arrays) -> Arrays:
    """The same weights with wq, wk, wv (and bq, bk, bv) side by side, as wqkv (bqkv)."""
    return fuse(weights, ("q", "k", "v"), "qkv")
