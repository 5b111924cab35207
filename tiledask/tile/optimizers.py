"""Optimizers: SGD, Adam, AdamW; loss scales; weights in half precision and a step of all of them.

         decay           what is kept                     the step
SGD                      b = mu b + g                     w -= r b
Adam                     m = B1 m + (1 - B1) g            w -= r m' / (sqrt(v') + tiny)
                         v = B2 v + (1 - B2) g g
AdamW    w -= r d w      as Adam                          as Adam

m' = m / (1 - B1^t) and v' = v / (1 - B2^t) undo that both began at zero; t counts from 1. These
are the formulas of torch.optim's pages, with d for weight_decay, mu for momentum, B for betas and
tiny for eps.

    forward, backward    half      [weights] ------> [gradients] ---.
                                       ^ rounded                    | widened, unscaled, clipped
    the step             single    [master]  <------ [moments] <----'

A weight of 1 and an update of 2^-11 make 1 in fp16: of many such updates none is left. The master
adds them up (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1). A step returns new arrays
and changes none; the step of a shard is the shard of the step, to the bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import ConfigError, DivergedError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.whole import is_whole
from tiledask.tile import fused
from tiledask.tile.backend import HALVES, Array, accumulator, array_namespace, as_dtype

__all__ = ["SGD", "Adam", "AdamW", "LossScale", "Rule", "TrainState", "advance", "begin"]
__all__ += ["check_states", "clip_factor", "flush", "fused_step", "guarded", "rule_for", "update"]

MASTER, WIDE_GRADIENTS = "master weights", "fp32 gradients"
KNOWN = ("weights", "gradients", WIDE_GRADIENTS, MASTER, "momentum", "variance")
"""What a step uses, of 2, 4 or 8 bytes each."""

Arrays = dict[str, Array]
"""By the weights' names; states of one weight by the planner's words: "momentum", "variance"."""


# -- rules: one step of an array -------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """An optimizer's rule: `SGD`, `Adam` or `AdamW`."""

    rate: float = 1e-3  # The learning rate

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("rate", "tiny", "weight_decay") and not value >= 0:
                raise ConfigError(f"{name} is 0 or more, got {value}")
            if name in ("momentum", "beta1", "beta2") and not 0 <= value < 1:
                raise ConfigError(f"{name} is from 0 up to, not including, 1, got {value}")

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of what it keeps for each weight."""
        return ()

    def step(self, w: Array, g: Array, states: Mapping[str, Array], t: int) -> tuple[Array, Arrays]:
        """(new weights, new states) of step ``t``, from 1; ``states`` are zeros before the first.

        All arrays have one shape and one element type, in which everything is computed.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Rule):
    """Gradient descent, with momentum if that is above 0.

    >>> w, _ = SGD(rate=0.1).step(np.array([1.0]), np.array([2.0]), {}, 1)
    >>> w.tolist()
    [0.8]
    """

    momentum: float = 0.0

    @property
    def keeps(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def step(self, w: Array, g: Array, states: Mapping[str, Array], t: int) -> tuple[Array, Arrays]:
        if not self.momentum:
            return w - self.rate * g, {}
        b = g.copy() if t == 1 else self.momentum * states["momentum"] + g
        return w - self.rate * b, {"momentum": b}


@dataclass(frozen=True)
class Adam(Rule):
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.

    >>> zeros = {"momentum": np.zeros(2), "variance": np.zeros(2)}
    >>> w, _ = Adam(rate=0.1).step(np.ones(2), np.array([5.0, -1e-3]), zeros, 1)
    >>> w.round(4).tolist()  # a first step is of the rate, whatever the gradient
    [0.9, 1.1]
    """

    beta1: float = 0.9
    beta2: float = 0.999
    tiny: float = 1e-8  # Added to the root of the variance; of fp16 states it would be 0

    @property
    def keeps(self) -> tuple[str, ...]:
        return ("momentum", "variance")

    def step(self, w: Array, g: Array, states: Mapping[str, Array], t: int) -> tuple[Array, Arrays]:
        m = self.beta1 * states["momentum"] + (1 - self.beta1) * g
        v = self.beta2 * states["variance"] + (1 - self.beta2) * g * g
        root = array_namespace(v).sqrt(v / (1 - self.beta2**t))
        moved = w - self.rate / (1 - self.beta1**t) * m / (root + self.tiny)
        return moved, {"momentum": m, "variance": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights shrink by themselves, not by way of the gradient.

    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay times the rate.

    >>> zeros = {"momentum": np.zeros(1), "variance": np.zeros(1)}
    >>> AdamW(rate=0.1, weight_decay=0.5).step(np.ones(1), np.zeros(1), zeros, 1)[0].tolist()
    [0.95]
    """

    weight_decay: float = 0.01  # Times the rate is the share of each weight that goes in a step

    def step(self, w: Array, g: Array, states: Mapping[str, Array], t: int) -> tuple[Array, Arrays]:
        return super().step(w * (1 - self.rate * self.weight_decay), g, states, t)


def rule_for(recipe: str | Recipe, rate: float = 1e-3) -> Rule:
    """The rule whose states the planner's ``recipe`` keeps: Adam, SGD with momentum 0.9, or SGD.

    >>> rule_for("fp32-momentum").momentum, rule_for("fp32-sgd").keeps
    (0.9, ())
    >>> rule_for("mixed-adam-16")
    Adam(rate=0.001, beta1=0.9, beta2=0.999, tiny=1e-08)
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
            f"run keeps them on the device"
        )
    for s in recipe.states:
        if s.tensor not in KNOWN or s.bytes not in (2, 4, 8) or s.of != "parameters":
            raise ConfigError(
                f"recipe {recipe.name!r} keeps {s.bytes} B of {s.tensor!r} for each of the {s.of}; "
                f"what can be run keeps {', '.join(KNOWN)} of 2, 4 or 8 B for all parameters"
            )


# -- the loss scale, and the norm ------------------------------------------------------------------


@dataclass(frozen=True)
class LossScale:
    """The loss scale, with which gradients in fp16 are neither 0 nor infinite.

        2^-24    2^-14                                       65504
          |--------|------------------------------------------|     what fp16 can hold
      [gradients of a loss]  -- times scale -->  [gradients]        moved to the right, all alike

    `after` each step comes the next scale. A dynamic one grows until something overflows, skips
    that step, and comes back by half. Micikevicius et al. 2018, arXiv:1710.03740, sections 3.2 and
    4; the numbers are those of torch.amp.GradScaler.

    >>> scale = LossScale(1024.0, interval=2)
    >>> scale = scale.after(finite=False)
    >>> scale.scale, scale.skipped
    (512.0, 1)
    >>> scale.after(finite=True).after(finite=True).scale
    1024.0
    """

    scale: float = 2.0**16
    growth: float = 2.0  # Times the scale, after ``interval`` steps in a row without an overflow
    backoff: float = 0.5  # Times the scale, after an overflow
    interval: int = 2000
    floor: float = 1.0  # The scale goes no lower
    ceiling: float = 2.0**127  # Nor higher: the largest power of two in single precision
    patience: int = 20  # Overflows in a row at the floor after which the run has diverged
    good: int = 0  # Steps in a row without an overflow, since the scale last changed
    stuck: int = 0  # Overflows in a row that could not lower the scale
    skipped: int = 0  # Steps that overflowed

    def __post_init__(self) -> None:
        within = 0 < self.floor <= self.scale <= self.ceiling
        if not (within and self.growth > 1 and 0 < self.backoff < 1 and is_whole(self.interval, 1)):
            raise ConfigError(
                f"a loss scale lies between its floor, above 0, and its ceiling; it grows by more "
                f"than 1, of 1 step or more, and backs off by less than 1; got {self}"
            )

    @classmethod
    def static(cls, scale: float, patience: int = 20) -> "LossScale":
        """A scale that stays. 1 is no scaling: overflowing steps are skipped all the same."""
        return cls(scale, floor=scale, ceiling=scale, patience=patience)

    def after(self, finite: bool) -> "LossScale":
        """The scale after a step whose gradients were ``finite``, on all devices, or not.

        Raises DivergedError after ``patience`` overflows in a row that could not lower the scale.
        """
        if finite:
            good = (self.good + 1) % self.interval
            scale = self.scale if good else min(self.scale * self.growth, self.ceiling)
            return replace(self, scale=scale, good=good, stuck=0)
        scale = max(self.scale * self.backoff, self.floor)
        stuck = self.stuck + 1 if scale == self.scale else 0
        if stuck >= self.patience:
            raise DivergedError(
                f"{stuck} steps in a row overflowed at the scale's floor, {scale:g}, and patience "
                f"is {self.patience}: go back to a checkpoint with a lower rate, or compute in "
                f"bfloat16"
            )
        return replace(self, scale=scale, good=0, stuck=stuck, skipped=self.skipped + 1)


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied with: limit / norm, and 1 below the limit.

    The norm is of all gradients of all devices together, the root of the sum of their squares; what
    several of them hold counts once. Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.

    >>> clip_factor(4.0, 1.0), clip_factor(0.5, 1.0)
    (0.25, 1.0)
    """
    if not limit > 0:
        raise ConfigError(f"gradients are clipped to a norm above 0, got {limit}; 1.0 is usual")
    return limit / norm if norm > limit else 1.0


def guarded(
    norm: float, scale: LossScale | None, limit: float | None
) -> tuple[LossScale | None, float | None]:
    """(the next scale, what gradients are multiplied with) for unscaled gradients of this norm.

    None in place of a factor leaves the step out: a norm that is not finite, under a scale.
    """
    finite = math.isfinite(norm)
    scale = scale and scale.after(finite)
    if scale is not None and not finite:
        return scale, None
    return scale, clip_factor(norm, limit) if limit is not None and finite else 1.0


def _unscaled(g: Array, scale: float, dtype: np.dtype) -> Array:
    """Halves become float32 first: they could not hold the quotient."""
    g = g.astype(dtype, copy=False)
    return g if scale == 1 else g / scale


# -- a step ----------------------------------------------------------------------------------------


def update(
    rule: Rule, states: Mapping[str, Array], g: Array, t: int, factor: float = 1, scale: float = 1
) -> Arrays:
    """The new ``states`` of an array after step ``t``, each rounded to its own element type.

    ``states``: by tensor class its weights, and as far as they are kept masters, moments and fp32
    gradients. ``g`` is of ``scale`` times the loss, and is multiplied with ``factor``. Halves are
    computed in float32.

    >>> update(SGD(rate=1.0), {"weights": np.ones(1)}, np.array([8.0]), 1, factor=0.5, scale=16)
    {'weights': array([0.75])}
    """
    source = states.get(MASTER, states["weights"])
    dtype = accumulator(source.dtype)
    g = _unscaled(g, scale, dtype)
    g = g if factor == 1 else g * factor
    kept = {tensor: states[tensor].astype(dtype, copy=False) for tensor in rule.keeps}
    w, made = rule.step(source.astype(dtype, copy=False), g, kept, t)
    made[WIDE_GRADIENTS] = g
    return {tensor: flush(made.get(tensor, w), old.dtype) for tensor, old in states.items()}


def fused_step(
    rule: Rule, states: Mapping[str, Array], g: Array, t: int, factor: float, scale: float
) -> bool:
    """Whether this step was taken, in place: of Adam, for bfloat16 on a GPU, all at one pass."""
    kept = [states[tensor] for tensor in ("momentum", "variance", MASTER) if tensor in states]
    if not isinstance(rule, Adam) or not fused.takes(states["weights"]) or len(kept) < 3:
        return False
    if len(states) > 4 or any(x.dtype != np.float32 for x in kept):
        return False
    one, two = rule.beta1, rule.beta2
    left = 1 - rule.rate * rule.weight_decay if isinstance(rule, AdamW) else 1.0
    known = scale, factor, one, 1 - one, two, 1 - two, 1 - two**t, rule.tiny
    rate = rule.rate / (1 - one**t)
    fused.run("adam", g, *known, rate, left, *kept, states["weights"])
    return True


@dataclass(frozen=True, eq=False)
class TrainState:
    """What training keeps from step to step."""

    classes: dict[str, Arrays]  # By the planner's tensor class, and by name
    t: int = 0  # Steps that were taken; skipped ones don't count

    @property
    def weights(self) -> Arrays:
        """What the forward pass multiplies with."""
        return self.classes["weights"]


def begin(
    weights: Mapping[str, Array],
    rule: Rule,
    dtype: DTypeLike | None = None,
    *,
    master: bool | None = None,
) -> TrainState:
    """The state before the first step, from weights as they were drawn.

    ``dtype`` is that of the weights in the forward pass, by default their own. ``master``: whether
    the weights are kept as they came too, in single precision; by default of halves.
    """
    cast = {name: flush(w, dtype or w.dtype).copy() for name, w in weights.items()}
    if master is None:
        master = any(w.dtype.name in HALVES for w in cast.values())
    classes = {"weights": cast}
    if master:
        classes[MASTER] = {name: w.astype(accumulator(w.dtype)) for name, w in weights.items()}
    stepped = classes.get(MASTER, cast)
    for tensor in rule.keeps:
        zeros = {name: array_namespace(w).zeros(w.shape, w.dtype) for name, w in stepped.items()}
        classes[tensor] = zeros
    return TrainState(classes)


def advance(
    state: TrainState,
    rule: Rule,
    grads: Mapping[str, Array],
    scale: LossScale | None = None,
    limit: float | None = None,
) -> tuple[TrainState, LossScale | None, float]:
    """(new state, new scale, norm) after a step with gradients of ``scale.scale`` times the loss.

    The norm is of unscaled gradients, before they are clipped to the ``limit``. If it is not finite
    and there is a scale, the step is skipped: the state comes back as it was, with a lower scale.

    >>> state = begin({"w": np.ones(1)}, SGD(rate=1.0))
    >>> state, _, norm = advance(state, SGD(rate=1.0), {"w": np.array([8.0])}, limit=0.5)
    >>> state.weights["w"].tolist(), norm
    ([0.5], 8.0)
    """
    if odd := sorted(state.weights.keys() ^ grads.keys()):
        raise ConfigError(
            f"a step needs a gradient for each of {len(state.weights)} weights and no other, got "
            f"{len(grads)}; {odd[0]!r} is on one side only: pass zeros where a weight had no part"
        )
    stepped, divisor = state.classes.get(MASTER, state.weights), scale.scale if scale else 1.0
    wide = {n: _unscaled(grads[n], divisor, accumulator(w.dtype)) for n, w in stepped.items()}
    # in float64: halves overflow from 256 on
    norm = math.sqrt(float(sum((g.astype(np.float64) ** 2).sum() for g in wide.values())))
    scale, factor = guarded(norm, scale, limit)
    if factor is None:
        return state, scale, norm
    made: dict[str, Arrays] = {tensor: {} for tensor in state.classes}
    for name in stepped:
        mine = {tensor: arrays[name] for tensor, arrays in state.classes.items()}
        # its memory is the next array's
        for tensor, new in update(rule, mine, wide.pop(name), state.t + 1, factor).items():
            made[tensor][name] = new
    return TrainState(made, state.t + 1), scale, norm


def flush(x: Array, dtype: DTypeLike) -> Array:
    """``x`` rounded to ``dtype``, beyond whose range is infinity, as the hardware does it.

    >>> flush(np.array([65519.0, 65520.0]), "float16").tolist()
    [65504.0, inf]
    """
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(as_dtype(dtype), copy=False)
