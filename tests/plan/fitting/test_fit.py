"""Fit: verdicts at their borders, reasons, and the smallest change that fits.

Holds `tiledask.plan.fitting.fewest`, `tiledask.plan.fitting.fixes`,
`tiledask.plan.fitting.overhead` and `tiledask.plan.fitting.repair`.
"""

import itertools
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.choosing.search import Space
from tiledask.plan.fitting.fit import minimum_devices, zero3_minimum_degree
from tiledask.plan.fitting.fixes import SINGLE
from tiledask.plan.fitting.overhead import (
    ALLOCATOR,
    BUCKETS,
    CUDA_CONTEXT,
    NCCL_BUFFERS,
    Overhead,
    default_overhead,
)
from tiledask.plan.fitting.repair import FIELDS
from tiledask.plan.inputs.layout import RECOMPUTE, Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model

SMALL = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=96)
BIG = 200_000_000_000


def cluster(devices, memory, node=4):
    base = load_cluster(f"{devices}xT4")
    device = replace(base.device, memory_bytes=memory, name="toy")
    return replace(base, device=device, devices_per_node=node)


# 200 billion parameters on 40 GB, flat ---------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "devices"),
    [
        ("fp16-weights", 10),
        ("fp32-weights", 20),
        ("fp32-sgd", 40),
        ("fp32-momentum", 60),
        ("fp32-adam", 80),
        ("mixed-adam-16", 80),
        ("mixed-adam-18", 90),
        ("mixed-adam-20", 100),
    ],
)
def test_minimum_devices_of_200_billion(recipe, devices):
    assert minimum_devices(BIG, recipe, "40GB") == devices
    assert minimum_devices(BIG + 1, recipe, 40 * 10**9) == devices + 1


def test_zero_3_needs_80_copies_and_data_parallelism_alone_no_number():
    assert zero3_minimum_degree(BIG, "mixed-adam-16", "40GB") == 80
    assert zero3_minimum_degree(BIG, "mixed-adam-18", "40GB") == 90
    model, fleet = load_model("gpt-200b"), load_cluster("100000xA100-40GB")
    peaks = {td.fits(model, Layout(dp=d), fleet).memory.peak for d in (1, 10, 1000, 100_000)}
    assert len(peaks) == 1
    assert min(peaks) > 40e9


def test_zero3_degree_is_the_first_that_fits():
    for parameters, room in ((10, 16), (11, 33), (1000, 999), (7, 10**6)):
        degree = zero3_minimum_degree(parameters, "mixed-adam-16", room)
        assert parameters * 16 <= room * degree
        assert degree == 1 or parameters * 16 > room * (degree - 1)
    with pytest.raises(ConfigError, match="does not hold one parameter"):
        zero3_minimum_degree(10, "mixed-adam-16", 15)
    # 4 of 20 bytes that ZeRO does not deal out stay whole, however many share the rest
    assert zero3_minimum_degree(1000, "deepspeed-bf16-adam", 5000) == 16
    with pytest.raises(ConfigError, match="leaves whole of the others, 4000 B"):
        zero3_minimum_degree(1000, "deepspeed-bf16-adam", 4000)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True])
def test_parameters_are_checked(bad):
    with pytest.raises(ConfigError, match="parameters must be an integer of 1 or more"):
        minimum_devices(bad)
    with pytest.raises(ConfigError, match="capacity must be 1 byte"):
        minimum_devices(5, capacity=0)


# verdicts -------------------------------------------------------------------------------


def test_the_verdict_changes_exactly_at_the_borders_of_the_band():
    peak = td.estimate_memory(SMALL, Layout(), sequence=32).peak
    for extra, verdict in ((-1, "no"), (0, "tight"), (99, "tight"), (100, "fits")):
        fit = td.fits(SMALL, Layout(), cluster(1, peak + extra), sequence=32, overhead=100)
        assert fit.verdict == verdict
        assert fit.shortfall == max(0, -extra)
        assert fit.band == (peak, peak + 100)
        assert verdict in repr(fit)


def test_a_device_without_room_for_the_context_is_a_no_however_it_is_asked():
    layout = Layout(tp=2)
    peak = td.estimate_memory(SMALL, layout, sequence=32).peak
    space = Space(
        tp=(2,),
        pp=(1,),
        zero=(0,),
        recompute=("none",),
        sequence_parallel=(False,),
        flash_attention=(False,),
    )
    rest = default_overhead(2).total - CUDA_CONTEXT
    for extra, verdict in ((-1, "no"), (0, "tight"), (rest - 1, "tight"), (rest, "fits")):
        fleet = cluster(2, peak + CUDA_CONTEXT + extra)
        fit = td.fits(SMALL, layout, fleet, sequence=32)
        (plan,) = td.search(SMALL, fleet, 1, sequence=32, space=space)
        assert fit.verdict == plan.verdict == plan.fit.verdict == verdict
        assert fit.shortfall == max(0, -extra)
        assert ("and a CUDA context of 987.8 MB, 1 B more" in fit.reason) == (verdict == "no")


def test_overheads_have_names():
    assert default_overhead(2).total == CUDA_CONTEXT + NCCL_BUFFERS + BUCKETS + ALLOCATOR
    assert default_overhead(1).nccl == 0
    with pytest.raises(ConfigError, match="overhead nccl must be bytes"):
        Overhead(nccl=-1)
    with pytest.raises(ConfigError, match=r"overhead must be bytes.* got 1\.5"):
        td.fits(SMALL, Layout(), cluster(1, 10**9), overhead=1.5)
    tight = td.fits(SMALL, Layout(dp=2), cluster(2, 10**9), sequence=32)
    assert tight.verdict == "tight"
    assert "CUDA context" in tight.reason
    assert "NCCL" in tight.reason


def test_the_reason_says_what_binds_and_what_does_not_help():
    model, fleet = load_model("gpt-200b"), load_cluster("160xA100-40GB")
    alone = td.fits(model, Layout(dp=160), fleet).reason
    assert "optimizer states, 2.4 TB: every data-parallel copy holds all of it" in alone
    assert "more data-parallel devices do not help" in alone
    split = td.fits(model, Layout(tp=8, pp=10), fleet).reason
    assert "all of its 1/80 of the model" in split
    assert "stage 0 of 10" in split
    zero = td.fits(model, Layout(dp=160, zero=1), fleet).reason
    assert "weights, 400 GB" in zero
    assert "ZeRO-3 would shard it" in zero
    batch = td.fits(model, Layout(tp=8, pp=10, microbatch=8, microbatches=64), fleet).reason
    assert "activations" in batch
    assert "8 x 2048 tokens" in batch
    lone = td.fits(model, Layout(tp=8, zero=3), fleet).reason
    assert "nobody to share it with" in lone
    sharded = td.fits(model, Layout(tp=8, dp=2, zero=1, recompute="full"), fleet).reason
    assert "what is left after ZeRO-1 sharded it over dp 2" in sharded
    logits = Model(hidden=64, layers=1, heads=4, ffn=64, vocab=10**6)
    wide = td.fits(logits, Layout(), cluster(1, 10**9), "fp16-weights", sequence=4096)
    assert "grows with the micro-batch" in wide.reason


def test_more_devices_than_the_cluster_has():
    fit = td.fits(SMALL, Layout(dp=8), cluster(4, 10**12), sequence=32, overhead=0)
    assert (fit.verdict, fit.shortfall) == ("no", 0)
    assert "needs 8 devices" in fit.reason
    assert fit.smallest_fix.layout.devices <= 4


# the smallest fix -----------------------------------------------------------------------


ANY = cluster(1, 10**12)


@cache
def alone(model, layout, sequence, overhead):
    return td.fits(model, layout, ANY, sequence=sequence, overhead=overhead)


@cache
def in_reach(model, start, devices, per_node, sequence, overhead):
    """(changed fields, Fit) of every layout; what one needs is the same on any device."""
    found = []
    heads = [t for t in range(1, per_node + 1) if model.heads % t == 0]
    micro = [b for b in range(1, start.microbatch + 1) if start.microbatch % b == 0]
    for tp, pp, dp, zero, recompute, b in itertools.product(
        heads,
        range(1, model.layers + 1),
        range(1, devices + 1),
        range(start.zero, 4),
        RECOMPUTE[RECOMPUTE.index(start.recompute) :],
        micro,
    ):
        layout = replace(
            start,
            tp=tp,
            pp=pp,
            dp=dp,
            zero=zero,
            recompute=recompute,
            microbatch=b,
            microbatches=start.microbatches * start.microbatch // b,
        )
        changed = sum(getattr(layout, n) != getattr(start, n) for n in FIELDS)
        found.append((changed, alone(model, layout, sequence, overhead)))
    return found


def brute_force(model, start, fleet, sequence, overhead):
    """Of the layouts in reach that fit: (changed fields, devices) of the best; fewest devices."""
    every = in_reach(model, start, fleet.devices, fleet.devices_per_node, sequence, overhead)
    found = [
        (changed, fit.layout.devices)
        for changed, fit in every
        if replace(fit, cluster=fleet).verdict == "fits"
    ]
    return min(found, default=None), min((n for _, n in found), default=None)


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize(
    "start",
    [
        Layout(),
        Layout(dp=4),
        Layout(dp=3, zero=1),
        Layout(tp=2, microbatch=2, microbatches=2),
        Layout(pp=2, microbatches=4, microbatch=2),
        Layout(dp=2, tp=2, recompute="full"),
    ],
)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.35, 0.6, 0.9])
def test_the_smallest_fix_is_the_best_of_all_layouts_in_reach(start, share):
    fleet = cluster(6, int(td.estimate_memory(SMALL, start, sequence=64).peak * share))
    fit = td.fits(SMALL, start, fleet, sequence=64, overhead=50)
    assert fit.verdict == "no"
    best, _ = brute_force(SMALL, start, fleet, 64, 50)
    if best is None:  # only more devices, or what FIELDS leave alone
        fix = fit.smallest_fix
        assert (
            fix is None or fix.missing or {"flash_attention", "sequence_parallel"} & {*fix.changed}
        )
    else:
        fix = fit.smallest_fix
        assert (len(fix.changed), fix.devices) == best
        assert fix.missing == 0
        again = td.fits(SMALL, fix.layout, fleet, sequence=64, overhead=50)
        assert again.verdict == "fits"


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
                found.append(
                    Layout(
                        dp=dp,
                        tp=tp,
                        pp=pp,
                        ep=ep,
                        microbatch=b,
                        microbatches=m,
                        interleave=v,
                        zero=zero,
                        recompute=again,
                        flash_attention=flash,
                        sequence_parallel=cut,
                    )
                )
    return [alone(model, layout, 64, 50) for layout in found]


@pytest.mark.long
@pytest.mark.few(2)
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
        room = int(td.estimate_memory(model, start, sequence=64).peak * share)
        inside = [fit.layout for fit in every if fit.memory.peak + 50 <= room]
        best = min((layout.devices for layout in inside), default=None)
        as_it_is = [
            layout.devices
            for layout in inside
            if {**vars(layout), "dp": 1, "tp": 1, "pp": 1} == vars(start)
        ]
        fit = td.fits(model, start, cluster(1, room), sequence=64, overhead=50)
        fix, others = fit.smallest_fix, fit.fixes["devices"]
        if best is None:
            assert fix is None or fix.devices > devices
        else:
            assert fix.devices == best
            if best > 1:
                assert f"takes {best}, {best - 1} more" in str(fix)
                assert f", {start.microbatch * start.microbatches} sequence" in str(fix)
        if as_it_is:
            assert others.devices == min(as_it_is)
        else:
            assert others is None or others.devices > devices
        said.add(best)
    assert len(said) > 2


@pytest.mark.long
def test_the_fewest_devices_of_two_large_models():
    """13 x 8 copies and slices for 200 billion on 40 GB: sequence parallelism makes the room."""
    for name, device, fewest in (("gpt-200b", "A100-40GB", 104), ("bloom-176b", "A100-80GB", 40)):
        fit = td.fits(load_model(name), Layout(dp=8), load_cluster(f"8x{device}"))
        layout = fit.smallest_fix.layout
        assert layout.devices == fewest
        wide = load_cluster(f"{fewest}x{device}")
        assert td.fits(load_model(name), layout, wide).verdict == "fits"


def test_nothing_to_fix_and_nothing_that_helps():
    fine = td.fits(SMALL, Layout(), cluster(1, 10**12), sequence=32)
    assert (fine.verdict, fine.smallest_fix) == ("fits", None)
    hopeless = td.fits(SMALL, Layout(), cluster(8, 1000), sequence=32, overhead=0)
    assert (hopeless.verdict, hopeless.smallest_fix) == ("no", None)
    no_room = td.fits(SMALL, Layout(), cluster(8, 10**9), sequence=32, overhead=10**9)
    assert (no_room.verdict, no_room.smallest_fix) == ("tight", None)


def test_a_tight_layout_gets_a_fix_too():
    peak = td.estimate_memory(SMALL, Layout(), sequence=32).peak
    fit = td.fits(SMALL, Layout(), cluster(4, peak + 1), sequence=32, overhead=1000)
    assert fit.verdict == "tight"
    assert (
        td.fits(
            SMALL, fit.smallest_fix.layout, cluster(4, peak + 1), sequence=32, overhead=1000
        ).verdict
        == "fits"
    )


@pytest.mark.long
def test_the_200_billion_story():
    model = load_model("gpt-200b")
    fit = td.fits(model, Layout(dp=160), load_cluster("160xA100-40GB"))
    assert fit.verdict == "no"
    assert fit.smallest_fix.layout == Layout(tp=8, pp=16)
    assert "global batch goes from 160 to 1" in str(fit.smallest_fix)
    few = td.fits(model, Layout(dp=80), load_cluster("80xA100-40GB"))
    assert few.smallest_fix.missing > 0
    assert "no layout on 80 devices fits" in str(few.smallest_fix)


def test_a_fix_keeps_an_interleaved_schedule_valid_and_drops_a_partition():
    start = Layout(pp=2, interleave=2, microbatches=4)
    room = int(td.estimate_memory(SMALL, start, sequence=64).peak * 0.7)
    fix = td.fits(SMALL, start, cluster(8, room), sequence=64, overhead=0).smallest_fix
    assert fix.layout.interleave == 2
    uneven = Layout(pp=2, partition=(0, 4, 4))
    room = max(td.estimate_memory(SMALL, Layout(pp=4, recompute="full"), sequence=64).per_stage)
    fix = td.fits(SMALL, uneven, cluster(4, room, node=1), sequence=64, overhead=0).smallest_fix
    assert "pp" in fix.changed
    assert fix.layout.partition is None


def test_smaller_micro_batches_become_more_of_them():
    start = Layout(microbatch=6, microbatches=2, recompute="full")
    room = td.estimate_memory(SMALL, replace(start, microbatch=2), sequence=64).peak
    fix = td.fits(SMALL, start, cluster(1, room), sequence=64, overhead=0).smallest_fix
    assert fix.layout == replace(start, microbatch=2, microbatches=6)
    assert "global batch" not in str(fix)


def test_one_copy_may_fit_where_several_do_not_because_of_their_collectives():
    start = Layout(dp=4, zero=1)
    room = td.estimate_memory(SMALL, Layout(), sequence=64).peak + default_overhead(1).total
    fit = td.fits(SMALL, start, cluster(4, room), sequence=64)
    assert (fit.verdict, fit.smallest_fix.layout) == ("tight", Layout(zero=1))


def test_shown():
    fit = td.fits(load_model("gpt-200b"), Layout(tp=8, pp=10, dp=2), load_cluster("160xA100-40GB"))
    html = fit._repr_html_()
    assert "<b>no</b>" in html
    assert "Smallest fix: zero 0 -&gt; 2" in html


# one thing changed ------------------------------------------------------------------------


def priced(model, layout, *more):
    """A time model: two seconds for each sequence, three if layers are computed again."""
    each = 3 if layout.recompute == "full" else 2
    return SimpleNamespace(total=layout.microbatches * layout.microbatch * each)


def single_brute_force(start, fleet, name, overhead):
    """The values of one field, nearest first, that fit by asking ``fits`` for each."""
    values = {
        "dp": range(start.dp + 1, 100),
        "tp": (t for t in (2, 4) if t > start.tp),
        "pp": range(start.pp + 1, SMALL.layers + 1),
        "zero": range(start.zero + 1, 4),
        "microbatch": [b for b in range(start.microbatch - 1, 0, -1) if start.microbatch % b == 0],
        "recompute": RECOMPUTE[RECOMPUTE.index(start.recompute) + 1 :],
        "flash_attention": [True],
        "sequence_parallel": [True] if start.tp > 1 else [],
    }[name]
    for value in values:
        layout = replace(start, **{name: value})
        if name == "microbatch":
            sequences = start.microbatch * start.microbatches
            layout = replace(layout, microbatches=sequences // value)
        wide = replace(fleet, devices=layout.devices)
        if td.fits(SMALL, layout, wide, sequence=64, overhead=overhead).verdict == "fits":
            return layout
    return None


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        Layout(microbatch=4, microbatches=2),
        Layout(dp=2, zero=1, microbatch=2),
        Layout(tp=2),
        Layout(dp=4, zero=3, microbatch=6),
        Layout(pp=2, dp=2, zero=2, recompute="selective"),
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 0.95])
def test_each_direction_alone_is_the_nearest_that_fits(start, share):
    fleet = cluster(8, int(td.estimate_memory(SMALL, start, sequence=64).peak * share))
    fixes = td.fits(SMALL, start, fleet, sequence=64, overhead=50).fixes
    assert set(fixes) == {*SINGLE, "recipe", "devices"}
    for name in SINGLE:
        best, found = single_brute_force(start, fleet, name, 50), fixes[name]
        assert (found.layout if found else None) == best, name
        if found:
            assert found.changed == (name,)
            assert found.missing == max(0, best.devices - 8)
            assert f"{name} {getattr(start, name)} -> {getattr(best, name)}" in str(found)
    for fix in filter(None, fixes.values()):
        wide = replace(fleet, devices=fix.devices)
        again = td.fits(SMALL, fix.layout, wide, fix.recipe, sequence=64, overhead=50)
        assert again.verdict == "fits"


def test_a_smaller_recipe_is_the_largest_of_those_that_fit():
    room = td.estimate_memory(SMALL, Layout(), "bf16-adam", sequence=64).peak
    fix = td.fits(SMALL, Layout(), cluster(1, room), sequence=64, overhead=0).fixes["recipe"]
    assert (fix.recipe, fix.changed) == ("bf16-adam", ("recipe",))
    assert "recipe mixed-adam-16 -> bf16-adam" in str(fix)
    serving = td.fits(SMALL, Layout(), cluster(1, 10), "fp16-weights", sequence=64, overhead=0)
    assert serving.fixes["recipe"] is None
    assert td.fits(SMALL, Layout(), cluster(1, 10**12), sequence=64).fixes == {}


def test_the_fewest_devices_with_only_the_three_degrees_free():
    start = Layout(microbatch=2, recompute="selective")
    room = int(td.estimate_memory(SMALL, start, sequence=64).peak * 0.4)
    fix = td.fits(SMALL, start, cluster(2, room), sequence=64, overhead=0).fixes["devices"]
    assert set(fix.changed) <= {"dp", "tp", "pp"}
    assert fix.layout.recompute == "selective"


def test_fixes_have_a_price_in_time():
    start = Layout(microbatch=4, microbatches=2)
    room = td.estimate_memory(SMALL, replace(start, recompute="full"), sequence=64).peak
    fit = td.fits(SMALL, start, cluster(8, room), sequence=64, overhead=0, step=priced)
    full = fit.fixes["recompute"]
    assert (full.seconds, full.slower) == (24, 1.5)
    assert "a sequence takes 1.5 times as long" in str(full)
    own = td.fits(SMALL, start, cluster(8, room), sequence=64, overhead=0).fixes["recompute"]
    assert own.seconds > 0
    assert own.slower > 1
    serving = td.fits(
        SMALL, Layout(microbatch=2), cluster(8, 200_000), "fp16-weights", sequence=64, overhead=0
    )
    assert all(fix.seconds is None for fix in serving.fixes.values() if fix)


def test_what_a_device_is_expected_to_show():
    fit = td.fits(SMALL, Layout(dp=2), cluster(2, 10**12), sequence=64)
    assert fit.expected == fit.memory.peak + default_overhead(2).total


def test_context_and_expert_parallel_layouts_get_fixes_that_exist():
    mixed = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=96, experts=4, top_k=2)
    start = Layout(dp=4, cp=2, ep=4, microbatch=2)
    room = int(td.estimate_memory(mixed, start, sequence=64).peak * 0.5)
    fit = td.fits(mixed, start, cluster(64, room), sequence=64, overhead=0)
    for fix in filter(None, [fit.smallest_fix, *fit.fixes.values()]):
        assert fix.devices == fix.layout.dp * 2 * fix.layout.tp * fix.layout.pp
        assert fix.layout.dp * 2 % 4 == 0


def test_a_schedule_that_a_fix_cannot_have_is_passed_over():
    start = Layout(pp=2, microbatches=4, schedule="dualpipe")
    room = int(td.estimate_memory(SMALL, start, sequence=64).peak * 0.6)
    fix = td.fits(SMALL, start, cluster(8, room, node=1), sequence=64, overhead=0).smallest_fix
    assert fix is None or fix.layout.schedule == "dualpipe"


def test_what_is_no_cluster_is_refused_and_every_degree_is_said():
    with pytest.raises(ConfigError, match=r"a cluster is named by text such as .* got None"):
        td.fits(SMALL, Layout(), None)
    fit = td.fits(SMALL, Layout(dp=2, cp=4), cluster(4, 10**12), sequence=64)
    assert "needs 8 devices (dp 2 x tp 1 x pp 1 x cp 4)" in fit.reason


def test_a_smaller_degree_is_no_step_in_that_direction():
    start = Layout(tp=2)
    room = td.estimate_memory(SMALL, Layout(), sequence=64).peak + default_overhead(1).total
    fit = td.fits(SMALL, start, cluster(4, room), sequence=64)
    assert (fit.verdict, fit.smallest_fix.layout) == ("tight", Layout())
    assert fit.fixes["tp"] is None
