"""A training whose workers are killed is, to the bit, the training that went undisturbed."""

import os
import random
import signal
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import KilledWorker
from oracles.memory_claims import DECODER

import tiledask as td
from tiledask.distributed import retry
from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.retry import retry_lost
from tiledask.distributed.training import job
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
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
        self.at, self.marker, self.pids = at, str(marker), pids
        Path(marker).touch()

    def batch(self, seed, step, *which):
        if step == self.at and self.is_first():
            for pid in {*self.pids} - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return TEXT.batch(seed, step, *which)

    def is_first(self):
        try:
            os.unlink(self.marker)
        except FileNotFoundError:
            return False
        return True


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(workers=2, device="cpu", quiet=True) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """The training of (shape, options) that saves every 5 steps, which is run once."""
    found = {}

    def trained(shape, **options):
        key = shape, *sorted(options.items())
        if key not in found:
            saved = {"folder": tmp_path_factory.mktemp("right"), "save_every": 5}
            mesh = td.Mesh(cluster, shape)
            found[key] = td.train(MODEL, TEXT, mesh, **OPTIONS | saved | options)
        return found[key]

    return trained


def assert_same(got, right):
    """The same training; records are those since the checkpoint from which it went on."""
    assert (got.losses == right.losses).all()
    assert got.weights.keys() == right.weights.keys()
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
    assert got.norms.tobytes() == right.norms.tobytes()  # of a step left out it is not finite
    assert (got.scales == right.scales).all()
    assert got.first == right.first == 0
    assert got.recorded == range(got.kept.resumed[-1], STEPS)
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
def test_a_rank_that_is_killed_is_replaced_and_the_training_goes_on(
    cluster, undisturbed, layout, tmp_path
):
    shape, options = LAYOUTS[layout]
    right, told, folder = undisturbed(shape, **options), [], tmp_path / "run"
    data = Fatal(12, tmp_path / "once", pids=cluster.run(os.getpid) if " " in layout else ())
    mesh = td.Mesh(cluster, shape)
    options = OPTIONS | options | {"folder": folder, "save_every": 5, "progress": told.append}
    got = td.train(MODEL, data, mesh, **options)
    assert_same(got, right)
    assert (got.kept.times, got.kept.resumed) == (0, (10,))
    assert [(each.step, each.loss) for each in told] == [*enumerate(right.losses)]
    names = [f"step-{step:08d}" for step in (5, 10, STEPS)]
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.cluster
@pytest.mark.parametrize("call", [1, 2])
def test_a_rank_that_is_killed_while_it_saves_has_saved_nothing(
    cluster, undisturbed, call, tmp_path
):
    cluster.run(die_at_replace, call)
    options = OPTIONS | {"folder": tmp_path / "run", "save_every": 5}
    got = td.train(MODEL, TEXT, td.Mesh(cluster, (2, 1, 1)), **options)
    assert_same(got, undisturbed((2, 1, 1)))
    assert got.kept.resumed == ({1: 0, 2: 5}[call],)


def die_at_replace(call, dask_worker):
    """The worker in slot 1 ends when it begins to save for the ``call``-th time; its successor
    knows nothing of that."""
    if "slot1" not in dask_worker.state.total_resources:
        return
    calls = []

    class Dying:
        def __getattr__(self, name):
            return getattr(os, name)

        def replace(self, *paths):
            calls.append(paths)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            os.replace(*paths)

    job.os = Dying()


def test_what_was_saved_is_gone_on_from_by_the_same_call(tmp_path):
    """After the loss of everything; here an error ends the training."""

    class Failing(Fatal):
        def batch(self, seed, step, *which):
            if step == 9 and self.is_first():
                raise OSError("everything is lost")
            return TEXT.batch(seed, step, *which)

    options = OPTIONS | {"folder": tmp_path / "run", "save_every": 4}
    data = Failing(9, tmp_path / "once")
    right = td.train(MODEL, TEXT, (2, 1, 1), **OPTIONS, zero=1)
    with pytest.raises(OSError, match="everything is lost"):
        td.train(MODEL, data, (2, 1, 1), **options, zero=1)
    assert steps_in(tmp_path / "run") == (4, 8)
    got = td.train(MODEL, data, (2, 1, 1), **options, zero=1)
    assert (got.first, got.saves, got.kept) == (8, 1, None)
    assert (got.losses == right.losses[8:]).all()
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
    # what the index and the barriers of each checkpoint take comes on top of the program's
    moved, said = got.traffic.measured.bytes.sum(), got.traffic.predicted.bytes.sum()
    index = sum(r.sent for r in got.records if "checkpoint" in r.label)
    assert moved == said + index


def test_what_does_not_go_together_is_refused():
    def asked(**options):
        return td.train(MODEL, TEXT, (1, 1, 1), steps=1, batch=1, **options)

    with pytest.raises(ConfigError, match="save_every=5 writes checkpoints, and needs folder="):
        asked(save_every=5)


# -- the client decides ----------------------------------------------------------------------------


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


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for what is added to it."""
    now = [0.0]
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(
    ("slots", "state", "words", "tries"),
    [
        (Slots(99), tuple, "workers were lost 10 times in a row", 10),
        (Slots(99), count().__next__, "", 20),  # more is saved each time
        (Slots(1), tuple, "a worker died", 2),  # and no slot comes back
        (Slots(1, closed=True), tuple, "closed", 1),
    ],
)
def test_it_is_tried_again_as_often_as_workers_are_lost_and_not_for_ever(
    clock, slots, state, words, tries
):
    tried = []

    def attempt(number, left):
        tried.append(number)
        if number < 19:
            raise ClusterLostError("a worker died")
        return "done"

    if words:
        with pytest.raises(ClusterLostError, match=words):
            retry_lost(slots, [0], 60.0, attempt, state)
    else:
        assert retry_lost(slots, [0], 60.0, attempt, state) == "done"
    assert tried == [*range(tries)]


def test_it_is_not_tried_beyond_its_time_nor_again_where_a_task_is_named(clock):
    tried = []

    def slow(number, left, named=None):
        tried.append(left)
        clock[0] += 0.2
        raise ClusterLostError("a worker died") from named

    with pytest.raises(ClusterLostError):
        retry_lost(Slots(99), [0, 1], 0.5, slow)
    assert tried == pytest.approx([0.5, 0.3, 0.1])
    with pytest.raises(ClusterLostError, match="a worker died"):
        retry_lost(Slots(99), [0], 60.0, lambda *given: slow(*given, KilledWorker("a-0", None, 3)))
    assert len(tried) == 4


def averaged(rank, x):
    """Of what all ranks have, again and again."""
    for _ in range(60):
        x = rank.group().all_reduce(np.sin(x)) / rank.ranks
        time.sleep(0.005)
    return x


def of_ranks(cluster):
    x = np.random.default_rng(0).standard_normal((2, 1000))
    mesh = td.Mesh(cluster, (2,))
    return td.run_ranks(averaged, mesh, per_rank=[*x], again=True, timeout=240).results


def of_a_program(cluster):
    stages = td.stages.stack((0, 1, 2), width=200, hidden=400)
    program = td.program(td.schedule("1f1b", 2, 16), block_bytes=100 * 200 * 4)
    x = np.random.default_rng(0).standard_normal((1600, 200)).astype(np.float32)
    run = td.run_program(program, stages, x, td.Mesh(cluster, (2,)), target=x)
    return [run.outputs, run.loss, *(g for (each,) in run.gradients for g in each.values())]


def of_a_claim(cluster):
    layout = td.Layout(pp=2, microbatches=8)
    run = td.run_claim(DECODER, layout, "1GB", cluster, sequence=64, timeout=60)
    return [run.measured.peak, run.loss]


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
