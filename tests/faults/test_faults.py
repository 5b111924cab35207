"""What is promised when something breaks: a row for each fault, tried on real workloads.

    python -m pytest tests/faults -m ""        every fault on every workload; `make test` tries some

A fault comes at a random moment of a workload, whose bytes are compared with the undisturbed ones.
Hosts that are cut off, notebooks that are interrupted, blocks and files that are damaged have tests
of their own, in tests/distributed.
"""

import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import pytest
from faults.workloads import GRID, TIMEOUT, WORKLOADS, Workbench
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask import errors
from tiledask.errors import MOST_WORDS, ConfigError, DeadlineError, DoesNotFitError

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

SLOTS = 3
LATE = 150.0
"""Seconds after which a call that was disturbed is taken to hang."""
DECLARED = tuple(getattr(errors, name) for name in errors.__all__ if name.endswith("Error"))
"""What a user is told; every other error is unexpected."""


class Outcome(NamedTuple):
    """What came of a try."""

    end: str
    """"ok": the same bytes; "declared error"; else "wrong", "hang" or "unexpected error"."""
    seconds: float
    words: str = ""


def outcome(call: Callable[[], Any], right: Any, late: float, *, timed: bool = False) -> Outcome:
    """What ``call`` did; a call that ends by its own timeout hung, unless ``timed``."""
    begun = perf_counter()
    try:
        found = call()
    except (DeadlineError, *DECLARED) as error:
        hung = isinstance(error, DeadlineError) and not timed
        ended = Outcome("hang" if hung else "declared error", perf_counter() - begun, str(error))
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        hung = isinstance(error, TimeoutError)
        ended = Outcome("hang" if hung else "unexpected error", perf_counter() - begun, words)
    else:
        ended = Outcome("ok" if found == right else "wrong", perf_counter() - begun)
    if len(ended.words) > MOST_WORDS + 20:
        ended = ended._replace(end="unexpected error")
    return ended._replace(end="hang") if ended.seconds > late else ended


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with td.start_cluster(SLOTS, device="cpu", quiet=True) as cluster:
        yield Workbench(cluster, tmp_path_factory.mktemp("faults"))


# -- processes -------------------------------------------------------------------------------------


def processes(dask_cluster: Any) -> dict[int, int]:
    """Slot -> process of its worker, of those that have one now: nobody is asked."""
    found = {}
    for slot, nanny in list(dask_cluster.workers.items()):
        process = getattr(getattr(nanny, "process", None), "process", None)
        if pid := getattr(process, "pid", None):
            found[slot] = pid
    return found


def send(pid: int, what: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def another(cluster: Any, slot: int, pid: int) -> int:
    """The process in ``slot`` once it is not ``pid``."""
    end = monotonic() + 20
    while monotonic() < end:
        if (now := processes(cluster.given).get(slot, pid)) != pid:
            return now
        time.sleep(0.01)
    raise TimeoutError(f"slot {slot} stayed empty for 20 s")


def kill_one(cluster: Any, slot: int) -> None:
    send(processes(cluster.given).get(slot, 0) or another(cluster, slot, 0))


def kill_twice(cluster: Any, slot: int) -> None:
    first = processes(cluster.given)[slot]
    send(first)
    second = another(cluster, slot, first)
    time.sleep(0.05 * (slot + 1))
    send(second)


def kill_all(cluster: Any, slot: int) -> None:
    for pid in processes(cluster.given).values():
        send(pid)


def slots_are_full(cluster: Any) -> None:
    cluster.wait_for_slots(range(cluster.slots), 30)
    cluster.run(os.getpid, timeout=30)


def during(fault: Callable[[Any, int], None]) -> Callable[[Workbench, str], Outcome]:
    """Tries the fault at a random moment of a workload: seconds beyond twice what the workload
    takes, for what was lost may be computed again."""

    def attempt(bench: Workbench, workload: str) -> Outcome:
        ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
        slots_are_full(bench.cluster)
        failed: list[BaseException] = []

        def act() -> None:
            try:
                fault(bench.cluster, slot)
            except BaseException as error:
                failed.append(error)

        timer = threading.Timer(float(bench.rng.uniform(0.05, 0.9)) * ready.seconds, act)
        timer.start()
        found = outcome(ready.run, ready.right, 2 * ready.seconds + LATE)
        timer.join(LATE)
        assert not failed, failed
        return found._replace(seconds=max(0.0, found.seconds - 2 * ready.seconds))

    return attempt


def at_start(bench: Workbench, workload: str) -> Outcome:
    """The worker is killed, and the workload begins while the slot is empty."""
    ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
    slots_are_full(bench.cluster)
    send(processes(bench.cluster.given)[slot])
    found = outcome(ready.run, ready.right, 2 * ready.seconds + LATE)
    return found._replace(seconds=max(0.0, found.seconds - ready.seconds))


def frozen(bench: Workbench, workload: str) -> Outcome:
    """A call with a timeout of 2 s ends by it and names the slot. Seconds beyond the timeout."""
    ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
    slots_are_full(bench.cluster)
    pid = bench.cluster.run(os.getpid, timeout=30)[slot]  # workers that came again may have swapped
    send(pid, signal.SIGSTOP)
    try:
        found = outcome(lambda: ready.run(timeout=2.0), ready.right, 2.0 + LATE, timed=True)
    finally:
        send(pid, signal.SIGCONT)
    if found.end == "declared error":
        assert f"slot {slot}" in found.words
    return found._replace(seconds=max(0.0, found.seconds - 2.0))


# -- the scheduler ---------------------------------------------------------------------------------


def scheduler_killed(bench: Workbench, workload: str) -> Outcome:
    """Of a cluster that was connected to: the call ends; a training goes on elsewhere by the same
    call, to the same bits. Seconds from the kill to the error."""
    ready, folder = bench.ready(workload), bench.folder / f"scheduler-{workload}"
    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = {}
    with dask_by_hand(folder, SLOTS) as dask:
        with td.connect(dask.address, workers=SLOTS) as cluster:
            run = WORKLOADS[workload](Workbench(cluster, folder))
            run()
            if workload == "training":
                options = {"folder": folder / "run", "save_every": 5}
            killed: list[float] = []

            def kill() -> None:
                dask.running[0].kill()
                killed.append(perf_counter())

            timer = threading.Timer(float(bench.rng.uniform(0.1, 0.6)) * ready.seconds, kill)
            timer.start()
            found = outcome(lambda: run(**options), ready.right, ready.seconds + LATE)
            timer.join()
            found = found._replace(seconds=perf_counter() - killed[0])
            for worker in dask.running:  # who waits for a scheduler would do so for seconds
                worker.kill()
        if found.end == "declared error" and options:
            again = outcome(lambda: ready.run(**options), ready.right, TIMEOUT)
            assert again.end == "ok", again
    return found


# -- a disk ----------------------------------------------------------------------------------------


def fill(disk, leave: int = 0) -> None:
    with open(disk / "filler", "ab") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - leave)))


def full_disk(bench: Workbench, what: str) -> Outcome:
    """An error that names the file; what was there is as it was; with room the call is right."""
    full, disk = {"checkpoint": full_for_checkpoint, "files": full_for_files}[what], bench.disk()
    found, call, right = full(bench, disk)
    if found.end == "declared error":
        assert str(disk) in found.words
    (disk / "filler").unlink(missing_ok=True)
    assert outcome(call, right, LATE).end == "ok"
    return found


def full_for_checkpoint(bench: Workbench, disk):
    ready = bench.ready("training")
    options = {"folder": disk / "run", "save_every": 20}
    ready.run(steps=20, **options)
    saved = td.open_checkpoint(disk / "run").read()
    fill(disk, 4096)

    def call() -> bytes:
        return ready.run(**options)

    found = outcome(call, ready.right, LATE)
    old = td.open_checkpoint(disk / "run", 20).read()
    assert all(old[name].tobytes() == saved[name].tobytes() for name in saved)
    return found, call, ready.right


def full_for_files(bench: Workbench, disk):
    """It fills up meanwhile."""
    ready = bench.ready("files")
    long = {"tile": 8, "overwrite": False}
    right = ready.run(**long | {"overwrite": True})

    def call(**options: Any) -> bytes:
        return ready.run(out=disk / "c.npy", **long, **options)

    return outcome(lambda: call(progress=lambda *_: fill(disk)), b"", LATE), call, right


# -- memory ----------------------------------------------------------------------------------------


def too_little(bench: Workbench, what: str) -> Outcome:
    """A drawn limit: the plan is refused before any task, or keeps it."""
    cluster, tasks = bench.cluster, bench.cluster.given.scheduler.tasks
    if what == "blocks":
        edge = int(bench.rng.integers(100, 500))
        mesh = td.Mesh(cluster, (1, cluster.slots))
        operands = [td.distribute(x, mesh, GRID) for x in bench.matrices(edge)]
        cluster.wait([*operands[0].blocks, *operands[1].blocks], "operands", LATE)
        limit, options = int(4 * edge**2 * bench.rng.uniform(0.5, 4.0)), {}
    else:
        bench.ready("files")
        limit = int(bench.rng.uniform(1e5, 2e7))
        operands = [td.open_array(bench.folder / f"{name}.npy") for name in "ab"]
        options = {"out": bench.folder / "limited.npy", "overwrite": True, "cluster": cluster}
    before, begun = {*tasks}, perf_counter()
    try:
        made = td.matmul(*operands, memory_limit=limit, timeout=LATE, **options)
    except DoesNotFitError as error:
        assert not {*tasks} - before
        return Outcome("declared error", perf_counter() - begun, str(error))
    assert made.memory.measured.peak <= made.memory.predicted.peak <= limit
    return Outcome("ok", perf_counter() - begun)


# -- the table -------------------------------------------------------------------------------------


class FaultCase(NamedTuple):
    """A row: a fault and what is promised."""

    name: str
    promise: str
    ends: tuple[str, ...]
    attempt: Callable[[Workbench, str], Outcome]
    of: tuple[str, ...]
    """Workloads."""
    quick: tuple[str, ...] = ()
    """Those that `make test` tries."""

    def accepts(self, found: Outcome, what: str) -> bool:
        # a claim is a measurement: it may say that a worker was lost in it
        return found.end in self.ends or (what == "claim" and found.end in EITHER)


OK, EITHER = ("ok",), ("ok", "declared error")
ALL = tuple(WORKLOADS)
WITH_TIMEOUT = tuple(name for name in ALL if name != "lazy")
CASES = (
    FaultCase("worker killed", "the same bits, <= 3 s and what is computed again",
              OK, during(kill_one), ALL, ("blocks", "loop")),
    FaultCase("killed before the call", "the same bits, <= 3 s", OK, at_start, ALL),
    FaultCase("killed twice", "the same bits, <= 5 s", OK, during(kill_twice), ALL, ("training",)),
    FaultCase("all workers killed", "the same bits, <= 5 s", OK, during(kill_all), ALL, ("tasks",)),
    FaultCase("frozen, with timeout=", "DeadlineError <= 1 s after it, naming the slot",
              ("declared error",), frozen, WITH_TIMEOUT, ("claim",)),
    FaultCase("too little memory", "refused before any task, or peak <= bound",
              EITHER, too_little, ("blocks", "files"), ("blocks", "files")),
    FaultCase("disk full", "the file named <= 5 s, old data as it was, right with room",
              EITHER, full_disk, ("checkpoint", "files"), ("files",)),
    FaultCase("scheduler killed", "ClusterLostError <= 2 s; a training resumes",
              EITHER, scheduler_killed, WITH_TIMEOUT, ("training",)),
)  # fmt: skip


SLOW = pytest.mark.slow
TRIED = [
    pytest.param(case, w, id=f"{case.name}: {w}", marks=() if w in case.quick else SLOW)
    for case in CASES
    for w in case.of
]


@pytest.mark.parametrize(("case", "what"), TRIED)
def test_what_is_promised_is_kept(bench, request, record_property, case, what):
    """Times are recorded and not compared: others may be at work on this machine."""
    bench.disk = lambda: request.getfixturevalue("small_disk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = case.attempt(bench, what)
    record_property("promised", case.promise)
    record_property("seconds", round(found.seconds, 3))
    assert case.accepts(found, what), found


@pytest.mark.slow
def test_minutes_of_lost_workers_leave_nothing(bench):
    """Workers are killed all the time; every result is right, and no task or process is left."""
    work = ("blocks", "tasks", "files", "loop", "lazy", "training")
    for name in work:
        bench.ready(name)
    cluster, ending, lost = bench.cluster, threading.Event(), []
    tasks = cluster.given.scheduler.tasks
    slots_are_full(cluster)
    before = len(tasks)

    def kill() -> None:
        while not ending.wait(float(bench.rng.exponential(2.0))):
            if living := processes(cluster.given):
                lost.append(int(bench.rng.choice(list(living.values()))))
                send(lost[-1])

    killer = threading.Thread(target=kill)
    killer.start()
    end, ends = monotonic() + 60, []
    try:
        while monotonic() < end:
            for name in work:
                ready = bench.ready(name)
                ends.append((name, *outcome(ready.run, ready.right, LATE)))
    finally:
        ending.set()
        killer.join()
    assert lost
    assert [each for each in ends if each[1] != "ok"] == []
    slots_are_full(cluster)
    wait_until(lambda: len(tasks) <= before and len(processes(cluster.given)) == SLOTS)


def test_how_a_try_ends():
    def call(error):
        raise error

    for error, timed, end in (
        (ConfigError("no"), False, "declared error"),
        (DeadlineError("late"), False, "hang"),
        (DeadlineError("late"), True, "declared error"),
        (TimeoutError("late"), False, "hang"),
        (OSError(28, "full"), False, "unexpected error"),
    ):
        assert outcome(lambda e=error: call(e), 1, 9, timed=timed).end == end
    assert [outcome(lambda n=n: n, 1, 9).end for n in (1, 2)] == ["ok", "wrong"]
