"""The programs of layouts: their ranks hold what the ledger says.

Holds `tiledask.distributed.memory.case`.
"""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask.distributed.memory.case import training_terms
from tiledask.plan.inputs.model import Model
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.program.making.training import step_program

RECIPE = td.load_recipe("mixed-adam-16")
TINY = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=199, learned_pos=32, name="tiny")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_both_devices_of_a_stage_hold_what_the_ledger_says(name, pp, zero, tied):
    """And both as much: nothing is kept to count a stage's gradients once in their norm."""
    model = replace(TINY, tied=tied)
    layout = td.Layout(dp=2, pp=pp, microbatches=8, schedule=name, zero=zero)
    terms = training_terms(model, layout, RECIPE, 32)
    held = step_program(terms, (2, 1, pp)).memory.per_place
    said = td.estimate_memory(model, layout, RECIPE, 32).per_stage
    assert [held[stage] for stage in range(pp)] == pytest.approx(said, rel=0.015)
    assert all(held[stage] == held[pp - 1 - stage] for stage in range(pp))
