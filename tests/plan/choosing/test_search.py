"""Searches of layouts: complete, pruned rightly, in order; what binds; what would be better."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.choosing.critique import critique
from tiledask.plan.choosing.search import Space, search
from tiledask.plan.choosing.sensitivity import sensitivity
from tiledask.plan.fitting.fit import fits
from tiledask.plan.inputs.layout import Layout

SMALL = Space(
    microbatch=(1, 2), zero=(0, 1, 3), recompute=("none", "full"), flash_attention=(False, True)
)
SMALL = replace(SMALL, interleave=(1, 2))


MODEL, CLUSTER = td.load_model("llama-3.1-8b"), td.load_cluster("16xA100-80GB")


@cache
def plans():
    return search(MODEL, CLUSTER, 64, sequence=4096, space=SMALL)


def every_layout(model, devices, batch):
    """The same space, one Layout after the other."""
    degrees = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2), (1, 2), (0, 1, 3), ("none", "full")
    for tp, pp, v, b, zero, again, sp, flash in product(*degrees, (False, True), (False, True)):
        dp, left = divmod(devices, tp * pp)
        if left or batch % (dp * b) or (sp and tp == 1) or (zero and dp == 1):
            continue
        m = batch // dp // b
        if v > 1 and (pp == 1 or m % pp or pp * v > model.layers):
            continue
        layout = Layout(dp, tp, pp, b, m, zero, sp, again, interleave=v)
        yield replace(layout, flash_attention=flash)


def test_every_layout_is_there_once_with_its_verdict():
    expected = set(every_layout(MODEL, 16, 64))
    found = {plan.layout: plan for plan in plans()}
    assert len(found) == len(plans()) == plans().considered == sum(plans().counts.values())
    assert set(found) == expected
    rng = np.random.default_rng(0)
    for layout in rng.choice(sorted(expected, key=str), 60, replace=False):
        fit = fits(MODEL, layout, CLUSTER, sequence=4096)
        assert (found[layout].verdict, found[layout].peak) == (fit.verdict, fit.memory.peak)


def test_what_fits_comes_first_and_the_fastest_of_it():
    found = plans()
    ranks = [("fits", "tight", "no").index(plan.verdict) for plan in found]
    assert ranks == sorted(ranks)
    first = [plan.seconds for plan in found[:14]]
    assert first == sorted(first)
    for rank in (0, 1):
        seconds = [plan.by_formula for n, plan in enumerate(found) if ranks[n] == rank and n >= 14]
        assert seconds == sorted(seconds)
        assert len(seconds) > 1
    assert max(plan.by_formula for plan in found[:14]) <= found[14].by_formula
    peaks = [plan.peak for plan, r in zip(found, ranks, strict=True) if r == 2]
    assert peaks == sorted(peaks)
    assert np.isfinite(found.best.seconds)
    assert not np.isfinite(found[-1].seconds)


def test_mixtures_try_expert_parallelism_and_a_slice_divides_a_node():
    plans = search("mixtral-8x7b", "32xH100", 64, sequence=4096)
    assert {*plans.to_frame(None)["ep"]} == {1, 2, 4, 8}
    space = Space(tp=(2, 4), ep=(8,), pp=(1, 2), expert_tp=(0, 1, 4))
    folded = search("mixtral-8x7b", "32xH100", 64, sequence=4096, space=space)
    seen = {(plan.layout.tp, plan.layout.expert_tp) for plan in folded}
    assert seen == {(2, 0), (2, 1), (2, 4), (4, 0), (4, 1)}


def test_memory_binds_where_nothing_fits():
    found = sensitivity(td.load_model("llama-3.1-70b"), td.load_cluster("8xH100"), 64)
    assert {relaxed.limit for relaxed in found[:2]} == {"memory", "devices"}
    assert [relaxed.speedup for relaxed in found[2:]] == [1.0] * (len(found) - 2)


def test_faults_are_named_and_the_advice_is_true():
    model = td.load_model("gpt2-xl")
    found = critique(model, Layout(pp=8, microbatches=8), CLUSTER, sequence=1024)
    bad = {line.claim for line in found.lines if not line.good}
    assert bad >= {"bubble", "devices", "utilisation"}
    assert not found
    before = td.estimate_step(model, found.fit.layout, CLUSTER, sequence=1024).total
    for advice in found.advice:
        after = td.estimate_step(model, advice.layout, CLUSTER, sequence=1024).total
        assert (advice.fit.verdict, advice.seconds) == ("fits", after)
        assert after < 0.99 * before
        assert advice.layout.sequences == found.fit.layout.sequences
    again = critique(model, found.advice[0].layout, CLUSTER, sequence=1024)
    assert len(again.advice) < len(found.advice)


RUNS = {
    "megatron-2025": lambda n: n.zero < 2 or n.pp == 1,
    "deepspeed-2021": lambda n: n.tp == n.interleave == 1 and n.zero < 2 + 2 * (n.pp == 1),
    "torchtitan": lambda n: n.zero in (0, 3) and n.sequence_parallel == (n.tp > 1),
    None: lambda n: True,
}


@pytest.mark.parametrize("framework", RUNS)
def test_what_the_framework_runs_is_proposed_and_the_rest_is_counted(framework):
    """By its own recipe; without one named, everything is there."""
    cluster = td.load_cluster("8xH100")
    found = search(MODEL, cluster, 16, sequence=4096, framework=framework)
    recipe, runs = found.recipe.name, RUNS[framework]
    assert recipe == ("fsdp-adam" if framework == "torchtitan" else "mixed-adam-16")
    every = search(MODEL, cluster, 16, sequence=4096)
    assert {plan.layout for plan in found} == {p.layout for p in every if runs(p.layout)}
    assert found.considered + sum(found.left_out.values()) == every.considered
    assert bool(found.left_out) == (framework is not None)
    assert all(words.startswith(f"{framework} runs ") for words in found.left_out)
    if framework is not None:  # by a step of its own that was measured, too
        run = MODEL, Layout(), cluster, recipe
        step = td.estimate_step(*run, framework=framework).total
        mine = td.calibrate(step, *run, framework=framework)
        again = search(MODEL, cluster, 16, sequence=4096, calibration=mine)
        assert (again.best.layout, again.left_out) == (found.best.layout, found.left_out)


def test_what_does_not_fit_gets_the_change_that_does():
    found = critique("gpt-200b", Layout(dp=160), "160xA100-40GB")
    assert (found.step, found.to_dict()["verdict"]) == (None, "no")
    assert fits("gpt-200b", found.advice[0].layout, "160xA100-40GB").verdict == "fits"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Space(zero=(4,)), "zero must be at most 3, got 4"),
        (lambda: Space(tp=()), "Space tp is a sequence of one value or more"),
        (lambda: Space(partition=((0, 3, 6),)), "Space partition holds None or 'items'"),
        (lambda: search(MODEL, CLUSTER, 16, devices=(1.5,)), "between 1 and the cluster's 16"),
        (lambda: search(MODEL, CLUSTER, 16, recipe="fp16-weights"), "keeps no gradients"),
        (lambda: fits(MODEL, {"dp": 2}, CLUSTER), "a layout is a td.Layout.* got {'dp': 2}"),
        (lambda: fits(MODEL, Layout(), CLUSTER, td.lora(matrices=("q",))), "beside 'q'"),
    ],
)
def test_what_does_not_go_together_is_said(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
