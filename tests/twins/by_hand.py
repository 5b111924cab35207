"""Dask as people start it by hand, and two hosts on one machine: processes that end with the test.

    with dask_by_hand(workers=2) as dask:      `dask scheduler` and `dask worker`, on loopback
        td.connect(dask.address)

    with two_hosts(folder) as hosts:           network namespaces A and B, joined by a veth pair
        hosts.scheduler(), hosts.worker("A"), hosts.worker("B"), hosts.client(program)

A worker on host B has process numbers, a /dev/shm and a ``folder`` of its own, as on another
machine; the client on host A has ``folder`` as its folder for temporary files.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = 30.0
"""Seconds that a process has to start."""
ADDRESSES = {"A": "10.77.0.1", "B": "10.77.0.2"}
_PAIRS = count()
"""Numbers of pairs of hosts; one may be up beside another."""
MEMORY = ("--nthreads", "1", "--memory-limit", "2GB")


class ByHand:
    """A scheduler and workers that were started by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address, self.running = folder, "", []
        self._ending = ExitStack()

    def start(self, program: str, *options: str, before: tuple[str, ...] = (), **env: str) -> Path:
        """The log of ``dask PROGRAM``, which ends with the ``with`` block."""
        log = self.folder / f"{program}-{len(self.running)}.log"
        command = [*before, sys.executable, "-m", "distributed.cli.dask_" + program, *options]
        settings = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _path()}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=os.environ | settings | env, cwd=self.folder
            )
        self.running.append(process)
        self._ending.callback(_end, process)
        return log

    def scheduler(self, *options: str, host: str = "127.0.0.1", **where) -> str:
        """The address of a scheduler."""
        where_it_listens = ("--host", host, "--port", "0", "--dashboard-address", f"{host}:0")
        log = self.start("scheduler", *where_it_listens, *options, **where)
        self.address = said(log, r"Scheduler at:\s+(\S+)")
        return self.address

    def worker(self, *options: str, **where) -> subprocess.Popen:
        """A worker's process, or its nanny's."""
        self.start("worker", self.address, *MEMORY, *options, **where)
        return self.running[-1]


@contextmanager
def dask_by_hand(folder: Path, workers: int = 2, *options: str) -> Iterator[ByHand]:
    """A scheduler and ``workers`` of it on loopback."""
    dask = ByHand(folder)
    with dask._ending:
        dask.scheduler()
        for _ in range(workers):
            dask.worker(*(options or ("--no-nanny",)))
        yield dask


class TwoHosts(ByHand):
    """The same on hosts "A", where the client is, and "B"."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shared = folder / "temporary"
        self.shared.mkdir()
        pair = next(_PAIRS)
        self.names = {host: f"td{host}{pair}p{os.getpid()}" for host in ADDRESSES}

    def within(self, host: str) -> tuple[str, ...]:
        """What stands before a command that is to run on ``host``."""
        command = ("ip", "netns", "exec", self.names[host])
        if host == "A":
            return command
        own = f'mount -t tmpfs own {self.shared} && mount -t tmpfs own /dev/shm && exec "$@"'
        apart = ("--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", own, "sh")
        return (*command, "unshare", *apart)

    def on(self, host: str, *options: str) -> subprocess.Popen:
        """A worker on ``host``."""
        return self.worker(
            "--host",
            ADDRESSES[host],
            *options,
            before=self.within(host),
            TMPDIR=str(self.shared),
        )

    def client(self, program: str, *words: str, timeout: float = 120) -> str:
        """What a client on host A prints; AssertionError with its words if it fails."""
        with self.client_running(program, *words) as client:
            said, wrong = client.communicate(timeout=timeout)
        assert client.returncode == 0, wrong[-4000:]
        return said

    @contextmanager
    def client_running(self, program: str, *words: str) -> Iterator[subprocess.Popen]:
        """A client on host A: its process, with pipes to and from it."""
        settings = {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(self.shared)}
        process = subprocess.Popen(
            [*self.within("A"), sys.executable, "-c", program, self.address, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": _path()} | settings,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def link(self, state: str) -> None:
        """Cut host B off ("down"), or bring it back ("up")."""
        _ip("-n", self.names["B"], "link", "set", f"v{self.names['B']}", state)


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Two hosts with a scheduler on A; skips the test where they cannot be made."""
    hosts = TwoHosts(folder)
    names = hosts.names
    with ExitStack() as ending:
        try:
            for name in names.values():
                _ip("netns", "add", name)
                ending.callback(_ip, "netns", "del", name)
            ends = [("name", f"v{name}", "netns", name) for name in names.values()]
            _ip("link", "add", *ends[0][1:], "type", "veth", "peer", *ends[1])
            for host, name in names.items():
                _ip("-n", name, "addr", "add", f"{ADDRESSES[host]}/24", "dev", f"v{name}")
                _ip("-n", name, "link", "set", f"v{name}", "up")
                _ip("-n", name, "link", "set", "lo", "up")
            subprocess.run([*hosts.within("B"), "true"], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", "") or str(error)).strip()
            pytest.skip(f"no two hosts here, which takes root and iproute2: {why}")
        with hosts._ending:
            hosts.scheduler(host=ADDRESSES["A"], before=hosts.within("A"))
            yield hosts


def said(log: Path, pattern: str) -> str:
    """The first group of ``pattern`` in a log, once it is there."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text("utf-8", "replace")):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"{log} did not say {pattern} in {START:g} s: {log.read_text()[-2000:]}")


def _path() -> str:
    """Where this package is found, and the functions of the tests that run now."""
    return os.pathsep.join([str(ROOT), *(p for p in sys.path if p.startswith(str(ROOT / "tests")))])


def _end(process: subprocess.Popen) -> None:
    # processes with numbers of their own end with unshare, which takes no other signal
    (process.kill if "unshare" in process.args else process.terminate)()
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(8)


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        raise OSError("there is no ip")
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
