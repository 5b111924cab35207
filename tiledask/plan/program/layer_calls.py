"""What a tensor-parallel layer calls, forward and backward, counted from its program.

                 forward                           backward
by columns       -            | all_gather x       all_reduce dx | reduce_scatter dx
by rows          all_reduce y | reduce_scatter y   -             | all_gather dy

Behind a bar stands the form in which tokens are sharded between layers. An all_reduce is a
reduce_scatter and an all_gather (Korthikanti et al., arXiv:2205.05198): both move the same bytes.
"""

from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.collectives.layouts import HeadCounts, block_layout
from tiledask.plan.intervals import even
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.decoder import block_shapes
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
    counts, inner = HeadCounts(*heads), inner or 4 * width
    shapes, layout = (
        block_shapes(width, counts, inner, gated, fused),
        block_layout(counts, inner, ranks),
    )
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
                LayerOperand(name, Tiling(shape, (ranks,), (layout[name],)), itemsize)
                for name, shape in shapes.items()
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
