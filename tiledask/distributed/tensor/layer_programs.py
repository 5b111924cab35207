"""A layer that ranks call is a program of one layer: made once, run on their group.

    column_linear(group, x, w)     its rule checks the placements, the first time
                                   forward: this rank's line, on what it is given
    column_linear_grad(...)        backward: on dy, and on what the forward's line has kept

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
from tiledask.plan.program.making.layer import LayerOperand, LayerTerms, layer_program
from tiledask.plan.program.ops import Block, Op
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
    told: dict[str, Any]
    """What the method is told."""
    name: str
    """Whose gradient is refused if dy is placed in another way."""
    why: str = ""
    """It is."""
    tokens: Placed | None = None
    """What is between layers: its tokens may be sharded."""
    room: str = ""
    """What the method puts before the weights' names."""
    heads: tuple[int, int, int] = (1, 1, 1)
    regather: bool = False


Check = Callable[..., LayerRule]
"""From the group, the specs of what is given and of the weights, and what the layer is told."""
_Spec = tuple[Any, ...]
"""Tiling, and shape and itemsize of the block."""


class _Key(NamedTuple):
    """What a layer's program follows from."""

    check: Check
    told: tuple[Any, ...]
    given: tuple[_Spec, ...]
    names: tuple[str, ...]
    weights: tuple[_Spec | None, ...]
    wanted: bool = True


class BlockShape(NamedTuple):
    """What is known of a block before it is there."""

    shape: tuple[int, ...]
    itemsize: int


class KeptLayer(NamedTuple):
    """What a layer keeps for its gradient."""

    arrays: tuple[Any, ...]
    rule: LayerRule
    key: _Key


class BoundLayer(Interpreter):
    """This rank's line of a layer's program, bound to a group."""

    def __init__(self, group: Group, key: _Key) -> None:
        check, told, given, names, specs, wanted = key
        xs = tuple(_placed(x) for x in given)
        there = {n: _placed(spec) for n, spec in zip(names, specs, strict=True) if spec}
        weights: Weights = dict.fromkeys(names) | there
        self.key, self.x, self.rule = key, xs[0], check(group, xs, weights, *told)
        rule = self.rule
        operands = [_operand(rule.room + name, w) for name, w in there.items()]
        self.names = list(there)
        self._arguments: Sequence[Any] = ()
        self._returned: Sequence[Any] = ()
        terms = LayerTerms(
            layer=rule.layer,
            mesh=group.mesh,
            given=tuple(_operand(f"x{n}", x) for n, x in enumerate(xs)),
            weights=tuple(operands),
            options=tuple(rule.told.items()),
            itemsize=[*there.values(), *xs][0].local.itemsize,
            tokens=_tokens(rule.tokens),
            heads=rule.heads,
            regather=rule.regather,
            wanted=wanted,
        )
        state: dict[str, Any] = dict.fromkeys(each.name for each in operands)
        super().__init__(group.owner, layer_program(terms), state, self._of_layer, group=group)
        self._of_weights = {n: self._slots[rule.room + n] for n in there}

    def _of_layer(self, op: Op, _: Block, told: dict[str, Any]) -> Callable[..., Any]:
        if op.name == "arguments":
            return lambda: self._arguments
        if op.name == "returns":
            return self._return
        kernel = KERNELS[op.name]
        return partial(kernel, **told) if told else kernel

    def _return(self, *arrays: Any) -> None:
        self._returned = arrays

    def through(
        self, turn: int, kept: Sequence[Any], arguments: tuple[Any, ...], weights: Weights
    ) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """(what a part of the line returns, what it keeps besides)."""
        env, self._arguments = list(kept or self._state), arguments
        for name, slot in self._of_weights.items():
            w = weights[name]
            env[slot] = w and w.local
        for _, call in self._bound[turn]:
            call(env)
        for slot in self._of_weights.values():
            env[slot] = None
        returned, self._arguments, self._returned = self._returned, (), ()
        return returned, tuple(env)


def forward(
    check: Check, group: Group, given: tuple[Placed, ...], weights: Weights, *told: Any
) -> tuple[Placed, KeptLayer]:
    """(y, kept) of the layer whose rule ``check`` has; PlacementError from there.

    ``weights``: by name, None for a bias that is not there.
    """
    try:
        specs = tuple([None if w is None else _spec(w) for w in weights.values()])
        key = _Key(check, told, tuple([_spec(x) for x in given]), tuple(weights), specs)
    except AttributeError:
        check(group, given, weights, *told)  # what has no placement is refused by the rule
        raise
    layer = _bound(group, key)
    (y,), kept = layer.through(0, (), tuple([x.local for x in given]), weights)
    return _block(y, layer.rule.y), KeptLayer(kept, layer.rule, layer.key)


def backward(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights, wanted: bool = True
) -> tuple[Any, dict[str, Any]]:
    """(dx, or None if x has no gradient, and those of the weights by name), placed as they are.

    ``wanted``: whether dx is; if not it is None, and nothing moves for it.
    """
    y, operation = kept.rule.y, f"{kept.rule.name}'s gradient"
    if kept.rule.why:
        need(operation, "dy", dy, (type(y.placement),), kept.rule.why)
    same_placement(operation, "dy", dy, "y", y)
    layer = _bound(group, kept.key if wanted else kept.key._replace(wanted=False))
    found, _ = layer.through(1, kept.arrays, (dy.local,), weights)
    first = len(found) - len(layer.names)
    of = dict(zip(layer.names, found[first:], strict=True))
    grads = {n: w and _block(of[n], w) for n, w in weights.items()}
    return _block(found[0], layer.x) if first else None, grads


def _bound(group: Group, key: _Key) -> BoundLayer:
    layer: BoundLayer | None = group.bound.get(key)
    if layer is None:
        if len(group.bound) == MOST:
            group.bound.clear()
        layer = group.bound[key] = BoundLayer(group, key)
    return layer


def _block(local: Any, like: Placed) -> Placed:
    return Placed(local, like.tiling)


def _spec(x: Placed) -> _Spec:
    local = x.local
    of = getattr(local, "shape", ()), getattr(local, "itemsize", 0)
    return x.tiling, *of


def _placed(spec: _Spec) -> Placed:
    return Placed(BlockShape(*spec[1:]), spec[0])


def _operand(name: str, x: Placed) -> LayerOperand:
    return LayerOperand(name, x.tiling, x.local.itemsize)


def _tokens(x: Placed | None) -> tuple[int, tuple[int, ...]] | None:
    if x is None or x.dim is None:
        return None
    dim, shards = x.split
    return dim, shards.counts
