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

from itertools import pairwise
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.attention import Angles, Heads, shared_heads
from tiledask.tile.layers.by_name import KERNELS, Saved
from tiledask.tile.layers.operands import check, rounded, wide
from tiledask.tile.layers.positionwise import find_activation, linear
from tiledask.tile.layers.random import Parameter, matrix

__all__ = ["fuse_gate_up", "fuse_qkv", "mlp", "mlp_grad", "mlp_parameters"]
__all__ += ["self_attention", "self_attention_grad", "self_attention_parameters"]
__all__ += ["swiglu_mlp", "swiglu_mlp_grad", "swiglu_mlp_parameters"]

Arrays = dict[str, Array]
"""Arrays by name: weight w<name> and bias b<name>."""
_QKV, _GATED = ("q", "k", "v"), ("_gate", "_up")
"""Matrices that may lie side by side, under their names in a row."""


# -- attention -------------------------------------------------------------------------------------


def self_attention_parameters(
    hidden: int, heads: Heads, fused: bool = False, bias: bool = False
) -> dict[str, Parameter]:
    """The weights by name, with deviations of 1/sqrt(rows).

    >>> {n: p.shape for n, p in self_attention_parameters(16, Heads(4, 2, 4), fused=True).items()}
    {'wqkv': (16, 32), 'wo': (16, 16)}
    """
    inputs = _matrices(hidden, _QKV, heads.columns, fused, bias)
    return inputs | matrix("o", heads.columns[0], hidden, bias)


def self_attention(
    x: Array, weights: Arrays, heads: Heads, angles: Angles | None = None
) -> tuple[Array, Saved]:
    """(y [b, s, h], saved) for x [b, s, h]; with ``angles``, q and k are turned by them.

    >>> import numpy as np
    >>> heads = Heads(query=1, kv=1, width=2)
    >>> eye = {name: np.eye(2) for name in ("wq", "wk", "wv", "wo")}
    >>> self_attention(np.ones((1, 3, 2)), eye, heads)[0].tolist()
    [[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]]
    """
    check("x:bsh", {"x": x})
    names = _names(weights, _QKV, "o")
    qkv = _project(x, weights, names, heads.columns)
    kv_of, back = shared_heads(heads.query, heads.kv), tuple[Any, ...]()
    if angles is not None:
        qkv, back = KERNELS["rotate"](qkv, angles, heads), (("rotate_grad", angles, heads),)
    c, p = KERNELS["attention"](qkv, heads, kv_of)
    back = ("attention_grad", qkv, p, heads, kv_of), *back
    return _apply(c, weights, "o"), {"x": x, "inner": c, "names": (*names, "o"), "back": back}


def self_attention_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads, (*names, last) = Arrays(), saved["names"]
    d = _apply_grad(dy, saved["inner"], weights, last, grads)
    for kernel, *arguments in saved["back"]:  # of what is between the matrices
        d = KERNELS[kernel](d, *arguments)
    ends = ends_of(weights[f"w{name}"].shape[1] for name in names)
    dx, *others = [
        _apply_grad(d[..., a:b], saved["x"], weights, name, grads)
        for name, (a, b) in zip(names, pairwise(ends), strict=True)
    ]
    if others:
        dx = rounded(sum(map(wide, others), start=wide(dx)), dy)
    return dx, grads


def fuse_qkv(weights: Arrays) -> Arrays:
    """The same weights with wq, wk, wv (and bq, bk, bv) side by side, as wqkv (bqkv)."""
    return _fuse(weights, _QKV)


# -- feed-forward ----------------------------------------------------------------------------------


def mlp_parameters(hidden: int, inner: int, bias: bool = True) -> dict[str, Parameter]:
    """The weights of `mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in mlp_parameters(4, 16).items()}
    {'w_1': (4, 16), 'b_1': (16,), 'w_2': (16, 4), 'b_2': (4,)}
    """
    return matrix("_1", hidden, inner, bias) | matrix("_2", inner, hidden, bias)


def mlp(x: Array, weights: Arrays, activation: str = "gelu") -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_2 activation(w_1 x), by its name.

    >>> import numpy as np
    >>> w = {"w_1": np.array([[1.0, -1.0]]), "w_2": np.array([[1.0], [1.0]])}
    >>> mlp(np.array([[-3.0]]), w, "relu")[0].tolist()
    [[3.0]]
    """
    names = _names(weights, ("_1",), "_2")
    g, bent = find_activation(activation)(_apply(x, weights, "_1"))
    back = ((f"{activation}_grad", *bent.values()),)
    return _apply(g, weights, "_2"), {"x": x, "inner": g, "names": (*names, "_2"), "back": back}


mlp_grad = self_attention_grad


def swiglu_mlp_parameters(
    hidden: int, inner: int, fused: bool = False, bias: bool = False
) -> dict[str, Parameter]:
    """The weights of `swiglu_mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in swiglu_mlp_parameters(4, 10, fused=True).items()}
    {'w_gate_up': (4, 20), 'w_down': (10, 4)}
    """
    inputs = _matrices(hidden, _GATED, (inner, inner), fused, bias)
    return inputs | matrix("_down", inner, hidden, bias)


def swiglu_mlp(x: Array, weights: Arrays) -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_down (silu(w_gate x) w_up x).

    >>> import numpy as np
    >>> w = {"w_gate_up": np.array([[1.0, 2.0]]), "w_down": np.array([[1.0]])}
    >>> swiglu_mlp(np.array([[1.0]]), w)[0].round(4).tolist()
    [[1.4621]]
    """
    names = _names(weights, _GATED, "_down")
    z = _project(x, weights, names, (weights["w_down"].shape[0],) * 2)
    g, back = KERNELS["swiglu"](z), (("swiglu_grad", z),)
    saved = {"x": x, "inner": g, "names": (*names, "_down"), "back": back}
    return _apply(g, weights, "_down"), saved


swiglu_mlp_grad = self_attention_grad


def fuse_gate_up(weights: Arrays) -> Arrays:
    """The same weights with gate and up side by side, as w_gate_up (and b_gate_up)."""
    return _fuse(weights, _GATED)


# -- matrices by name, apart or side by side -------------------------------------------------------


def _matrices(
    rows: int, names: tuple[str, ...], columns: tuple[int, ...], fused: bool, bias: bool
) -> dict[str, Parameter]:
    if fused:
        return matrix("".join(names), rows, sum(columns), bias)
    made: dict[str, Parameter] = {}
    for name, count in zip(names, columns, strict=True):
        made |= matrix(name, rows, count, bias)
    return made


def _names(weights: Arrays, names: tuple[str, ...], last: str) -> tuple[str, ...]:
    """``names``, or that of one matrix of them side by side. Raises KernelError unless there are
    these and the last, and nothing but biases."""
    one = "".join(names)
    found = (one,) if f"w{one}" in weights else names
    known = {f"w{name}" for name in (*found, last)}
    missing, odd = known - {*weights}, {*weights} - known - {f"b{name[1:]}" for name in known}
    if missing or odd:
        raise KernelError(
            f"weights are {', '.join(sorted(known))}, and biases with b for w, got "
            f"{', '.join(weights) or 'none'}: {', '.join(sorted(missing or odd))} "
            f"{'missing' if missing else 'unknown'}"
        )
    return found


def _apply(x: Array, weights: Arrays, name: str) -> Array:
    """x w<name> + b<name>."""
    y: Array = linear(x, weights[f"w{name}"], weights.get(f"b{name}"))[0]
    return y


def _apply_grad(dy: Array, x: Array, weights: Arrays, name: str, grads: Arrays) -> Array:
    """dx of `_apply`; writes the gradients of w<name>, and of b<name> if there is one, to grads."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    dx, grads[f"w{name}"], db = linear.backward(dy, x, w, b)
    if b is not None:
        grads[f"b{name}"] = db
    return dx


def _project(x: Array, weights: Arrays, names: tuple[str, ...], columns: tuple[int, ...]) -> Array:
    """What `_apply` gives of each name, side by side; the matrices may be one."""
    for name, count in zip(names, columns if len(names) > 1 else [sum(columns)], strict=True):
        if (got := weights[f"w{name}"].shape[-1]) != count:
            raise KernelError(
                f"w{name} has {count} columns beside these heads or this last matrix, got {got}; "
                f"pass one device's columns of each part"
            )
    parts = [_apply(x, weights, name) for name in names]
    return parts[0] if len(parts) == 1 else array_namespace(x).concatenate(parts, axis=-1)


def _fuse(weights: Arrays, names: tuple[str, ...]) -> Arrays:
    """The same weights with those of ``names`` side by side, under one name."""
    fused = {name: w for name, w in weights.items() if name[1:] not in names}
    for kind in "wb":
        parts = [weights[kind + name] for name in names if kind + name in weights]
        if parts:
            fused[kind + "".join(names)] = array_namespace(*parts).concatenate(parts, axis=-1)
    return fused
