"""Programs of trainings: what they call is what the closed forms say, for drawn layouts.

Holds `tiledask.plan.program.of_training`, `tiledask.plan.program.layers`,
`tiledask.plan.program.writer`, `tiledask.plan.program.unit_states`,
`tiledask.plan.program.decoder`, `tiledask.plan.collectives.layouts` and
`tiledask.plan.program.calls`.
"""

from collections import Counter
from random import Random

import numpy as np
import pytest
from oracles.closed_form_calls import calls_of
from oracles.drawn_layouts import BATCH, MODELS, RULES, drawn_layouts

from tiledask.distributed.training.program import TrainingJob
from tiledask.distributed.training.validate import cut_of, recipe_for, scheduled
from tiledask.plan.program.calls import calls
from tiledask.plan.program.of_training import training_program
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


def drawn_jobs(count, seed):
    """(job, mesh) of so many trainings."""
    draw = Random(seed)
    names = [draw.choice(list(MODELS)) for _ in range(count)]
    layouts = drawn_layouts(draw, [MODELS[name].layers for name in names])
    for name, layout in zip(names, layouts, strict=True):
        options = {"dtype": draw.choice(["float64", "float32", "float16", "bfloat16"])}
        options["clip"] = draw.choice([None, 1.0])
        options["scale"] = draw.choice([None, LossScale()])
        yield job_of(name, layout, **options), layout.shape


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 1), pytest.param(1000, 2, marks=pytest.mark.slow)], ids=str
)
def test_it_calls_what_the_closed_forms_say(count, seed):
    """Label, kind, bytes and messages of every call on every rank; and in the same order, but
    where a gradient is reduced a unit earlier."""
    ranks = same_order = 0
    for job, mesh in drawn_jobs(count, seed):
        program = training_program(job, mesh)
        for rank, at in enumerate(np.ndindex(mesh)):
            said, here = calls_of(job, mesh, at), calls(program, rank)
            assert Counter(here) == Counter(said), (job, mesh, at)
            ranks += 1
            same_order += here == said
    assert same_order > 0.7 * ranks


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_the_weights_that_are_drawn(name):
    model = MODELS[name]
    for unit in model.units:
        drawn = {n: parameter.shape for n, parameter in model.parameters(unit).items()}
        assert list(model.whole_shapes(unit).items()) == list(drawn.items())
