"""A layer that ranks call is a program of one layer: made once, run on their group.

    column_linear(group, x, w)     its rule checks the placements, the first time
                                   forward: this rank's part, on what it is given
    column_linear_grad(...)        backward: on dy, and on what the forward has kept

The program is that of a training's layers (plan/program/making/layers.py); collectives are the
group's, whose ranks agree on each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, Weights
from tiledask.distributed.tensor.propagate import need, same_placement
from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.making.layer import layer_program
from tiledask.plan.program.ops import Op
from tiledask.tile.layers.by_name import KERNELS

__all__ = ["KeptLayer", "LayerRule", "backward", "forward"]

MOST = 256
"""Layers that are bound to a group at once."""


class LayerRule(NamedTuple):
    """What a layer is, once its operands were found to go together."""

    layer: str
    """The method that writes it, of `ConvolutionLayers` or `TensorLayers`."""
    y: Placed
    """The placement of what comes out."""
    options: dict[str, Any]
    """Of the method."""
    name: str
    """Whose gradient is refused if dy is placed in another way."""
    why: str = ""
    """It is."""
    tokens: Placed | None = None
    """What is between layers: its tokens may be sharded."""
    prefix: str = ""
    """What the method puts before the weights' names."""
    heads: tuple[int, int, int] = (1, 1, 1)
    regather: bool = False


Rule = Callable[..., LayerRule]
"""From the group, the specs of what is given and of the weights, and the layer's options."""


class BlockSpec(NamedTuple):
    """What is known of a block before it is there."""

    tiling: Tiling
    shape: tuple[int, ...]
    itemsize: int


_Key = tuple[Rule, tuple[Any, ...], tuple[BlockSpec, ...], tuple[tuple[str, BlockSpec | None], ...]]
"""What a layer's program follows from: its rule, options, what is given, and its weights."""


class KeptLayer(NamedTuple):
    """What a layer keeps for its gradient."""

    arrays: dict[str, Any]
    key: _Key


class BoundLayer(Interpreter):
    """This rank's part of a layer's program, bound to a group."""

    def __init__(self, group: Group, key: _Key) -> None:
        make, options, given, of = key
        xs = tuple(Placed(each, each.tiling) for each in given)
        weights: Weights = {name: each and Placed(each, each.tiling) for name, each in of}
        rule, there = make(group, xs, weights, *options), {n: w for n, w in weights.items() if w}
        self.x, self.rule = xs[0], rule
        self.names = list(there)
        self._arguments: Sequence[Any] = ()
        self._returned: Sequence[Any] = ()
        tokens = None
        if rule.tokens is not None and rule.tokens.dim is not None:
            dim, shards = rule.tokens.split
            tokens = dim, shards.counts
        operands = tuple((rule.prefix + n, w.tiling, w.local.itemsize) for n, w in there.items())
        program = layer_program(
            rule.layer,
            group.size,
            tuple((f"x{n}", x.tiling, x.local.itemsize) for n, x in enumerate(xs)),
            operands,
            tuple(rule.options.items()),
            [*there.values(), *xs][0].local.itemsize,
            tokens,
            rule.heads,
            rule.regather,
        )
        state: dict[str, Any] = dict.fromkeys(name for name, *_ in operands)
        super().__init__(group.owner, program, state, self._of_layer, group=group)
        self._of_weights = {name: rule.prefix + name for name in there}

    def _of_layer(self, op: Op, _: str, told: dict[str, Any]) -> Callable[..., Any]:
        if op.name == "arguments":
            return lambda: self._arguments
        if op.name == "returns":
            return self._return
        kernel = KERNELS[op.name]
        return partial(kernel, **told) if told else kernel

    def _return(self, *arrays: Any) -> None:
        self._returned = arrays

    def through(
        self, turn: int, kept: dict[str, Any], arguments: tuple[Any, ...], weights: Weights
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """(what forward, turn 0, or backward returns, what it keeps besides)."""
        env, self._arguments = dict(kept or self._state), arguments
        for name, buffer in self._of_weights.items():
            w = weights[name]
            env[buffer] = w and w.local
        for _, call in self._bound[turn]:
            call(env)
        for buffer in self._of_weights.values():
            env[buffer] = None
        returned, self._arguments, self._returned = self._returned, (), ()
        return returned, env


def forward(
    rule: Rule, group: Group, given: tuple[Placed, ...], weights: Weights, *options: Any
) -> tuple[Placed, KeptLayer]:
    """(y, kept) of the layer that ``rule`` allows; PlacementError from there.

    ``weights``: by name, None for a bias that is not there.
    """
    try:
        of = tuple([(name, w if w is None else _spec(w)) for name, w in weights.items()])
        key = rule, options, tuple([_spec(x) for x in given]), of
    except AttributeError:
        rule(group, given, weights, *options)  # what has no placement is refused there
        raise
    layer = _bound(group, key)
    (y,), kept = layer.through(0, {}, tuple([x.local for x in given]), weights)
    return Placed(y, layer.rule.y.tiling), KeptLayer(kept, key)


def backward(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights
) -> tuple[Any, dict[str, Any]]:
    """(dx, or None if x has no gradient, and those of the weights by name), placed as they are."""
    layer = _bound(group, kept.key)
    y, operation = layer.rule.y, f"{layer.rule.name}'s gradient"
    if layer.rule.why:
        need(operation, "dy", dy, (type(y.placement),), layer.rule.why)
    same_placement(operation, "dy", dy, "y", y)
    found, _ = layer.through(1, kept.arrays, (dy.local,), weights)
    first = len(found) - len(layer.names)
    of = dict(zip(layer.names, found[first:], strict=True))
    grads = {name: w and Placed(of[name], w.tiling) for name, w in weights.items()}
    return Placed(found[0], layer.x.tiling) if first else None, grads


def _bound(group: Group, key: _Key) -> BoundLayer:
    layer: BoundLayer | None = group.bound.get(key)
    if layer is None:
        if len(group.bound) == MOST:
            group.bound.clear()
        layer = group.bound[key] = BoundLayer(group, key)
    return layer


def _spec(x: Placed) -> BlockSpec:
    local = x.local
    return BlockSpec(x.tiling, getattr(local, "shape", ()), getattr(local, "itemsize", 0))
