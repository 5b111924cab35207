"""SGD, Adam and AdamW: one step of an array, element by element.

         decay           what is kept                     the step
SGD      g += d w        b = mu b + (1 - tau) g           w -= r b         (nesterov: g + mu b)
Adam     g += d w        m = B1 m + (1 - B1) g            w -= r m' / (sqrt(v') + tiny)
                         v = B2 v + (1 - B2) g g
AdamW    w -= r d w      as Adam                          as Adam

m' = m / (1 - B1^t) and v' = v / (1 - B2^t) undo that both began at zero; t counts from 1. The
first step of SGD has b = g, whatever tau is. These are the formulas of torch.optim's pages, with
d for weight_decay, mu for momentum, tau for dampening, B for betas and tiny for eps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.tile.backend import Array, array_namespace

__all__ = ["SGD", "Adam", "AdamW", "Rule", "check_states", "rule_for"]

KNOWN = ("weights", "gradients", "fp32 gradients", "master weights", "momentum", "variance")
"""What a step uses, of 2, 4 or 8 bytes each."""

States = Mapping[str, Array]
"""Arrays of the weights' shape by the planner's words: "momentum", "variance"."""


@dataclass(frozen=True)
class Rule:
    """An optimizer's rule: `SGD`, `Adam` or `AdamW`."""

    rate: float = 1e-3
    """The learning rate."""

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of what it keeps for each weight."""
        return ()

    def step(self, w: Array, g: Array, states: States, t: int) -> tuple[Array, dict[str, Array]]:
        """(new weights, new states) of step ``t``, from 1; ``states`` are zeros before the first.

        All arrays have one shape and one element type, in which everything is computed; none is
        changed.
        """
        raise NotImplementedError


def _check(rule: Rule, least: tuple[str, ...], below_one: tuple[str, ...]) -> None:
    for name in least:
        if not getattr(rule, name) >= 0:
            raise ConfigError(f"{name} is 0 or more, got {getattr(rule, name)}")
    for name in below_one:
        if not 0 <= getattr(rule, name) < 1:
            raise ConfigError(
                f"{name} is from 0 up to, not including, 1, got {getattr(rule, name)}; 0.9 is usual"
            )


@dataclass(frozen=True)
class SGD(Rule):
    """Gradient descent, with momentum if that is above 0.

    >>> import numpy as np
    >>> w, _ = SGD(rate=0.1).step(np.array([1.0]), np.array([2.0]), {}, 1)
    >>> w.tolist()
    [0.8]
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    """Times the weights is added to the gradient."""

    def __post_init__(self) -> None:
        _check(self, ("rate", "weight_decay"), ("momentum",))
        if self.nesterov and (not self.momentum or self.dampening):
            raise ConfigError(
                f"Nesterov's step looks ahead along the momentum: it needs momentum above 0 and no "
                f"dampening, got {self.momentum} and {self.dampening}"
            )

    @property
    def keeps(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def step(self, w: Array, g: Array, states: States, t: int) -> tuple[Array, dict[str, Array]]:
        if self.weight_decay:
            g = g + self.weight_decay * w
        if not self.momentum:
            return w - self.rate * g, {}
        b = g.copy() if t == 1 else self.momentum * states["momentum"] + (1 - self.dampening) * g
        return w - self.rate * (g + self.momentum * b if self.nesterov else b), {"momentum": b}


@dataclass(frozen=True)
class Adam(Rule):
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.

    >>> import numpy as np
    >>> zeros = {"momentum": np.zeros(2), "variance": np.zeros(2)}
    >>> w, _ = Adam(rate=0.1).step(np.ones(2), np.array([5.0, -1e-3]), zeros, 1)
    >>> w.round(4).tolist()  # a first step is of the rate, whatever the gradient
    [0.9, 1.1]
    """

    beta1: float = 0.9
    beta2: float = 0.999
    tiny: float = 1e-8
    """Added to the root of the variance. Of fp16 states it would be 0."""
    weight_decay: float = 0.0
    """Times the weights is added to the gradient, and so goes through both moments."""

    def __post_init__(self) -> None:
        _check(self, ("rate", "tiny", "weight_decay"), ("beta1", "beta2"))

    @property
    def keeps(self) -> tuple[str, ...]:
        return ("momentum", "variance")

    def step(self, w: Array, g: Array, states: States, t: int) -> tuple[Array, dict[str, Array]]:
        return self._moved(w, g + self.weight_decay * w if self.weight_decay else g, states, t)

    def _moved(self, w: Array, g: Array, states: States, t: int) -> tuple[Array, dict[str, Array]]:
        m = self.beta1 * states["momentum"] + (1 - self.beta1) * g
        v = self.beta2 * states["variance"] + (1 - self.beta2) * g * g
        root = array_namespace(v).sqrt(v / (1 - self.beta2**t))
        return w - self.rate / (1 - self.beta1**t) * m / (root + self.tiny), {
            "momentum": m,
            "variance": v,
        }


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights shrink by themselves, not by way of the gradient.

    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay times the rate.

    >>> import numpy as np
    >>> zeros = {"momentum": np.zeros(1), "variance": np.zeros(1)}
    >>> AdamW(rate=0.1, weight_decay=0.5).step(np.ones(1), np.zeros(1), zeros, 1)[0].tolist()
    [0.95]
    """

    weight_decay: float = 0.01
    """Times the rate is the share of each weight that goes in a step."""

    def step(self, w: Array, g: Array, states: States, t: int) -> tuple[Array, dict[str, Array]]:
        return self._moved(w * (1 - self.rate * self.weight_decay), g, states, t)


def rule_for(recipe: str | Recipe, rate: float = 1e-3) -> Rule:
    """The rule whose states the planner's ``recipe`` keeps: Adam, SGD with momentum 0.9, or SGD.

    >>> rule_for("mixed-adam-16"), rule_for("fp32-sgd").keeps
    (Adam(rate=0.001, beta1=0.9, beta2=0.999, tiny=1e-08, weight_decay=0.0), ())
    """
    recipe = load_recipe(recipe)
    if recipe.holds("variance"):
        return Adam(rate)
    return SGD(rate, momentum=0.9 if recipe.holds("momentum") else 0.0)


def check_states(recipe: Recipe) -> None:
    """Refuse a recipe that keeps what no rule uses, or keeps it elsewhere."""
    if recipe.places:
        raise ConfigError(
            f"recipe {recipe.name!r} offloads states to {' and '.join(recipe.places)}; what can be "
            f"run keeps all of them on the device"
        )
    for s in recipe.states:
        if s.tensor not in KNOWN or s.bytes not in (2, 4, 8) or s.of != "parameters":
            raise ConfigError(
                f"recipe {recipe.name!r} keeps {s.bytes} B of {s.tensor!r} for each of the {s.of}; "
                f"what can be run keeps {', '.join(KNOWN)} of 2, 4 or 8 B for all parameters, such "
                f"as 'mixed-adam-16'"
            )
