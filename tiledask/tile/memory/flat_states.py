"""The states of a device's parameters as flat arrays, sharded by ZeRO, and the optimizer's step.

weights         |=============================|   of all parameters of the device
gradients       |=============================|
momentum        |=======|                         ZeRO-1: of this copy's share of them
variance        |=======|
step                block by block; what is in between stays in registers, as a fused kernel does
"""

from collections.abc import Iterator

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe
from tiledask.tile.backend import Array
from tiledask.tile.memory.pool import Pool
from tiledask.tile.optimizers.rules import rule_for

__all__ = ["DTYPES", "FlatStates", "check_states", "gradient_from_seed"]

BLOCK = 2**16
"""Numbers that the optimizer has in registers at once."""
DEVIATION = 0.02
"""Standard deviation of the weights that are drawn."""
DTYPES = {2: np.float16, 4: np.float32, 8: np.float64}
KNOWN = ("weights", "gradients", "fp32 gradients", "master weights", "momentum", "variance")


def check_states(recipe: Recipe) -> None:
    """Refuse a recipe that keeps what no code here uses."""
    wrong = [
        s
        for s in recipe.states
        if s.tensor not in KNOWN or s.bytes not in DTYPES or s.of != "parameters"
    ]
    if wrong:
        raise ConfigError(
            f"recipe {recipe.name!r} keeps {wrong[0].bytes} B of {wrong[0].tensor!r} for each of "
            f"the {wrong[0].of}; what can be run keeps {', '.join(KNOWN)} of 2, 4 or 8 B for all "
            f"parameters, such as 'mixed-adam-16'"
        )


class FlatStates:
    """The states of ``count`` parameters on one of ``copies`` devices, really there.

    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> pool = Pool()
    >>> states = FlatStates(pool, load_recipe("mixed-adam-16"), 1000, zero=1, copies=4)
    >>> pool.held  # 4 B of each parameter, 12 B of a quarter
    7000
    """

    def __init__(
        self,
        pool: Pool,
        recipe: Recipe,
        count: int,
        zero: int = 0,
        copies: int = 1,
        copy: int = 0,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        self.pool, self.recipe, self.count, self.seed = pool, recipe, count, seed
        share = -(-count // copies)
        mine = min(copy * share, count), min((copy + 1) * share, count)
        self.rule, self.steps = rule_for(recipe), 0
        self.arrays: dict[str, Array] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        """Which of the parameters each state is held for."""
        for state in recipe.states:
            held = mine if state.sharded(zero) and copies > 1 else (0, count)
            self.ranges[state.tensor] = held
            array = pool.empty(state.tensor, (held[1] - held[0],), DTYPES[state.bytes])
            if state.tensor in ("weights", "master weights"):
                for at, end in blocks(*held):
                    array[at - held[0] : end - held[0]] = self.drawn(at, end)
            else:
                array[...] = 0
            self.arrays[state.tensor] = array

    def drawn(self, start: int, stop: int) -> Array:
        """The first values of these weights, in registers: the same whoever draws them."""
        parts = []
        for n in range(start // BLOCK, -(-stop // BLOCK)):
            values = np.random.default_rng((*self.seed, n)).random(BLOCK, np.float32)
            parts.append(values[max(0, start - n * BLOCK) : stop - n * BLOCK])
        values = np.concatenate(parts) if len(parts) > 1 else parts[0]
        values -= np.float32(0.5)
        values *= np.float32(DEVIATION * 12**0.5)  # of a uniform distribution of width 1: 12^-1/2
        return self.pool.xp.asarray(values)

    def part(self, tensor: str, start: int, stop: int) -> Array:
        """A view of these parameters' state; of no element where it is not held here."""
        low, high = self.ranges[tensor]
        return self.arrays[tensor][max(start, low) - low : max(min(stop, high), low) - low]

    def step(self) -> None:
        """The next step of the optimizer whose states the recipe keeps: `rule_for`."""
        self.steps += 1
        low = max(low for low, _ in self.ranges.values())
        high = min(high for _, high in self.ranges.values())
        for start, stop in blocks(low, high):
            held = {tensor: self.part(tensor, start, stop) for tensor in self.arrays}
            wide = {tensor: part.astype(np.float32) for tensor, part in held.items()}
            if "fp32 gradients" in held:
                held["fp32 gradients"][...] = wide["gradients"]
            old = wide.get("master weights", wide["weights"])
            new, moments = self.rule.step(old, wide["gradients"], wide, self.steps)
            for tensor in ("weights", "master weights"):
                moments[tensor] = new
            for tensor in moments.keys() & held.keys():
                held[tensor][...] = moments[tensor]


def gradient_from_seed(states: FlatStates) -> None:
    """Fills the gradients as a backward pass would: of a number of parameters nothing else is
    known. Copies sum them block by block, and each keeps its share."""
    for start, stop in blocks(*states.ranges["gradients"]):
        states.part("gradients", start, stop)[...] = states.drawn(start, stop)


def blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Intervals of at most BLOCK that cover start .. stop, cut where every BLOCK begins."""
    while start < stop:
        end = min(stop, (start // BLOCK + 1) * BLOCK)
        yield start, end
        start = end
