"""Training recipes as data: bytes per parameter, and which of them ZeRO deals out."""

from dataclasses import dataclass
from functools import lru_cache

from tiledask.errors import ConfigError
from tiledask.plan.data import names, read_named
from tiledask.plan.ledger import ALWAYS

__all__ = ["Recipe", "State", "load_recipe", "recipes", "state_bytes"]


@dataclass(frozen=True)
class State:
    """One number kept for every parameter."""

    tensor: str
    """Tensor class: "weights", "gradients", "master weights", "momentum", ..."""
    bytes: int
    """Bytes per parameter."""
    zero: int
    """The lowest ZeRO stage that deals it out over the data-parallel devices."""
    moment: str = ALWAYS

    def sharded(self, zero: int) -> bool:
        return zero >= self.zero


@dataclass(frozen=True)
class Recipe:
    """What training (or serving) keeps for every parameter.

    >>> load_recipe("mixed-adam-16").bytes_per_parameter
    16
    """

    name: str
    description: str
    compute_bytes: int
    """Bytes of one number in the forward pass: 2 in half, 4 in single precision."""
    states: tuple[State, ...]
    source: str

    @property
    def bytes_per_parameter(self) -> int:
        return sum(state.bytes for state in self.states)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a parameter's gradient as the backward pass writes it; 0 when serving."""
        return next((s.bytes for s in self.states if s.tensor == "gradients"), 0)

    @property
    def weight_bytes(self) -> int:
        return next(s.bytes for s in self.states if s.tensor == "weights")

    @property
    def trains(self) -> bool:
        return self.gradient_bytes > 0


def recipes() -> tuple[str, ...]:
    """Names of the shipped recipes."""
    return names("recipes")


@lru_cache(maxsize=64)
def _load(name: str) -> Recipe:
    fields = read_named("recipes", name)
    states = []
    for each in fields.objects("states"):
        states.append(
            State(each.text("tensor"), each.integer("bytes"), each.integer("zero"),
                  each.text("moment", ALWAYS))
        )  # fmt: skip
        each.done()
    recipe = Recipe(
        fields.text("name"),
        fields.text("description"),
        fields.integer("compute_bytes"),
        tuple(states),
        fields.text("source"),
    )
    fields.done()
    return recipe


def load_recipe(recipe: str | Recipe) -> Recipe:
    """The shipped recipe of that name; a Recipe comes back as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise ConfigError(f"a recipe is a name or a Recipe, got {recipe!r}")
    return _load(recipe)


def state_bytes(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", zero: int = 0, dp: int = 1
) -> dict[str, int]:
    """Bytes of each state on one of ``dp`` data-parallel devices, by tensor class.

    ZeRO deals a state out in equal shards of whole numbers; the fullest device counts.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, Table 1.

    >>> sum(state_bytes(7_500_000_000, "mixed-adam-16", zero=1, dp=64).values())
    31406250000
    """
    return {
        state.tensor: state.bytes * (-(-parameters // dp) if state.sharded(zero) else parameters)
        for state in load_recipe(recipe).states
    }
