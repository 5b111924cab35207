"""Memory claims, run: pools count and refuse, gradients are right, verdicts and peaks agree.

Holds `tiledask.distributed.memory.claim_tasks`, `tiledask.errors`,
`tiledask.tile.memory.flat_states`, `tiledask.tile.memory.pool` and
`tiledask.tile.memory.stage_trainer`.
"""

import gc
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.memory import claim_tasks
from tiledask.distributed.memory.claim_tasks import MemoryCase
from tiledask.distributed.memory.claims import TOLERANCE, run_claim
from tiledask.errors import (
    ClusterLostError,
    ConfigError,
    DeadlineError,
    DoesNotFitError,
    PlacementError,
)
from tiledask.lab.claims import CASES, DECODER, LAYER, compare_claims, run_cases
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, State, load_recipe
from tiledask.plan.pipelines.schedule import Action
from tiledask.tile import probe
from tiledask.tile.memory.flat_states import FlatStates, gradient_from_seed
from tiledask.tile.memory.pool import Pool, Refused
from tiledask.tile.memory.stage_trainer import Role, StageTrainer

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


def test_an_array_counts_until_its_last_view_is_gone():
    pool = Pool()
    part = pool.empty("weights", (10, 10), np.float32).T[3:]
    assert pool.held == 400
    del part
    assert pool.held == 0


def test_a_refusal_has_both_numbers_and_nothing_was_made():
    pool = Pool(100)
    held = pool.put("weights", np.ones(20), np.float32)
    pool.enter("forward")
    with pytest.raises(
        DoesNotFitError, match=r"24 B of x \(forward\) with 80 B of 100 B held"
    ) as e:
        pool.empty("x", (3,), np.float64)
    assert (e.value.asked, e.value.held, e.value.needed, e.value.moment) == (24, 80, 104, "forward")
    assert pool.held == held.nbytes == 80


@pytest.mark.long
def test_the_pool_counts_what_numpy_itself_traces():
    """At rest no kernel is at work: then NumPy has no array that the pool does not know."""
    recipe, layout = load_recipe("mixed-adam-16"), Layout(microbatches=3)
    gc.collect()
    tracemalloc.start()
    try:
        before, found = numpy_bytes(), []
        pool = Pool()
        trainer = StageTrainer(pool, TINY, layout, recipe, 8, Role())
        found.append((pool.held, numpy_bytes() - before))
        for i in range(3):
            trainer.forward(i, None)
            found.append((pool.held, numpy_bytes() - before))
        trainer.backward(0, None)
        trainer.step()
        found.append((pool.held, numpy_bytes() - before))
    finally:
        tracemalloc.stop()
    assert [held for held, _ in found] == [traced for _, traced in found]
    assert len({held for held, _ in found}) == 4  # a backward undoes a forward


def numpy_bytes():
    only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    snapshot = tracemalloc.take_snapshot().filter_traces([only])
    return sum(trace.size for trace in snapshot.traces)


# -- what is executed is a training step -----------------------------------------------------------


def chain(trainers, microbatches):
    """Forwards and backwards of all stages; the loss that this adds."""
    before = trainers[-1].loss
    for i in range(microbatches):
        block = None
        for trainer in trainers:
            block = trainer.forward(i, block)
        for trainer in reversed(trainers):
            block = trainer.backward(i, block)
    return trainers[-1].loss - before


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_the_derivative_of_the_loss(pp, recompute, tied):
    model = replace(TINY, tied=tied)
    layout = Layout(pp=pp, microbatch=2, microbatches=2, recompute=recompute)
    trainers = [StageTrainer(Pool(), model, layout, DOUBLE, 6, Role(s)) for s in range(pp)]
    chain(trainers, 2)
    rng, eps = np.random.default_rng(0), 2e-6
    states = [t.states.arrays for t in trainers]
    ways = [rng.standard_normal(s["weights"].shape) for s in states]
    slope = sum(s["gradients"] @ way for s, way in zip(states, ways, strict=True))
    losses = []
    for sign in (1, -2):
        for s, way in zip(states, ways, strict=True):
            s["weights"] += sign * eps * way
        losses.append(chain(trainers, 2))
    assert (losses[0] - losses[1]) / (2 * eps) == pytest.approx(slope, rel=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("copies", [4, 7])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_leaves_each_copy_its_share_of_the_same_step(zero, copies):
    recipe = load_recipe("fp32-adam")
    whole = StageTrainer(Pool(), TINY, Layout(), recipe, 8, Role())
    chain([whole], 1)
    whole.step()
    shares = []
    assert (TINY.parameters % copies == 0) == (copies == 4)
    layout = Layout(dp=copies, zero=zero)
    for copy in range(copies):
        trainer = StageTrainer(Pool(), TINY, layout, recipe, 8, Role(copy=copy))
        chain([trainer], 1)
        trainer.step()
        shares.append(trainer.states)
    for tensor, array in whole.states.arrays.items():
        for states in shares:
            low, high = states.ranges["momentum"]
            np.testing.assert_array_equal(states.part(tensor, low, high), array[low:high])
    sizes = [len(states.arrays["momentum"]) for states in shares]
    assert sum(sizes) == len(whole.states.arrays["momentum"]) == TINY.parameters


@pytest.mark.parametrize("recipe", ["fp32-sgd", "fp32-momentum", "fp32-adam", "mixed-adam-18"])
def test_the_optimizer_steps(recipe):
    states = FlatStates(Pool(), load_recipe(recipe), 100_000)
    before = states.arrays["weights"].astype(np.float32)
    gradient_from_seed(states)
    states.step()
    after = states.arrays["master weights" if "mixed" in recipe else "weights"]
    g = states.arrays["gradients"]
    moved = g if "adam" not in recipe else g / (np.abs(g) + 1e-8)
    rounding = 2e-5 if "mixed" in recipe else 1e-7
    np.testing.assert_allclose(after - before, -1e-3 * moved, atol=rounding)


def test_a_stage_has_the_planners_parameters():
    for layout in (Layout(), Layout(pp=2), Layout(pp=3), Layout(pp=2, tp=2)):
        for stage in range(layout.pp):
            trainer = StageTrainer(Pool(), TINY, layout, load_recipe("fp32-sgd"), 8, Role(stage))
            rows = td.estimate_memory(TINY, layout, "fp32-sgd", 8).ledger.by_tensor(stage)
            assert trainer.states.arrays["weights"].nbytes == rows["weights"]


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
    (runs,) = run_cases(cluster, [TITLES[title]]).values()
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
    assert "refused at 26 MB: 6.5 MB of variance at the start with 19.5 MB of 24 MB" in repr(run)


@ON_CLUSTER
def test_a_recipe_that_keeps_18_bytes_where_16_are_predicted_is_noticed(cluster):
    small = 10**9
    honest = run_claim(small, Layout(), "1TB", cluster)
    assert (honest.ratio, honest.agrees) == (1.0, True)
    more = run_claim(small, Layout(), "1TB", cluster, kept="mixed-adam-18")
    assert (more.ratio, more.agrees) == (18 / 16, False)
    assert not compare_claims("18 for 16", {"more": more}).ok
    over = run_claim(small, Layout(), "17GB", cluster, kept="mixed-adam-18")
    assert (over.predicted_verdict, over.executed_verdict) == ("fits", "does not fit")
    assert not over.agrees
    assert not compare_claims("18 for 16", {"over": over}).ok


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
    assert "stopped: another stage was refused memory" in below._repr_html_()


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
def test_a_wait_has_an_end(cluster):
    with pytest.raises(DeadlineError, match=r"4 micro-batches.*tasks not done after 0\.01 s"):
        run_claim(DECODER, Layout(pp=2, microbatches=4), "1GB", cluster, sequence=64, timeout=0.01)


def test_a_worker_that_lost_its_arrays_is_not_asked_to_go_on():
    case = MemoryCase(TINY, Layout(microbatches=2), load_recipe("fp32-sgd"), 8, 10**9)
    device = claim_tasks._begin(case, 0, "numpy")
    claim_tasks._act(device, 0, Action("F", 0, 0), None, None)
    with pytest.raises(ClusterLostError, match="stage 0 is at action 1 and was asked for action 5"):
        claim_tasks._act(device, 5, Action("F", 0, 1), None, None)


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
        ({"what": DECODER, "sequence": 65}, ConfigError, "64 positions, got sequence=65"),
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
def test_an_unknown_case_is_named(cluster):
    with pytest.raises(ConfigError, match="no case 'everything'; there are '200 B"):
        run_cases(cluster, ["everything"])


@ON_CLUSTER
@pytest.mark.skipif(sys.platform != "linux", reason="memory caps need Linux")
def test_the_kernel_refuses_what_the_pool_does():
    """The pool lets everything pass here; the cap is the system's, on the worker's process."""
    with td.start_cluster(workers=1, device="cpu", memory_cap="24MB", quiet=True) as capped:
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
