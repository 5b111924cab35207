"""A task that ends its worker each time is named, and nobody who waited there is blamed."""

import os
import pickle
import signal
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.innocents import poison_among_innocents
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.pipelines.stages import Dummy
from tiledask.distributed.products import lazy_tasks
from tiledask.distributed.recovering import poison
from tiledask.distributed.recovering.frozen import end
from tiledask.distributed.recovering.poison import LAZY
from tiledask.errors import ClusterLostError
from tiledask.tile.datasets import load_text

TEXT = load_text("tales")


class Fatal:
    """Text of which one rank's part of the batch of step 5 ends the process that draws it."""

    vocabulary = TEXT.vocabulary

    def batch(self, seed, step, size, sequence, rows):
        if step == 5 and rows.start == 0:
            os._exit(1)
        return TEXT.batch(seed, step, size, sequence, rows)


class Deadly(Dummy):
    """A stage whose backward ends its process."""

    def backward_input(self, weights, saved, dy):
        os._exit(1)


@pytest.fixture(
    params=["started", pytest.param("connected", marks=pytest.mark.slow)], scope="module"
)
def cluster(request, tmp_path_factory):
    if request.param == "started":
        with td.start_cluster(workers=2, device="cpu", quiet=True) as running:
            yield running
        return
    folder = tmp_path_factory.mktemp("dask")
    with (
        dask_by_hand(folder, 2, "--nanny") as dask,
        td.connect(dask.address, workers=2, timeout=240) as running,
    ):
        yield running


def number_once(n, path):
    while not os.path.exists(path):
        time.sleep(0.05)
    return n


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(("how", "seconds"), [("exit", 0.4), ("kill", 0)])
def test_the_task_is_named_and_the_innocents_finish(cluster, how, seconds):
    poison_among_innocents(cluster, how, seconds)


def training(cluster):
    model = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
    td.train(model, Fatal(), td.Mesh(cluster, (2, 1, 1)), steps=8, batch=4, timeout=300)


def schedule(cluster, engine):
    batch = np.zeros((8, 1))
    options = {"target": batch, "engine": engine, "timeout": 300}
    td.run_schedule(td.schedule("1f1b", 2, 8), [Dummy(), Deadly()], batch, cluster, **options)


SLOT_0, SLOT_1 = (rf"work of slots \[{slot}\] ended their workers 4 times" for slot in (0, 1))


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (training, SLOT_0),
        (partial(schedule, engine="loop"), SLOT_1),
        (partial(schedule, engine="tasks"), r"task \S+-1 ended the worker of slot 1 [47] times"),
    ],
    ids=["training", "loop", "tasks"],
)
def test_what_ends_a_worker_each_time_is_said_long_before_the_deadline(cluster, work, words):
    with pytest.raises(ClusterLostError, match=words):  # at the deadline it is a DeadlineError
        work(cluster)


@pytest.mark.cluster
@pytest.mark.slow
def test_who_is_ended_for_being_frozen_is_not_to_blame(cluster, tmp_path):
    """Eight times, each by a watcher: a task is given up after seven, by Dask's settings four."""
    task = cluster.submit(1, number_once, 7, str(tmp_path / "over"), name="long")
    for _ in range(8):
        pid = cluster.run(on_worker.machine, timeout=240)[1]["pid"]
        wait_until(lambda: task.key in cluster.client.processing().get(cluster.address(1), ()))
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), "its end")
        cluster.wait_for_slots([1], 240)
    (tmp_path / "over").touch()
    assert cluster.gather([task], "a long task", 240) == [7]


class Known:
    """A scheduler's task."""

    def __init__(self, key, suspicious, *needs):
        self.key, self.suspicious = key, suspicious
        self.prefix = SimpleNamespace(name=str(key).rpartition("-")[0])
        self.resource_restrictions = dict.fromkeys(needs, 1) or None


def test_deaths_are_counted_for_those_who_ran():
    running, waiting, handing = (
        Known("a", 1, "slot1"),
        Known("b", 3, "slot1"),
        Known("c", 2, "beside1"),
    )
    elsewhere, users = Known("d", 2, "slot11"), Known("e", 2)

    class Scheduler:
        def __init__(self, *tasks):
            self.tasks = {task.key: task for task in tasks}

        def suspicious(self):
            return [task.suspicious for task in self.tasks.values()]

    scheduler = Scheduler(running, waiting, handing, elsewhere, users)
    deaths = poison.Deaths()
    deaths.count(scheduler, poison.Death(1, ("a", "c")))
    assert scheduler.suspicious() == [1, 0, 1, 2, 2]
    running.suspicious += 1
    handing.suspicious += 1
    deaths.count(scheduler, poison.Death(1, ("a",)))
    assert scheduler.suspicious() == [2, 0, 1, 2, 2]
    deaths.count(scheduler, poison.Death(1, ()))
    assert scheduler.suspicious() == [2, 0, 1, 2, 2]
    given_up = 0
    while waiting.suspicious <= 3:  # Dask's number; nothing runs whenever its worker ends
        deaths.count(scheduler, poison.Death(1, None))
        waiting.suspicious += 1
        given_up += 1
    assert given_up == 13
    assert scheduler.suspicious() == [2, 4, 1, 2, 2]
    del scheduler.tasks["b"]
    deaths.count(scheduler, poison.Death(1, ()))
    assert not deaths._unknown
    assert {*deaths._ran} == {"a", "c"}


def test_tasks_of_a_lazy_product_are_in_no_slot_and_blamed_by_the_register_alone():
    lazy, users, beside = Known(f"{LAZY}-0", 0), Known("users-0", 0), Known(f"{LAZY}-1", 0)
    tasks = {task.key: task for task in (lazy, users, beside)}
    scheduler, deaths = SimpleNamespace(tasks=tasks, workers={}), poison.Deaths()

    def joins(address, slot, *told):
        extra = {poison.JOINING: [slot, *told]} if told else {}
        scheduler.workers[address] = SimpleNamespace(name=slot, extra=extra)
        deaths.add_worker(scheduler, address)

    def goes(address, *had):
        for task in had:
            task.suspicious += 1
        keys = {task.key for task in had}
        said = {"action": "remove-worker", "worker": address, "processing-tasks": keys}
        deaths.log_event("all", said)

    def suspicious():
        return [task.suspicious for task in (lazy, users, beside)]

    for slot in range(5):
        joins(f"tcp://{slot}", slot)
    for slot in range(5):  # before anybody joins again
        goes(f"tcp://{slot}", lazy, users)
    assert suspicious() == [0, 5, 0]
    joins("tcp://5", 0, ["other"])
    assert suspicious() == [0, 5, 0]
    joins("tcp://6", 1, [lazy.key])
    assert suspicious() == [1, 5, 0]
    for slot in (2, 3, 4):  # nothing ran, or there is no register
        joins(f"tcp://{slot}", slot, *[None] * (slot == 2))
    assert suspicious() == [1, 5, 0]
    goes("tcp://2", lazy)
    joins("tcp://7", 2, None)
    assert suspicious() == [2, 5, 0]
    assert pickle.loads(pickle.dumps(lazy_tasks.multiply_tile)) is lazy_tasks.multiply_tile


def test_what_is_registered_stands_there_while_it_runs(register, monkeypatch):
    monkeypatch.setattr(poison.thread_state, "key", "tile-0", raising=False)
    register()
    poison.in_slot(2)
    within = poison.registered(lambda: poison._read(bytes(poison._register)))
    assert within() == poison.Death(2, ("tile-0",))
    assert poison._read(bytes(poison._register)) == poison.Death(2, None)


@pytest.fixture
def register(tmp_path, monkeypatch):
    """A way to open a register, as one worker after the other of a nanny does."""
    monkeypatch.setattr(poison, "MEMORY", tmp_path)
    yield lambda: poison.open_register("tcp://somewhere:1")
    poison.close_register()


def test_a_register_outlives_its_worker(register, monkeypatch):
    assert register() is None
    poison.in_slot(12)
    assert register() == poison.Death(12, None)  # nothing ran
    assert register() == poison.Death(12, None)  # it ended before it was in a slot
    for frozen, says in (
        (False, poison.Death(12, ("solve-1", "hand-2"))),
        (True, poison.Death(12, ())),
    ):
        poison.in_slot(12)
        for key in ("over-0", "hand-2", "solve-1"):
            monkeypatch.setattr(poison.thread_state, "key", key, raising=False)
            at = poison.runs()
            if key == "over-0":
                poison.stopped(at)
        if frozen:
            end(2**22 + 1, poison.name_of("tcp://somewhere:1", os.getppid()))  # nobody's number
        said = register()
        assert said is not None
        assert said.slot == says.slot
        assert sorted(said.ran) == sorted(says.ran)


def test_registers_go(register, tmp_path):
    old = tmp_path / f"tiledask-{2**22 + 1}-0123456789abcdef.running"
    old.touch()
    assert register() is None
    (mine,) = tmp_path.iterdir()
    assert mine != old
    assert mine.stat().st_mode & 0o777 == 0o600
    poison.close_register()
    assert not any(tmp_path.iterdir())


def test_there_is_no_register_where_no_worker_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(poison, "MEMORY", tmp_path)
    assert poison.open_register(None) is None
    assert not any(tmp_path.iterdir())
    poison.stopped(poison.runs())


def test_more_tasks_than_lines_run(register):
    register()
    places = [poison.runs() for _ in range(20)]
    assert places.count(0) > 1
    for at in places:
        poison.stopped(at)
    assert poison.runs() != 0
