"""Faults that take a cluster of their own: its scheduler, a host, a notebook, a small disk."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import dask
import numpy as np

import tiledask as td
from tiledask.distributed.out_of_core.disk import free
from tiledask.errors import ConfigError
from tiledask.lab.faults.by_hand import dask_by_hand
from tiledask.lab.faults.running import LATE
from tiledask.lab.faults.trying import Tried, tried
from tiledask.lab.faults.workloads import TIMEOUT, WORKLOADS, Workbench

__all__ = ["full_disk", "interrupted", "scheduler_killed", "small_disk"]


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="tiledask-faults-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


# -- the scheduler ---------------------------------------------------------------------------------


def scheduler_killed(bench: Workbench, workload: str) -> Tried:
    """Of a cluster that was connected to: the call ends; a training goes on elsewhere by the same
    call, to the same bits. Seconds from the kill to the error."""
    ready, slots = bench.ready(workload), bench.cluster.slots
    options: dict[str, Any] = {}
    with _folder() as folder, dask_by_hand(folder, slots) as dask:
        scheduler = dask.running[0]
        with td.connect(dask.address, workers=slots) as cluster:
            run = WORKLOADS[workload](Workbench(cluster, folder))
            run()
            if workload == "training":
                options = {"folder": folder / "run", "save_every": 5}
            killed: list[float] = []

            def kill() -> None:
                scheduler.kill()
                killed.append(perf_counter())

            timer = threading.Timer(float(bench.rng.uniform(0.1, 0.6)) * ready.seconds, kill)
            timer.start()
            found = tried(lambda: run(**options), ready.right, ready.seconds + LATE)
            timer.join()
            found = found._replace(seconds=perf_counter() - killed[0])
            for worker in dask.running:  # who waits for a scheduler would do so for seconds
                worker.kill()
        if found.end == "said" and options:
            again = tried(lambda: ready.run(**options), ready.right, TIMEOUT)
            if again.end != "right":
                return again
    return found


# -- a notebook ------------------------------------------------------------------------------------

_START = """
import json, os, time
from pathlib import Path
import tiledask as td
from tiledask.lab.faults.workloads import WORKLOADS, Workbench
cluster = td.start_cluster(workers={slots}, device="cpu", quiet=True)
pids = cluster.run(os.getpid)
ready = Workbench(cluster, Path({folder!r})).ready({workload!r})
tasks = cluster.given.scheduler.tasks
before = len(tasks)
print(json.dumps(ready.seconds))
"""
_RUN = """
print("now")
ready.run()
"""
_AFTER = """
end = time.time() + 5
while len(tasks) > before and time.time() < end:
    time.sleep(0.05)
left = len(tasks) - before
print(json.dumps([left, cluster.run(os.getpid) == pids, ready.run() == ready.right]))
"""


def interrupted(bench: Workbench, workload: str) -> Tried:
    """A real kernel is interrupted: seconds until the cell ends. No task of it is left, the same
    workers run, and the same cell is right when it runs again."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=240)
    try:
        with _folder() as folder:
            code = _START.format(slots=bench.cluster.slots, folder=str(folder), workload=workload)
            printed, wrong = _cell(client, code)
            if wrong:
                return Tried("raw", 0.0, wrong)
            message = client.execute(_RUN, stop_on_error=False)
            while client.get_iopub_msg(timeout=240)["msg_type"] != "stream":
                pass
            time.sleep(float(bench.rng.uniform(0.1, 0.5)) * json.loads(printed))
            begun = monotonic()
            manager.interrupt_kernel()
            try:
                while _of(reply := client.get_shell_msg(timeout=LATE)) != message:
                    pass
            except Empty:
                return Tried("hang", LATE, "the cell goes on")
            seconds, name = monotonic() - begun, reply["content"].get("ename", "nothing")
            printed, wrong = _cell(client, _AFTER)
            _cell(client, "cluster.close()")
        if wrong or name not in ("KeyboardInterrupt", "nothing"):
            return Tried("raw", seconds, wrong or f"the cell ended with {name}")
        left, same, right = json.loads(printed)
        if not right:
            return Tried("wrong", seconds, "not the same when it runs again")
        if left > 0 or not same:
            return Tried("raw", seconds, f"{left} tasks are left; same workers: {same}")
        return Tried("right", seconds)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _of(reply: Any) -> Any:
    """What it answers."""
    return reply["parent_header"].get("msg_id")


def _cell(client: Any, code: str) -> tuple[str, str]:
    """(what the cell printed, what it raised)."""
    printed = []

    def hook(message: Any) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    said = client.execute_interactive(code, timeout=240, output_hook=hook)["content"]
    return "".join(printed).strip(), f"{said['ename']}: {said['evalue']}" if "ename" in said else ""


# -- a disk ----------------------------------------------------------------------------------------


@contextmanager
def small_disk(nbytes: int) -> Iterator[Path]:
    """A disk of so many bytes; ConfigError where none can be mounted."""
    with ExitStack() as ending:
        folder = ending.enter_context(_folder()) / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            raise ConfigError(f"a small disk takes root: {why}") from None
        ending.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        yield folder


def full_disk(bench: Workbench, what: str) -> Tried:
    """A disk that is full, or fills up meanwhile: an error that names the file, what was there is
    as it was, and with room the same call is right."""
    with small_disk(4 * 2**20) as disk:
        return _DISKS[what](bench, disk)


def _fill(disk: Path, leave: int = 0) -> None:
    with open(disk / "filler", "ab") as file:
        file.write(bytes(max(0, free(disk) - leave)))


def _then_with_room(disk: Path, found: Tried, call: Any, right: Any) -> Tried:
    if found.end == "said" and str(disk) not in found.words:
        return found._replace(end="raw", words=f"{disk} is not named: {found.words}")
    (disk / "filler").unlink(missing_ok=True)
    again = tried(call, right, LATE)
    return found if again.end == "right" else again._replace(words=f"with room: {again.words}")


def _spool(bench: Workbench, disk: Path) -> Tried:
    cluster, spool = bench.cluster, bench.cluster.spool
    mesh, x = td.Mesh(cluster, (cluster.slots,)), np.arange(2.0**18).reshape(512, 512)

    def there_and_back() -> bytes:
        return td.to_numpy(td.distribute(x, mesh, (td.Shard(0),)), timeout=TIMEOUT).tobytes()

    cluster.spool = disk
    try:
        _fill(disk, 2**20)
        found = tried(there_and_back, x.tobytes(), LATE)
        left = [file for file in disk.iterdir() if file.name != "filler"]
        if left:
            return found._replace(end="raw", words=f"{left} is left")
        return _then_with_room(disk, found, there_and_back, x.tobytes())
    finally:
        cluster.spool = spool


def _checkpoint(bench: Workbench, disk: Path) -> Tried:
    ready = bench.ready("training")
    options = {"folder": disk / "run", "save_every": 20}
    ready.run(steps=20, **options)
    right = td.open_checkpoint(disk / "run").read()
    _fill(disk, 4096)
    found = tried(lambda: ready.run(**options), ready.right, LATE)
    old = td.open_checkpoint(disk / "run", 20).read()
    if any(old[name].tobytes() != right[name].tobytes() for name in right):
        return found._replace(end="wrong", words="the older checkpoint changed")
    return _then_with_room(disk, found, lambda: ready.run(**options), ready.right)


def _files(bench: Workbench, disk: Path) -> Tried:
    ready = bench.ready("files")
    long = {"tile": 8, "overwrite": False}
    right = ready.run(**long | {"overwrite": True})

    def product(**options: Any) -> bytes:
        return ready.run(out=disk / "c.npy", **long, **options)

    found = tried(lambda: product(progress=lambda *_: _fill(disk)), b"", LATE)
    return _then_with_room(disk, found, product, right)


def _spilled(bench: Workbench, _: Path) -> Tried:
    """A worker that may put no more blocks aside: it is paused, and so named within the timeout."""
    timeout, right = 4.0, np.ones((2000, 2000), "f4").tobytes()
    with (
        small_disk(256 * 2**20) as disk,
        dask.config.set({"temporary-directory": str(disk)}),
        td.start_cluster(
            workers=1, device="cpu", quiet=True, memory_limit="300MB", default=False
        ) as cluster,
    ):
        mesh, held = td.Mesh(cluster, (1,)), list[Any]()
        _fill(disk, 4096)

        def more() -> bytes:
            while len(held) < 20:  # of 16 MB
                made = td.from_function(
                    _ones, (2000, 2000), "f4", mesh, (td.Replicate(),), timeout=timeout
                )
                held.append(made)
                time.sleep(0.1)  # workers look at their memory that often
            return td.to_numpy(held[0], timeout=LATE).tobytes()

        found = tried(more, right, timeout + LATE, said=True)
        found = found._replace(seconds=max(0.0, found.seconds - timeout))
        return _then_with_room(disk, found, more, right)


def _ones(region: tuple[slice, ...]) -> np.ndarray:
    return np.ones([part.stop - part.start for part in region], "f4")


_DISKS = {
    "spool": _spool,
    "checkpoint": _checkpoint,
    "files": _files,
    "spilled": _spilled,
}
