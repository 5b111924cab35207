"""Fit: verdicts at their borders, reasons, and the smallest change that fits."""

import itertools
from dataclasses import replace
from functools import cache
from math import ceil
from statistics import median_low

import pytest

import tiledask as td
from tiledask import Layout, Model, Space, load_cluster
from tiledask.errors import ConfigError
from tiledask.plan.fitting.fixes import FIELDS
from tiledask.plan.fitting.overhead import CUDA_CONTEXT, NCCL_BUFFERS, overhead_of
from tiledask.plan.fitting.overhead import measured_over_estimated as over_estimated
from tiledask.plan.inputs.layout import RECOMPUTE, Numbers
from tiledask.plan.inputs.recipes import zero3_minimum_degree
from tiledask.plan.timing.step_time import step_parts

SMALL = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=96)


def cluster(devices, memory, node=4):
    base = load_cluster(f"{devices}xT4")
    usual = "a100"  # whose usual program holds nothing beyond the arithmetic
    device = replace(base.device, memory_bytes=memory, name="toy", calibration=usual)
    return replace(base, device=device, devices_per_node=node)


def ask(layout, fleet, overhead=0):
    return td.fits(SMALL, layout, fleet, sequence=64, overhead=overhead)


def peak(layout, model=SMALL):
    return td.estimate_memory(model, layout, sequence=64).peak


def test_zero3_degree_is_the_first_that_fits():
    assert zero3_minimum_degree(200 * 10**9, "mixed-adam-18", "40GB") == 90
    for parameters, room in ((10, 16), (11, 33), (1000, 999), (7, 10**6)):
        degree = zero3_minimum_degree(parameters, "mixed-adam-16", room)
        assert parameters * 16 <= room * degree
        assert degree == 1 or parameters * 16 > room * (degree - 1)
    # 4 of 20 bytes that ZeRO does not deal out stay whole, however many share the rest
    assert zero3_minimum_degree(1000, "deepspeed-bf16-adam", 5000) == 16
    with pytest.raises(ConfigError, match="the others, 4000 B"):
        zero3_minimum_degree(1000, "deepspeed-bf16-adam", 4000)


def test_the_verdict_changes_at_the_borders_of_the_band_however_it_is_asked():
    layout, budget = Layout(tp=2), overhead_of(Layout(tp=2))
    rest = budget - CUDA_CONTEXT
    sharded, alone = (overhead_of(Layout(dp=n, zero=3)) for n in (2, 1))
    assert sharded - alone == NCCL_BUFFERS
    space = Space((2,), (1,), zero=(0,), recompute=("none",), flash_attention=(False,))
    space = replace(space, sequence_parallel=(False,))
    # the first byte with which half of the published errors leave room
    whole = peak(layout) + budget
    sure = ceil(median_low(over_estimated("")) * whole) - peak(layout) - CUDA_CONTEXT
    borders = (-1, "no"), (0, "tight"), (rest, "tight"), (sure - 1, "tight"), (sure, "fits")
    for extra, verdict in borders:
        fleet = cluster(2, peak(layout) + CUDA_CONTEXT + extra)
        fit = td.fits(SMALL, layout, fleet, sequence=64)
        (plan,) = td.search(SMALL, fleet, 1, sequence=64, space=space)
        assert fit.verdict == plan.verdict == plan.fit.verdict == verdict
        assert fit.shortfall == max(0, -extra)
        assert fit.expected == fit.memory.peak + budget
    for extra, verdict in ((-1, "no"), (0, "tight"), (99, "tight"), (100, "fits")):
        fit = ask(layout, cluster(2, peak(layout) + extra), 100)
        assert (fit.verdict, fit.expected) == (verdict, peak(layout) + 100)


def test_the_reason_says_what_does_not_help():
    layout = Layout(dp=160)
    assert "devices do not help" in td.fits("gpt-200b", layout, "160xA100-40GB").reason
    layout = Layout(tp=8, pp=10, microbatch=8, microbatches=64)
    assert "activations" in td.fits("gpt-200b", layout, "160xA100-40GB").reason


@cache
def alone(model, layout):
    """What a layout needs, which is the same on any device."""
    return td.fits(model, layout, cluster(1, 10**12), sequence=64, overhead=50)


@cache
def in_reach(start, devices, per_node):
    """(changes, the batch among them?, Fit) of every layout."""
    found = []
    for tp, pp, dp, zero, recompute, b in itertools.product(
        [t for t in range(1, per_node + 1) if SMALL.heads % t == 0],
        range(1, SMALL.layers + 1),
        range(1, devices + 1),
        range(start.zero, 4),
        RECOMPUTE[RECOMPUTE.index(start.recompute) :],
        [b for b in range(1, start.microbatch + 1) if start.microbatch % b == 0],
    ):
        work = start.microbatches * start.microbatch // b
        new = {"tp": tp, "pp": pp, "dp": dp, "zero": zero, "recompute": recompute}
        for m in {work, *([start.dp * work // dp] if start.dp * work % dp == 0 else [])}:
            layout = replace(start, **new, microbatch=b, microbatches=m)
            other = layout.sequences != start.sequences
            changed = other + sum(getattr(layout, n) != getattr(start, n) for n in FIELDS)
            found.append((changed, other, alone(SMALL, layout)))
    return found


def brute_force(start, fleet):
    """(changes, the batch among them?, seconds of a sequence) of the best that fits."""
    found = [
        (changed, other, seconds_of(fit.layout, fleet))
        for changed, other, fit in in_reach(start, fleet.devices, fleet.devices_per_node)
        if replace(fit, cluster=fleet).verdict == "fits"
    ]
    return min(found, default=None)


def seconds_of(layout, fleet):
    """Of a sequence, by formula."""
    step = step_parts(SMALL, fleet, Numbers.of(layout), sequence=64)
    return float(sum(step.values())) / layout.sequences


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "start",
    [
        Layout(),
        Layout(dp=3, zero=1),
        Layout(tp=2, microbatch=2, microbatches=2),
        Layout(pp=2, microbatches=4, microbatch=2),
        Layout(dp=2, tp=2, recompute="full"),
    ],
)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.35, 0.6, 0.9])
def test_the_smallest_fix_is_the_best_of_all_layouts_in_reach(start, share):
    fleet = cluster(6, int(peak(start) * share))
    fit = ask(start, fleet, 50)
    assert fit.verdict == "no"
    best = brute_force(start, fleet)
    fix = fit.smallest_fix
    if best is None:  # only more devices, or what FIELDS leave alone
        other = {"flash_attention", "sequence_parallel"}
        assert fix is None or fix.missing or other & {*fix.changed}
        return
    other = fix.layout.sequences != start.sequences
    assert (len(fix.changed) + other, other) == best[:2]
    assert seconds_of(fix.layout, fleet) == pytest.approx(best[2], rel=1e-9)
    assert (fix.missing, fix.verdict) == (0, "fits")
    assert fix.memory == ask(fix.layout, fleet, 50).memory


MIXED = Model(
    hidden=64, layers=4, heads=4, ffn=256, vocab=96, experts=4, top_k=2, dense_layers=(0,)
)


@cache
def every_layout(model, start, devices):
    """Layouts on ``devices`` or fewer in nodes of 4 that give a copy the sequences of ``start``."""
    found = []
    for tp, pp, dp, ep in itertools.product(
        (1, 2, 4), (1, 2, 3, 4), range(1, devices + 1), (1, 2, 4)
    ):
        if tp * pp * dp > devices or (ep > 1 and (not model.experts or dp % ep)):
            continue
        for b, v, zero, again, flash, cut in itertools.product(
            (1, 2, 4), (1, 2, 4), range(4), RECOMPUTE, (False, True), (False, True)
        ):
            m, left = divmod(start.microbatch * start.microbatches, b)
            if not left and pp * v <= 4 and (v == 1 or (pp > 1 and m % pp == 0)):
                layout = Layout(dp, tp, pp, b, m, zero, cut, again, interleave=v, ep=ep)
                found.append(replace(layout, flash_attention=flash))
    return [alone(model, layout) for layout in found]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "start", "devices"),
    [
        (SMALL, Layout(), 8),
        (SMALL, Layout(microbatch=2, microbatches=2), 4),
        (MIXED, Layout(microbatches=2), 4),
    ],
)
def test_the_fewest_devices_are_the_fewest_of_all_layouts(model, start, devices):
    every = every_layout(model, start, devices)
    said = set()
    for share in (0.1, 0.15, 0.2, 0.25, 0.35, 0.6, 0.9):
        room = int(peak(start, model) * share)
        inside = [fit.layout for fit in every if fit.memory.peak + 50 <= room]
        best = min((layout.devices for layout in inside), default=None)
        fix = td.fits(model, start, cluster(1, room), sequence=64, overhead=50).smallest_fix
        if best is None:
            assert fix is None or fix.layout.devices > devices
        else:
            assert fix.layout.devices == best
            assert fix.missing == best - 1
        said.add(best)
    assert len(said) > 2


def test_a_fix_turns_to_even_stages_and_1f1b():
    for own in ({"partition": (0, 4, 4)}, {"schedule": "dualpipe", "microbatches": 4}):
        start = Layout(pp=2, **own)
        fix = ask(start, cluster(4, int(peak(start) * 0.6), node=1)).smallest_fix
        assert (fix.layout.partition, fix.layout.schedule) == (None, "1f1b")
        assert {*own} & {*fix.changed}


def test_on_one_device_a_fix_recomputes_what_costs_least():
    kinds = {kind: Layout(recompute=kind) for kind in RECOMPUTE}
    for room in sorted({peak(layout) for layout in kinds.values()})[:-1]:
        fleet = cluster(1, room)
        inside = [layout for layout in kinds.values() if peak(layout) <= room]
        fix = ask(Layout(), fleet).smallest_fix
        assert fix.layout == min(inside, key=lambda layout: seconds_of(layout, fleet))


def test_a_fix_of_what_serves_or_is_offloaded_takes_the_fewest_devices():
    def held(layout):
        return td.estimate_memory(SMALL, layout, "fp16-weights", 64).peak

    cuts = [Layout(dp=3, tp=t) for t in (2, 4)] + [Layout(dp=3, pp=p) for p in (2, 3, 4)]
    for room in map(held, cuts):
        fit = td.fits(SMALL, Layout(dp=3), cluster(12, room), "fp16-weights", 64, overhead=0)
        least = min(layout.devices for layout in cuts if held(layout) <= room)
        assert (fit.verdict, fit.smallest_fix.layout.devices) == ("no", least)
    away = td.offload("mixed-adam-16", ("weights", "momentum"))  # for ZeRO-3 alone
    whole = td.estimate_memory(SMALL, Layout(zero=3), away, 64).peak
    fix = td.fits(SMALL, Layout(zero=3), cluster(1, whole // 2), away, 64, overhead=0).smallest_fix
    assert (fix.missing > 0, fix.layout.zero) == (True, 3)
