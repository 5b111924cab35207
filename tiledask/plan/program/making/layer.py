"""The program of one layer on the ranks of a group: from shapes alone.

forward     x = do arguments      the layer      do returns y
backward    dy = do arguments     its tape       do returns dx, and the weights' gradients
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.making.convolutions import ConvolutionLayers
from tiledask.plan.program.making.layers import LayerWeights
from tiledask.plan.program.making.tape import Tape, Value, needed
from tiledask.plan.program.ops import Block, ProgramRole, Step
from tiledask.plan.program.program import Program

__all__ = ["LayerOperand", "LayerTerms", "layer_program"]


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
    mesh: tuple[int, ...]
    """(ranks,)."""
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
    wanted: bool = True
    """Whether the gradient of what is given is, not those of the weights alone."""


@lru_cache(256)
def layer_program(terms: LayerTerms) -> Program:
    """The Program of a layer's forward and backward; nothing is computed.

    On a mesh of (1, ranks), whose second axis is the tensor-parallel one.

    >>> from tiledask.plan.products.placement import Replicate, Shard
    >>> x = LayerOperand("x", Tiling((3, 4), (2,), (Replicate(),)), 8)
    >>> w = LayerOperand("w", Tiling((4, 6), (2,), (Shard(1),)), 8)
    >>> options = ("unit", ""), ("names", ("w",)), ("labels", ("column_linear",))
    >>> terms = LayerTerms(
    ...     layer="column_linear", mesh=(2,), given=(x,), weights=(w,), options=options, itemsize=8)
    >>> print(layer_program(terms).check().line_text(1), layer_program(terms).traffic.sent)
    forward.0 backward.0 (96, 96)
    """
    ranks = range(terms.mesh[0])
    orders = ((Step("forward", 0), Step("backward", 0)),) * len(ranks)
    roles = tuple(_role(terms, rank) for rank in ranks)
    return Program(roles, orders, tuple(ranks), terms.layer, (1, *terms.mesh))


def _role(terms: LayerTerms, rank: int) -> ProgramRole:
    tape = Tape(terms.itemsize)
    weights = LayerWeights({each.name: each.value(rank) for each in terms.weights})
    more = terms.tokens, terms.heads, terms.regather
    layers = ConvolutionLayers(tape, weights, terms.mesh[0], rank, *more)
    given = [tape.named(each.value(rank)) for each in terms.given]
    tape.do("arguments", (), given)
    y = getattr(layers, terms.layer)(*given, **dict(terms.options))
    tape.do("returns", (y,))
    forward, rules = tape.take(), tape.take_rules()
    dy = tape.value("dy", y.shape, y.itemsize)
    tape.do("arguments", (), (dy,))
    found = tape.backward(rules, {y: dy})
    of_x = [found[given[0]]] if terms.wanted and given[0] in found else []
    tape.do("returns", [*of_x, *(weights.gradients[each.name] for each in terms.weights)])
    backward = tape.take()
    if not terms.wanted:  # the forward is not touched: who has run it can go on with either
        needed([backward], {})
    state = {name: w.size * w.itemsize for name, w in weights.values.items()}
    both = {"forward": forward, "backward": backward}
    blocks = [Block(kind, -1, tuple(ops)) for kind, ops in both.items()]
    return ProgramRole.of(blocks, tape.sizes, state, constants=frozenset(state), items=tape.items)
