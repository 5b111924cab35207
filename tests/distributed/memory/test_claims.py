"""Memory claims, run: pools count and refuse, gradients are right, verdicts and peaks agree."""

import gc
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.memory_claims import CASES, DECODER, LAYER

import tiledask as td
from tiledask.distributed.memory import device_run
from tiledask.distributed.memory.claims import TOLERANCE, run_claim
from tiledask.distributed.memory.device_run import MemoryCase, run_device
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.claims import compare_claims
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.ledger import Ledger
from tiledask.tile.memory import Pool, Refused

Layout = td.Layout
TINY = Model(hidden=16, layers=3, heads=4, ffn=24, vocab=19, learned_pos=8, name="tiny")


# -- a pool ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30))
def test_a_pool_holds_what_was_made_and_not_let_go(steps):
    pool, alive = Pool(capacity=400), []
    for size, drops in steps:
        full = sum(a.nbytes for a in alive) + 4 * size > 400
        with pytest.raises(MemoryError) if full else nullcontext():
            alive.append(pool.empty("x", (size,), np.float32))
        if drops and alive:
            del alive[0]
        assert pool.held == sum(a.nbytes for a in alive) <= pool.peak <= 400


def test_a_view_counts_as_what_it_keeps_and_a_refusal_lets_nothing_be_made():
    pool, made = Pool(100), []
    (row,) = pool.made([("x", 8)], lambda: [np.ones((4, 2), np.float32)[1]])
    assert (row.nbytes, pool.held) == (8, 32)
    with pytest.raises(Refused, match="60 B of work space"):
        pool.made([("x", 16)], lambda: made.append(0) or [], work=60)
    with pytest.raises(Refused, match="72 B of x"):
        pool.made([("x", 16)], lambda: [np.ones(18, np.float32)])
    assert (made, pool.held, pool.peak) == ([], 32, 48)


# -- what is executed is a training step -----------------------------------------------------------


def case_of(model, layout, recipe, capacity=10**12):
    return MemoryCase(model, layout, load_recipe(recipe), 8, capacity)


def on_stages(case, function=run_device):
    """What ``function(rank, case)`` returns on each stage's rank, all of them threads."""
    return run_threads(function, (1, 1, case.stages), case, timeout=60).results


LAYOUTS = [
    Layout(pp=2, microbatches=4, schedule="gpipe"),
    Layout(pp=3, microbatch=2, microbatches=4),
    Layout(pp=2, microbatches=3, schedule="naive", recompute="full"),
    Layout(pp=3, microbatches=4, recompute="full"),
]
RUN = [*product(LAYOUTS, ("mixed-adam-20", "fp32-momentum"))]


@pytest.mark.few(8)
@pytest.mark.parametrize(("layout", "recipe"), RUN, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_the_pool_holds_what_the_program_says_to_the_byte(tied, layout, recipe):
    case = case_of(replace(TINY, tied=tied), layout, recipe)
    held = Ledger.of(row for rows in on_stages(case) for row in rows)
    assert held.per_place == case.simulated.per_place


@pytest.mark.parametrize("capacity", range(60_000, 140_000, 10_000))
def test_a_refusal_anywhere_ends_all_stages(capacity):
    layout = Layout(pp=2, microbatches=4, schedule="gpipe")
    case = case_of(TINY, layout, "fp32-adam", capacity)
    needed = case.simulated.per_place
    if max(needed.values()) <= capacity:
        assert len(on_stages(case)) == layout.pp
        return
    with pytest.raises(Refused) as caught:
        on_stages(case)
    refused = caught.value
    ((stage, peak),) = Ledger.of(refused.rows).per_place.items()
    assert peak <= capacity < refused.needed <= needed[stage]


@pytest.mark.parametrize("what", [TINY, 10_000])
@pytest.mark.parametrize("capacity", [10**12, 30_000])
def test_nothing_is_left_when_a_device_is_done(monkeypatch, what, capacity):
    """Nor before Python collects what refers to itself: the next claim may need the memory."""
    pools = []
    monkeypatch.setattr(device_run, "Pool", lambda *a: pools.append(Pool(*a)) or pools[-1])

    def work(rank, case):
        gc.disable()
        with nullcontext() if capacity > 30_000 else pytest.raises(Refused):
            run_device(rank, case)
        gc.enable()
        return pools[0].held

    assert on_stages(case_of(what, Layout(), "mixed-adam-16", capacity), work) == [0]


# -- claims, run -----------------------------------------------------------------------------------

EXPECTED = {
    "200 B": "-full copies, fp16 weights; -full copies, training; 10 slices, fp16 weights; "
    "-ZeRO-3 on 79; ZeRO-3 on 80",
    "26 GB": "-whole; tp 2, weights; tp 4, SGD; tp 4, momentum; -tp 4, Adam; tp 5, Adam",
    "30 B": "-plain Adam; -ZeRO-1; ZeRO-2; ZeRO-3",
    "decoder": "-GPipe; 1F1B; GPipe, recomputation",
}
"""What fits, by title; "-" is before what does not."""
TITLES = dict(zip(EXPECTED, CASES, strict=True))


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("title", EXPECTED)
def test_what_fits_and_what_raises(cluster, title):
    """200 B at 1:10,000 here: caps of 4 MB."""
    scale = {"scale": 10_000} if title == "200 B" else {}
    cases = CASES[TITLES[title]]
    runs = {name: run_claim(**given, cluster=cluster, **scale) for name, given in cases.items()}
    fits = [f"{'-'[: bool(run.refused)]}{name}" for name, run in runs.items()]
    assert "; ".join(fits) == EXPECTED[title]
    table = compare_claims(title, runs)
    assert table.ok, table.to_text()
    for run in runs.values():
        assert run.agrees
        assert run.ratio == (None if run.refused else pytest.approx(1, abs=TOLERANCE))
        assert run.refused is None or run.refused.needed > run.case.capacity
        assert run.measured.peak <= run.case.capacity


@pytest.mark.cluster
def test_a_recipe_that_keeps_18_bytes_where_16_are_predicted_is_noticed(cluster):
    for capacity, ratio in ("1TB", 18 / 16), ("17GB", None):
        run = run_claim(10**9, Layout(), capacity, cluster, recipe="mixed-adam-18")
        assert run.agrees
        predicted = replace(run.case, recipe=load_recipe("mixed-adam-16")).predicted
        told = replace(run, predicted=predicted)
        assert (told.ratio, told.predicted_verdict, told.agrees) == (ratio, "fits", False)
        assert not compare_claims("18 for 16", {"told": told}).ok


@pytest.mark.cluster
def test_a_cap_at_the_measured_peak_passes_and_one_percent_less_raises(cluster):
    claim = lambda cap: run_claim(DECODER, Layout(pp=2, microbatches=4), cap, cluster, sequence=64)  # noqa: E731
    free = claim("1GB")
    peak = free.measured.peak
    at, below = claim(peak), claim(int(0.99 * peak))
    assert (at.refused, at.measured) == (None, free.measured)
    assert below.executed_verdict == "does not fit"
    assert below.refused.needed > int(0.99 * peak)
    assert "does not fit, refused at" in repr(below)


REFUSED = [
    ({"what": 0}, "a number of parameters"),
    ({"what": "gpt2"}, "got 'gpt2'"),
    ({"scale": 0}, "scale"),
    ({"what": 5, "scale": 10}, "at most 5, got 10"),
    ({"what": DECODER, "scale": 2}, "scale .*got 2"),
    ({"recipe": "lora"}, "adapter weights"),
    ({"recipe": "mixed-adam-8bit"}, "1 B of 'momentum'"),
    ({"what": DECODER, "recipe": "fp16-weights"}, "does not train"),
    ({"what": DECODER, "recipe": "fsdp-adam"}, "computes with the weights it keeps"),
    ({"what": DECODER, "sequence": 65}, "64 learned positions"),
    ({"layout": Layout(cp=2)}, "cp=1"),
    ({"what": DECODER, "layout": Layout(dp=2)}, "dp=1, got 2"),
    ({"what": replace(DECODER, mlp="swiglu")}, "mlp='gelu'"),
    ({"what": DECODER, "layout": Layout(pp=2, schedule="zb-h1")}, "'zb-h1'"),
    ({"what": replace(DECODER, layers=5), "layout": Layout(pp=5)}, "5 ranks", PlacementError),
]


@pytest.mark.cluster
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[1])
def test_what_cannot_be_run_is_refused_before_anything_runs(cluster, case):
    arguments, word, *error = case
    usual = {"what": 10**6, "layout": Layout(), "capacity": "1GB", "sequence": 64}
    with pytest.raises(*error or [ConfigError], match=word):
        run_claim(**(usual | arguments), cluster=cluster)


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="memory caps need Linux")
def test_the_kernel_refuses_what_the_pool_does():
    """The pool lets everything pass here; the cap is the system's, on the worker's process."""
    with td.start_cluster(workers=1, device="cpu", memory_cap="25.5MB", quiet=True) as capped:
        given = LAYER, Layout(tp=4), "1TB", capped
        passes = run_claim(*given, recipe="fp32-momentum")
        assert (passes.refused, passes.measured.peak) == (None, 19_500_000)
        refused = run_claim(*given, recipe="fp32-adam").refused
        assert refused.needed == 26_000_000
        assert "which the system refused" in str(refused)
