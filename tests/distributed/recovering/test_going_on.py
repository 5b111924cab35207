"""A training whose workers are killed is, to the bit, the training that went undisturbed.

Holds `tiledask.distributed.recovering.kept_state`, `tiledask.distributed.recovering.kept_folder`.
"""

import glob
import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import KilledWorker, LocalCluster
from oracles.finished import ROOT

import tiledask as td
from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.recovering import going_on, kept_files, kept_folder, kept_state
from tiledask.distributed.recovering.going_on import until_done
from tiledask.distributed.recovering.kept_files import KeptFile
from tiledask.distributed.recovering.kept_state import Keeper, Keeping, steps_between
from tiledask.errors import CheckpointError, ClusterLostError, ConfigError, DeadlineError
from tiledask.lab.claims import DECODER
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import LossScale

TEXT = load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
STEPS = 14
OPTIONS = {"steps": STEPS, "batch": 4, "seed": 3, "timeout": 240}


class Fatal:
    """Text of which the batch of a step ends the process that draws it, and whoever is told."""

    vocabulary = TEXT.vocabulary

    def __init__(self, at, marker, pids=(), files=""):
        self.at, self.marker, self.pids, self.files = at, str(marker), pids, files
        Path(marker).touch()

    def batch(self, seed, step, *which):
        if step == self.at and self.is_first():
            for path in glob.glob(self.files):
                os.unlink(path)
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
def undisturbed(cluster):
    """The training of (shape, options), which is run once."""
    found = {}

    def trained(shape, **options):
        key = shape, *sorted(options.items())
        if key not in found:
            found[key] = td.train(MODEL, TEXT, td.Mesh(cluster, shape), **OPTIONS | options)
        return found[key]

    return trained


def facts(trained):
    """All of its records, but for their times."""
    names = ("rank", "kind", "label", "step", "barrier", "sent", "received", "messages", "terms")
    return [tuple(getattr(r, name) for name in names) for r in trained.records]


def assert_same(got, right):
    assert (got.losses == right.losses).all()
    assert got.weights.keys() == right.weights.keys()
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
    assert got.norms.tobytes() == right.norms.tobytes()  # of a step left out it is not finite
    assert (got.scales == right.scales).all()
    assert got.first == right.first == 0
    assert facts(got) == facts(right)
    assert [s[:2] for s in got.records.steps] == [s[:2] for s in right.records.steps]
    assert got.traffic.measured == right.traffic.measured
    assert right.skipped or got.traffic.measured == got.traffic.predicted


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """The folder in which this process takes one for what is kept; others have theirs."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(kept_folder, "MEMORY", folder)
    return folder


LAYOUTS = {
    "dp": ((2, 1, 1), {"zero": 1, "dtype": "float16", "clip": 1.0}),
    "tp": ((1, 2, 1), {"sequence_parallel": True}),
    "pp": ((1, 1, 2), {"microbatches": 2}),
}


@pytest.mark.cluster
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_is_killed_is_replaced_and_the_training_goes_on(
    cluster, undisturbed, layout, tmp_path, memory
):
    shape, options = LAYOUTS[layout]
    right, told = undisturbed(shape, **options), []
    data = Fatal(12, tmp_path / "once")
    mesh = td.Mesh(cluster, shape)
    options = OPTIONS | options | {"keep_every": 5, "progress": told.append}
    got = td.train(MODEL, data, mesh, **options)
    assert_same(got, right)
    assert got.kept.resumed == (10,)
    assert [(each.step, each.loss) for each in told] == [*enumerate(right.losses)]
    assert [*memory.iterdir()] == []


@pytest.mark.cluster
def test_all_that_are_killed_at_once_go_on_from_what_they_kept(cluster, undisturbed, tmp_path):
    data = Fatal(12, tmp_path / "once", pids=cluster.run(os.getpid))
    got = td.train(MODEL, data, td.Mesh(cluster, (2, 1, 1)), **OPTIONS, keep_every=5)
    assert_same(got, undisturbed((2, 1, 1)))
    assert got.kept.resumed == (10,)


@pytest.mark.few(2)
@pytest.mark.cluster
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_rank_that_is_killed_while_it_keeps_has_kept_nothing(cluster, undisturbed, call):
    """Before each rename: of the first file, of the second, and of the third, both of them."""
    cluster.run(die_at_rename, call)
    got = td.train(MODEL, TEXT, td.Mesh(cluster, (2, 1, 1)), **OPTIONS, keep_every=3)
    assert_same(got, undisturbed((2, 1, 1)))
    assert got.kept.resumed == ({1: 0, 2: 3, 3: 6, 4: 6}[call],)


def die_at_rename(call, dask_worker):
    """The worker in slot 1 ends before it renames a file of what is kept for the ``call``-th time;
    its successor knows nothing of that."""
    if "slot1" not in dask_worker.state.total_resources:
        return
    calls = []

    class Dying:
        def __getattr__(self, name):
            return getattr(os, name)

        def rename(self, *paths):
            calls.append(paths)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            os.rename(*paths)

    kept_files.os = Dying()


@pytest.mark.slow
@pytest.mark.cluster
def test_with_nothing_kept_it_begins_anew(cluster, undisturbed, tmp_path):
    data = Fatal(12, tmp_path / "once")
    got = td.train(MODEL, data, td.Mesh(cluster, (2, 1, 1)), **OPTIONS, keep_every=0)
    assert_same(got, undisturbed((2, 1, 1)))
    assert got.kept == (0, 0.0, (0,))


@pytest.mark.cluster
def test_a_checkpoint_is_written_once_and_what_it_took_is_kept_too(cluster, tmp_path):
    mesh, options = td.Mesh(cluster, (2, 1, 1)), {"save_every": 4, "keep_every": 5, "zero": 1}
    right = td.train(MODEL, TEXT, mesh, **OPTIONS, **options, folder=tmp_path / "right")
    data = Fatal(8, tmp_path / "once")
    got = td.train(MODEL, data, mesh, **OPTIONS, **options, folder=tmp_path / "got")
    assert (got.kept.resumed, got.saves) == ((8,), 3)
    assert facts(got) == facts(right)
    assert got.traffic.measured == right.traffic.measured
    assert steps_in(tmp_path / "got") == steps_in(tmp_path / "right") == (4, 8, 12, 14)
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("saved", [True, False])
def test_files_that_are_lost_with_their_host_cost_what_was_not_saved(
    cluster, undisturbed, tmp_path, memory, saved
):
    """As if rank 1's slot had come to another host."""
    data = Fatal(11, tmp_path / "once", files=f"{memory}/*/1-*")
    options = {"folder": tmp_path / "run", "save_every": 4} if saved else {}
    words = "step 8 of its checkpoint" if saved else "step 0, the beginning"
    with pytest.warns(RuntimeWarning, match=f"ranks 1 had kept is gone .* goes on from {words}"):
        got = td.train(MODEL, data, td.Mesh(cluster, (1, 2, 1)), **OPTIONS, **options, keep_every=3)
    right = undisturbed((1, 2, 1))
    assert got.first == got.kept.resumed[0] == (8 if saved else 0)
    assert (got.losses == right.losses[got.first :]).all()
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
    if saved:
        assert steps_in(tmp_path / "run") == (4, 8, 12, 14)


@pytest.mark.cluster
def test_ranks_of_other_hosts_keep_in_folders_of_their_own(
    cluster, undisturbed, tmp_path, monkeypatch
):
    """As far as workers of this host can be told that the client's folders are not theirs."""
    right = undisturbed((2, 1, 1))
    monkeypatch.setattr(type(cluster), "near", lambda _: frozenset())
    kept = []
    data = Fatal(12, tmp_path / "once")
    mesh = td.Mesh(cluster, (2, 1, 1))

    def told(_):
        kept.extend(glob.glob("/dev/shm/tiledask-????????????/0-*"))

    got = td.train(MODEL, data, mesh, **OPTIONS, keep_every=5, progress=told)
    assert_same(got, right)
    assert got.kept.resumed == (10,)
    assert kept
    assert not any(map(os.path.exists, kept))


@pytest.mark.cluster
@pytest.mark.parametrize("layout", ["dp", "pp"])
def test_a_rank_that_comes_to_another_host_has_its_state_from_a_neighbour(
    cluster, undisturbed, tmp_path, monkeypatch, layout
):
    """As far as slots of this host can be told apart; messages are Dask's."""
    shape, options = LAYOUTS[layout]
    right = undisturbed(shape, **options)
    monkeypatch.setattr(type(cluster), "near", lambda _: frozenset())
    monkeypatch.setattr(type(cluster), "hosts", ("A", "B"))
    cluster.run(move_to, str(tmp_path))  # who replaces one of these is elsewhere
    data = Fatal(12, tmp_path / "once")
    got = td.train(MODEL, data, td.Mesh(cluster, shape), **OPTIONS | options, keep_every=5)
    assert_same(got, right)
    assert got.kept.resumed == (10,)
    cluster.run(move_to, "/dev/shm")


def move_to(folder, dask_worker):
    own = "" if folder == "/dev/shm" else dask_worker.address.rpartition(":")[2]
    kept_folder.MEMORY = Path(folder) / own
    kept_folder.MEMORY.mkdir(exist_ok=True)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_that_was_connected_to_goes_on_too(undisturbed, tmp_path, memory):
    right = undisturbed((2, 1, 1))
    data = Fatal(12, tmp_path / "once")
    made = LocalCluster(2, threads_per_worker=1, dashboard_address=None)
    with made as given, td.connect(given) as connected:
        mesh = td.Mesh(connected, (2, 1, 1))
        got = td.train(MODEL, data, mesh, **OPTIONS, keep_every=5)
    assert_same(got, right)
    assert got.kept.resumed == (10,)
    assert [*memory.iterdir()] == []


@pytest.mark.long
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
    with pytest.raises(ConfigError, match="keep_every"):
        asked(keep_every=-1)
    with pytest.raises(ConfigError, match="losses are more than 0 s apart"):
        asked(mtbf=0)


# -- the client decides ----------------------------------------------------------------------------


class Slots:
    """Of a cluster what the client asks: each list says where the workers are."""

    def __init__(self, *addresses, closed=False):
        self.addresses, self.closed = list(addresses), closed

    def wait_for_slots(self, slots, seconds):
        if not self.addresses:
            raise DeadlineError("slots have no workers")
        now = self.addresses.pop(0)
        return {slot: {"address": now[slot]} for slot in slots}

    def check_alive(self):
        if self.closed:
            raise ClusterLostError("closed")


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for what is added to it."""
    now = [0.0]
    monkeypatch.setattr(going_on, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def lost(times, tried):
    def attempt(number, left):
        tried.append(number)
        if number < times:
            raise ClusterLostError("a worker died")
        return "done"

    return attempt


def test_it_is_tried_again_as_often_as_workers_are_lost(clock):
    """Of one slot and the other; or of one, and more is kept each time."""
    both = ["aa", "ab", "bb", "bc", "cc", "cd", "dd", "de", "ee", "ef"]
    for slots, kept in ((Slots(*both), tuple), (Slots(*"abcdefghij"), count().__next__)):
        tried = []
        at = range(len(slots.addresses[0]))
        assert until_done(slots, at, 60.0, lost(9, tried), kept) == "done"
        assert tried == [*range(10)]


@pytest.mark.parametrize(
    ("slots", "words", "count"),
    [
        (Slots(*"aaaaaaa"), "a worker died", 3),  # nobody was lost: it would be so for ever
        (Slots("a", "b"), "a worker died", 2),  # and no slot comes back
        (Slots("a", "b", closed=True), "closed", 1),
        (Slots(*"abcdefghij"), r"work of slots \[0\] ended their workers 4 times", 4),
    ],
)
def test_it_is_not_tried_for_ever(clock, slots, words, count):
    tried = []
    with pytest.raises(ClusterLostError, match=words):
        until_done(slots, [0], 60.0, lost(100, tried))
    assert tried == [*range(count)]


def test_it_is_not_tried_again_where_a_task_is_named():
    def attempt(number, left):
        tried.append(number)
        raise ClusterLostError("named") from KilledWorker("a-0", None, 3)

    tried = []
    with pytest.raises(ClusterLostError, match="named"):
        until_done(Slots(*"abcdefghij"), [0], 60.0, attempt)
    assert tried == [0]


def test_it_is_not_tried_beyond_its_time(clock):
    tried = []

    def slow(number, left):
        tried.append(left)
        clock[0] += 0.2
        raise ClusterLostError("a worker died")

    both = Slots("aa", "ab", "bb", "bc", "cc", "cd", "dd", "de", "ee", "ef")
    with pytest.raises(ClusterLostError):
        until_done(both, [0, 1], 0.5, slow)
    assert tried == pytest.approx([0.5, 0.3, 0.1])


# -- a rank's files --------------------------------------------------------------------------------


def keeps(rank, folder, steps, attempt=0, found=None, every=2):
    """A toy of a training: (its array, its list) after the steps."""
    x, losses = np.arange(3.0) + rank.index, []
    if found is not None:
        found = KeptFile(rank.index, *found)
    keeper = Keeper(rank, Keeping(folder, attempt, every, found=found), [x], [losses])
    if found is not None:
        assert keeper.take_up() == f"after {found.step}"
    for step in range(found.step if found else 0, steps):
        x *= 3
        losses.append(float(x[0]))
        keeper.stepped(step + 1, lambda step=step: f"after {step + 1}")
    return x.tolist(), losses, keeper.count


def test_a_rank_takes_up_what_it_kept(tmp_path):
    right = run_threads(keeps, 2, str(tmp_path), 7).results
    names = {f"{r}-{step}-0" for r in range(2) for step in (4, 6)} | {"0-0.log", "1-0.log"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"memory"}
    for step in (4, 6):
        got = run_threads(keeps, 2, str(tmp_path), 7, 1, (step, 0)).results
        assert [each[:2] for each in got] == [each[:2] for each in right]
        run_threads(keeps, 2, str(tmp_path), 7)  # as they were


def test_a_file_that_is_cut_is_refused(tmp_path):
    run_threads(keeps, 1, str(tmp_path), 2)
    path = tmp_path / "0-2-0"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"0-2-0 has less than the 24 bytes of an array"):
        run_threads(keeps, 1, str(tmp_path), 2, 1, (2, 0))


def test_a_training_goes_on_where_nothing_can_be_kept(tmp_path):
    folder = tmp_path / "gone"
    for every in (2, None):
        results = run_threads(keeps, 2, str(folder), 7, 0, None, every).results
        assert [each[2] for each in results] == [0, 0]


def test_the_interval_is_that_of_the_slowest(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(kept_state, "steps_between", lambda *given: asked.append(given) or 3)
    run_threads(keeps, 2, str(tmp_path), 12, 0, None, None)
    assert len(asked) == 4  # after 2, 5, 8 and 11 steps
    assert {path.name for path in tmp_path.glob("0-*-0")} == {"0-8-0", "0-11-0"}


def test_the_interval_costs_a_half_to_one_percent():
    assert steps_between(cost=0.001, step=0.2, mtbf=3600.0) == 1
    for cost in (1e-4, 1e-2, 0.3, 1.0, 10.0):
        steps = steps_between(cost, 1e-3, 3600.0)
        assert cost / (steps * 1e-3) <= 0.01 * (1 + 1e-9)
        assert cost / (steps * 1e-3) >= 0.005 * (1 - 1e-9)
    assert steps_between(0.0, 0.0, 1.0) == steps_between(0.0, 1.0, 1.0) == 1


def test_it_is_kept_in_memory_where_that_is_little(monkeypatch, tmp_path, memory):
    assert kept_folder.place_for(2**20) == memory
    monkeypatch.setattr(kept_folder, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(kept_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    assert kept_folder.place_for(2**20) == tmp_path
    assert kept_folder.place_for(2**60) is None


def test_a_host_of_its_own_has_a_folder_until_it_is_given_up(tmp_path, memory):
    folder = kept_folder.folder_here("", "run", 2**10)
    assert folder == kept_folder.folder_here("", "run", 2**10) == str(memory / "tiledask-run")
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert kept_folder.folder_here(str(tmp_path), "run", 1) == str(tmp_path)
    kept_folder.forget()
    assert [*memory.iterdir()] == []
    assert kept_folder.folder_here("", "run", 2**60) == ""


# -- soaks -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four():
    with td.start_cluster(workers=4, device="cpu", quiet=True) as running:
        yield running


HALVES = {"dtype": "float16", "scale": LossScale(2.0**22), "clip": 1.0}
EVERY = {
    "dp": ((2, 1, 1), {}),
    "dp of 4": ((4, 1, 1), {}),
    "ZeRO 1": ((2, 1, 1), {"zero": 1, "clip": 1.0}),
    "ZeRO 2": ((3, 1, 1), {"zero": 2, "microbatches": 2}),
    "ZeRO 3": ((2, 1, 1), {"zero": 3}),
    "tp": ((1, 2, 1), {}),
    "sequence": ((1, 2, 1), {"sequence_parallel": True}),
    "pp": ((1, 1, 2), {"microbatches": 2}),
    "pp of 3": ((1, 1, 3), {"microbatches": 4, "schedule": "zb-h1"}),
    "halves": ((2, 1, 1), HALVES),
    "halves, ZeRO 3": ((2, 1, 1), {**HALVES, "zero": 3}),
    "dp, tp": ((2, 2, 1), {"zero": 1}),
    "dp, pp": ((2, 1, 2), {**HALVES, "zero": 2, "microbatches": 2}),
    "tp, pp": ((1, 2, 2), {"microbatches": 2, "recompute": True}),
}
KILLS = int(os.environ.get("TILEDASK_KILLS", "500"))
"""Over all layouts."""


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("layout", EVERY)
def test_kills_at_any_moment(four, layout, capsys):
    """Four of a training: steps go on, and a rank ends, now and then another beside it."""
    shape, options = EVERY[layout]
    mesh, draw = td.Mesh(four, shape), random.Random(layout)
    model = td.GPT(TEXT.vocabulary, hidden=16, layers=3, heads=2, sequence=8)
    options = OPTIONS | {"steps": 80} | options
    right = td.train(model, TEXT, mesh, **options)
    nannies, killed, resumed, begun = four.dask_cluster.workers, 0, 0, time.monotonic()

    def kill_some():
        nonlocal killed
        for _ in range(4):
            stepped.clear()
            stepped.wait(240)
            time.sleep(draw.uniform(0.0, 0.2))
            for slot in draw.sample(range(mesh.ranks), draw.choice((1, 1, 1, 2))):
                nanny = getattr(nannies.get(slot), "process", None)
                worker = getattr(nanny, "process", None)
                if worker is not None and worker.pid is not None and not ended.is_set():
                    os.kill(worker.pid, signal.SIGKILL)
                    killed += 1

    while killed < KILLS / len(EVERY):
        stepped, ended = threading.Event(), threading.Event()
        killing = threading.Thread(target=kill_some)
        killing.start()
        told = lambda _, stepped=stepped: stepped.set()  # noqa: E731
        got = td.train(model, TEXT, mesh, **options, keep_every=5, progress=told)
        ended.set()
        while killing.is_alive():
            stepped.set()
            killing.join(0.1)
        assert_same(got, right)
        resumed += len(got.kept.resumed)
    with capsys.disabled():
        seconds = time.monotonic() - begun
        print(f" {layout}: {killed} kills in {seconds:.0f} s, gone on {resumed} times, 0 wrong")


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
    return [run.measured.peak, *(device.loss for device in run.devices)]


@pytest.mark.few(3)
@pytest.mark.cluster
@pytest.mark.parametrize("seed", range(20))
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


@pytest.mark.slow
@pytest.mark.cluster
def test_a_client_that_is_killed_leaves_what_it_saved_and_nothing_else(
    undisturbed, tmp_path, memory
):
    code = f"""
import os, pathlib, signal
import tiledask as td
from tiledask.distributed.recovering import kept_folder
kept_folder.MEMORY = pathlib.Path({str(memory)!r})
text = td.load_text("tales")

class Ending:
    vocabulary = text.vocabulary
    client = os.getpid()
    def batch(self, seed, step, *which):
        if step == 9:
            os.kill(self.client, signal.SIGKILL)
        return text.batch(seed, step, *which)

if __name__ == "__main__":
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        td.train(model, Ending(), td.Mesh(cluster, (2, 1, 1)), **{OPTIONS!r},
                 folder={str(tmp_path / "run")!r}, save_every=4, keep_every=2)
"""
    (tmp_path / "client.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, tmp_path / "client.py"], env=environment, timeout=240)
    assert ended.returncode == -signal.SIGKILL
    saved = steps_in(tmp_path / "run")
    assert saved[:2] == (4, 8)  # workers end a moment after their client, and may save once more
    assert len([*memory.iterdir()]) == 1
    right = undisturbed((2, 1, 1))
    with td.start_cluster(workers=2, device="cpu", quiet=True) as fresh:
        mesh = td.Mesh(fresh, (2, 1, 1))
        got = td.train(MODEL, TEXT, mesh, **OPTIONS, folder=tmp_path / "run", save_every=4)
    assert [*memory.iterdir()] == []
    assert got.first == saved[-1]
    assert all((got.weights[name] == w).all() for name, w in right.weights.items())
