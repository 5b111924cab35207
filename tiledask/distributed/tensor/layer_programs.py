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

from tiledask.distributed.programs.runner import LineRunner
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed
from tiledask.plan.collectives.layouts import Sharding
from tiledask.plan.program.instructions import Do, ProgramPart
from tiledask.plan.program.making.of_layer import LayerOperand, LayerTerms, layer_program
from tiledask.plan.products.placement import Partial
from tiledask.tile.layers.by_name import KERNELS

__all__ = ["KeptLayer", "LayerRule", "Weights", "backward", "forward", "inside", "prefixed"]

Weights = dict[str, Placed]
"""Weights, or their gradients, by name."""

MOST = 256
"""Layers that are bound to a group at once."""


class LayerRule(NamedTuple):
    """What a layer is, once its operands were found to go together."""

    layer: str
    """The method of `TensorLayers` that writes it."""
    y: Placed
    """The placement of what comes out."""
    told: dict[str, Any]
    """What the method is told."""
    tokens: Placed | None = None
    """What is between layers: its tokens may be sharded."""
    heads: tuple[int, int, int] = (1, 1, 1)
    regather: bool = False


class BlockShape(NamedTuple):
    """What is known of a block before it is there."""

    shape: tuple[int, ...]
    itemsize: int


Check = Callable[..., LayerRule]
"""From the group, the specs of what is given and of the weights, and what the layer is told."""
_Key = tuple[Check, tuple[Any, ...], tuple[Placed, ...], tuple[str, ...], tuple[Placed, ...]]


class KeptLayer(NamedTuple):
    """What a layer keeps for its gradient."""

    arrays: tuple[Any, ...]
    y: Placed
    """The placement of what came out."""
    key: _Key


class BoundLayer(LineRunner):
    """This rank's line of a layer's program, bound to a group."""

    def __init__(self, group: Group, key: _Key) -> None:
        check, told, given, names, specs = key
        weights = dict(zip(names, specs, strict=True))
        rule = check(group, given, weights, *told)
        self.key, self.y, self.x, self.names = key, rule.y, given[0], names
        terms = LayerTerms(
            layer=rule.layer,
            ranks=group.size,
            given=tuple(_operand(f"x{n}", x) for n, x in enumerate(given)),
            weights=tuple(_operand(name, w) for name, w in weights.items()),
            told=tuple(rule.told.items()),
            itemsize=(specs or given)[0].local.itemsize,
            tokens=None if rule.tokens is None or rule.tokens.dim is None else _tokens(rule.tokens),
            heads=rule.heads,
            regather=rule.regather,
        )
        self._arguments: Sequence[Any] = ()
        self._returned: Sequence[Any] = ()
        stays: dict[str, Any] = dict.fromkeys(names)
        super().__init__(group.owner, layer_program(terms), stays, self._kernel, group)

    def _kernel(self, each: Do, part: ProgramPart, told: dict[str, Any]) -> Callable[..., Any]:
        if each.kernel == "arguments":
            return lambda: self._arguments
        if each.kernel == "returns":
            return self._return
        kernel = KERNELS[each.kernel]
        return partial(kernel, **told) if told else kernel

    def _return(self, *arrays: Any) -> None:
        self._returned = arrays

    def go(
        self, turn: int, env: list[Any], arguments: tuple[Any, ...], weights: Weights
    ) -> Sequence[Any]:
        """What a part of the line returns; ``env`` has what it keeps."""
        slots = [self._slots[name] for name in weights]
        for slot, w in zip(slots, weights.values(), strict=True):
            env[slot] = w.local
        self._arguments = arguments
        for _, call in self._bound[turn]:
            call(env)
        for slot in slots:
            env[slot] = None
        returned, self._arguments, self._returned = self._returned, (), ()
        return returned

    def empty(self) -> list[Any]:
        """Nothing kept yet."""
        return self._stays.copy()


def forward(
    check: Check, group: Group, given: tuple[Placed, ...], weights: Weights, *told: Any
) -> tuple[Placed, KeptLayer]:
    """(y, kept) of the layer whose rule ``check`` has; PlacementError from there."""
    try:
        specs = tuple([_spec(x) for x in given])
        key = check, told, specs, tuple(weights), tuple([_spec(w) for w in weights.values()])
    except AttributeError:
        check(group, given, weights, *told)  # what has no placement is refused by the rule
        raise
    layer = _bound(group, key)
    env = layer.empty()
    (y,) = layer.go(0, env, tuple([x.local for x in given]), weights)
    return layer.y._replace(local=y), KeptLayer(tuple(env), layer.y, layer.key)


def backward(
    group: Group, dy: Any, kept: KeptLayer, weights: Weights
) -> tuple[Placed | None, Weights]:
    """(dx, or None if x has no gradient, and those of the weights by name), placed as they are."""
    layer = _bound(group, kept.key)
    found = layer.go(1, list(kept.arrays), (dy,), weights)
    first = len(found) - len(layer.names)
    of_weights = dict(zip(layer.names, found[first:], strict=True))
    dx = layer.x._replace(local=found[0]) if first else None
    return dx, {name: w._replace(local=of_weights[name]) for name, w in weights.items()}


def prefixed(room: str, weights: Weights) -> Weights:
    """The weights as those of a part of a layer."""
    return {f"{room}.{name}": w for name, w in weights.items()}


def inside(room: str, weights: Weights) -> Weights:
    """The weights of a part of a layer, as it calls them."""
    start = f"{room}."
    return {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}


def _bound(group: Group, key: _Key) -> BoundLayer:
    layer: BoundLayer | None = group.bound.get(key)
    if layer is None:
        if len(group.bound) == MOST:
            group.bound.clear()
        layer = group.bound[key] = BoundLayer(group, key)
    return layer


def _spec(x: Placed) -> Placed:
    local = x.local
    shape, dtype = getattr(local, "shape", ()), getattr(local, "dtype", None)
    here = BlockShape(shape, 0 if dtype is None else dtype.itemsize)
    return Placed(here, x.placement, x.shape, x.shards)


def _operand(name: str, x: Placed) -> LayerOperand:
    assert not isinstance(x.placement, Partial)
    return LayerOperand(name, x.shape, Sharding(x.placement, x.shards), x.local.itemsize)


def _tokens(x: Placed) -> tuple[int, tuple[int, ...]]:
    dim, shards = x.split
    return dim, shards.counts
