"""A small GPT under every (dp, tp, pp): the losses and weights of a single device, step by step."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.lab.sweep import schedule_on
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=16, layers=3, heads=4, sequence=8)
RULE = SGD(0.1, momentum=0.9)


def check(shape, model=SMALL, batch=7, **options):
    """A training that has the single device's losses and weights, and the predicted traffic."""
    usual = {"steps": 2, "microbatches": 2, "dtype": "float64", "timeout": 240, "progress": False}
    got = train(model, TEXT, shape, batch=batch, rule=RULE, **usual | options)
    assert list(got.weights) == [f"{u}.{n}" for u in model.units for n in model.parameters(u)]
    assert_single(got, batch, RULE)
    return got


EVERY = [s for s in product((1, 2, 4, 8), repeat=3) if prod(s) <= 8]
"""All 20 layouts of 1, 2, 4 and 8 ranks."""


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_every_layout_is_the_single_device(shape):
    """Without a pipeline two micro-batches are as many as any: their gradients are added up."""
    options = {"sequence_parallel": shape[1] in (2, 8), "schedule": ("1f1b", "gpipe")[shape[0] % 2]}
    check(shape, microbatches=4 if shape[2] > 1 else 2, **options)


@pytest.mark.parametrize("gated", [True, False])
def test_norms_and_angles_are_those_that_are_asked_for(gated):
    model = replace(SMALL, gated=gated, eps=0.5, base=20.0)
    usual = check((1, 1, 1), replace(model, eps=None, base=10_000.0))
    got = check((1, 2, 2), model, recompute=True)
    assert abs(got.losses - usual.losses).min() > 1e-3


DEEP = {
    "GPT-2": GPT(59, hidden=16, layers=4, heads=4, sequence=8),
    "Llama tied": GPT(59, 16, 4, 4, 8, kv_heads=1, gated=True, tied=True),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("name", [*td.schedules])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1), {}),
        ((2, 2), {"zero": 3, "sequence_parallel": True, "recompute": True}),
        ((1, 4), {"zero": 1, "recompute": True}),
    ],
    ids=str,
)
def test_every_schedule_trains_what_one_device_does(name, shape, options, model):
    """Those that split backwards too, and with blocks' forwards done again; those that have a stage
    on several ranks, which sum its gradients."""
    options |= {"schedule": (schedule := schedule_on(name, 2, 4)), "microbatches": 4}
    check((*shape, schedule.devices), DEEP[model], batch=8, steps=3, **options)
