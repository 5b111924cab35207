"""What a training is asked for, looked at before a rank starts: who waits hours hears it at once.

of_kind           single arguments
scheduled         a schedule that ranks can carry out
cut_of            layers of each of its stages
recipe_for        what is kept of each number, and in how many bytes
terms_of          all that a training's program follows from
save_every_of     how often a checkpoint is written
ready             a folder for checkpoints, and the step of the newest that is there
"""

import inspect
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.training.gpt import GPT
from tiledask.errors import CheckpointError, ConfigError
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import called, schedules
from tiledask.plan.pipelines.schedules import schedule as schedule_named
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import Adam, LossScale, Rule, rule_for
from tiledask.tile.optimizers.clipping import clip_factor
from tiledask.tile.optimizers.rules import check_states

__all__ = [
    "AXES",
    "cut_of",
    "of_kind",
    "ready",
    "recipe_for",
    "rule_of",
    "save_every_of",
    "scale_of",
    "scheduled",
    "shape_of",
    "terms_of",
    "zero_of",
]

AXES = ("dp", "tp", "pp")
"""Of a training's mesh."""
DTYPES = ("float32", "float64", "float16", "bfloat16")
KINDS = {
    "model": (GPT, "tiledask.GPT(vocabulary, hidden, layers, heads, sequence)"),
    "rule": (Rule, "SGD(rate), Adam(rate) or AdamW(rate)"),
    "scale": (LossScale, "LossScale(65536.0), which moves, or LossScale.static(1024.0)"),
}


def of_kind(**given: Any) -> None:
    """None; raises ConfigError if a model, rule, scale or data is something else.

    >>> of_kind(rule="adam")
    Traceback (most recent call last):
        ...
    tiledask.errors.ConfigError: rule is SGD(rate), Adam(rate) or AdamW(rate), got 'adam'
    """
    for name, value in given.items():
        if name == "data":
            right = hasattr(value, "batch") and hasattr(value, "vocabulary")
            words = "load_text(name), or what has vocabulary and batch as a Text has them"
        else:
            kind, words = KINDS[name]
            right = (value is None and name != "model") or isinstance(value, kind)
        if not right:
            raise ConfigError(f"{name} is {words}, got {value!r}")


def shape_of(ranks: Any, names: Sequence[str] = ()) -> tuple[int, int, int]:
    """(dp, tp, pp). ``names``: of the mesh's axes, if it has any; they may be others, and these
    must not be in another order."""
    if any(name in AXES and AXES[axis : axis + 1] != (name,) for axis, name in enumerate(names)):
        raise ConfigError(
            f"ranks are a mesh (dp, tp, pp) in this order, got one of {', '.join(names)}; "
            f"td.Mesh(cluster, (...), names={AXES})"
        )
    shape = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,)
    if len(shape) != 3:
        raise ConfigError(f"ranks are a mesh (dp, tp, pp), three numbers; got {shape}")
    dp, tp, pp = shape
    return whole_number("dp", dp, 1), whole_number("tp", tp, 1), whole_number("pp", pp, 1)


def scheduled(schedule: Any, devices: int, microbatches: int | None) -> Schedule:
    """A schedule that can be carried out on as many devices."""
    if isinstance(schedule, str):
        count = 1 if microbatches is None else microbatches
        made = schedules.get(called(schedule))
        if made and "devices" in inspect.signature(made).parameters:
            raise ConfigError(
                f"{schedule!r} puts several stages on a device; say how many: "
                f"schedule=tiledask.schedule({schedule!r}, {2 * devices}, {count}, "
                f"devices={devices}) puts 2 on each"
            )
        schedule = schedule_named(schedule, devices, count)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"schedule is a name, or a Schedule, got {schedule!r}")
    if microbatches not in (None, schedule.microbatches):
        raise ConfigError(
            f"{schedule!r} is for {schedule.microbatches} micro-batches, and microbatches= says "
            f"{microbatches}; leave microbatches= out, or take a schedule of {microbatches}"
        )
    if schedule.devices != devices:
        raise ConfigError(
            f"a mesh with pp={devices} takes a schedule of {devices} devices, got {schedule!r}"
        )
    if not schedule.trains:
        raise ConfigError(f"{schedule!r} has no backwards, so nothing is learned; leave them in")
    return validate(schedule)


def recipe_for(rule: Rule, dtype: str, recipe: str | Recipe | None = None) -> Recipe:
    """``recipe``, if it can be trained in ``dtype``; left out, what is usual for it.

    float64 and float32: weights, gradients and what the rule keeps, all in that precision;
    float16 and bfloat16: weights and gradients of 2 bytes, masters and what the rule keeps of 4.

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
        return _used_up(given, rule)
    usual = load_recipe("mixed-adam-16" if size == 2 else "fp32-adam")
    kept = ("weights", "gradients", "master weights", *rule.keeps)
    states = tuple(s for s in usual.states if s.tensor in kept)
    if size != 2:
        states = tuple(replace(s, bytes=size) for s in states)
    name = f"{dtype} {type(rule).__name__}"
    return replace(usual, name=name, compute_bytes=size, states=states)


def _used_up(recipe: Recipe, rule: Rule) -> Recipe:
    """``recipe``. Raises ConfigError unless it keeps what ``rule`` uses, and nothing else."""
    check_states(recipe)
    kept, used = {s.tensor for s in recipe.states}, {"weights", "gradients", *rule.keeps}
    if kept - {"master weights"} != used:
        raise ConfigError(
            f"recipe {recipe.name!r} keeps {', '.join(sorted(kept))}, and {type(rule).__name__} "
            f"uses {', '.join(sorted(used))}, beside master weights if there are any; "
            f"'mixed-adam-16' and 'fp32-adam' are recipes that can be trained by Adam"
        )
    return recipe


def zero_of(zero: Any) -> int:
    """A stage of ZeRO."""
    if not is_whole(zero, 0, 3):
        raise ConfigError(f"ZeRO has stages 1, 2 and 3, and 0 for none; got {zero!r}")
    return int(zero)


def cut_of(model: GPT, schedule: Schedule, cut: Any) -> tuple[int, ...]:
    """Layers of each stage; None: as even as they can be."""
    if cut is None:
        return even(model.layers, schedule.stages)
    if not isinstance(cut, Iterable) or not all(map(is_whole, cut := tuple(cut))):
        raise ConfigError(f"a cut is the number of layers of each stage, got {cut!r}")
    layers = tuple(map(int, cut))
    if len(layers) != schedule.stages:
        raise ConfigError(
            f"a cut says how many layers each stage has: {schedule!r} has {schedule.stages} "
            f"stages, the cut {layers} has {len(layers)}"
        )
    model.stage_units(0, layers)
    return layers


def rule_of(rule: Rule | None, recipe: str | Recipe | None) -> Rule:
    """``rule``; left out, Adam, or the one whose states the recipe keeps."""
    if rule is not None:
        return rule
    return Adam() if recipe is None else rule_for(recipe)


def scale_of(scale: LossScale | None, dtype: str) -> LossScale | None:
    """``scale``; left out, a dynamic one for float16 alone."""
    return LossScale() if scale is None and dtype == "float16" else scale


def terms_of(
    model: GPT,
    shape: tuple[int, int, int],
    batch: int,
    microbatches: int | None,
    schedule: Any,
    cut: Any,
    sequence_parallel: bool,
    zero: Any,
    rule: Rule,
    dtype: str,
    recipe: str | Recipe | None,
    scale: LossScale | None,
    clip: float | None,
    recompute: bool,
) -> TrainingTerms:
    """What a training's program follows from; the arguments are those of `tiledask.train`."""
    if clip is not None:
        clip_factor(0.0, clip)
    kept = recipe_for(rule, dtype, recipe)
    made, stage = scheduled(schedule, shape[2], microbatches), zero_of(zero)
    return TrainingTerms(
        model=model,
        schedule=made,
        cut=cut_of(model, made, cut),
        batch=batch,
        recipe=kept,
        itemsize=as_dtype(dtype).itemsize,
        sequence_parallel=bool(sequence_parallel),
        zero=stage,
        scaled=scale is not None,
        clipped=clip is not None,
        recompute=bool(recompute),
    )


def save_every_of(folder: str | None, save_every: Any) -> int | None:
    """Steps from one checkpoint to the next; None where there are none."""
    if save_every is None:
        return None
    if folder is None:
        raise ConfigError(
            f"save_every={save_every} writes checkpoints, and needs folder= to write them to"
        )
    return whole_number("save_every", save_every, 1)


def ready(folder: str | os.PathLike[str] | None, steps: int) -> tuple[str | None, int]:
    """(the folder's full path, the step of the newest checkpoint in it or 0).

    The folder is made if there is none: who cannot write hears it before the training, not after.
    """
    if folder is None:
        return None, 0
    path = os.path.abspath(folder)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints go into a folder, and {path} cannot be one ({error.strerror}); name "
            f"another"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise CheckpointError(f"checkpoints are written to {path}, where you may not write")
    first = max(steps_in(path), default=0)
    if first > steps:
        raise ConfigError(
            f"{path} has a checkpoint of step {first}, which is past the last of {steps} steps; "
            f"ask for {first} or more, or take another folder"
        )
    return path, first
