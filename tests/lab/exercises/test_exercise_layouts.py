"""Exercises on whole layouts: the planner judges, the best is searched, reasons have numbers."""

import pytest
from oracles.judged import targets

import tiledask as td
from tiledask.lab.tasks import fastest_within, fewest_devices
from tiledask.plan.inputs.model import Model

GB = 10**9
GPT = Model(hidden=2048, layers=24, heads=16, ffn=8192, vocab=51200, learned_pos=2048, name="gpt")
"""1.3 billion parameters: 21 GB of states at 16 bytes."""
CLUSTER = td.load_cluster("8xA10")
"""Two nodes of 4 x 24 GB."""


@pytest.fixture(scope="module")
def cap():
    return fastest_within(GPT, CLUSTER, 32, room=6 * GB)


@pytest.fixture(scope="module")
def fewest():
    return fewest_devices(GPT, CLUSTER, 32)


def searched(batch: int, **options):
    plans = td.search(GPT, CLUSTER, batch, **options)
    return [plans[n] for n in range(plans.counts["fits"])]


def test_the_fastest_within_a_cap_is_that_of_a_search_and_larger_plans_are_refused(cap):
    small = [plan for plan in searched(32) if plan.peak <= 6 * GB]
    right = min(small[:12], key=lambda plan: plan.step.total)
    result = cap.check(right.layout)
    assert result
    seconds, wanted, best = targets(result)["seconds a step"]
    assert seconds == best == round(right.step.total, 2)
    assert wanted == round(1.05 * right.step.total, 2)
    large = next(plan for plan in searched(32) if plan.peak > 6.2 * GB)
    reason = cap.check(large.layout).reason
    assert f"GB on the fullest device {large.peak / GB:.2f}"[:-1] in reason
    assert "target at most 6" in reason
    slow = max(small, key=lambda plan: plan.by_formula)
    assert "seconds a step" in cap.check(slow.layout).reason
    assert cap.draw(slow.layout).to_png().startswith(b"\x89PNG")


def test_the_fewest_devices_are_those_of_every_number_searched(fewest):
    fits = {n: searched(32, devices=[n]) for n in range(1, 9)}
    least = min(n for n, plans in fits.items() if plans)
    assert 1 < least < 8
    assert fewest.check(fits[least][0].layout).best
    more = fewest.check(fits[8][0].layout)
    assert more.legal
    assert "devices 8: far, more than is needed" in more.reason


def test_more_bytes_a_parameter_take_more_devices():
    heavy = fewest_devices(GPT, CLUSTER, 32, recipe="mixed-adam-20")
    light = fewest_devices(GPT, CLUSTER, 32, recipe="bf16-adam-8bit")
    answer = td.Layout(
        tp=4, pp=2, microbatches=32, recompute="full", flash_attention=True, sequence_parallel=True
    )
    wanted = [targets(each.check(answer))["devices"][1] for each in (light, heavy)]
    assert wanted[0] < wanted[1]
    alone = td.Layout(microbatches=32, recompute="full", flash_attention=True)
    assert light.check(alone).best
    assert 'the verdict is "no"' in heavy.check(alone).reason


def test_a_room_that_nothing_fits_in_is_refused_with_both_numbers():
    tiny = fastest_within(GPT, CLUSTER, 32, room=GB)
    result = tiny.check(searched(32)[0].layout)
    assert "within 1,000,000,000 bytes" in result.reason
