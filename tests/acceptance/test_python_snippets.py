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
    fix = fit.smallest_fix
    assert td.fits("gpt-200b", fix.layout, f"{fix.layout.devices}xA100-40GB").verdict == "fits"


# -- schedules -------------------------------------------------------------------------------------


def test_the_best_order_of_two_stages_and_three_micro_batches():
    best = td.optimal_schedule(2, 3, forward=1.0, backward=2.0, memory_limit=2)
    assert best.makespan == (3 + 2 - 1) * 3  # as 1F1B
    assert best.schedule.microbatches == 3
    with pytest.raises(ScheduleError, match="keeps 8"):
        td.validate(td.schedule("gpipe", 4, 8), memory_limit=4)


# -- programs --------------------------------------------------------------------------------------


def test_a_program_runs_and_moves_what_it_says():
    program = td.program(td.schedule("1f1b", 2, 3), block_bytes=2 * 4 * 4)
    x = np.ones((6, 4), "f4")
    run = td.run_program(program, td.stages.stack((0, 1, 2), width=4, hidden=8), x, target=x)
    assert run.traffic.measured == run.traffic.predicted
    assert run.traffic.measured.total == 2 * 3 * 32


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
    assert "exact" in repr(guess.compare(formula=2 * 3 * 128 // 4, measured=192))
    assert "1 of 1" in repr(td.score())


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
