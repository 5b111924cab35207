"""Trainings whose programs are made, drawn as the layouts of trainings that run are."""

from random import Random

from oracles.drawn_layouts import BATCH, MODELS, RULES, drawn_layouts

from tiledask.distributed.training.job import TrainingJob
from tiledask.distributed.training.validate import cut_of, recipe_for, scheduled
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import LossScale


def job_of(name, layout, dtype="float64", clip=None, scale=None, **options):
    """What ranks are told of a training of one of MODELS."""
    model, rule = MODELS[name], RULES["Adam"]
    schedule = scheduled(layout.options["schedule"], layout.shape[2], layout.microbatches)
    return TrainingJob(
        model=model, schedule=schedule, cut=cut_of(model, schedule, layout.cut), batch=BATCH,
        recipe=recipe_for(rule, dtype), itemsize=as_dtype(dtype).itemsize,
        sequence_parallel=layout.sequence_parallel, zero=layout.zero, scaled=scale is not None,
        clipped=clip is not None, data=None, steps=1, rule=rule, dtype=dtype, seed=0, scale=scale,
        clip=clip, **options,
    )  # fmt: skip


def drawn_jobs(count, seed, shape=None):
    """(job, mesh) of so many trainings, on ``shape`` if it is given."""
    draw = Random(seed)
    names = [draw.choice(list(MODELS)) for _ in range(count)]
    layouts = drawn_layouts(draw, [MODELS[name].layers for name in names])
    for name, layout in zip(names, layouts, strict=True):
        if shape:
            layout = layout._replace(shape=shape, schedule="1f1b", cut=(MODELS[name].layers,))
        options = {"dtype": draw.choice(["float64", "float32", "float16", "bfloat16"])}
        options["clip"] = draw.choice([None, 1.0])
        options["scale"] = draw.choice([None, LossScale()])
        yield job_of(name, layout, **options), layout.shape
