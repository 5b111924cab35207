"""Exercises on layouts and trainings: formulas by hand, every way tried, and no right number said.

Holds `tiledask.lab.exercises.planning` and `tiledask.lab.exercises.training`.
"""

import pytest
from oracles.judged import missed, targets
from oracles.tasks import GPT, SMALL, every, task

import tiledask as td

pytestmark = pytest.mark.usefixtures("one_thread")
GB = 10**9


def searched(batch, **options):
    plans = td.search(GPT, SMALL, batch, **options)
    return [plans[n] for n in range(plans.counts["fits"])]


def test_the_fastest_within_a_cap_is_that_of_a_search_and_larger_plans_are_refused():
    cap, small = task("fastest-within"), [p for p in searched(32) if p.peak <= 6 * GB]
    right = min(small[:12], key=lambda plan: plan.step.total)
    seconds, wanted, best = targets(cap.check(right.layout))["seconds a step"]
    assert seconds == best == round(right.step.total, 2)
    assert wanted == round(1.05 * right.step.total, 2)
    large = next(plan for plan in searched(32) if plan.peak > 6.2 * GB)
    assert "GB on the fullest device" in cap.check(large.layout).reason
    slow = max(small, key=lambda plan: plan.by_formula)
    assert missed(cap.check(slow.layout)) == ["seconds a step"]


def test_the_fewest_devices_are_those_of_every_number_searched():
    fewest = task("fewest-devices")
    fits = {n: searched(32, devices=[n]) for n in range(1, 9)}
    least = min(n for n, plans in fits.items() if plans)
    assert 1 < least < 8
    assert fewest.check(fits[least][0].layout).best
    assert "devices 8: far, more than is needed" in fewest.check(fits[8][0].layout).reason
    about = {"model": GPT, "cluster": SMALL, "batch": 32}
    alone = td.Layout(microbatches=32, recompute="full", flash_attention=True)
    assert td.task("fewest-devices", **about, recipe="bf16-adam-8bit").check(alone).best
    assert not td.task("fewest-devices", **about, recipe="mixed-adam-20").check(alone).legal


# -- what trains -----------------------------------------------------------------------------------


def test_a_scale_that_stays_small_ends_with_a_large_loss():
    met = [[t.met for t in td.task("scale-rule").check(every(n)).targets] for n in (4, 2000)]
    assert met == [[True, True, True], [True, True, False]]


@pytest.fixture(scope="module")
def suspects():
    return td.task("faulty-run", seed=0)


def test_one_run_is_faulty_float64_tells_and_nothing_printed_does(suspects):
    right = [name for name in suspects.runs if suspects.check(name)]
    assert len(right) == 1
    assert suspects.runs[right[0]].dtype == "bfloat16"
    wrong = next(name for name in suspects.runs if name not in right)
    assert missed(suspects.check(wrong)) == ["sound runs accused", "faulty runs at large"]
    apart = {name: suspects.again(name).max() for name in suspects.runs}
    assert apart.pop(right[0]) > 1e-7
    assert max(apart.values()) < 1e-14
    assert "tiny" not in f"{suspects.runs} {suspects}"
    assert "AdamW" not in f"{suspects.runs} {suspects}"


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_is_another_faulty_run(suspects, seed):
    other = td.task("faulty-run", seed=seed)
    assert other.runs != suspects.runs
    assert sum(map(bool, map(other.check, other.runs))) == 1
