"""ZeRO 1, 2 and 3: the plain replica's weights, the planner's bytes.

Holds `tiledask.plan.collectives.shards` and `tiledask.plan.program.making.zero`.
"""

import pytest
from oracles.single_gpt import TEXT

import tiledask as td
from tiledask.distributed.training import GPT
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")


MODEL = GPT(59, hidden=8, layers=1, heads=2, sequence=4)
SIZES = {unit: sum(p.size for p in MODEL.parameters(unit).values()) for unit in MODEL.units}
WHOLE = td.load_recipe("fp32-adam")
MIXED = td.load_recipe("mixed-adam-16")
RECIPES = {
    "float64 Adam": ("float64", None, Adam(0.05)),
    "float64 momentum": ("float64", None, SGD(0.05, momentum=0.9)),
    "float64 SGD": ("float64", None, SGD(0.05)),
    "fp32-adam": ("float32", WHOLE, None),
    "mixed-adam-16": ("float16", MIXED, None),
    "mixed-adam-18": ("bfloat16", td.load_recipe("mixed-adam-18"), None),
    "fp16-sgd": ("float16", td.load_recipe("fp16-sgd"), SGD(0.05)),
}
"""Type, recipe and rule of trainings."""


def run_zero(name, stage, ranks, batch=6, steps=3, **options):
    dtype, recipe, rule = RECIPES[name]
    options = {"timeout": 240, "progress": False} | options
    return td.train(
        MODEL, TEXT, (ranks, 1, 1), steps=steps, batch=batch, zero=stage, dtype=dtype,
        recipe=recipe, rule=rule, **options,
    )  # fmt: skip


def assert_same(got, other):
    assert got.losses.tolist() == other.losses.tolist()
    for name, w in got.weights.items():
        assert w.tobytes() == other.weights[name].tobytes(), name


@pytest.mark.few(4)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_the_plain_replicas_to_the_bit(name, stage):
    assert_same(run_zero(name, stage, 4, batch=9), run_zero(name, 0, 4, batch=9))


@pytest.mark.few(8)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["fp32-adam", "mixed-adam-16", "mixed-adam-18", "fp16-sgd"])
def test_bytes_held_are_the_planners(name, stage, ranks):
    """Momentum is sharded from ZeRO-1 on, gradients from 2, weights from 3."""
    got, (_, recipe, _) = run_zero(name, stage, ranks, steps=1), RECIPES[name]
    planned = state_bytes(MODEL.size, recipe, stage, ranks)
    assert {tensor: max(held[tensor] for held in got.held) for tensor in got.held[0]} == planned
    for state in recipe.states:
        copies = 1 if state.sharded(stage) and ranks > 1 else ranks
        assert sum(h[state.tensor] for h in got.held) == state.bytes * MODEL.size * copies
