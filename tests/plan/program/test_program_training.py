"""Programs of trainings: what they call is what the closed forms say, for drawn layouts.

Holds `tiledask.plan.program.making.of_training`, `tiledask.plan.program.making.of_end`,
`tiledask.plan.program.making.layers`,
`tiledask.plan.program.making.writer`, `tiledask.plan.program.making.unit_states`,
`tiledask.plan.program.making.decoder`, `tiledask.plan.collectives.layouts` and
`tiledask.plan.program.calls`.
"""

from collections import Counter

import numpy as np
import pytest
from oracles.closed_form_calls import calls_of
from oracles.drawn_layouts import MODELS
from oracles.drawn_programs import drawn_jobs

from tiledask.plan.program.calls import calls
from tiledask.plan.program.making.of_training import step_program


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 1), pytest.param(1000, 2, marks=pytest.mark.slow)], ids=str
)
def test_it_calls_what_the_closed_forms_say(count, seed):
    """Label, kind, bytes and messages of every call on every rank; and in the same order, but
    where a gradient is reduced a unit earlier."""
    ranks = same_order = 0
    for job, mesh in drawn_jobs(count, seed):
        program = step_program(job, mesh)
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
