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


def test_sharded_states_fit_on_many_copies_or_the_answer_says_why_not():
    fit = td.fits("gpt-200b", td.Layout(dp=160, zero=1), "160xA100-40GB")
    assert fit.verdict == "no"  # 4 B a parameter stay whole: 800 GB
    assert fit.memory.ledger.by_tensor(0)["weights"] == 2 * 199_985_233_920
    for fix in filter(None, fit.fixes.values()):
        assert td.fits("gpt-200b", fix.layout, f"{fix.devices}xA100-40GB").verdict == "fits"


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
    block = td.layer_calls("decoder_block", ranks=4, batch=1, tokens=32, width=64, heads=(4, 4, 16))
    forward = [call for call in block if "forward" in call.label]
    assert [call.kind for call in forward] == ["all_reduce"] * 2
    # 2 (n - 1) / n of 32 x 64 float64
    assert [call.sent for call in forward] == [(2 * 3 * 32 * 64 * 8 // 4,) * 4] * 2


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


# -- on workers ------------------------------------------------------------------------------------


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
