"""ZeRO: what training keeps for each number, sharded over the data-parallel ranks.

                weights          gradients        optimizer's states     of n ranks
plain           all              all              all
ZeRO-1          all              all              1/n
ZeRO-2          all              1/n              1/n
ZeRO-3          1/n, gathered    1/n              1/n
                when used

Each layer's weights are one flat array, of which every rank keeps a part; parts may be uneven
(`tiledask.plan.collectives.data_parallel.shards`). Rajbhandari et al. 2020, arXiv:1910.02054.
"""

from collections.abc import Sequence
from typing import Any

from tiledask.distributed.data_parallel.chain import Layer, Weights, gradient, sizes
from tiledask.distributed.data_parallel.flat import Packing
from tiledask.distributed.ranks.group import Group
from tiledask.errors import ConfigError
from tiledask.plan.collectives.data_parallel import shards
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.tile.backend import accumulator, array_namespace, as_dtype
from tiledask.tile.epilogue import pieces
from tiledask.tile.memory.flat_states import check_states
from tiledask.tile.optimizers import Rule, flush, rule_for

__all__ = ["Zero"]

MASTER = "master weights"


class Zero:
    """A chain of layers on one of the ranks that train it together.

    weights
        Of the whole model, the same on every rank; each keeps its part.
    recipe
        What is kept for each number, and in how many bytes.
    zero
        0, 1, 2 or 3.
    rule
        What turns gradients into new weights; default: the one whose states the recipe keeps.
    scale
        Of the loss; gradients are divided by it before they are used.
    half
        What numbers of 2 bytes are: "float16" or "bfloat16".

    Gradients are added up in their own type. With the "direct" collectives (the default up to 8
    ranks) every number is summed in the order of ranks whatever ZeRO's stage, and all stages have
    the same weights to the bit.

    >>> import numpy as np
    >>> from tiledask.distributed.data_parallel.chain import Layer
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.tile.layers import Parameter
    >>> layers = [Layer("only", {"w": Parameter((10,))}, None, None)]
    >>> def held(rank):
    ...     mine = Zero(rank.group(), layers, {"only": {"w": np.zeros(10)}}, "fp32-adam", zero=1)
    ...     return mine.held["momentum"]
    >>> run_threads(held, 4).results  # 4 bytes each of 3, 3, 2 and 2 numbers
    [12, 12, 8, 8]
    """

    def __init__(
        self,
        group: Group,
        layers: Sequence[Layer],
        weights: Weights,
        recipe: str | Recipe = "fp32-adam",
        zero: int = 0,
        *,
        rule: Rule | None = None,
        scale: float = 1.0,
        algorithm: str | None = None,
        half: str = "float16",
    ) -> None:
        if isinstance(zero, bool) or zero not in range(4):
            raise ConfigError(f"ZeRO has stages 1, 2 and 3, and 0 for none; got {zero!r}")
        self.group, self.layers, self.zero = group, tuple(layers), zero
        self.scale, self.algorithm, self.recipe = scale, algorithm, load_recipe(recipe)
        self.rule = _rule(self.recipe, rule)
        if missing := [layer.name for layer in layers if layer.name not in weights]:
            raise ConfigError(
                f"there are weights for each of the {len(self.layers)} layers, got those of "
                f"{', '.join(map(repr, weights)) or 'none'}; {missing[0]!r} is missing: "
                f"initial_weights(layers) draws them all"
            )
        self.steps = 0
        """How many steps are done."""
        extents = shards(list(sizes(layers).values()), group.size)
        self._extents = {layer.name: e for layer, e in zip(layers, extents, strict=True)}
        self._packings = {layer.name: Packing.of(layer.parameters) for layer in layers}
        self._sharded = {s.tensor: s.sharded(zero) and group.size > 1 for s in self.recipe.states}
        self._types = {
            s.tensor: as_dtype(half if s.bytes == 2 else f"float{8 * s.bytes}")
            for s in self.recipe.states
        }
        self.arrays = {s.tensor: self._made(s.tensor, weights) for s in self.recipe.states}
        """Tensor class -> layer -> what this rank keeps: flat, all of it or its part."""
        self._asked: set[str] = set()

    def _made(self, tensor: str, weights: Weights) -> dict[str, Any]:
        made = {}
        for name, packing in self._packings.items():
            flat = packing.pack(weights[name])
            held = flat[self._part(name)] if self._sharded[tensor] else flat
            held = held.astype(self._types[tensor])
            starts = tensor in ("weights", MASTER)
            made[name] = held if starts else array_namespace(held).zeros_like(held)
        return made

    @property
    def held(self) -> dict[str, int]:
        """Bytes that this rank keeps, by tensor class."""
        return {
            tensor: sum(array.nbytes for array in arrays.values())
            for tensor, arrays in self.arrays.items()
        }

    # -- a step ---------------------------------------------------------------------------------

    def step(self, x: Any, targets: Any, count: int) -> float:
        """This rank's part of the loss; the weights are those after a step of the optimizer.

        ``x`` and ``targets`` are this rank's samples (there may be none), ``count`` those of all
        ranks together. The ranks' parts add up to the loss.
        """
        self.steps += 1
        self._asked.clear()
        loss = gradient(self.layers, self, x, targets, count, self._done, self.scale)
        for name in self._packings:
            if not self._sharded["gradients"]:
                self._add_up(name)
        for name in self._packings:
            self._update(name)
        if self.zero and not self._sharded["weights"]:
            for name in self._packings:
                mine = self._mine("weights", name)
                self.arrays["weights"][name] = self._gather(name, "weights", mine)
        return loss

    def __getitem__(self, name: str) -> dict[str, Any]:
        """A layer's weights by name; under ZeRO-3 gathered, and let go of by whoever asked."""
        flat = self.arrays["weights"][name]
        if self._sharded["weights"]:
            flat = self._gather(name, "backward" if name in self._asked else "forward", flat)
        self._asked.add(name)
        return self._packings[name].unpack(flat)

    def whole(self) -> dict[str, dict[str, Any]]:
        """The weights of all layers, copied; under ZeRO-3 gathered."""
        found = {}
        for name, packing in self._packings.items():
            flat = self.arrays["weights"][name]
            flat = self._gather(name, "whole", flat) if self._sharded["weights"] else flat.copy()
            found[name] = packing.unpack(flat)
        return found

    def _done(self, name: str, grads: dict[str, Any]) -> None:
        """A layer's gradients are there: added up at once if only a part of them is kept."""
        flat = self._packings[name].pack(grads).astype(self._types["gradients"], copy=False)
        self.arrays["gradients"][name] = flat
        if self._sharded["gradients"]:
            self._add_up(name)

    def _add_up(self, name: str) -> None:
        flat = self.arrays["gradients"][name]
        if self.group.size == 1:
            return
        with self.group.label(name, "gradients"):
            if not self.zero:
                total = self.group.all_reduce(flat, algorithm=self.algorithm)
            else:
                total = self.group.reduce_scatter(
                    flat, extents=self._extents[name], algorithm=self.algorithm
                )
        if self._sharded["gradients"] or not self.zero:
            self.arrays["gradients"][name] = total
        else:  # ZeRO-1 keeps all of them, and needs its part
            flat[self._part(name)] = total

    def _update(self, name: str, factor: float = 1.0) -> None:
        """The optimizer's step for the numbers that are this rank's, by gradients ``factor`` times
        what they are."""
        mine = {tensor: self._mine(tensor, name) for tensor in self.arrays}
        for piece in pieces(mine["gradients"]):
            self._update_piece({tensor: array[piece] for tensor, array in mine.items()}, factor)

    def _update_piece(self, mine: dict[str, Any], factor: float) -> None:
        source = mine.get(MASTER, mine["weights"])
        w = source.astype(accumulator(source.dtype), copy=False)
        g = mine["gradients"].astype(w.dtype)
        if self.scale != 1:
            g /= self.scale
        if factor != 1:
            g *= factor
        keeps: tuple[str, ...] = self.rule.keeps
        kept = {s: mine[s].astype(w.dtype, copy=False) for s in keeps}
        new, states = self.rule.step(w, g, kept, self.steps)
        for tensor, array in mine.items():
            if tensor != "gradients":
                array[...] = flush(states.get(tensor, new), array.dtype)

    def _mine(self, tensor: str, name: str) -> Any:
        """A view of the numbers that this rank updates."""
        whole = self._sharded[tensor] or not self.zero
        return self.arrays[tensor][name][slice(None) if whole else self._part(name)]

    def _part(self, name: str) -> slice:
        if not self.zero:
            return slice(None)
        extents, r = self._extents[name], self.group.rank
        return slice(sum(extents[:r]), sum(extents[: r + 1]))

    def _gather(self, name: str, when: str, mine: Any) -> Any:
        with self.group.label(name, when):
            return self.group.all_gather(mine, algorithm=self.algorithm)


def _rule(recipe: Recipe, rule: Rule | None) -> Rule:
    """What trains by this recipe. Raises ConfigError if it keeps what this rule does not use."""
    check_states(recipe)
    rule = rule_for(recipe) if rule is None else rule
    kept, used = {s.tensor for s in recipe.states}, {"weights", "gradients", *rule.keeps}
    if kept - {MASTER} != used:
        raise ConfigError(
            f"recipe {recipe.name!r} keeps {', '.join(sorted(kept))}, and {type(rule).__name__} "
            f"uses {', '.join(sorted(used))}, beside master weights if there are any; "
            f"'mixed-adam-16' and 'fp32-adam' are recipes that can be trained by Adam"
        )
    return rule
