"""The seconds of layouts by the clock of their programs, beside the closed form; what a step is.

Holds `tiledask.plan.program.making.of_layout`, `tiledask.plan.program.prices`,
`tiledask.plan.program.explained` and `tiledask.distributed.explain`.
"""

from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError, ProgramError
from tiledask.lab.accuracy.rows import published
from tiledask.lab.accuracy.stacks import run_of
from tiledask.plan.inputs.model import Model
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.program.explained import explain_program
from tiledask.plan.program.instructions import Collective, Do
from tiledask.plan.program.making.of_layout import layout_program, layout_timeline, why_no_program
from tiledask.plan.program.prices import prices_of

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
    run = run_of(published("plan2")[row])
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


# -- each stage on two devices ---------------------------------------------------------------------

TINY = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=199, learned_pos=32, name="tiny")


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
def test_a_layout_with_each_stage_twice_is_timed_and_explained():
    found = td.search("llama-2-7b", "64xH100", 512, sequence=4096)
    plans = found.refined(10, schedules=BOTH_WAYS)
    plan = next(each for each in plans if each.layout.schedule in BOTH_WAYS)
    assert plan.program_seconds == pytest.approx(plan.step.total, rel=0.02)
    assert "over the 2 devices of each stage" in plan.step._repr_html_()
    found = td.explain(layout_program(plan.found.model, plan.layout, RECIPE, 4096), "64xH100")
    assert {f"layer {n}/replicas" for n in range(32)} <= {row.what for row in found.rows}


# -- weights gathered by the schedule --------------------------------------------------------------

KEEPS = ("action", "phase", "step", 1, 2)
TOKENS = 8
"""So few that weights are more than activations: what moment is the fullest depends on both."""


def gathered(keep, name, interleave=1, **fields):
    fields = {"dp": 2, "pp": 2, "microbatches": 4} | fields
    return td.Layout(zero=3, schedule=name, interleave=interleave, unshard=keep, **fields)


def whole(held, place):
    """Bytes of weights and of gradients that a place holds whole at its fullest moment."""
    rows = [row for row in held.rows if row.place == place]
    names = ("whole_weights/", "whole_gradients/")
    return [sum(row.bytes for row in rows if row.tensor.startswith(name)) for name in names]


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("name", "interleave"),
    [("1f1b", 1), ("1f1b", 2), ("looped-bfs", 2), ("gpipe", 1), ("zb-h1", 1), ("naive", 1)],
)
def test_what_is_whole_beside_the_shards_is_what_the_program_holds(name, interleave, tied, tp):
    """To the byte, whatever is kept; and so is what less keeping saves on the fullest device."""
    model, saved = replace(TINY, tied=tied), []
    for keep in KEEPS:
        layout = gathered(keep, name, interleave, tp=tp)
        held = layout_program(model, layout, RECIPE, TOKENS).memory
        said = td.estimate_memory(model, layout, RECIPE, TOKENS)
        for stage in range(2):
            of = said.ledger.by_tensor(stage)
            both = [of["gathered weights"], of["unreduced gradients"]]
            assert both == whole(held, stage), (keep, stage)
        saved.append((held.per_place[0], said.per_stage[0]))
        assert said.peak == pytest.approx(held.peak, rel=0.08)
    run, said = np.array(saved).T
    assert (run - run[0] == said - said[0]).all()
    assert (said[0] < said[2]) == (interleave > 1)  # with one stage a device nothing is saved


@pytest.mark.long
def test_a_v_is_weighed_at_its_fullest_stage():
    """Of the two chunks of a device, one with the embedding: the program's fullest moment may be
    the other's, with logits, which are the head's."""
    for keep in KEEPS:
        layout = gathered(keep, "zb-v", 2)
        held = layout_program(TINY, layout, RECIPE, 32).memory
        of = td.estimate_memory(TINY, layout, RECIPE, 32).ledger.by_tensor(0)
        weights, gradients = whole(held, 0)
        assert gradients == of["unreduced gradients"]
        assert 0 <= of["gathered weights"] - weights <= 2 * 32 * 64  # the table of positions


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("cluster", ["64xA100-80GB", "64xH100"])
@pytest.mark.parametrize(
    ("name", "interleave"),
    [("1f1b", 1), ("1f1b", 2), ("looped-bfs", 2), ("gpipe", 1), ("zb-h1", 1), ("zb-v", 2)],
)
def test_gathers_are_exposed_or_hidden_as_the_program_says(name, interleave, cluster):
    """Two walks: the schedule with the seconds of whole stages, and every instruction. The first
    halves a backward pass that is split, whose collectives are all in its first half."""
    model, spec, waited = td.load_model("llama-2-7b"), td.load_cluster(cluster), {}
    for keep in KEEPS:
        layout = gathered(
            keep, name, interleave, dp=4, tp=4, pp=4, microbatches=16, flash_attention=True
        )
        said = td.estimate_step(model, layout, spec, sequence=4096)
        timed = layout_timeline(model, layout, spec, RECIPE, 4096)
        off = 0.06 if name.startswith("zb") else 0.05
        assert timed.end.max() == pytest.approx(said.total, rel=off), keep
        waited[keep] = said.dp
        spans = timed.to_frame()
        summed = spans[spans.kind == "REDUCE_GRAD"].groupby("device").end.max()
        updated = spans[spans.kind == "U"].groupby("device").start.max()
        assert (updated >= summed).all()
        assert f"weights gathered by unshard={keep}, simulated" in said._repr_html_()
    assert waited["action"] >= waited["phase"] >= waited["step"] > 0
    assert waited["step"] == waited[2] <= waited[1]


@pytest.mark.long
def test_what_has_no_program_says_why():
    model = td.load_model("mixtral-8x7b")
    with pytest.raises(ConfigError, match="experts and latent attention are not written as prog"):
        layout_program(model, td.Layout(tp=2), RECIPE, 2048)
    dense = td.load_model("llama-2-7b")
    assert "context" in why_no_program(dense, td.Layout(cp=2))
    assert not why_no_program(dense, td.Layout(tp=2, pp=2))
    plan = td.search("mixtral-8x7b", "64xH100", 64)[0]
    assert np.isnan(plan.program_seconds)


# -- where a step goes -----------------------------------------------------------------------------

MODEL = td.GPT(32000, hidden=1024, layers=8, heads=16, sequence=1024, gated=True)


def explained(**options):
    program = td.training_program(MODEL, (2, 4, 2), batch=16, microbatches=4, **options)
    return program, explain_program(program, "16xH100")


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"sequence_parallel": True, "zero": 1}], ids=str)
def test_a_step_is_explained(options):
    program, found = explained(**options)
    assert found.alone < found.makespan <= found.one_stream
    assert found.hidden > 0  # sums of dx go on over the products of dw
    assert found.exposed == pytest.approx(found.makespan - found.alone)
    sent = {row.what: row.sent for row in found.rows}
    assert sum(sent.values()) == program.traffic.sent[found.rank]
    labels = {
        each.label
        for part in program.role(found.rank).parts
        for each in part.instructions
        if isinstance(each, Collective)
    }
    assert labels <= sent.keys()
    assert max(found.rows, key=lambda row: row.seconds) == found.rows[0]
    assert sum(found.memory.values()) == max(program.memory.per_place.values())
    assert next(iter(found.memory)) in ("activations", "weights", "momentum", "variance")
    assert found.timeline.end.max() == found.makespan
    assert found.timeline.devices == 2  # a rank of each stage
    assert "of it between ranks" in repr(found)
    assert "linear_grad_weight" in found._repr_html_()
    assert found.to_frame().seconds.sum() == pytest.approx(sum(r.seconds for r in found.rows))


@pytest.mark.long
def test_overlap_is_the_order_of_lines():
    """Without streams of their own, sums of dx are waited for; what hides is at most what they
    take."""
    program, found = explained()
    backward = sum(r.seconds for r in found.rows if r.stream == "tp" and "backward" in r.what)
    assert 0.2 * backward < found.hidden <= 1.05 * backward
    in_turn = program.on_compute("tp", "dp", "pp", "all")
    assert explain_program(in_turn, "16xH100").hidden == pytest.approx(0.0, abs=1e-12)


@pytest.mark.long
def test_weights_are_fetched_ahead_as_far_as_there_are_slots():
    """ZeRO-3: with one, a unit's weights are gathered while nothing is computed; two are as good
    as any number."""
    program, found = explained(zero=3)
    assert program.slots == (("dp", 2),)

    def step(slots):
        return explain_program(replace(program, slots=slots), "16xH100").makespan

    one, two, any_number = (step(s) for s in ((("dp", 1),), (("dp", 2),), ()))
    assert one > 1.02 * two
    assert two == found.makespan
    assert any_number == pytest.approx(two, rel=0.01)
    assert td.Program.from_text(program.to_text()) == program


@pytest.mark.long
def test_td_explain_takes_programs_trainings_and_products():
    program = td.training_program(MODEL, (1, 2, 1), batch=2)
    assert td.explain(program).cluster.startswith("8 x H100")
    small = td.GPT(59, hidden=16, layers=1, heads=2, sequence=8)
    run = td.train(small, td.load_text("tales"), (2, 1, 1), steps=2, batch=4, progress=False)
    rows = {row.what: row for row in td.explain(run).rows}
    assert rows["layer 0/gradients"].measured > 0
    assert rows["linear"].measured is None
    with pytest.raises(ConfigError, match=r"what td\.train or td\.training_program gave"):
        td.explain(3)
    with pytest.raises(ProgramError, match=r"a mesh \(dp, tp, pp\); this one's is \(2,\)"):
        td.explain(td.program(td.schedule("1f1b", 2, 2)))
