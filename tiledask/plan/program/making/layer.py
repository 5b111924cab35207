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

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.collectives.shards import HeadCounts, block_layout
from tiledask.plan.intervals import even
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.convolutions import ConvolutionLayers
from tiledask.plan.program.making.decoder import block_shapes
from tiledask.plan.program.making.layers import LayerWeights
from tiledask.plan.program.making.tape import Tape, Value
from tiledask.plan.program.ops import Block, ProgramRole, Step
from tiledask.plan.program.program import Program

__all__ = ["LayerCall", "LayerOperand", "LayerTerms", "layer_calls", "layer_program"]


class LayerOperand(NamedTuple):
    """An array that a layer is given, or one of its weights."""

    name: str
    tiling: Tiling
    itemsize: int
    """Bytes of a number."""

    def value(self, rank: int) -> Value:
        """What a rank has of it."""
        return Value(self.name, self.tiling.block_shape((rank,)), self.itemsize)


@dataclass(frozen=True, kw_only=True)
class LayerTerms:
    """What a layer's program follows from."""

    layer: str
    """The method that writes it, of `ConvolutionLayers` or `TensorLayers`."""
    ranks: int
    given: tuple[LayerOperand, ...]
    """What it takes, and the gradient of the first of which it gives, if it has one."""
    weights: tuple[LayerOperand, ...]
    options: tuple[tuple[str, Any], ...] = ()
    """What its method takes besides, by name."""
    itemsize: int
    """Bytes of a number of activations."""
    tokens: tuple[int, tuple[int, ...]] | None = None
    """As of `TensorLayers`; so are the next two."""
    heads: tuple[int, int, int] = (1, 1, 1)
    regather: bool = False


@lru_cache(256)
def layer_program(terms: LayerTerms) -> Program:
    """The Program of a layer's forward and backward; nothing is computed.

    On a mesh of (1, ranks), whose second axis is the tensor-parallel one.
    """
    ranks = range(terms.ranks)
    orders = ((Step("forward", 0), Step("backward", 0)),) * len(ranks)
    roles = tuple(_role(terms, rank) for rank in ranks)
    return Program(roles, orders, tuple(ranks), terms.layer, (1, terms.ranks))


def _role(terms: LayerTerms, rank: int) -> ProgramRole:
    tape = Tape(terms.itemsize)
    weights = LayerWeights({each.name: each.value(rank) for each in terms.weights})
    more = terms.tokens, terms.heads, terms.regather
    layers = ConvolutionLayers(tape, weights, terms.ranks, rank, *more)
    given = [tape.named(each.value(rank)) for each in terms.given]
    tape.do("arguments", (), given)
    y = getattr(layers, terms.layer)(*given, **dict(terms.options))
    tape.do("returns", (y,))
    forward, rules = tape.take(), tape.take_rules()
    dy = tape.value("dy", y.shape, y.itemsize)
    tape.do("arguments", (), (dy,))
    found = tape.backward(rules, {y: dy})
    tape.catch_up()
    of_x = [found[given[0]]] if given[0] in found else []
    tape.do("returns", [*of_x, *(weights.gradients[each.name] for each in terms.weights)])
    state = {name: w.size * w.itemsize for name, w in weights.values.items()}
    both = {"forward": forward, "backward": tape.take()}
    blocks = [Block(kind, -1, tuple(ops)) for kind, ops in both.items()]
    return ProgramRole.of(blocks, tape.sizes, state, constants=frozenset(state), items=tape.items)


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
    (method, inside), counts, inner = LAYERS[layer], HeadCounts(*heads), 4 * width
    layout = block_layout(counts, inner, ranks)
    options: dict[str, dict[str, Any]] = {
        "block": {"angles": None, "gated": gated},
        "self_attention": {"angles": None},
        "feed_forward": {"kernel": "swiglu" if gated else "gelu"},
    }
    placed = Shard(1) if sequence else Replicate()
    shapes = block_shapes(width, counts, inner, gated, fused).items()
    weights = {n: Tiling(of, (ranks,), (layout[n],)) for n, of in shapes if n.startswith(inside)}
    terms = LayerTerms(
        layer=method,
        ranks=ranks,
        given=(LayerOperand("x", Tiling((batch, tokens, width), (ranks,), (placed,)), 8),),
        weights=tuple(LayerOperand(*each, 8) for each in weights.items()),
        options=(("unit", ""), *options[method].items()),
        itemsize=8,
        tokens=(1, even(tokens, ranks)) if sequence else None,
        heads=heads,
    )
    found: dict[str, tuple[str, list[int]]] = {}
    for rank in range(ranks):
        for call in calls(layer_program(terms), rank):
            label = call.label.partition("/")[2]
            found.setdefault(label, (call.kind, [0] * ranks))[1][rank] += call.sent
    return [LayerCall(label, kind, tuple(sent)) for label, (kind, sent) in found.items()]
