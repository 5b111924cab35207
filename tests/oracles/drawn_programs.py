"""Trainings whose programs are made, drawn as the layouts of trainings that run are."""

from dataclasses import replace
from random import Random

from oracles.drawn_layouts import BATCH, MODELS, RULES, drawn_layouts

from tiledask.distributed.training.run import configured
from tiledask.tile.optimizers import LossScale


def drawn_jobs(count, seed, shape=None):
    """(job, mesh) of so many trainings of MODELS, on ``shape`` if it is given."""
    draw = Random(seed)
    names = [draw.choice(list(MODELS)) for _ in range(count)]
    layouts = drawn_layouts(draw, [MODELS[name].layers for name in names])
    for name, layout in zip(names, layouts, strict=True):
        if shape:
            layout = layout._replace(shape=shape, schedule="1f1b", cut=(MODELS[name].layers,))
        options = {"dtype": draw.choice(["float64", "float32", "float16", "bfloat16"])}
        options |= layout.options | {"clip": draw.choice([None, 1.0]), "rule": RULES["Adam"]}
        job = configured(MODELS[name], layout.shape, batch=BATCH, **options)
        scale = draw.choice([None, LossScale()])
        yield replace(job, scale=scale, scaled=scale is not None), layout.shape
