"""What a tensor-parallel layer calls, forward and backward, counted from its program.

                 forward                           backward
by columns       -            | all_gather x       all_reduce dx | reduce_scatter dx
by rows          all_reduce y | reduce_scatter y   -             | all_gather dy

Behind a bar stands the form in which tokens are sharded between layers. An all_reduce is a
reduce_scatter and an all_gather (Korthikanti et al., arXiv:2205.05198): both move the same bytes.
"""

from math import prod
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.collectives.layouts import (
    HeadCounts,
    Shardings,
    attention_layout,
    mlp_layout,
    swiglu_layout,
)
from tiledask.plan.intervals import even
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.layer import LayerOperand, LayerTerms, layer_program

__all__ = ["LayerCall", "layer_calls"]

LAYERS = {"decoder_block": "block", "self_attention": "self_attention", "mlp": "feed_forward"}
"""Name -> the method that writes it."""


class LayerCall(NamedTuple):
    """One collective of a layer."""

    label: str
    """Layer/operation/forward or backward, as in the records of a run."""
    kind: str
    sent: tuple[int, ...]
    """Bytes that leave each rank; 0 for one that takes no part."""


def layer_calls(
    layer: str,
    *,
    ranks: int,
    batch: int,
    tokens: int,
    width: int,
    heads: tuple[int, int, int] = (1, 1, 1),
    inner: int | None = None,
    gated: bool = False,
    fused: bool = True,
    sequence: bool = False,
    itemsize: int = 8,
) -> list[LayerCall]:
    """The collectives of a layer on ``ranks`` tensor-parallel ranks, in their order.

    Parameters
    ----------
    layer : str
        "decoder_block", "self_attention" or "mlp".
    ranks : int
        Devices of the tensor-parallel group.
    batch, tokens, width : int
        Of x [batch, tokens, width].
    heads : tuple of int
        (query heads, kv heads, columns of each) of the attention.
    inner : int, optional
        Columns between the matrices of the feed-forward layer; 4 times the width by default.
    gated : bool
        SwiGLU's three matrices and norms without a bias, instead of two matrices and GELU.
    fused : bool
        Whether q, k and v are one matrix, and gate and up.
    sequence : bool
        Whether tokens are sharded between layers.
    itemsize : int
        Bytes of a number.

    Examples
    --------
    >>> for call in layer_calls("mlp", ranks=2, batch=1, tokens=4, width=8):
    ...     print(*call)
    mlp/w_2/forward all_reduce (256, 256)
    mlp/w_1/backward all_reduce (256, 256)
    """
    if layer not in LAYERS:
        raise ConfigError(f"layers are {', '.join(LAYERS)}, got {layer!r}")
    weights = _weights(width, HeadCounts(*heads), inner or 4 * width, ranks, gated, fused)
    inside = {"self_attention": "attention.", "mlp": "mlp."}.get(layer, "")
    options: dict[str, Any] = {"unit": ""}
    options |= {"kernel": "swiglu" if gated else "gelu"} if layer == "mlp" else {"angles": None}
    options |= {"gated": gated} if layer == "decoder_block" else {}
    x = Tiling((batch, tokens, width), (ranks,), (Shard(1) if sequence else Replicate(),))
    program = layer_program(
        LayerTerms(
            layer=LAYERS[layer],
            mesh=(ranks,),
            given=(LayerOperand("x", x, itemsize),),
            weights=tuple(
                LayerOperand(name, tiling, itemsize)
                for name, tiling in weights.items()
                if name.startswith(inside)
            ),
            options=tuple(options.items()),
            itemsize=itemsize,
            tokens=(1, even(tokens, ranks)) if sequence else None,
            heads=heads,
        )
    )
    found: dict[str, tuple[str, list[int]]] = {}
    for rank in range(ranks):
        for call in calls(program, rank):
            label = call.label.partition("/")[2]
            found.setdefault(label, (call.kind, [0] * ranks))[1][rank] += call.sent
    return [LayerCall(label, kind, tuple(sent)) for label, (kind, sent) in found.items()]


def _weights(
    width: int, heads: HeadCounts, inner: int, ranks: int, gated: bool, fused: bool
) -> dict[str, Tiling]:
    """Name -> how the matrices of a decoder block lie, and its norms' weights."""
    q, kv = heads.query * heads.width, heads.kv * heads.width
    into: dict[str, int] = {"wqkv": q + 2 * kv} if fused else {"wq": q, "wk": kv, "wv": kv}
    attention = {name: (width, columns) for name, columns in into.items()} | {"wo": (q, width)}
    names = (["w_gate_up"] if fused else ["w_gate", "w_up"]) if gated else ["w_1"]
    each = inner * (2 if names == ["w_gate_up"] else 1)
    feed = dict.fromkeys(names, (width, each)) | {"w_down" if gated else "w_2": (inner, width)}
    of_feed = swiglu_layout(inner, ranks) if gated else mlp_layout(inner, ranks)
    norms = {f"norm_{n}.{kind}": (width,) for n in (1, 2) for kind in ("w" if gated else "wb")}
    layouts: list[tuple[str, dict[str, tuple[int, ...]], Shardings]] = [
        ("attention.", {**attention}, attention_layout(heads, ranks)),
        ("mlp.", {**feed}, of_feed),
        ("", {**norms}, dict.fromkeys(norms, Replicate())),
    ]
    return {
        f"{inside}{name}": Tiling(shape, (ranks,), (layout[name],))
        for inside, shapes, layout in layouts
        for name, shape in shapes.items()
        if prod(shape)
    }
