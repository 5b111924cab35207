"""Peaks of many layouts at once: the ledger's arithmetic over NumPy arrays.

layouts x 1  ->  combinations of (tp, cp, ...) that occur, each costed once  ->  layouts x 1

Only stages that can be the fullest are looked at: of equal layers dealt out evenly, the first
stage holds the most of everything but the logits, which are on the last.
"""

from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.fitting.many import KINDS, ORDERS, Many
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe

__all__ = ["peaks"]


def peaks(
    model: Model, recipe: str | Recipe = "mixed-adam-16", sequence: int = 2048, *,
    dp: Any = 1, tp: Any = 1, pp: Any = 1, cp: Any = 1, ep: Any = 1, microbatch: Any = 1,
    microbatches: Any = 1, zero: Any = 0, sequence_parallel: Any = False,
    recompute: Any = "none", flash_attention: Any = False, schedule: Any = "1f1b",
    interleave: Any = 1,
) -> np.ndarray:  # fmt: skip
    """Peak bytes on the fullest device of every layout: int64, of the shape that the fields
    have together. Equal to ``estimate_memory(...).peak``, to the byte.

    Fields are those of Layout, each one value or an array; layers are cut evenly, and the
    schedules are "naive", "gpipe" and "1f1b", interleaved if there are several chunks. Layouts
    that Layout or the model refuses raise what they raise there.

    >>> from tiledask.plan.inputs.specs import load_model
    >>> peaks(load_model("gpt-200b"), tp=8, pp=10, dp=[1, 2, 4], zero=1, recompute="full")
    array([42897432576, 27320503296, 19532038656])
    """
    recipe = load_recipe(recipe)
    given = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "microbatch": microbatch,
        "microbatches": microbatches, "zero": zero, "sequence_parallel": sequence_parallel,
        "recompute": _codes("recompute", recompute, KINDS), "flash_attention": flash_attention,
        "schedule": _codes("schedule", schedule, ORDERS), "interleave": interleave,
    }  # fmt: skip
    columns = np.broadcast_arrays(*(_numbers(name, value) for name, value in given.items()))
    shape = columns[0].shape
    flat = {name: c.ravel() for name, c in zip(given, columns, strict=True)}
    if not flat["dp"].size:
        return np.zeros(shape, np.int64)
    many = Many(model, recipe, sequence, flat)
    most = np.maximum(many.peak(np.zeros_like(flat["pp"])), many.peak(flat["pp"] - 1))
    for stage in range(1, many.unequal):
        most = np.maximum(most, many.peak(np.minimum(stage, flat["pp"] - 1)))
    if (most < 0).any() or _too_large(flat):
        raise ConfigError("these sizes are too large to count in 64 bits; use Layout one by one")
    return most.reshape(shape)


def _too_large(flat: dict[str, np.ndarray]) -> bool:
    """Whether 1e9 bytes of activations a sequence would leave 64 bits."""
    sequences = flat["microbatch"].astype(float) * flat["microbatches"]
    return bool((sequences > 2**33).any())


def _codes(name: str, words: Any, allowed: tuple[str, ...]) -> np.ndarray:
    given = np.asarray(words)
    codes = np.full(given.shape, -1)
    for code, word in enumerate(allowed):
        codes[given == word] = code
    if (codes < 0).any():
        raise ConfigError(f"{name} must be one of {allowed}, got {given[codes < 0].tolist()[0]!r}")
    return codes


def _numbers(name: str, values: Any) -> np.ndarray:
    given = np.asarray(values)
    flag = name in ("sequence_parallel", "flash_attention")
    if given.size and given.dtype.kind not in ("b" if flag else "iu"):
        rule = "True or False" if flag else "integers"
        raise ConfigError(f"{name} must be {rule}, got {values!r}")
    numbers = given.astype(np.int64)
    least = 0 if flag or name in ("zero", "recompute", "schedule") else 1
    most = 3 if name == "zero" else 2**31
    if ((numbers < least) | (numbers > most)).any():
        wrong = numbers[(numbers < least) | (numbers > most)].flat[0]
        raise ConfigError(f"{name} must lie between {least} and {most}, got {wrong}")
    return numbers
