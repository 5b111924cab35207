"""The programs of layouts: which have one, and that their ranks hold what the ledger says.

Holds `tiledask.distributed.memory.claim_programs`.
"""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask.distributed.memory.claim_programs import training_terms, why_no_program
from tiledask.errors import ConfigError
from tiledask.plan.inputs.model import Model
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.program.making.training import step_program

RECIPE = td.load_recipe("mixed-adam-16")
TINY = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=199, learned_pos=32, name="tiny")


def test_recipes_that_no_program_has_are_refused_with_a_way_out():
    with pytest.raises(ConfigError, match=r"adapters of recipe lora .* estimate_step has it by"):
        training_terms(TINY, td.Layout(), td.load_recipe("lora"), 32)
    folded = td.Layout(dp=4, tp=2, ep=4, expert_tp=1, sequence_parallel=True)
    with pytest.raises(ConfigError, match=r"experts .* not written as programs; estimate_step has"):
        training_terms(replace(TINY, experts=8, top_k=2), folded, RECIPE, 32)


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


def test_what_has_no_program_says_why():
    model = td.load_model("mixtral-8x7b")
    with pytest.raises(ConfigError, match="experts and latent attention are not written as prog"):
        training_terms(model, td.Layout(tp=2), RECIPE, 2048)
    dense = td.load_model("llama-2-7b")
    assert "context" in why_no_program(dense, td.Layout(cp=2))
    assert not why_no_program(dense, td.Layout(tp=2, pp=2))
