"""The bench of training: parts that make the whole, the same numbers in torch, and its record.

Holds `tiledask.lab.bench.training`, `tiledask.lab.bench.training_cores`,
`tiledask.lab.bench.training_peer`, `tiledask.lab.bench.training_runs` and
`tiledask.lab.bench.training_shown`.
"""

import json
import os
import sys
import threading
import time
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import pairwise, product
from statistics import median

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT
from tiledask.errors import ClusterLostError
from tiledask.lab.bench import training, training_peer, training_runs, training_shown
from tiledask.lab.bench.training_cores import Meter, idle_on_cores
from tiledask.lab.bench.training_runs import PeerProcesses, RankLayout, Step, TrainingRun
from tiledask.plan.collectives.cost import cost
from tiledask.plan.data import data_file
from tiledask.plan.products.placement import split

SMALL = GPT(64, hidden=16, layers=2, heads=4, sequence=8)
FOUR = RankLayout("dp2 tp2", (2, 2, 1)), RankLayout("tp2 pp2", (1, 2, 2), 2)
RECORD = data_file("measured", "bench-training-cpu-2cores.json")


def parts(step):
    return step["compute"] + step["transfer"] + step["scheduling"] + step["others"]


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.long
def test_a_record_has_the_cpu_of_its_rank_and_none_of_its_waits():
    other_waits = threading.Event()

    def program(rank):
        with rank.step(7):
            if rank.index:
                spin(0.1)
                other_waits.set()
            else:
                assert other_waits.wait(60)
                time.sleep(0.4)
                woke.append(time.time())
            rank.group().all_reduce(np.ones(4))

    woke = []
    done = run_threads(program, 2)
    waited = done.records.rows[1]
    slept, spun = done.records.steps
    assert (slept.rank, slept.step, spun.rank, spun.step) == (0, 7, 1, 7)
    assert slept.end - slept.begin > 0.39  # two clocks
    assert max(slept.cpu, waited.cpu) < 0.1 <= spun.cpu <= spun.process
    assert spun.begin <= waited.begin <= waited.end <= spun.end
    assert waited.end > woke[0] - 0.01


@pytest.mark.long
def test_the_machine_s_counters_add_up_and_see_who_computes():
    with Meter() as meter:
        begin = time.time()
        spin(0.5)
        end = time.time()
    seen = meter.between(begin, end)
    assert seen.busy > 0
    assert min(seen.idle, seen.stolen) >= 0
    assert seen.mine >= 0.4  # this process spun for 0.5 s; the ends lie between two looks
    halves = [meter.between(*ends) for ends in pairwise((begin, (begin + end) / 2, end))]
    np.testing.assert_allclose(np.sum(halves, axis=0), seen, atol=1e-6)


@pytest.mark.cluster
@pytest.mark.parametrize("layout", FOUR, ids=lambda layout: layout.name)
def test_a_step_s_parts_make_its_core_seconds(cluster, layout):
    run = training_runs.ours(cluster, SMALL, layout, steps=4, warm=1)
    assert len(run.losses) == 4
    assert len(run.steps) == len(run.seconds) == len(run.cpu) == 3
    for step in run.steps:
        assert parts(step._asdict()) == pytest.approx(psutil.cpu_count() * step.seconds)
        assert min(step.compute, step.transfer, step.others) >= 0
        assert step.compute > 0
    kinds = {"dp2 tp2": {"all_reduce of 2"}, "tp2 pp2": {"all_reduce of 2", "send"}}[layout.name]
    assert set(run.sent) == kinds
    assert {kind: training_runs.ring_bytes(kind, n) for kind, n in run.payload.items()} == run.sent


def test_idle_cores_of_a_schedule():
    idle, made = idle_on_cores, td.schedule("1f1b", 4, 8)
    assert idle(made, 1, 4) == pytest.approx(td.simulate(made, 1.0, 2.0).bubble_fraction)
    assert idle(made, 1, 1) == 0
    assert 0 < idle(made, 1, 2) < idle(made, 1, 3) < idle(made, 1, 4)
    assert idle(made, 2, 2) < idle(made, 1, 2)


@pytest.mark.long
@given(st.integers(1, 9), st.integers(1, 12))
def test_the_peer_s_order_is_that_of_1f1b(stages, microbatches):
    for stage, order in enumerate(td.schedule("1f1b", stages, microbatches).orders):
        theirs = training_peer.order_of_1f1b(stage, stages, microbatches)
        assert theirs == [(action.kind, action.microbatch) for action in order]


@pytest.mark.long
@given(st.integers(0, 99), st.integers(1, 9))
def test_the_peer_deals_out_as_we_do(count, ranks):
    theirs = [training_peer.part(count, ranks, rank) for rank in range(ranks)]
    assert [(p.start, p.stop) for p in theirs] == list(split(0, count, ranks))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_bytes_on_a_ring(n):
    counted = sum(cost("all_reduce", "ring", (6,) * n, 4).sent)
    assert training_runs.ring_bytes(f"all_reduce of {n}", n * 6 * n * 4) == counted


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is not None, reason="this interpreter has torch")
def test_an_interpreter_without_torch_is_named():
    with pytest.raises(ClusterLostError, match=r"No module named 'torch'.*have torch with gloo"):
        PeerProcesses(sys.executable, 2).__enter__()


@pytest.fixture(scope="module")
def peer():
    python = os.environ.get("TILEDASK_TORCH", "")
    if not python:
        pytest.skip("TILEDASK_TORCH names no interpreter that has torch with gloo")
    with PeerProcesses(python, 4) as started:
        yield started


@pytest.mark.cluster
@pytest.mark.parametrize("dtype", training.CLOSE)
@pytest.mark.parametrize("layout", FOUR, ids=lambda layout: layout.name)
def test_torch_has_the_same_losses_and_bytes(cluster, peer, tmp_path, layout, dtype):
    arrays = tmp_path / "arrays.npz"
    training_runs.write_arrays(arrays, SMALL, 3, dtype)
    mine = training_runs.ours(cluster, SMALL, layout, 3, 1, dtype)
    theirs = peer.train(arrays, SMALL, layout, 3, 1, dtype)
    assert training_runs.same(mine.losses, theirs.losses) < training.CLOSE[dtype]
    assert mine.payload == theirs.payload
    assert len(theirs.seconds) == len(theirs.cpu) == 2


def a_run(seconds, cpu, losses=(3.0, 2.0), others=0.1, payload=None):
    payload = payload or {"all_reduce of 8": 80}
    step = Step(seconds, 0.5, 0.25, 2 * seconds - 0.75 - others, others, 0.1, 0.0)
    return TrainingRun(list(losses), [seconds], [cpu], payload, payload, (step,), 90)


def test_the_least_disturbed_step_is_shown_and_every_other_kept():
    pair = training.Pair(512, training.LAYOUTS[0], [a_run(1.0, 1.0, others=0.5), a_run(0.5, 1.0)])
    row = training.broken_down(pair, alone=0.4)
    assert row["seconds"] == 0.5
    assert len(row["every step"]) == 2
    assert row["share"] == pytest.approx(0.15 / 0.9)
    assert row["bubble"] == 0
    piped = training.Pair(512, training.LAYOUTS[-1], pair.ours)
    assert training.broken_down(piped, 0.4)["bubble"] > 0


def test_goals_say_what_was_missed():
    layout = training.LAYOUTS[0]
    pair = training.Pair(512, layout, [a_run(0.5, 1.0)], [a_run(0.2, 0.6, (3.0, 2.1))])
    row, beside = training.broken_down(pair, 0.4), training.compared(pair)
    assert beside["speed"] == pytest.approx(0.4)
    assert beside["core speed"] == pytest.approx(0.6)
    reached = {g["goal"]: g["met"] for g in training.goals([row], [beside], [])}
    assert reached == {
        "hidden 512, dp8: scheduling at most 20 %": True,
        "hidden 512, dp8: 0.5 of torch's speed": False,
        "float32: torch's losses within 1e-05 of ours": False,
        "the same bytes in the same calls": True,
    }
    pair.torch[0] = a_run(0.3, 0.6, payload={"all_reduce of 8": 88})
    met = {g["goal"]: g["met"] for g in training.goals([row], [training.compared(pair)], [])}
    assert not met["the same bytes in the same calls"]


@pytest.mark.long
def test_without_torch_the_rest_runs_and_says_what_is_skipped(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(training.td, "start_cluster", lambda **_: nullcontext())
    monkeypatch.setattr(training, "_ours", lambda *_: a_run(0.5, 1.0))
    file, drawn = tmp_path / "bench.json", tmp_path / "bench.png"
    words = ["training", "--hidden", "512", "--rounds", "1", "--python", "/nowhere"]
    monkeypatch.setattr(sys, "argv", [*words, "--record", str(file), "--picture", str(drawn)])
    assert training.main() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "skipped: torch over gloo, which /nowhere cannot import" in said
    assert "--python PATH" in said
    kept = json.loads(file.read_text())
    assert [row["layout"] for row in kept["rows"]] == [x.name for x in training.LAYOUTS]
    assert kept["beside torch"] == []
    assert drawn.stat().st_size > 10_000


@pytest.mark.long
def test_the_picture_has_every_part_of_every_row():
    shapes = product((64, 512), training.LAYOUTS)
    rows = [training.broken_down(training.Pair(*s, [a_run(0.5, 1.0)]), 0.4) for s in shapes]
    figure = training_shown.picture(rows)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        for part in training_shown.PARTS:
            bars = [bar for bar in axes.patches if bar.get_gid() == part]
            assert len(bars) == len(training.LAYOUTS)
        ends = {round(bar.get_x() + bar.get_width(), 9) for bar in axes.patches}
        assert max(ends) == 1.0


@pytest.fixture(scope="module")
def kept():
    if not RECORD.exists():
        pytest.skip(f"{RECORD.name} was not measured yet: make bench-training")
    return json.loads(RECORD.read_text())


def test_the_recorded_parts_make_the_whole(kept):
    assert {row["hidden"] for row in kept["rows"]} >= {64, 512}
    for row in kept["rows"]:
        assert parts(row) == pytest.approx(row["whole"])
        assert row["whole"] == pytest.approx(kept["cores"] * row["seconds"])
        assert row["share"] == pytest.approx(row["scheduling"] / (row["whole"] - row["others"]))
        for step in row["every step"]:
            assert parts(step) == pytest.approx(kept["cores"] * step["seconds"])
        least = min(s["others"] / s["seconds"] for s in row["every step"])
        assert row["others"] / row["seconds"] == pytest.approx(least)


def test_the_recorded_numbers_are_the_same_in_torch(kept):
    assert len(kept["beside torch"]) == len(kept["rows"])
    for dtype, rows in (("float32", kept["beside torch"]), ("float64", kept["in float64"])):
        assert rows
        for row in rows:
            mine, theirs = row["losses"]
            assert len(mine) == len(theirs) >= 2
            assert training_runs.same(mine, theirs) <= training.CLOSE[dtype]
            assert row["payload by kind"][0] == row["payload by kind"][1]
            assert row["bytes"] == row["ring bytes"]
            assert row["written bytes"] == pytest.approx(row["ring bytes"], rel=0.05)


def test_the_recorded_speeds_are_those_of_the_recorded_seconds(kept):
    for row in kept["beside torch"]:
        ours, torch = row["all seconds"]
        assert row["speed"] == pytest.approx(median(torch) / median(ours), rel=1e-3)
        assert row["best speed"] == pytest.approx(min(torch) / min(ours), rel=1e-3)
        name = f"hidden {row['hidden']}, {row['layout']}: {training.SPEED:g} of torch's speed"
        (goal,) = (g for g in kept["goals"] if g["goal"] == name)
        assert goal["met"] is (row["speed"] >= training.SPEED)
