"""Drawn questions about clusters of up to a hundred thousand devices: none of them crashes."""

from random import Random

import pytest

import tiledask as td
from tiledask.plan.inputs.layout import MOST_OF_ANY, RECOMPUTE, Layout
from tiledask.plan.units import divisors

MODELS = ("gpt-200b", "llama-3.1-405b", "llama-2-70b", "gpt2", "mixtral-8x7b", "deepseek-v3")
DEVICES = ("A100-40GB", "H100", "V100-32GB", "B200")
RECIPES = ("mixed-adam-16", "mixed-adam-18", "fsdp-adam", "bf16-adam-8bit", "fp16-weights")


def drawn(number):
    """(model, layout, cluster, recipe): a layout of at least 96 copies of a slice, mostly."""
    draw = Random(number)
    model = td.load_model(draw.choice(MODELS))
    devices = draw.choice((96, 160, 1000, 1024, 4096, 16_384, 100_000))
    tp, pp = draw.choice((1, 2, 4)), draw.choice((1, 2, 4, 8))
    dp = devices // (tp * pp)
    ep = draw.choice([e for e in divisors(model.experts or 1, 64) if dp % e == 0])
    b, m, zero = draw.choice((1, 1, 2, 6)), draw.choice((1, 4, 32)), draw.choice((0, 1, 1, 2, 3))
    again, name = draw.choice(RECOMPUTE), draw.choice(("1f1b", "1f1b", "gpipe"))
    layout = Layout(dp, tp, pp, b, m, zero, recompute=again, schedule=name, ep=ep)
    cluster = f"{draw.choice((devices, devices // 2))}x{draw.choice(DEVICES)}"
    recipe = draw.choice(RECIPES[:4] if number % 5 else RECIPES[4:])
    return model, layout, td.load_cluster(cluster), recipe


@pytest.mark.few(2)
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_what_is_asked_of_a_large_cluster_is_answered(first):
    for number in range(first, first + 4):
        model, layout, cluster, recipe = drawn(number)
        fit = td.fits(model, layout, cluster, recipe)
        if (fix := fit.smallest_fix) is not None:
            assert fix.layout.devices <= MOST_OF_ANY
            wide = td.load_cluster(f"{fix.layout.devices}x{cluster.device.name}")
            assert td.fits(model, fix.layout, wide, recipe).verdict == "fits", number
        assert fit.to_dict()["verdict"] == fit.verdict
        if fit.memory.recipe.trains:
            advice = td.critique(model, layout, cluster, recipe).advice
            assert all(plan.layout.devices <= cluster.devices for plan in advice)
