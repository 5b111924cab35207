"""A task that ends its worker each time is named, and nobody who waited there is blamed."""

import os
import signal
import time

import pytest
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.recovering import poison
from tiledask.distributed.recovering.frozen import end
from tiledask.errors import ClusterLostError

INNOCENTS = 40


@pytest.fixture(params=["started", "connected"], scope="module")
def cluster(request, tmp_path_factory):
    if request.param == "started":
        with td.start_cluster(workers=2, device="cpu", quiet=True) as running:
            yield running
        return
    folder = tmp_path_factory.mktemp("dask")
    with (
        dask_by_hand(folder, 2, "--nanny") as dask,
        td.connect(dask.address, workers=2, timeout=60) as running,
    ):
        yield running


def number(n, seconds):
    time.sleep(seconds)
    return n


def ends(how, seconds):
    time.sleep(seconds)
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


def among_innocents(cluster, how, seconds):
    """(the error's words, seconds until it came, what the innocents returned)."""
    begun = time.monotonic()

    def some(these):
        names = {"name": "innocent"}
        return [cluster.submit(n % 2, number, n, 0.05, beside=n % 5 == 0, **names) for n in these]

    tasks = some(range(INNOCENTS // 2))
    guilty = cluster.submit(1, ends, how, seconds, name="guilty")
    tasks += some(range(INNOCENTS // 2, INNOCENTS))
    with pytest.raises(ClusterLostError) as raised:
        cluster.wait([guilty], "solving", 120)
    took = time.monotonic() - begun
    return str(raised.value), took, cluster.gather(tasks, "innocents", 120)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("exit", 0.4),
        pytest.param("exit", 0, marks=pytest.mark.slow),
        pytest.param("kill", 0, marks=pytest.mark.slow),
        pytest.param("kill", 0.4, marks=pytest.mark.slow),
    ],
)
def test_the_task_is_named_and_the_innocents_finish(cluster, how, seconds):
    words, took, done = among_innocents(cluster, how, seconds)
    assert done == list(range(INNOCENTS))
    assert "solving: task guilty-" in words
    assert "ended the worker of slot 1 4 times" in words
    assert len(words) <= 600
    assert took < 60  # 4 s where workers are forks, 8 s else, on a quiet machine


@pytest.mark.cluster
@pytest.mark.slow
def test_who_is_ended_for_being_frozen_is_not_to_blame(cluster):
    """Five times, each by a watcher: Dask gives a task up after four."""
    task = cluster.submit(1, number, 7, 6.0, name="long")
    for _ in range(5):
        pid = cluster.run(on_worker.machine, timeout=60)[1]["pid"]
        wait_until(lambda: task.key in cluster.client.processing().get(cluster.address(1), ()))
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), "its end", 60)
        cluster.wait_for_slots([1], 60)
    assert cluster.gather([task], "a long task", 60) == [7]


class Known:
    """A scheduler's task."""

    def __init__(self, key, suspicious, *needs):
        self.key, self.suspicious = key, suspicious
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


@pytest.fixture
def register(tmp_path, monkeypatch):
    """A way to open a register, as one worker after the other of a nanny does."""
    monkeypatch.setattr(poison, "MEMORY", tmp_path)
    yield lambda: poison.open_register("tcp://somewhere:1")
    poison.close_register()


def test_a_register_outlives_its_worker(register, monkeypatch):
    assert register() is None
    poison.in_slot(12)
    assert register() is None  # nothing ran
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
