"""The program of one layer on the ranks of a group or a grid: from shapes alone.

forward     x = do arguments      the layer      do returns y
backward    dy = do arguments     its tape       do returns dx, and the weights' gradients
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.instructions import ProgramLine, ProgramPart, ProgramRole
from tiledask.plan.program.making.convolution.convolutions import ConvolutionLayers
from tiledask.plan.program.making.writer import ProgramWriter, Value, needed
from tiledask.plan.program.program import Program

__all__ = ["LayerOperand", "LayerTerms", "layer_program"]


class LayerOperand(NamedTuple):
    """An array that a layer is given, or one of its weights."""

    name: str
    tiling: Tiling
    itemsize: int
    """Bytes of a number."""

    def value(self, at: tuple[int, ...]) -> Value:
        """What the rank at ``at`` has of it."""
        return Value(self.name, self.tiling.block_shape(at), self.itemsize)


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
    told: tuple[tuple[str, Any], ...] = ()
    """What its method is told besides, by name."""
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
    >>> told = ("unit", ""), ("names", ("w",)), ("labels", ("column_linear",))
    >>> terms = LayerTerms(
    ...     layer="column_linear", mesh=(2,), given=(x,), weights=(w,), told=told, itemsize=8)
    >>> print(layer_program(terms).check().line_text(1), layer_program(terms).traffic.sent)
    forward.0 backward.0 (96, 96)
    """
    roles = tuple(_role(terms, at) for at in product(*map(range, terms.mesh)))
    turns = np.arange(2, dtype=np.int32), np.zeros(2, np.int32), np.zeros(2, bool)
    lines, ranks = (ProgramLine(*turns),) * len(roles), tuple(range(len(roles)))
    return Program(roles, lines, ranks, terms.layer, (1, *terms.mesh))


def _role(terms: LayerTerms, at: tuple[int, ...]) -> ProgramRole:
    writer = ProgramWriter(terms.itemsize)
    weights = _Weights({each.name: each.value(at) for each in terms.weights})
    told = terms.tokens, terms.heads, terms.regather
    layers = ConvolutionLayers(writer, weights, terms.mesh[0], at[0], *told)
    writer.part()
    given = [writer.named(each.value(at)) for each in terms.given]
    writer.do("arguments", (), given)
    y = getattr(layers, terms.layer)(*given, **dict(terms.told))
    writer.do("returns", (y,))
    forward, tape = writer.written, writer.take_tape()
    writer.part()
    dy = writer.value("dy", y.shape, y.itemsize)
    writer.do("arguments", (), (dy,))
    found = writer.backward(tape, {y: dy})
    of_x = [found[given[0]]] if terms.wanted and given[0] in found else []
    writer.do("returns", [*of_x, *(weights.gradients[each.name] for each in terms.weights)])
    if not terms.wanted:  # the forward is not touched: who has run it can go on with either
        needed([writer.written], {})
    stays = {name: w.size * w.itemsize for name, w in weights.values.items()}
    written = {"forward": forward, "backward": writer.written}
    parts = tuple(ProgramPart(kind, -1, tuple(each)) for kind, each in written.items())
    return ProgramRole(parts, writer.nbytes, stays, given=frozenset(stays), items=writer.items)


class _Weights:
    """The weights of a layer without a unit: a `layers.LayerWeights`."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values, self.gradients = values, dict[str, Value]()

    def weight(self, unit: str, name: str) -> Value:
        return self.values[name]

    def has(self, unit: str, name: str) -> bool:
        return name in self.values

    def gradient(self, unit: str, name: str, g: Value) -> None:
        self.gradients[name] = g

    def scope(self, unit: str, when: str, again: bool) -> AbstractContextManager[None]:
        return nullcontext()
