"""Weights in half precision, their masters and moments in single: a step of all of them.

    forward, backward    half      [weights] ------> [gradients] ---.
                                       ^ rounded                    | widened, unscaled, clipped
    the step             single    [master]  <------ [moments] <----'

A weight of 1 and an update of 2^-11 make 1 in fp16: of many such updates none is left. The master
adds them up (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.tile.backend import HALVES, Array, accumulator, array_namespace, as_dtype
from tiledask.tile.optimizers.clipping import clip_factor
from tiledask.tile.optimizers.loss_scale import LossScale, unscaled
from tiledask.tile.optimizers.rules import Rule

__all__ = ["TrainState", "advance", "begin", "flush"]

Arrays = dict[str, Array]
MASTER = "master weights"


@dataclass(frozen=True, eq=False)
class TrainState:
    """What training keeps from step to step, by the planner's words for it. Arrays by name."""

    weights: Arrays
    """What the forward pass multiplies with."""
    master: Arrays = field(default_factory=dict)
    """The same in single precision; empty where the weights are stepped themselves."""
    moments: dict[str, Arrays] = field(default_factory=dict)
    """"momentum" and "variance", as far as the rule keeps them."""
    t: int = 0
    """Steps that were taken; skipped ones don't count."""

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of each tensor class; gradients are not kept.

        >>> from tiledask.tile.optimizers import Adam
        >>> begin({"w": np.ones(1000, np.float32)}, Adam(), "float16").nbytes
        {'weights': 2000, 'master weights': 4000, 'momentum': 4000, 'variance': 4000}
        """
        master = {MASTER: self.master} if self.master else {}
        classes = {"weights": self.weights} | master | self.moments
        return {
            tensor: sum(x.nbytes for x in arrays.values()) for tensor, arrays in classes.items()
        }


def begin(
    weights: Mapping[str, Array],
    rule: Rule,
    dtype: DTypeLike | None = None,
    *,
    master: bool | None = None,
    recipe: str | Recipe | None = None,
) -> TrainState:
    """The state before the first step, from weights as they were drawn.

    dtype
        Of the weights in the forward pass; as they are, if left out.
    master
        Whether single-precision masters are kept; left out: of halves they are.
    recipe
        In place of both: what this recipe of the planner says, also of the moments; its halves are
        fp16.

    The masters are the weights as they came, not as they were rounded.
    """
    states: DTypeLike | None = None  # the moments' type; None: that of what is stepped
    if recipe is not None:
        dtype, master, states = _of_recipe(load_recipe(recipe), rule)
    given = dict(weights)
    cast = {name: flush(w, dtype or w.dtype).copy() for name, w in given.items()}
    half = any(w.dtype.name in HALVES for w in cast.values())
    masters = {}
    if half if master is None else master:
        masters = {name: w.astype(accumulator(w.dtype), copy=True) for name, w in given.items()}
    held = None if states is None else as_dtype(states)
    moments = {
        kept: {
            name: array_namespace(w).zeros(w.shape, w.dtype if held is None else held)
            for name, w in (masters or cast).items()
        }
        for kept in rule.keeps
    }
    return TrainState(cast, masters, moments)


def advance(
    state: TrainState,
    rule: Rule,
    grads: Mapping[str, Array],
    scale: LossScale | None = None,
    limit: float | None = None,
) -> tuple[TrainState, LossScale | None, float]:
    """(new state, new scale, norm) after a step with gradients of ``scale.scale`` times the loss.

    scale
        None: the loss was not scaled, and nothing is skipped.
    limit
        The largest norm of all gradients together.

    The norm is of unscaled gradients, before clipping. If it is not finite and there is a scale,
    the step is skipped: the state comes back as it was, with a lower scale.

    >>> from tiledask.tile.optimizers import SGD
    >>> state = begin({"w": np.ones(1)}, SGD(rate=1.0))
    >>> state, _, norm = advance(state, SGD(rate=1.0), {"w": np.array([8.0])}, limit=0.5)
    >>> state.weights["w"].tolist(), norm
    ([0.5], 8.0)
    """
    if missing := sorted(set(state.weights) ^ set(grads)):
        raise ConfigError(
            f"a step needs a gradient for each of {len(state.weights)} weights and no other, got "
            f"{len(grads)}; {missing[0]!r} is on one side only: pass zeros where a weight had no "
            f"part"
        )
    stepped, divisor = state.master or state.weights, scale.scale if scale else 1
    wide = {
        name: unscaled({name: g}, divisor, accumulator(stepped[name].dtype))[name]
        for name, g in grads.items()
    }
    # in float64: halves overflow from 256 on
    squares = float(sum((g.astype(np.float64) ** 2).sum() for g in wide.values()))
    norm = math.sqrt(squares)
    finite = math.isfinite(norm)
    if scale is not None:
        scale = scale.after(finite)
        if not finite:
            return state, scale, norm
    if limit is not None:
        factor = clip_factor(norm, limit) if finite else 1.0
        wide = {name: g * g.dtype.type(factor) for name, g in wide.items()}
    return _stepped(state, rule, wide), scale, norm


def _stepped(state: TrainState, rule: Rule, grads: Arrays) -> TrainState:
    made: Arrays = {}
    moments: dict[str, Arrays] = {kept: {} for kept in rule.keeps}
    for name, w in (state.master or state.weights).items():
        # computed as a fused kernel does, halves in float32
        held, work = {each: state.moments[each][name] for each in rule.keeps}, accumulator(w.dtype)
        kept = {each: value.astype(work, copy=False) for each, value in held.items()}
        made[name], new = rule.step(w.astype(work, copy=False), grads[name], kept, state.t + 1)
        for each, value in new.items():
            moments[each][name] = flush(value, held[each].dtype)
    weights, master = (
        {name: flush(made[name], w.dtype) for name, w in arrays.items()}
        for arrays in (state.weights, state.master)
    )
    return TrainState(weights, master, moments, state.t + 1)


def flush(x: Array, dtype: DTypeLike) -> Array:
    """``x`` rounded to ``dtype``, beyond whose range is infinity, as the hardware does it.

    >>> flush(np.array([65519.0, 65520.0]), "float16").tolist()
    [65504.0, inf]
    """
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(as_dtype(dtype), copy=False)


def _of_recipe(recipe: Recipe, rule: Rule) -> tuple[DTypeLike, bool, DTypeLike | None]:
    """(dtype, master, states) that hold what the recipe counts."""
    known = {2: np.float16, 4: np.float32, 8: np.float64}
    held = {s.tensor: s.bytes for s in recipe.states if s.of == "parameters"}
    wanted = {"weights", "gradients", *rule.keeps} | ({MASTER} & set(held))
    kept = {held[each] for each in rule.keeps if each in held}
    if set(held) != wanted or len(kept) > 1 or not set(held.values()) <= set(known):
        raise ConfigError(
            f"recipe {recipe.name!r} keeps {', '.join(held)}, and a step by {type(rule).__name__} "
            f"{', '.join(sorted(wanted))} of 2, 4 or 8 B; rule_for({recipe.name!r}) is the rule "
            f"whose moments it keeps, 'mixed-adam-16' a recipe that can be stepped"
        )
    return known[held["weights"]], MASTER in held, known[kept.pop()] if kept else None
