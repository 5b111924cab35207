"""What a training keeps of each number, and in how many bytes: a recipe of the planner.

float64, float32    weights, gradients and what the rule keeps, all in that precision
float16, bfloat16   weights and gradients of 2 bytes; masters and what the rule keeps of 4
"""

from dataclasses import replace

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import Rule

__all__ = ["recipe_for"]

DTYPES = ("float32", "float64", "float16", "bfloat16")


def recipe_for(rule: Rule, dtype: str, recipe: str | Recipe | None = None) -> Recipe:
    """``recipe``, if it can be trained in ``dtype``; left out, what is usual for it.

    >>> from tiledask.tile.optimizers import SGD
    >>> kept = recipe_for(SGD(0.1, momentum=0.9), "float16")
    >>> {state.tensor: state.bytes for state in kept.states}
    {'weights': 2, 'gradients': 2, 'master weights': 4, 'momentum': 4}
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join(DTYPES)}, got {dtype!r}")
    size = as_dtype(dtype).itemsize
    if recipe is not None:
        given = load_recipe(recipe)
        if not given.compute_bytes == given.weight_bytes == size:
            raise ConfigError(
                f"recipe {given.name!r} keeps weights of {given.weight_bytes} B and computes with "
                f"{given.compute_bytes} B, a number in {dtype} has {size} B; 'fp32-adam' is one "
                f"for float32, 'mixed-adam-16' and 'mixed-adam-18' for float16 and bfloat16"
            )
        return given
    usual = load_recipe("mixed-adam-16" if size == 2 else "fp32-adam")
    kept = ("weights", "gradients", "master weights", *rule.keeps)
    states = tuple(s for s in usual.states if s.tensor in kept)
    if size != 2:
        states = tuple(replace(s, bytes=size) for s in states)
    name = f"{dtype} {type(rule).__name__}"
    return replace(usual, name=name, compute_bytes=size, states=states)
