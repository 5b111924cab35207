"""What a training is, as one frozen value: its options, checked before anything is started.

options of tiledask.train  --TrainingConfig.of-->  TrainingConfig: every rank has it, and programs
                                                   follow from it
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np

from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.out_of_core.disk import on_disk
from tiledask.distributed.training.gpt import GPT
from tiledask.errors import CheckpointError, ConfigError
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule as schedule_named
from tiledask.plan.pipelines.validate import validate
from tiledask.plan.program.making.layers import TENSOR
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.program.making.zero import DATA, PIPELINE
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import Adam, LossScale, Rule, check_states, clip_factor, rule_for

__all__ = ["AXES", "RankConfig", "TrainingConfig", "recipe_for"]

AXES = ("dp", "tp", "pp")
"""Of a training's mesh."""
DTYPES = ("float32", "float64", "float16", "bfloat16")
KINDS: dict[str, tuple[Any, str]] = {
    "model": (GPT, "tiledask.GPT(vocabulary, hidden, layers, heads, sequence)"),
    "rule": (Rule | None, "SGD(rate), Adam(rate) or AdamW(rate)"),
    "scale": (LossScale | None, "LossScale(65536.0), which moves, or LossScale.static(1024.0)"),
}


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """What every rank of a training is given, whatever its model."""

    model: Any
    """Units, and of each its parameters, and their shapes and tilings: a GPT, or what has these."""
    shape: tuple[int, int, int]
    """Of the mesh: (dp, tp, pp)."""
    recipe: Recipe
    rule: Rule
    dtype: str
    scale: LossScale | None = None
    """The loss scale of the first step."""
    clip: float | None = None
    data: Any = None
    steps: int = 0
    seed: int = 0
    zero: int = 0
    folder: str | None = None
    """Where checkpoints are."""
    save_every: int | None = None
    first: int = 0
    """Steps that were done when this call began, by the newest checkpoint."""
    done: int = 0
    """Those that are done now: more, once a worker was lost."""
    axes: ClassVar[tuple[int, int, int]] = (DATA, TENSOR, PIPELINE)
    """Of the mesh, for data, tensor and pipeline parallelism."""
    loss_slices: ClassVar[slice] = slice(1)
    """Of the tensor-parallel ranks, those whose losses are added up: here all have the same."""

    def is_saved(self, done: int) -> bool:
        """Whether there is a checkpoint after so many steps, and more to do."""
        every = self.save_every
        return every is not None and done % every == 0 and self.first < done < self.steps


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(RankConfig, TrainingTerms):
    """Of a GPT; the options are explained at `tiledask.train`."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The config of the options of `tiledask.train`, by name; raises what that raises."""
        given = SimpleNamespace(**options)
        for name, (kind, words) in KINDS.items():
            if not isinstance(options[name], kind):
                raise ConfigError(f"{name} is {words}, got {options[name]!r}")
        shape = _shape_of(given.ranks)
        if not is_whole(given.zero, 0, 3):
            raise ConfigError(f"ZeRO has stages 1, 2 and 3, and 0 for none; got {given.zero!r}")
        if given.clip is not None:
            clip_factor(0.0, given.clip)
        rule = given.rule or (Adam() if given.recipe is None else rule_for(given.recipe))
        scale = given.scale or (LossScale() if given.dtype == "float16" else None)
        recipe = recipe_for(rule, given.dtype, given.recipe)
        schedule = _scheduled(given.schedule, shape[2], given.microbatches)
        return cls(
            model=given.model,
            shape=shape,
            schedule=schedule,
            cut=_cut_of(given.model, schedule, given.cut),
            batch=whole_number("batch", given.batch, 1),
            recipe=recipe,
            itemsize=as_dtype(given.dtype).itemsize,
            sequence_parallel=bool(given.sequence_parallel),
            zero=int(given.zero),
            scaled=scale is not None,
            clipped=given.clip is not None,
            recompute=bool(given.recompute),
            rule=rule,
            dtype=given.dtype,
            scale=scale,
            clip=given.clip,
            steps=whole_number("steps", given.steps, 0),
            seed=whole_number("seed", given.seed),
        )

    def on(self, data: Any) -> Self:
        """The same training of ``data``."""
        if not (hasattr(data, "batch") and hasattr(data, "vocabulary")):
            raise ConfigError(
                f"data is load_text(name), or what has vocabulary and batch as a Text has them, "
                f"got {data!r}"
            )
        if data.vocabulary > self.model.vocabulary:
            raise ConfigError(
                f"the data has {data.vocabulary} different tokens, the model "
                f"{self.model.vocabulary}: GPT(vocabulary={data.vocabulary}, ...) or more"
            )
        return replace(self, data=data)

    def saved_in(self, folder: Any, save_every: Any) -> Self:
        """The same with checkpoints in ``folder``, which is made if there is none, from the step of
        the newest that is there."""
        if folder is None:
            if save_every is not None:
                raise ConfigError(f"save_every={save_every} writes checkpoints, and needs folder=")
            return self
        if save_every is not None:
            save_every = whole_number("save_every", save_every, 1)
        path = os.path.abspath(folder)
        with on_disk(path, CheckpointError):
            os.makedirs(path, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError("you may not")
        first = max(steps_in(path), default=0)
        if first > self.steps:
            raise ConfigError(
                f"{path} has a checkpoint of step {first}, past the last of {self.steps} steps; "
                f"ask for {first} or more, or take another folder"
            )
        return replace(self, folder=path, first=first, done=first, save_every=save_every)

    def draw(self, number: int, copy: int, microbatch: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, targets) of some rows of a step's batch. ConfigError if they are not those."""
        sequence, rows = self.model.sequence, self.rows(self.shape[0], copy, microbatch)
        ids, targets = self.data.batch(self.seed, number, self.batch, sequence, rows)
        wanted = (rows.stop - rows.start, sequence)
        if not np.shape(ids) == np.shape(targets) == wanted:
            raise ConfigError(
                f"data.batch gives ids and targets of the rows that it is asked for: rows "
                f"{rows.start} up to {rows.stop} of {sequence} tokens are {wanted}, got "
                f"{np.shape(ids)} and {np.shape(targets)}"
            )
        return ids, targets

    def __str__(self) -> str:
        dp, tp, pp = self.shape
        return f"{dp * tp * pp} ranks (dp={dp}, tp={tp}, pp={pp})"


def _shape_of(ranks: Any) -> tuple[int, int, int]:
    """(dp, tp, pp), of three numbers or a mesh, whose axes may have other names but no other
    order."""
    names = getattr(ranks, "names", ())
    if any(name in AXES and AXES[axis : axis + 1] != (name,) for axis, name in enumerate(names)):
        raise ConfigError(f"ranks are a mesh (dp, tp, pp) in this order, got {', '.join(names)}")
    ranks = getattr(ranks, "shape", ranks)
    shape = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,)
    if len(shape) != 3:
        raise ConfigError(f"ranks are a mesh (dp, tp, pp), three numbers; got {shape}")
    dp, tp, pp = (whole_number(name, n, 1) for name, n in zip(AXES, shape, strict=True))
    return dp, tp, pp


def _scheduled(schedule: Any, devices: int, microbatches: int | None) -> Schedule:
    """A schedule that can be carried out on as many devices."""
    if isinstance(schedule, str):
        schedule = schedule_named(schedule, devices, 1 if microbatches is None else microbatches)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"schedule is a name, or a Schedule, got {schedule!r}")
    given = devices, schedule.microbatches if microbatches is None else microbatches
    if (schedule.devices, schedule.microbatches) != given:
        raise ConfigError(
            f"{schedule!r} is for {schedule.devices} devices and {schedule.microbatches} "
            f"micro-batches, got pp={devices} and microbatches={given[1]}"
        )
    if not schedule.trains:
        raise ConfigError(f"{schedule!r} has no backwards, so nothing is learned; leave them in")
    return validate(schedule)


def _cut_of(model: GPT, schedule: Schedule, cut: Any) -> tuple[int, ...]:
    """Layers of each stage; None: as even as they can be."""
    if cut is None:
        return even(model.layers, schedule.stages)
    layers = tuple(cut) if isinstance(cut, Iterable) else ()
    if len(layers) != schedule.stages or not all(map(is_whole, layers)):
        raise ConfigError(
            f"a cut is the number of layers of each stage; {schedule!r} has {schedule.stages} "
            f"stages, got {cut!r}"
        )
    layers = tuple(map(int, layers))
    model.stage_units(0, layers)
    return layers


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
    size, used = as_dtype(dtype).itemsize, {"weights", "gradients", *rule.keeps}
    if recipe is not None:
        given = load_recipe(recipe)
        check_states(given)
        states = {s.tensor for s in given.states} - {"master weights"}
        if {given.compute_bytes, given.weight_bytes} != {size} or states != used:
            raise ConfigError(
                f"recipe {given.name!r} keeps weights of {given.weight_bytes} B, computes with "
                f"{given.compute_bytes} B and keeps {', '.join(sorted(states))}; a {dtype} has "
                f"{size} B, and {type(rule).__name__} uses {', '.join(sorted(used))}. Of Adam "
                f"'fp32-adam' is one for float32, 'mixed-adam-16' and 'mixed-adam-18' for halves"
            )
        return given
    usual = load_recipe("mixed-adam-16" if size == 2 else "fp32-adam")
    held = [s for s in usual.states if s.tensor in used | {"master weights"}]
    of_size = tuple(held if size == 2 else [replace(s, bytes=size) for s in held])
    name = f"{dtype} {type(rule).__name__}"
    return replace(usual, name=name, compute_bytes=size, states=of_size)
