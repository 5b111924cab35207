"""Trainings whose programs are made, drawn as the layouts of trainings that run are."""

from dataclasses import replace
from random import Random

from oracles.drawn_layouts import BATCH, MODELS, RULES, drawn_layouts

from tiledask.distributed.training.run import configured
from tiledask.tile.optimizers import LossScale


def job_of(name, layout, dtype="float64", clip=None, scale=None, **options):
    """What ranks are told of a training of one of MODELS."""
    config = configured(
        MODELS[name], layout.shape, batch=BATCH, microbatches=layout.microbatches,
        schedule=layout.options["schedule"], cut=layout.cut,
        sequence_parallel=layout.sequence_parallel, zero=layout.zero, rule=RULES["Adam"],
        dtype=dtype, clip=clip,
    )  # fmt: skip
    return replace(config, scale=scale, scaled=scale is not None, **options)


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
