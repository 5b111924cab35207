"""Memory claims, run: pools count and refuse, gradients are right, verdicts and peaks agree.

Holds `tiledask.distributed.memory.case`, `tiledask.distributed.memory.device_run`,
`tiledask.errors` and `tiledask.tile.memory`.
"""

import ast
import gc
import os
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.finished import python
from oracles.memory_claims import CASES, DECODER, LAYER

import tiledask as td
from tiledask.distributed import deadlines
from tiledask.distributed.memory import device_run
from tiledask.distributed.memory.case import DeviceRole, MemoryCase
from tiledask.distributed.memory.claims import TOLERANCE, run_claim
from tiledask.distributed.memory.device_run import ClaimTrainer, step
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import (
    ConfigError,
    DeadlineError,
    PlacementError,
)
from tiledask.lab.claims import compare_claims
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, State, load_recipe
from tiledask.tile import probe
from tiledask.tile.memory import Pool, Refused

Layout = td.Layout
TINY = Model(hidden=16, layers=3, heads=4, ffn=24, vocab=19, learned_pos=8, name="tiny")
DOUBLE = Recipe(
    "double", "", 8, (State("weights", 8, 3), State("gradients", 8, 2)), "for this test"
)
TITLES = dict(zip(("200 B", "26 GB", "30 B", "decoder"), CASES, strict=True))


# -- a pool ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30))
def test_a_pool_holds_what_was_made_and_not_let_go(steps):
    pool, alive = Pool(capacity=400), []
    for size, drops in steps:
        if sum(a.nbytes for a in alive) + 4 * size > 400:
            with pytest.raises(MemoryError):
                pool.empty("x", (size,), np.float32)
        else:
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
    assert made == []
    with pytest.raises(Refused, match="72 B of x"):
        pool.made([("x", 16)], lambda: [np.ones(18, np.float32)])
    assert (pool.held, pool.peak) == (32, 48)


# -- what is executed is a training step -----------------------------------------------------------


def case_of(model, layout, recipe, sequence=8):
    return MemoryCase(model, layout, load_recipe(recipe), sequence, 10**12)


def trainer_of(case, copy=0):
    """The trainer of one stage that is all of its pipeline."""
    return ClaimTrainer(case, DeviceRole(copy=copy), Pool())


def numpy_bytes():
    only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    snapshot = tracemalloc.take_snapshot().filter_traces([only])
    return sum(trace.size for trace in snapshot.traces)


def traced_bytes(case, patch, wrap=lambda kernel: kernel):
    """By instruction, (bytes that the pool holds, bytes of NumPy) besides states, once it is
    over."""
    seen, started, honest = [], [], ClaimTrainer._bind
    patch.setattr(ClaimTrainer, "_bind", lambda *asked: wrap(honest(*asked)))
    before_call = device_run._ClaimRunner._call

    def looked(self, each, part):
        call = before_call(self, each, part)

        def called(env):
            call(env)
            if started:
                seen.append((self.pool.held - started[0], numpy_bytes()))

        return called

    patch.setattr(device_run._ClaimRunner, "_call", looked)
    trainer = trainer_of(case)
    gc.collect()
    tracemalloc.start()
    try:
        started.append(trainer.pool.held)
        trainer.trained()
    finally:
        tracemalloc.stop()
    return seen


NUMBERS = 256
"""Bytes of single numbers: the loss, the number of updates."""


# a process of its own: tracemalloc counts what every thread allocates, a cluster's too
ALONE = """
import pytest, test_claims as t
layout = t.Layout(microbatches=2, recompute={recompute!r})
case = t.case_of(t.replace(t.TINY, layers=1), layout, "mixed-adam-16")
with pytest.MonkeyPatch.context() as patch:
    print(t.traced_bytes(case, patch))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_pool_counts_what_numpy_itself_traces(recompute):
    """Between instructions no kernel is at work: NumPy has no array that the pool doesn't know."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-c", ALONE.format(recompute=recompute), env=paths, check=True)
    seen = ast.literal_eval(done.stdout)
    tokens = (8 + 1) * 8  # of the micro-batch under way, which the host has besides
    assert all(0 <= found - held <= tokens + NUMBERS for held, found in seen)
    assert len({held for held, _ in seen}) > 20


def measured(case, patch=lambda patch: None):
    """(what its stages held, what the program says), run on threads."""
    with pytest.MonkeyPatch.context() as monkey:
        patch(monkey)
        runs = run_threads(
            lambda rank: step(case, DeviceRole(rank.index), rank.index, "numpy", rank),
            case.layout.pp,
        ).results
    assert not any(run.refused for run in runs)
    return [run.peak for run in runs], [*case.simulated.per_place.values()]


LAYOUTS = [
    Layout(microbatches=2),
    Layout(pp=2, microbatches=4, schedule="gpipe"),
    Layout(pp=3, microbatch=2, microbatches=4),
    Layout(pp=2, microbatches=3, schedule="naive", recompute="full"),
    Layout(tp=2, pp=2, microbatches=2),
    *(Layout(dp=3, zero=zero, pp=2, microbatches=2) for zero in range(4)),
]


@pytest.mark.few(16)
@pytest.mark.parametrize("recipe", ["mixed-adam-16", "mixed-adam-20", "fp32-momentum"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_the_pool_holds_what_the_program_says_to_the_byte(tied, layout, recipe):
    held, said = measured(case_of(replace(TINY, tied=tied), layout, recipe))
    assert held == said


SHARDED = [
    Layout(dp=2, zero=3, microbatches=2),
    Layout(dp=3, zero=3, pp=2, microbatches=4, schedule="gpipe"),
    Layout(dp=2, tp=2, zero=3, pp=3, microbatches=4, recompute="full"),
]


@pytest.mark.parametrize("recipe", ["fsdp-adam", "mixed-adam-16"])
@pytest.mark.parametrize("layout", SHARDED, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_shards_are_cast_and_gathered_to_the_byte(tied, layout, recipe):
    """Single-precision shards, half-precision weights."""
    case = case_of(replace(TINY, tied=tied), layout, recipe)
    held, said = measured(case)
    assert held == said
    gathers = (op for op in case.program.roles[0].ops if op.name == "all_gather")
    assert {op["itemsize"] for op in gathers} == {2}


def test_a_copy_that_is_cast_computes_what_half_weights_do():
    """The same loss to the bit, whatever the shards' width."""
    losses = []
    for recipe in ("mixed-adam-16", "fsdp-adam"):
        layout = Layout(dp=2, zero=3, microbatches=2)
        trainer = trainer_of(case_of(TINY, layout, recipe))
        before = trainer.arrays["weights"]["layer 0"].copy()
        losses.append(trainer.trained())
        assert np.any(trainer.arrays["weights"]["layer 0"] != before)
        trainer.close()
    assert len(set(losses)) == 1
    assert losses[0] == pytest.approx(np.log(TINY.vocab), rel=0.02)


GATHERED = Layout(dp=2, zero=3, pp=2, microbatches=4, schedule="gpipe")


@pytest.mark.parametrize("capacity", range(60_000, 120_000, 5_000))
@pytest.mark.parametrize(
    ("layout", "recipe"),
    [
        (GATHERED, "fsdp-adam"),
        (Layout(pp=3, microbatch=4, microbatches=4, schedule="gpipe"), "mixed-adam-16"),
    ],
)
def test_a_refusal_anywhere_ends_all_stages(layout, recipe, capacity):
    case = replace(case_of(TINY, layout, recipe), capacity=capacity)
    needed = [*case.simulated.per_place.values()]
    if max(needed) <= capacity:
        runs = run_threads(device_run.run_stage, layout.pp, case, timeout=20).results
        assert [run.peak for run in runs] == needed
        return
    with pytest.raises(device_run.StageRefusedError) as caught:
        run_threads(device_run.run_stage, layout.pp, case, timeout=20)
    (run,) = caught.value.args
    assert run.peak <= capacity < run.refused.needed <= needed[run.role.stage]


@pytest.mark.parametrize("what", [TINY, 10_000])
@pytest.mark.parametrize("capacity", [10**12, 30_000])
def test_nothing_is_left_when_a_device_is_done(monkeypatch, what, capacity):
    """Nor before Python collects what refers to itself: the next claim may need the memory."""
    pools = []
    monkeypatch.setattr(device_run, "Pool", lambda *a: pools.append(Pool(*a)) or pools[-1])
    case = replace(case_of(what, Layout(), "mixed-adam-16"), capacity=capacity)
    gc.disable()
    try:
        run = step(case, DeviceRole(), 0, "numpy")
    finally:
        gc.enable()
    assert (run.refused is None) == (capacity > 30_000)
    assert [pool.held for pool in pools] == [0]


def stepped(case, change=None):
    """(loss, weights before, gradients) of all stages, each flat."""
    got = {}

    def work(rank):
        trainer = ClaimTrainer(case, DeviceRole(rank.index), Pool(), rank=rank)
        arrays = trainer.arrays
        if change:
            for unit, w in arrays["weights"].items():
                w += change[rank.index][unit]
        before = {unit: w.copy() for unit, w in arrays["weights"].items()}
        got[rank.index] = trainer.trained(), before, arrays["gradients"]

    run_threads(work, case.layout.pp)
    return [got[stage] for stage in range(case.layout.pp)]


@pytest.mark.few(5)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_the_derivative_of_the_loss(pp, recompute, tied):
    model = replace(TINY, tied=tied)
    layout = Layout(pp=pp, microbatch=2, microbatches=2, recompute=recompute)
    case = case_of(model, layout, DOUBLE, 6)
    stages, rng, eps = stepped(case), np.random.default_rng(0), 2e-6
    ways = [
        {unit: rng.standard_normal(w.shape) for unit, w in weights.items()}
        for _, weights, _ in stages
    ]
    slope = sum(
        gradients[unit] @ way
        for (_, _, gradients), of in zip(stages, ways, strict=True)
        for unit, way in of.items()
    )
    losses = []
    for sign in (1, -1):
        change = [{unit: sign * eps * way for unit, way in of.items()} for of in ways]
        losses.append(stepped(case, change)[-1][0])
    assert (losses[0] - losses[1]) / (2 * eps) == pytest.approx(slope, rel=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("copies", [4, 7])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_leaves_each_copy_its_share_of_the_same_step(zero, copies):
    recipe = "fp32-adam" if copies == 4 else "fp32-momentum"
    alone = case_of(TINY, Layout(), recipe)
    whole = trainer_of(alone)
    whole.trained()
    case = case_of(TINY, Layout(dp=copies, zero=zero), recipe)
    found = []
    for copy in range(copies):
        trainer = trainer_of(case, copy)
        trainer.trained()
        found.append(trainer)
    # of 4 copies a loss is divided, and summed up again, without a rounding
    within = {"rtol": 0, "atol": 0} if copies == 4 else {"rtol": 2e-6, "atol": 1e-7}
    for tensor, units in whole.arrays.items():
        for unit, array in units.items():
            for trainer in found:
                part, mine = trainer.parts[unit], trainer.arrays[tensor][unit]
                if not trainer.sharded[tensor]:
                    mine = mine[part]
                np.testing.assert_allclose(mine, array[part], **within)
    sizes = [sum(map(len, trainer.arrays["momentum"].values())) for trainer in found]
    assert sum(sizes) == TINY.parameters


# -- claims, run -----------------------------------------------------------------------------------

ON_CLUSTER = pytest.mark.cluster


def verdicts(runs):
    return {name: run.executed_verdict == "fits" for name, run in runs.items()}


def fits(text):
    """By name, whether it fits: "-" is before what does not."""
    return {name.removeprefix("-"): name[0] != "-" for name in text.split("; ")}


@ON_CLUSTER
def test_200_billion_on_40_gb(cluster):
    """At 1:10,000 here: caps of 4 MB."""
    runs = {
        name: run_claim(**arguments, cluster=cluster, scale=10_000)
        for name, arguments in CASES[TITLES["200 B"]].items()
    }
    assert verdicts(runs) == fits(
        "-full copies, fp16 weights; -full copies, training; 10 slices, fp16 weights; "
        "-ZeRO-3 on 79; ZeRO-3 on 80"
    )
    assert all(run.agrees for run in runs.values())
    assert runs["10 slices, fp16 weights"].measured.per_place == dict.fromkeys(range(10), 4 * 10**6)
    assert runs["full copies, training"].refused.needed >= 10 * 4 * 10**6
    assert "1 of 80 devices were run" in runs["ZeRO-3 on 80"]._repr_html_()


@pytest.mark.few(1)
@ON_CLUSTER
@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (
            "26 GB",
            "-whole; tp 2, weights; tp 4, SGD; tp 4, momentum; -tp 4, Adam; tp 5, Adam",
        ),
        ("30 B", "-plain Adam; -ZeRO-1; ZeRO-2; ZeRO-3"),
        ("decoder", "-GPipe; 1F1B; GPipe, recomputation"),
    ],
)
def test_what_fits_and_what_raises(cluster, title, expected):
    cases = CASES[TITLES[title]]
    runs = {name: run_claim(**arguments, cluster=cluster) for name, arguments in cases.items()}
    assert verdicts(runs) == fits(expected)
    table = compare_claims(title, runs)
    assert table.ok, table.to_text()
    for run in runs.values():
        ran = run.refused is None
        assert run.ratio == pytest.approx(1, abs=TOLERANCE) if ran else run.ratio is None
        assert run.refused is None or run.refused.needed > run.case.capacity
        assert run.measured.peak <= run.case.capacity


@ON_CLUSTER
def test_all_devices_run_where_there_are_workers_enough(cluster):
    run = run_claim(LAYER, Layout(tp=4), "24GB", cluster, recipe="fp32-adam")
    assert [(d.slot, d.role.slice) for d in run.devices] == [(s, s) for s in range(4)]
    assert all(isinstance(d.refused, Refused) for d in run.devices)
    assert {d.refused.needed for d in run.devices} == {26_000_000}
    assert "devices were run" not in run._repr_html_()
    assert "refused at 26 MB: 6.5 MB of variance at the start: 19.5 MB held" in repr(run)


@ON_CLUSTER
def test_a_recipe_that_keeps_18_bytes_where_16_are_predicted_is_noticed(cluster):
    for capacity, ratio in ("1TB", 18 / 16), ("17GB", None):
        run = run_claim(10**9, Layout(), capacity, cluster, recipe="mixed-adam-18")
        assert run.agrees
        told = replace(run, case=replace(run.case, recipe=load_recipe("mixed-adam-16")))
        assert (told.ratio, told.predicted_verdict, told.agrees) == (ratio, "fits", False)
        assert not compare_claims("18 for 16", {"told": told}).ok


@ON_CLUSTER
def test_a_cap_at_the_measured_peak_passes_and_one_percent_less_raises(cluster):
    layout = Layout(pp=2, microbatches=4)
    free = run_claim(DECODER, layout, "1GB", cluster, sequence=64)
    peak = free.measured.peak
    at = run_claim(DECODER, layout, peak, cluster, sequence=64)
    assert at.refused is None
    assert at.measured == free.measured
    below = run_claim(DECODER, layout, int(0.99 * peak), cluster, sequence=64)
    assert below.executed_verdict == "does not fit"
    assert below.refused.needed > int(0.99 * peak)
    assert "1 of 2 devices were run" in below._repr_html_()


@ON_CLUSTER
def test_a_schedule_changes_the_memory_and_not_the_loss(cluster):
    runs = [
        run_claim(DECODER, Layout(pp=2, microbatches=4, schedule=name), "1GB", cluster, sequence=64)
        for name in ("gpipe", "1f1b", "naive")
    ]
    losses = [run.devices[-1].loss for run in runs]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] == pytest.approx(np.log(DECODER.vocab), rel=0.02)  # untrained
    kept = [run.measured.by_tensor(0, "forward")["activations"] for run in runs]
    assert kept[0] == 2 * kept[1] == 4 * kept[2]


@ON_CLUSTER
def test_a_wait_has_an_end(cluster, monkeypatch):
    for name in ("GRACE", "LAST"):  # it would be done in that time
        monkeypatch.setattr(deadlines, name, 0.005)
    with pytest.raises(DeadlineError, match=r"4 micro-batches.*tasks not done after 0\.01 s"):
        run_claim(DECODER, Layout(pp=2, microbatches=4), "1GB", cluster, sequence=64, timeout=0.01)


@ON_CLUSTER
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"what": 0}, ConfigError, "a number of parameters of 1 or more, got 0"),
        ({"what": "gpt2"}, ConfigError, "got 'gpt2'"),
        ({"scale": 0}, ConfigError, "scale must be a whole number of 1 or more, got 0"),
        ({"what": 5, "scale": 10}, ConfigError, "5 parameters at 1:10 are less than one"),
        ({"what": DECODER, "scale": 2}, ConfigError, "at scale 1, got 2"),
        ({"recipe": "lora"}, ConfigError, "keeps 2 B of 'adapter weights'"),
        ({"recipe": "mixed-adam-8bit"}, ConfigError, "1 B of 'momentum'"),
        ({"what": DECODER, "recipe": "fp16-weights"}, ConfigError, "does not train"),
        (
            {"what": DECODER, "recipe": "fsdp-adam"},
            ConfigError,
            "keeps weights of 4 B and computes with 2 B.*use zero=3 and dp of 2 or more",
        ),
        ({"what": DECODER, "sequence": 65}, ConfigError, "has learned 64 positions"),
        ({"layout": Layout(cp=2)}, ConfigError, "cp=1, got 2"),
        ({"what": replace(DECODER, mlp="swiglu")}, ConfigError, "mlp='gelu', got 'swiglu'"),
        (
            {"what": DECODER, "layout": Layout(pp=2, schedule="zb-h1")},
            ConfigError,
            "schedule of naive, gpipe, 1f1b, eager-1f1b, got 'zb-h1'",
        ),
        (
            {"what": replace(DECODER, layers=5), "layout": Layout(pp=5)},
            PlacementError,
            r"5 stages run at once.*cluster has 4; start_cluster\(workers=5\)",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(cluster, arguments, error, message):
    usual = {"what": 10**6, "layout": Layout(), "capacity": "1GB", "sequence": 64}
    with pytest.raises(error, match=message):
        run_claim(**(usual | arguments), cluster=cluster)


@ON_CLUSTER
@pytest.mark.skipif(sys.platform != "linux", reason="memory caps need Linux")
def test_the_kernel_refuses_what_the_pool_does():
    """The pool lets everything pass here; the cap is the system's, on the worker's process."""
    with td.start_cluster(workers=1, device="cpu", memory_cap="25.5MB", quiet=True) as capped:
        passes = run_claim(LAYER, Layout(tp=4), "1TB", capped, recipe="fp32-momentum")
        assert passes.refused is None
        assert passes.measured.peak == 19_500_000
        raises = run_claim(LAYER, Layout(tp=4), "1TB", capped, recipe="fp32-adam")
        assert raises.refused.needed == 26_000_000
        assert "which the system refused" in str(raises.refused)


@ON_CLUSTER
@pytest.mark.gpu
def test_gpu_workers_hold_the_same_bytes(cluster):
    if not probe().usable:
        pytest.skip(f"no usable GPU: {probe().reason}")
    with td.start_cluster(workers=2, device="cuda", quiet=True) as gpus:
        for arguments in (CASES[TITLES["26 GB"]]["tp 4, SGD"], CASES[TITLES["decoder"]]["1F1B"]):
            on_gpu, on_cpu = (run_claim(**arguments, cluster=c) for c in (gpus, cluster))
            assert on_gpu.measured.per_place == on_cpu.measured.per_place
            assert on_gpu.agrees
