"""Snippets of Python as people type them, of the README's names; values worked out by hand."""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError, ScheduleError

GPT2 = 124_439_808  # 50257 x 768 + 1024 x 768 + 12 (12 x 768^2 + 13 x 768) + 2 x 768

# -- does it fit, and how fast ---------------------------------------------------------------------


def test_a_model_that_fits_holds_an_eighth_and_the_norms():
    fit = td.fits("llama-2-7b", td.Layout(tp=8), "8xA100-80GB")
    assert fit.verdict == "fits"
    norms = 65 * 4096  # two a layer and one at the end, whole on each slice
    on_one = (6_738_415_616 - norms) // 8 + norms
    held = fit.memory.ledger.by_tensor(0)
    assert held["weights"] == held["gradients"] == 2 * on_one
    assert held["master weights"] == held["momentum"] == held["variance"] == 4 * on_one


def test_a_model_that_does_not_fit_names_a_layout_that_does():
    model = td.load_model("gpt-200b")
    fit = td.fits(model, td.Layout(dp=160), td.load_cluster("160xA100-40GB"))
    assert fit.verdict == "no"
    assert fit.memory.peak > 16 * 199_985_233_920  # a whole copy of 16 B a parameter on each
    fix = fit.smallest_fix
    assert fix.layout.devices <= 160
    assert td.fits(model, fix.layout, f"{fix.layout.devices}xA100-40GB").verdict == "fits"


def test_sharded_states_fit_on_many_copies_or_the_answer_says_why_not():
    fit = td.fits("gpt-200b", td.Layout(dp=160, zero=1), "160xA100-40GB")
    assert fit.verdict == "no"  # 4 B a parameter stay whole: 800 GB
    assert fit.memory.ledger.by_tensor(0)["weights"] == 2 * 199_985_233_920
    for fix in filter(None, fit.fixes.values()):
        assert td.fits("gpt-200b", fix.layout, f"{fix.devices}xA100-40GB").verdict == "fits"


def test_adapters_train_few_parameters():
    held = td.estimate_memory("llama-2-70b", td.Layout(), td.lora(rank=8)).ledger.by_tensor(0)
    # r (in + out) of a query of 8192 x 8192 and a value of 8192 x 1024, in 80 layers, 2 B each
    assert held["gradients"] == 2 * 80 * 8 * ((8192 + 8192) + (8192 + 1024))
    assert held["weights"] == 2 * 68_976_648_192


def test_offloaded_states_are_on_the_host():
    there = td.offload(to="cpu")
    memory = td.estimate_memory("gpt2", td.Layout(), there, sequence=1024)
    held = memory.ledger.by_tensor(0)
    assert "momentum" not in held
    assert held["weights"] + held["gradients"] == 4 * GPT2
    assert memory.offloaded["cpu"].peak == 12 * GPT2


def test_the_best_plan_uses_the_cluster_and_the_batch():
    plans = td.search("gpt2", "8xA100-40GB", 64, sequence=1024)
    best = plans.best
    assert best.verdict == "fits"
    assert best.layout.devices == 8
    assert best.layout.dp * best.layout.microbatch * best.layout.microbatches == 64
    # no faster than 6 FLOP a parameter and token at 312 TFLOP/s on each
    assert best.seconds >= 6 * GPT2 * 64 * 1024 / (8 * 312e12)
    assert best.step.tokens_per_second == pytest.approx(64 * 1024 / best.step.total)


def test_a_step_s_parts_add_up():
    layout = td.Layout(dp=2, pp=4, microbatches=8)
    step = td.estimate_step("gpt2", layout, "8xA100-40GB", sequence=1024)
    assert sum(row.seconds for row in step.rows) == pytest.approx(step.total)
    assert step.tokens == 2 * 8 * 1024


# -- layers on devices -----------------------------------------------------------------------------


def test_24_layers_on_4_devices_and_what_a_head_costs():
    assert td.partition([1.0] * 24, stages=4).sizes == (6, 6, 6, 6)
    cut = td.partition([4, 4, 4, 1, 3], 2)  # 16 in all: 4 + 4 and 4 + 1 + 3
    assert (cut.bounds, cut.bottleneck) == ((0, 2, 5), 8)
    assert td.partition(24, 4, speeds=[1, 1, 2, 2]).sizes == (4, 4, 8, 8)


@pytest.mark.parametrize(
    ("answer", "ok", "rule"),
    [
        ("1-6 | 7-12 | 13-18 | 19-24", True, ""),
        ("1-7 | 8-12 | 13-18 | 19-24", True, ""),  # legal, and slower: 7 for 6
        ("1,5,9,13,17,21 | 2,6,10,14,18,22 | 3,7,11,15,19,23 | 4,8,12,16,20,24", False, "contig"),
        ("1-7 | 9-12 | 13-18 | 19-24", False, "missing"),
        ("7-12 | 1-6 | 13-18 | 19-24", False, "order"),
    ],
)
def test_an_answer_is_judged_by_the_rule_it_breaks(answer, ok, rule):
    verdict = td.judge(answer, layers=24, devices=4)
    assert verdict.ok is ok
    assert rule in verdict.rule
    assert verdict.optimum == 6


# -- schedules -------------------------------------------------------------------------------------


def test_1f1b_is_the_order_of_the_figure():
    order = td.schedule("1f1b", stages=2, microbatches=3)
    assert order.to_text().splitlines() == ["0F0,0F1,0B0,0F2,0B1,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"]
    assert td.Schedule.from_text(order.to_text()) == order


def test_gpipe_with_uneven_stages_by_hand():
    # stage 0: F 0-1, 1-2, B 6-8, 8-10; stage 1: F 1-3, 3-5, B 5-6, 6-7
    run = td.simulate(td.schedule("gpipe", 2, 2), forward=[1, 2], backward=[2, 1])
    assert (run.makespan, run.busy, run.idle) == (10, 12, 8)
    assert run.bubble_fraction == 8 / 20


def test_memory_over_time_is_weights_and_what_is_in_flight():
    run = td.simulate("1f1b", 4, 8)
    peaks = td.memory_over_time(run, activation=10, static=5).peaks
    assert list(peaks) == [5 + 10 * n for n in (4, 3, 2, 1)]


def test_the_best_order_of_two_stages_and_three_micro_batches():
    best = td.optimal_schedule(2, 3, forward=1.0, backward=2.0, memory_limit=2)
    assert best.makespan == (3 + 2 - 1) * 3  # as 1F1B
    assert best.schedule.microbatches == 3
    with pytest.raises(ScheduleError, match="keeps 8"):
        td.validate(td.schedule("gpipe", 4, 8), memory_limit=4)


def test_what_makes_a_layer_wise_run_idle():
    found = td.diagnose(td.simulate("naive", 4, 1))
    assert found.cause == "one at a time"
    assert found["devices"].value == 4


# -- programs --------------------------------------------------------------------------------------


def test_a_program_has_its_messages_and_its_memory():
    program = td.program(td.schedule("1f1b", 2, 3), block_bytes=32, activation=10)
    program.check()
    assert (program.traffic.total, program.traffic.count) == (2 * 3 * 32, 2 * 3)
    # activations kept, and a block that has come
    assert program.memory.per_place == {0: 2 * 10 + 32, 1: 10 + 32}


def test_a_program_runs_and_moves_what_it_says():
    program = td.program(td.schedule("1f1b", 2, 3), block_bytes=2 * 4 * 4)
    x = np.ones((6, 4), "f4")
    run = td.run_program(program, td.stages.stack((0, 1, 2), width=4, hidden=8), x, target=x)
    assert run.traffic.measured == run.traffic.predicted
    assert run.traffic.measured.total == 2 * 3 * 32


def test_a_training_s_program_sums_the_gradients_once():
    model = td.GPT(64, hidden=16, layers=1, heads=4, sequence=8)
    # 64 x 16 and 8 x 16; 12 h^2 + 13 h; a norm of 2 h; a head of 16 x 64
    numbers = 1024 + 128 + (12 * 256 + 13 * 16) + 32 + 1024
    assert td.training_program(model, (1, 1, 1), batch=2).traffic.total == 0
    two = td.training_program(model, (2, 1, 1), batch=2).traffic
    assert list(two.sent) == [2 * numbers * 4 // 2] * 2  # 2 (d - 1) / d of 4 B each


def test_a_layer_calls_two_sums_forward():
    stream = td.collectives.layers.Stream(batch=1, tokens=32, width=64, ranks=4)
    block = td.collectives.layers.decoder_block(stream, 4, 4, 16)
    assert [call.kind for call in block.forward] == ["all_reduce"] * 2
    assert [call.counts for call in block.forward] == [(32 * 64 // 4,) * 4] * 2


def test_split_trainings_have_one_device_s_losses():
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    alone = td.train(model, text, (1, 1, 1), steps=2, batch=4)
    split = td.train(model, text, (2, 2, 2), steps=2, batch=4, microbatches=2, zero=1)
    np.testing.assert_allclose(split.losses, alone.losses, rtol=1e-5)
    assert split.traffic.predicted == split.traffic.measured


def test_ranks_on_threads_sum():
    done = td.run_threads(lambda rank: rank.group().all_reduce(float(rank.index)).item(), 4)
    assert done.results == [0 + 1 + 2 + 3] * 4


# -- questions, predictions, tables ----------------------------------------------------------------


def test_questions_are_asked_with_numbers_of_one_s_own():
    found = td.ask(33, run=False, workers=3, forward=1.0, backward=2.0).values
    # one after another 3 x 3 s; each waits for two others
    assert (found["makespan"], found["idle of each"], found["total idle"]) == (9, 6, 18)
    assert found["efficiency"] == pytest.approx(1 / 3)
    assert td.ask(34, run=False, layers=30).values["sizes"] == [8, 8, 7, 7]
    with pytest.raises(ConfigError, match="34 has no 'colour'"):
        td.ask(34, colour="red")


def test_a_prediction_is_kept_and_scored(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEDASK_PROGRESS", str(tmp_path))  # nobody's earlier predictions
    guess = td.predict("bytes that each of four copies sends", 192, unit="B")
    assert "exact" in repr(guess.beside(formula=2 * 3 * 128 // 4, measured=192))
    assert "1 of 1 predicted" in repr(td.score())


def test_a_comparison_holds_or_names_what_does_not():
    values = {"sent": (192, 192, 192), "messages": (6, 6, 7)}
    found = td.Comparison.of("1F1B on 2 stages", values, rule="equal")
    assert not found.ok
    assert [row.quantity for row in found.failures] == ["messages"]
    assert td.Comparison.of("sent", {"sent": (192, 192, 192)}, "bytes", "equal").ok


def test_a_table_has_units():
    text = str(td.table({"gpt2": {"weights": 2 * GPT2, "layers": 12}}, weights="bytes"))
    assert text.split() == ["weights", "layers", "gpt2", "248.9", "MB", "12"]


def test_a_layout_goes_to_megatron_and_comes_back():
    layout = td.Layout(dp=2, tp=2, pp=2, microbatches=4)
    written = td.export_config("gpt2", layout, "megatron", sequence=1024)
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" in written.text
    assert "--global-batch-size 8" in written.text  # 2 copies x 4 of one sequence
    read = td.import_config("megatron", written.text, devices=8)
    assert (read.layout, read.model.parameters) == (layout, GPT2)


# -- on workers ------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_product_on_four_workers(cluster):
    mesh = td.Mesh(cluster, (2, 2))
    A = td.distribute(np.ones((512, 512), "f4"), mesh, (td.Shard(0), td.Shard(1)))
    C = A @ A
    # each worker fetches a block of A and one of B: 4 x 2 x 256^2 x 4 B
    assert C.traffic.predicted == C.traffic.measured
    assert C.traffic.measured.total == 2_097_152
    assert (td.to_numpy(C) == 512).all()
    assert td.to_numpy(td.matmul(A, A, algorithm="cannon"))[0, 0] == 512


@pytest.mark.cluster
def test_a_training_on_workers_is_that_on_threads(cluster):
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    there = td.train(model, text, td.Mesh(cluster, (2, 1, 2)), steps=2, batch=4)
    here = td.train(model, text, (2, 1, 2), steps=2, batch=4)
    assert there.losses.tolist() == here.losses.tolist()
    assert there.traffic.predicted == there.traffic.measured


@pytest.mark.cluster
def test_a_schedule_on_workers_sends_what_its_program_says(cluster):
    stages = td.stages.stack((0, 1, 2), width=4, hidden=8)
    x = np.ones((6, 4), "f4")
    run = td.run_schedule(td.schedule("1f1b", 2, 3), stages, x, cluster, target=x)
    assert run.traffic.predicted == run.traffic.measured
    assert run.traffic.measured.total == 2 * 3 * 2 * 4 * 4  # blocks of 2 x 4 in float32
