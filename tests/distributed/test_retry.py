"""A training whose workers are killed is, to the bit, the training that went undisturbed."""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import KilledWorker
from oracles.memory_claims import DECODER

import tiledask as td
from tiledask.distributed import retry
from tiledask.distributed.checkpoints import steps_in, write
from tiledask.distributed.retry import retry_lost
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import LossScale

TEXT = load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
STEPS = 14
OPTIONS = {"steps": STEPS, "batch": 4, "seed": 3, "timeout": 240}


class Fatal:
    """Text of which the batch of a step ends the process that draws it, and whoever is told."""

    vocabulary = TEXT.vocabulary

    def __init__(self, at, marker, pids=()):
        self.at, self.marker, self.pids = at, marker, pids
        marker.touch()

    def batch(self, seed, step, *which):
        if step == self.at:
            with suppress(FileNotFoundError):
                self.marker.unlink()  # by the first who comes
                for pid in (*({*self.pids} - {os.getpid()}), os.getpid()):
                    os.kill(pid, signal.SIGKILL)
        return TEXT.batch(seed, step, *which)


def trained(cluster, folder, shape, data=TEXT, **options):
    """A training that saves every 5 steps."""
    options = OPTIONS | {"folder": folder, "save_every": 5} | options
    return td.train(MODEL, data, td.Mesh(cluster, shape), **options)


def assert_same(got, right):
    """The same training; records are those since the checkpoint from which it went on."""
    assert (got.losses == right.losses).all()
    assert got.weights.keys() == right.weights.keys()
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
    assert np.array_equal(got.norms, right.norms, equal_nan=True)  # of steps left out
    assert (got.scales == right.scales).all()
    assert got.config.first == right.config.first == 0
    assert got.recorded == range(got.resumed[-1], STEPS)
    assert {each.step for each in got.records} - {None} == {*got.recorded}
    names = ["bytes_sent", "messages", "barriers"]
    frame, other = (each.to_frame()[names][got.recorded.start :] for each in (got, right))
    assert (frame == other).all(axis=None)
    assert got.to_frame().bytes_sent.count() == len(got.recorded)
    # what the index and the barriers of each checkpoint take comes on top of the program's
    index = sum(r.sent for r in got.records if "checkpoint" in r.label)
    moved, said = got.traffic.measured.total, got.traffic.predicted.total
    assert right.skipped or moved == said + index


LAYOUTS = {
    "dp": ((2, 1, 1), {"zero": 1, "dtype": "float16", "clip": 1.0}),
    "tp": ((1, 2, 1), {"sequence_parallel": True}),
    "pp": ((1, 1, 2), {"microbatches": 2}),
    "halves": ((2, 1, 1), {"dtype": "float16", "scale": LossScale(2.0**22), "zero": 3}),
    "all at once": ((2, 1, 1), {}),
}


@pytest.mark.cluster
@pytest.mark.few(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_is_killed_is_replaced_and_the_training_goes_on(cluster, layout, tmp_path):
    shape, options = LAYOUTS[layout]
    right = trained(cluster, tmp_path / "right", shape, **options)
    data = Fatal(12, tmp_path / "once", pids=cluster.run(os.getpid) if " " in layout else ())
    got = trained(cluster, tmp_path / "run", shape, data, **options)
    assert_same(got, right)
    assert got.resumed == (10,)
    assert steps_in(tmp_path / "run") == (5, 10, STEPS)


@pytest.mark.cluster
def test_a_rank_that_is_killed_while_it_saves_has_saved_nothing(cluster, tmp_path):
    right = trained(cluster, tmp_path / "right", (2, 1, 1))
    for call, resumed in ((1, 0), (2, 5)):
        cluster.run(die_at_fsync, call)
        got = trained(cluster, tmp_path / f"{call}", (2, 1, 1))
        assert_same(got, right)
        assert got.resumed == (resumed,)


def die_at_fsync(call, dask_worker):
    """The worker in slot 1 ends when it begins to save for the ``call``-th time; its successor
    knows nothing of that."""
    calls = []

    def fsync(file):
        calls.append(file)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync(file)

    if "slot1" in dask_worker.state.total_resources:
        write.os = SimpleNamespace(**vars(os) | {"fsync": fsync})


class Slots:
    """Of a cluster what the client asks: how often its slots have workers again."""

    def __init__(self, times, closed=False):
        self.times, self.closed = times, closed

    def wait_for_slots(self, slots, seconds):
        self.times -= 1
        if self.times < 0:
            raise DeadlineError("slots have no workers")

    def check_alive(self):
        if self.closed:
            raise ClusterLostError("closed")


@pytest.mark.parametrize(
    ("slots", "seconds", "cause", "words", "tries"),
    [
        (Slots(99), 60.0, None, "a worker died", 20),
        (Slots(1), 60.0, None, "a worker died", 2),  # and no slot comes back
        (Slots(1, closed=True), 60.0, None, "closed", 1),
        (Slots(99), 60.0, KilledWorker("a-0", None, 3), "a worker died", 1),
        (Slots(99), 0.5, None, "a worker died", 3),
    ],
)
def test_it_is_tried_again_as_often_as_workers_are_lost_and_not_for_ever(
    monkeypatch, slots, seconds, cause, words, tries
):
    """Nor where a task is named; each try takes 0.2 s of a time that stands still otherwise."""
    now, tried = [0.0], []
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def attempt(number, left):
        tried.append((number, pytest.approx(left)))
        now[0] += 0.2
        raise ClusterLostError("a worker died") from cause

    with pytest.raises(ClusterLostError, match=words):
        retry_lost(slots, [0], seconds, attempt)
    assert tried == [(n, seconds - 0.2 * n) for n in range(tries)]


def averaged(rank, x):
    """Of what all ranks have, again and again."""
    for _ in range(60):
        x = rank.group().all_reduce(np.sin(x)) / rank.ranks
        time.sleep(0.005)
    return x


def of_ranks(cluster):
    given = {"per_rank": [*np.random.default_rng(0).standard_normal((2, 1000))], "again": True}
    return td.run_ranks(averaged, td.Mesh(cluster, (2,)), timeout=240, **given).results


def of_a_program(cluster):
    stages = td.stages.stack((0, 1, 2), width=200, hidden=400)
    program = td.program(td.schedule("1f1b", 2, 16), block_bytes=100 * 200 * 4)
    x = np.random.default_rng(0).standard_normal((1600, 200)).astype(np.float32)
    run = td.run_program(program, stages, x, td.Mesh(cluster, (2,)), target=x)
    return [run.outputs, run.loss, *(g for (each,) in run.gradients for g in each.values())]


def of_a_claim(cluster):
    layout = td.Layout(pp=2, microbatches=8)
    run = td.run_claim(DECODER, layout, "1GB", cluster, sequence=64, timeout=60)
    return [*run.measured.per_place.values()]


@pytest.mark.few(3)
@pytest.mark.cluster
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("made", [of_ranks, of_a_program, of_a_claim])
def test_ranks_run_again_when_one_is_killed_at_any_moment(cluster, made, seed):
    draw = random.Random(f"{made.__name__} {seed}")
    begun, right = time.monotonic(), made(cluster)
    quiet = time.monotonic() - begun
    victim = draw.choice(cluster.run(os.getpid))
    killing = threading.Timer(draw.uniform(0.1, 0.9) * quiet, os.kill, (victim, signal.SIGKILL))
    killing.start()
    got = made(cluster)
    killing.join()
    assert all(np.array_equal(mine, other) for mine, other in zip(got, right, strict=True))
    cluster.wait_for_slots(range(2), 240)


@pytest.mark.cluster
def test_ranks_run_once_unless_they_may_run_again(cluster, tmp_path):
    def dying(rank, path):
        with open(path, "ab") as file:
            file.write(b"1")
        rank.group().barrier()
        if rank.index and path.stat().st_size == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return rank.group().all_reduce(1.0)

    mesh, path = td.Mesh(cluster, (2,)), tmp_path / "runs"
    with pytest.raises(ClusterLostError):
        td.run_ranks(dying, mesh, path)
    assert path.read_bytes() == b"11"
    path.unlink()
    assert td.run_ranks(dying, mesh, path, again=True).results == [2.0, 2.0]
    assert path.read_bytes() == b"1111"
