"""A layer that ranks call is a program of one layer: made once, run on their group.

    column_linear(group, x, w)     placements are checked; this rank's part, on what it is given
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
from tiledask.distributed.tensor.propagate import need, refuse
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
    name: str
    """Whose gradient is refused if dy is placed in another way."""
    y: Placed
    """The placement of what comes out."""
    why: str = ""
    """The reason."""
    tokens: Placed | None = None
    """What is between layers: its tokens may be sharded."""
    prefix: str = ""
    """What the method puts before the weights' names."""
    heads: tuple[int, int, int] = (1, 1, 1)
    regather: bool = False


_Spec = tuple[Tiling, int]
"""What is known of a block before it is there: its tiling, and bytes of a number."""
_Key = tuple[
    LayerRule, tuple[tuple[str, Any], ...], tuple[_Spec, ...], tuple[tuple[str, _Spec | None], ...]
]
"""What a layer's program follows from: rule, options of its method, what is given, weights."""


class KeptLayer(NamedTuple):
    """What a layer keeps for its gradient."""

    arrays: dict[str, Any]
    key: _Key


class BoundLayer(Interpreter):
    """This rank's part of a layer's program, bound to a group."""

    def __init__(self, group: Group, key: _Key) -> None:
        rule, options, given, of = key
        self._buffers = {name: rule.prefix + name for name, spec in of if spec}
        """Of each weight that is there."""
        self._arguments: Sequence[Any] = ()
        self._returned: Sequence[Any] = ()
        tokens = None
        if rule.tokens is not None and rule.tokens.dim is not None:
            dim, shards = rule.tokens.split
            tokens = dim, shards.counts
        xs = tuple((f"x{n}", *spec) for n, spec in enumerate(given))
        weights = tuple((rule.prefix + name, *spec) for name, spec in of if spec)
        sizes = rule.layer, group.size, xs, weights, options, (weights or xs)[0][2]
        program = layer_program(*sizes, tokens, rule.heads, rule.regather)
        state: dict[str, Any] = dict.fromkeys(self._buffers.values())
        super().__init__(group.owner, program, state, self._kernel_of, group=group)

    def _kernel_of(self, op: Op, _: str, options: dict[str, Any]) -> Callable[..., Any]:
        if op.name == "arguments":
            return lambda: self._arguments
        if op.name == "returns":
            return self._return
        kernel = KERNELS[op.name]
        return partial(kernel, **options) if options else kernel

    def _return(self, *arrays: Any) -> None:
        self._returned = arrays

    def through(
        self, turn: int, kept: dict[str, Any], arguments: tuple[Any, ...], weights: Weights
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """(what forward, turn 0, or backward returns, what it keeps besides)."""
        env, self._arguments = dict(kept or self._state), arguments
        env |= {buffer: weights[name].local for name, buffer in self._buffers.items()}
        for _, call in self._bound[turn]:
            call(env)
        env |= dict.fromkeys(self._buffers.values())
        returned, self._arguments, self._returned = self._returned, (), ()
        return returned, env


def forward(
    group: Group, rule: LayerRule, given: tuple[Placed, ...], weights: Weights, **options: Any
) -> tuple[Placed, KeptLayer]:
    """(y, kept) of a layer. ``weights``: by name, None for a bias that is not there; ``options``:
    of the method that writes it."""
    of = tuple([(name, w and _spec(w)) for name, w in weights.items()])
    key = rule, tuple(options.items()), tuple(map(_spec, given)), of
    (y,), kept = _bound(group, key).through(0, {}, tuple([x.local for x in given]), weights)
    return Placed(y, rule.y.tiling), KeptLayer(kept, key)


def backward(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights
) -> tuple[Any, dict[str, Any]]:
    """(dx, or None if x has no gradient, and those of the weights by name), placed as they are."""
    rule, _, ((x, _), *_), of = kept.key
    operation = f"{rule.name}'s gradient"
    if rule.why:
        need(operation, "dy", dy, (type(rule.y.placement),), rule.why)
    if dy.tiling != rule.y.tiling:
        refuse(operation, f"dy must have the same placement as y, {rule.y}, got {dy}")
    found, _ = _bound(group, kept.key).through(1, kept.arrays, (dy.local,), weights)
    there = [name for name, spec in of if spec]
    first = len(found) - len(there)
    made = dict(zip(there, found[first:], strict=True))
    grads = {name: w and Placed(made[name], w.tiling) for name, w in weights.items()}
    return Placed(found[0], x) if first else None, grads


def _bound(group: Group, key: _Key) -> BoundLayer:
    layer: BoundLayer | None = group.bound.get(key)
    if layer is None:
        if len(group.bound) == MOST:
            group.bound.clear()
        layer = group.bound[key] = BoundLayer(group, key)
    return layer


def _spec(x: Placed) -> _Spec:
    return x.tiling, getattr(x.local, "itemsize", 0)
