"""The program of one layer on the ranks of a group: from shapes alone.

forward     x = do arguments      the layer      do returns y
backward    dy = do arguments     its tape       do returns dx, and the weights' gradients

What a tensor-parallel layer calls is counted from it:

                 forward                           backward
by columns       -            | all_gather x       all_reduce dx | reduce_scatter dx
by rows          all_reduce y | reduce_scatter y   -             | all_gather dy

Behind a bar stands the form in which tokens are sharded between layers. An all_reduce is a
reduce_scatter and an all_gather (Korthikanti et al., arXiv:2205.05198): both move the same bytes.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.collectives.shards import block_layout
from tiledask.plan.intervals import even
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.convolutions import conv, pool
from tiledask.plan.program.making.decoder import block_shapes
from tiledask.plan.program.making.layers import LayerWeights, TensorLayers
from tiledask.plan.program.making.tape import Tape, Value
from tiledask.plan.program.ops import ProgramRole, Step
from tiledask.plan.program.program import Program

__all__ = ["LayerCall", "layer_calls", "layer_program"]

Operand = tuple[str, Tiling, int]
"""Name, tiling and bytes of a number of an array that a layer takes."""


@lru_cache(256)
def layer_program(
    layer: str,
    ranks: int,
    given: tuple[Operand, ...],
    weights: tuple[Operand, ...],
    options: tuple[tuple[str, Any], ...],
    itemsize: int,
    *terms: Any,
) -> Program:
    """The Program of a layer's forward and backward, on a mesh of (1, ranks).

    layer       what writes it: a method of `TensorLayers`, "conv" or "pool"
    given       what it takes, and the gradient of the first of which it gives, if it has one
    options     what its method takes besides, by name
    terms       tokens, heads and regather of `TensorLayers`
    """
    order, roles = (Step("forward", 0), Step("backward", 0)), list[ProgramRole]()
    write: Any = {"conv": conv, "pool": pool}.get(layer) or getattr(TensorLayers, layer)
    for rank in range(ranks):
        xs, ws = (
            [Value(name, tiling.block_shape((rank,)), each) for name, tiling, each in part]
            for part in (given, weights)
        )
        held, tape = LayerWeights({w.name: w for w in ws}), Tape(itemsize)
        tape.do("arguments", (), [tape.named(x.name, x.shape, x.itemsize) for x in xs])
        y = write(TensorLayers(tape, held, ranks, rank, *terms), *xs, **dict(options))
        tape.do("returns", (y,))
        blocks = {"forward": tape.take()}
        dy = tape.value("dy", y.shape, y.itemsize)
        tape.do("arguments", (), (dy,))
        found = tape.backward({y: dy})
        tape.catch_up()
        of_x = [found[xs[0]]] if xs[0] in found else []
        tape.do("returns", [*of_x, *(held.gradients[name] for name in held.values)])
        state = {name: w.size * w.itemsize for name, w in held.values.items()}
        blocks["backward"] = tape.take()
        roles.append(tape.role(blocks, state, constants=frozenset(state)))
    return Program(tuple(roles), (order,) * ranks, tuple(range(ranks)), layer, (1, ranks))


LAYERS = {
    "decoder_block": ("block", ""),
    "self_attention": ("self_attention", "attention."),
    "mlp": ("feed_forward", "mlp."),
}
"""Name -> (the method that writes it, what the names of its weights begin with)."""


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
    gated: bool = False,
    fused: bool = True,
    sequence: bool = False,
) -> list[LayerCall]:
    """The collectives of a layer on ``ranks`` tensor-parallel ranks, in their order.

    Parameters
    ----------
    layer : str
        "decoder_block", "self_attention" or "mlp", whose inner width is 4 times its width.
    ranks : int
        Devices of the tensor-parallel group.
    batch, tokens, width : int
        Of x [batch, tokens, width], of numbers of 8 bytes.
    heads : tuple of int
        (query heads, kv heads, columns of each) of the attention.
    gated : bool
        SwiGLU's three matrices and norms without a bias, instead of two matrices and GELU.
    fused : bool
        Whether q, k and v are one matrix, and gate and up.
    sequence : bool
        Whether tokens are sharded between layers.

    Examples
    --------
    >>> for call in layer_calls("mlp", ranks=2, batch=1, tokens=4, width=8):
    ...     print(*call)
    mlp/w_2/forward all_reduce (256, 256)
    mlp/w_1/backward all_reduce (256, 256)
    """
    if layer not in LAYERS:
        raise ConfigError(f"layers are {', '.join(LAYERS)}, got {layer!r}")
    (method, inside), inner = LAYERS[layer], 4 * width
    layout, options = block_layout(heads, inner, ranks), dict[str, Any](unit="")
    options |= {"kernel": "swiglu" if gated else "gelu"} if layer == "mlp" else {"angles": None}
    options |= {"gated": gated} if layer == "decoder_block" else {}
    shapes = block_shapes(width, heads, inner, gated, fused).items()
    weights = [
        (name, Tiling(shape, (ranks,), (layout[name],)), 8)
        for name, shape in shapes
        if name.startswith(inside)
    ]
    x = Tiling((batch, tokens, width), (ranks,), (Shard(1) if sequence else Replicate(),))
    program = layer_program(
        method, ranks, (("x", x, 8),), tuple(weights), tuple(options.items()), 8,
        (1, even(tokens, ranks)) if sequence else None, heads,
    )  # fmt: skip
    found: dict[str, tuple[str, list[int]]] = {}
    for rank in range(ranks):
        for call in calls(program, rank):
            label = call.label.partition("/")[2]
            found.setdefault(label, (call.kind, [0] * ranks))[1][rank] += call.sent
    return [LayerCall(label, kind, tuple(sent)) for label, (kind, sent) in found.items()]
