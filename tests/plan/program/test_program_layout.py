"""The programs of layouts: which have one, and that their ranks hold what the ledger says."""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask.errors import ConfigError, ProgramError
from tiledask.lab.accuracy.runs import run_rows
from tiledask.plan.inputs.model import Model
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.program.making.of_layout import layout_program, why_no_program

RECIPE = td.load_recipe("mixed-adam-16")
SEARCHES = [
    ("llama-2-7b", "64xA100-80GB", 512, 4096),
    ("gpt2", "8xA100-40GB", 64, 1024),
    ("llama-2-70b", "256xH100", 1024, 4096),
    ("llama-3.1-8b", "64xH100", 256, 8192),
    ("bloom-176b", "384xA100-80GB", 2048, 2048),
    ("qwen2.5-14b", "32xH100", 128, 4096),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "cluster", "batch", "sequence"),
    [*SEARCHES[:2], *(pytest.param(*each, marks=pytest.mark.slow) for each in SEARCHES[2:])],
)
def test_the_ten_best_of_a_search_take_by_their_programs_what_the_closed_form_says(
    name, cluster, batch, sequence
):
    """Two walks that share the prices of single kernels and collectives. Within 5 %: the closed
    form rounds a stage to its layers, and counts biases, dropout's masks and the gathering of
    messages, which programs do not have."""
    timed = 0
    space = td.Space(cp=(1,))  # of the others there is no program
    for plan in td.search(name, cluster, batch, sequence=sequence, space=space)[:10]:
        if not np.isnan(plan.program_seconds):
            assert plan.program_seconds == pytest.approx(plan.step.total, rel=0.05), plan.layout
            timed += 1
    assert timed >= 5


@pytest.mark.long
@pytest.mark.parametrize(
    "layout",
    [
        td.Layout(dp=2, tp=4, pp=4, microbatches=16, recompute="full"),
        td.Layout(dp=2, tp=4, pp=4, microbatches=16, schedule="zb-h1", zero=1),
        td.Layout(dp=8, tp=1, pp=4, microbatches=8, schedule="gpipe", flash_attention=True),
        td.Layout(dp=1, tp=8, pp=4, microbatches=16, recompute="selective"),
        td.Layout(dp=32, zero=3, microbatches=2, flash_attention=True),
        td.Layout(dp=2, tp=2, pp=4, microbatches=16, schedule="chimera", flash_attention=True),
        td.Layout(dp=4, tp=2, pp=4, microbatches=16, schedule="chimera", zero=1),
        td.Layout(dp=2, tp=4, pp=4, microbatches=16, schedule="dualpipe", zero=2),
        td.Layout(dp=8, tp=2, pp=2, microbatches=16, schedule="dualpipe", zero=3),
    ],
    ids=str,
)
def test_other_layouts_too(layout):
    model, cluster = td.load_model("llama-2-7b"), td.load_cluster("32xA100-80GB")
    closed = td.estimate_step(model, layout, cluster, sequence=2048).total
    timed = layout_timeline(model, layout, cluster, RECIPE, 2048)
    if layout.recompute == "full":  # of a block's forward, programs leave out what nothing reads
        assert 0.9 * closed < timed.end.max() < closed
    else:
        assert timed.end.max() == pytest.approx(closed, rel=0.05)


ROWS = {
    "mbridge-fp8-2509-h100-llama8b": "FP8, ZeRO-3",
    "mbridge-fp8-2509-b200-llama8b": "FP8 by FLOP, launches",
    "nemo2407-fp8-gpt20b": "FP8, tp 2",
    "nemo2407-fp8-nemotron22b": "FP8, interleaved, 256,000 words",
    "simumax-b200-llama3_70b_l12_tp8_pp1_dp1_mbc8_cef": "launches of tp 8, fused loss",
    "dgxc-nemotron340b-2409-bf16-128": "BF16, tp 8, interleaved",
    "mpt-13b-T2048-8xh100_80gb-33": "FSDP, the host's seconds",
    "mpt-3b-T16384-8xa100_80gb-93": "an old attention kernel",
    "titan2506-70b-async": "full recomputation",
}
"""A published run -> what its price is made of, on a device and with a framework of its own."""


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS)
def test_published_runs_take_by_their_programs_what_the_closed_form_says(row):
    run = next(
        r.run for rows in run_rows().values() for r in rows if r.case == row and r.unit == "s"
    )
    recipe, cluster = td.load_recipe(run.recipe), td.load_cluster(run.cluster)
    closed = run.step().total
    of = run.model, run.layout, cluster, recipe, run.sequence
    timed = layout_timeline(*of, framework=run.framework).end.max()
    least = 0.9 if run.layout.recompute == "full" else 0.95
    assert least * closed < timed < 1.01 * closed


def test_in_fp8_run_the_products_of_layers_alone():
    """Twice the peak, less the share, and casts; head, core and what is sent as before."""
    model, layout = replace(TINY, hidden=4096, heads=32, ffn=16384), td.Layout(tp=2)
    found = []
    for name in ("mixed-adam-18", "mixed-adam-18-fp8"):
        recipe = td.load_recipe(name)
        program = layout_program(model, layout, recipe, 4096)
        seconds = prices_of(td.load_cluster("8xH100"), recipe, flash=True).kernels(program)
        parts = program.role(0).parts
        works = [each for part in parts for each in part.instructions if isinstance(each, Do)]
        head = [e for e in works if 199 // 2 + 1 in dict(e.options).get("product", ())]
        assert len(head) == 3  # forward, its input's gradient, its weight's
        products = [e for e in works if "linear" in e.kernel and e not in head]
        others = [e for e in works if e not in products]
        found.append([sum(map(seconds, some)) for some in (products, others)])
    (wide, kept), (narrow, same) = found
    assert same == kept
    assert 0.6 < narrow / wide < 0.8


def test_recipes_that_no_program_has_are_refused_with_a_way_out():
    with pytest.raises(ConfigError, match=r"adapters of recipe lora .* estimate_step has it by"):
        layout_program(TINY, td.Layout(), td.load_recipe("lora"), 32)
    folded = td.Layout(dp=4, tp=2, ep=4, expert_tp=1, sequence_parallel=True)
    with pytest.raises(ConfigError, match=r"experts .* not written as programs; estimate_step has"):
        layout_program(replace(TINY, experts=8, top_k=2), folded, RECIPE, 32)


@pytest.mark.long
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_both_devices_of_a_stage_hold_what_the_ledger_says(name, pp, zero, tied):
    """And both as much: nothing is kept to count a stage's gradients once in their norm."""
    model = replace(TINY, tied=tied)
    layout = td.Layout(dp=2, pp=pp, microbatches=8, schedule=name, zero=zero)
    held = layout_program(model, layout, RECIPE, 32).memory.per_place
    said = td.estimate_memory(model, layout, RECIPE, 32).per_stage
    assert [held[stage] for stage in range(pp)] == pytest.approx(said, rel=0.015)
    assert all(held[stage] == held[pp - 1 - stage] for stage in range(pp))


@pytest.mark.long
def test_what_has_no_program_says_why():
    model = td.load_model("mixtral-8x7b")
    with pytest.raises(ConfigError, match="experts and latent attention are not written as prog"):
        layout_program(model, td.Layout(tp=2), RECIPE, 2048)
    dense = td.load_model("llama-2-7b")
    assert "context" in why_no_program(dense, td.Layout(cp=2))
    assert not why_no_program(dense, td.Layout(tp=2, pp=2))
