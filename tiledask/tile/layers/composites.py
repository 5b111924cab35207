"""Layers of several weights, which go by name: the attention layer and the feed-forward layer.

    self_attention   x [b, s, h] --wq--> q --rotate--.
                                 --wk--> k --rotate--attention-- c [b, s, heads e] --wo--> y
                                 --wv--> v ----------'
    mlp              x --w_1-- z --gelu-- g --w_2-- y
    swiglu_mlp       x --w_gate-- silu --(times)-- g --w_down-- y
                     '---w_up-------------'

wq, wk and wv may lie side by side as wqkv [h, q | k | v], the gate and up matrices as w_gate_up
[h, gate | up]; one device's columns of these are its columns of each part. Biases have b for w,
where they are there. A device that holds some heads, or some inner columns, and their rows of the
last matrix, computes its term of the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.tile.backend import HALVES, Array, array_namespace
from tiledask.tile.epilogue import ACTIVATIONS as ENDINGS
from tiledask.tile.layers.attention import attention, by_head, merged, shared_heads
from tiledask.tile.layers.by_name import Saved
from tiledask.tile.layers.elementwise import find_activation, swiglu
from tiledask.tile.layers.linear import Arrays, apply, apply_grad, check_weights, fuse, linear
from tiledask.tile.layers.operands import by_token, check, rounded, wide
from tiledask.tile.layers.random import Parameter, matrix
from tiledask.tile.layers.rotary import Angles, rotate
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = [
    "Heads",
    "fuse_gate_up",
    "fuse_qkv",
    "mlp",
    "mlp_grad",
    "mlp_parameters",
    "self_attention",
    "self_attention_grad",
    "self_attention_parameters",
    "swiglu_mlp",
    "swiglu_mlp_grad",
    "swiglu_mlp_parameters",
]

_HOPPER = "wgmma_ws_persistent"


# -- attention -------------------------------------------------------------------------------------


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
    check("x:bsh", {"x": x})
    columns = heads.columns
    names = {"qkv": sum(columns.values())} if "wqkv" in weights else columns
    check_weights(weights, [*names, "o"])
    for name, count in names.items():
        if (got := weights[f"w{name}"].shape[-1]) != count:
            raise KernelError(
                f"w{name} has {count} columns for {heads.query} query and {heads.kv} kv heads of "
                f"{heads.width}, got {got}; slice it by heads"
            )
    parts = [apply(x, weights, name) for name in names]
    if len(parts) == 1:  # fused
        end, kv = columns["q"], columns["k"]
        both = parts[0]
        parts = [both[..., :end], both[..., end : end + kv], both[..., end + kv :]]
    q, k, v = (by_head(part, heads.width) for part in parts)
    if angles is not None:
        q, k = rotate.forward(q, angles), rotate.forward(k, angles)
    c, p = attention.forward(q, k, v, heads.kv_of, causal, scale)
    c = merged(c)
    core = {"q": q, "k": k, "v": v, "p": p, "kv_of": heads.kv_of, "scale": scale}
    return apply(c, weights, "o"), {"x": x, "c": c, "core": core, "angles": angles}


def self_attention_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    angles, core = saved["angles"], saved["core"]
    dc = apply_grad(dy, saved["c"], weights, "o", grads)
    dq, dk, dv = attention.backward(by_head(dc, core["v"].shape[-1]), **core)
    if angles is not None:
        dq, dk = rotate.backward(dq, angles), rotate.backward(dk, angles)
    parts = {"q": merged(dq), "k": merged(dk), "v": merged(dv)}
    if "wqkv" in weights:
        parts = {"qkv": array_namespace(dq).concatenate(list(parts.values()), axis=-1)}
    terms = [apply_grad(part, saved["x"], weights, name, grads) for name, part in parts.items()]
    dx = sum(map(wide, terms[1:]), start=wide(terms[0]))
    return rounded(dx, dy), grads


def fuse_qkv(weights: Arrays) -> Arrays:
    """The same weights with wq, wk, wv (and bq, bk, bv) side by side, as wqkv (bqkv)."""
    return fuse(weights, ("q", "k", "v"), "qkv")


# -- feed-forward ----------------------------------------------------------------------------------


def mlp_parameters(hidden: int, inner: int, bias: bool = True) -> dict[str, Parameter]:
    """The weights of `mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in mlp_parameters(4, 16).items()}
    {'w_1': (4, 16), 'b_1': (16,), 'w_2': (16, 4), 'b_2': (4,)}
    """
    return matrix("_1", hidden, inner, bias) | matrix("_2", inner, hidden, bias)


def mlp(x: Array, weights: Arrays, activation: str = "gelu") -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_2 activation(w_1 x), by its name.

    w_1 and an activation that kernels can end with (GELU) are one product, finished in the
    accumulators: z = x w_1 + b_1, which the backward needs, is written on the way and never read,
    and of halves g = gelu(z) comes from the float32 sums, not from z as rounded.

    >>> import numpy as np
    >>> w = {"w_1": np.array([[1.0, -1.0]]), "w_2": np.array([[1.0], [1.0]])}
    >>> mlp(np.array([[-3.0]]), w, "relu")[0].tolist()
    [[3.0]]
    """
    check_weights(weights, ["_1", "_2"])
    w, b = weights["w_1"], weights.get("b_1")
    xp, bent = check("x:*h w:hi b:i", {"x": x, "w": w, "b": b}), find_activation(activation)
    if activation in ENDINGS and x.size and w.size:
        flat, shape = by_token(x), (*x.shape[:-1], w.shape[1])
        g, z = (xp.empty((flat.shape[0], w.shape[1]), x.dtype) for _ in range(2))
        hopper = x.dtype.name in HALVES and xp.__name__ == "cupy" and kernels[_HOPPER].available
        matmul(
            flat,
            w,
            _HOPPER if hopper else "blas",
            out=g,
            bias=b,
            activation=activation,
            preactivation=z,
        )
        g, of_bent = g.reshape(shape), {"x": z.reshape(shape)}
    else:
        g, of_bent = bent(linear.forward(x, w, b))
    return apply(g, weights, "_2"), {"x": x, "g": g, "bent": of_bent, "activation": activation}


def mlp_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    dg = apply_grad(dy, saved["g"], weights, "_2", grads)
    dz = find_activation(saved["activation"]).backward(dg, **saved["bent"])
    return apply_grad(dz, saved["x"], weights, "_1", grads), grads


def swiglu_mlp_parameters(
    hidden: int, inner: int, fused: bool = False, bias: bool = False
) -> dict[str, Parameter]:
    """The weights of `swiglu_mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in swiglu_mlp_parameters(4, 10, fused=True).items()}
    {'w_gate_up': (4, 20), 'w_down': (10, 4)}
    """
    into = {"_gate_up": 2 * inner} if fused else {"_gate": inner, "_up": inner}
    made: dict[str, Parameter] = {}
    for name, columns in into.items():
        made |= matrix(name, hidden, columns, bias)
    return made | matrix("_down", inner, hidden, bias)


def swiglu_mlp(x: Array, weights: Arrays) -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_down (silu(w_gate x) w_up x).

    >>> import numpy as np
    >>> w = {"w_gate_up": np.array([[1.0, 2.0]]), "w_down": np.array([[1.0]])}
    >>> swiglu_mlp(np.array([[1.0]]), w)[0].round(4).tolist()
    [[1.4621]]
    """
    fused = "w_gate_up" in weights
    check_weights(weights, ["_gate_up", "_down"] if fused else ["_gate", "_up", "_down"])
    if fused:
        z = apply(x, weights, "_gate_up")
        inner, odd = divmod(z.shape[-1], 2)
        if odd:
            raise KernelError(
                f"w_gate_up holds as many columns of gate as of up, got {z.shape[-1]} together; "
                f"pass one device's columns of both"
            )
        gate, up = z[..., :inner], z[..., inner:]
    else:
        gate, up = apply(x, weights, "_gate"), apply(x, weights, "_up")
    g, saved = swiglu(gate, up)
    return apply(g, weights, "_down"), {"x": x, "g": g, **saved}


def swiglu_mlp_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    dg = apply_grad(dy, saved["g"], weights, "_down", grads)
    dgate, dup = swiglu.backward(dg, saved["gate"], saved["up"])
    if "w_gate_up" in weights:
        both = array_namespace(dgate).concatenate([dgate, dup], axis=-1)
        return apply_grad(both, saved["x"], weights, "_gate_up", grads), grads
    from_gate = apply_grad(dgate, saved["x"], weights, "_gate", grads)
    from_up = apply_grad(dup, saved["x"], weights, "_up", grads)
    return rounded(wide(from_gate) + wide(from_up), dy), grads


def fuse_gate_up(weights: Arrays) -> Arrays:
    """The same weights with gate and up side by side, as w_gate_up (and b_gate_up)."""
    return fuse(weights, ("_gate", "_up"), "_gate_up")
