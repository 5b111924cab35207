"""Dask as people start it by hand, and hosts on one machine: processes that end with the block.

    with dask_by_hand(folder, workers=2) as dask:   `dask scheduler` and `dask worker`, on loopback
        td.connect(dask.address)

    with two_hosts(folder) as hosts:                network namespaces A and B, joined by a veth
        hosts.on("A"), hosts.on("B")                pair
        hosts.client(program)

Workers on host B have process numbers, a /dev/shm and a ``folder`` of their own, as on another
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

from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["ByHand", "dask_by_hand", "two_hosts"]

START = 240.0
"""Seconds that a process has to start."""
PLAIN = ("--nthreads", "1", "--memory-limit", "2GB", "--no-dashboard")
"""Of a worker, unless it is told otherwise: loading what its own pages need takes half a second."""
_SETS = count()
"""Numbers of sets of hosts; one may be up beside another."""
_HOME = str(Path(__file__).parents[2])
_MODULES = {
    "scheduler": "distributed.cli.dask_scheduler",
    "worker": "distributed.cli.dask_worker",
    "cuda worker": "dask_cuda.cli",
}


class ByHand(ExitStack):
    """A scheduler and workers that were started by hand; ends them with a ``with`` block."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.address = folder, ""
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, *options: str, before: tuple[str, ...] = (), **env: str) -> Path:
        """The log of ``dask PROGRAM``, or of another module."""
        log = self.folder / f"{program.replace(' ', '-')}-{len(self.running)}.log"
        command = [*before, sys.executable, "-m", _MODULES.get(program, program), *options]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment(**env), cwd=self.folder
            )
        self.running.append(process)
        self.callback(_end, process)
        return log

    def scheduler(self, *options: str, host: str = "127.0.0.1", **where: object) -> str:
        """The address of a scheduler."""
        where_it_listens = ("--host", host, "--port", "0", "--dashboard-address", f"{host}:0")
        log = self.start("scheduler", *where_it_listens, *options, **where)  # type: ignore[arg-type]
        self.address = said(log, r"Scheduler at:\s+(\S+)")
        return self.address

    def worker(
        self, *options: str, program: str = "worker", **where: object
    ) -> subprocess.Popen[bytes]:
        """A worker's process, or its nanny's."""
        self.start(program, self.address, *PLAIN, *options, **where)  # type: ignore[arg-type]
        return self.running[-1]


@contextmanager
def dask_by_hand(folder: Path, workers: int = 2, *options: str) -> Iterator[ByHand]:
    """A scheduler and ``workers`` of it on loopback."""
    with ByHand(folder) as dask:
        dask.scheduler()
        for _ in range(workers):
            dask.worker(*(options or ("--no-nanny",)))
        yield dask


class HostsOnOne(ByHand):
    """The same on hosts "A", where the client is, and "B"."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shared = folder / "temporary"
        self.shared.mkdir()
        self.addresses = {"A": "10.77.0.1", "B": "10.77.0.2"}
        self.number = next(_SETS)
        ours = f"{self.number}p{os.getpid()}"
        self.names = {host: f"td{host}{ours}" for host in self.addresses}

    def within(self, host: str) -> tuple[str, ...]:
        """What stands before a command that is to run on ``host``."""
        command = ("ip", "netns", "exec", self.names[host])
        if host == "A":
            return command
        own = f'mount -t tmpfs own {self.shared} && mount -t tmpfs own /dev/shm && exec "$@"'
        apart = ("--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", own, "sh")
        return (*command, "unshare", *apart)

    def on(self, host: str, *options: str) -> subprocess.Popen[bytes]:
        """A worker on ``host``."""
        there = ("--host", self.addresses[host])
        return self.worker(*there, *options, before=self.within(host), TMPDIR=str(self.shared))

    def client(self, program: str, *words: str, timeout: float = 120) -> str:
        """What a client on host A prints; ClusterLostError with its words if it fails."""
        client = subprocess.run(
            [*self.within("A"), sys.executable, "-c", program, self.address, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(TMPDIR=str(self.shared)),
            timeout=timeout,
            check=False,
        )
        if client.returncode:
            raise ClusterLostError(
                f"the client on host A ended with {client.returncode}, needed 0: "
                f"{client.stderr[-4000:]}"
            )
        return client.stdout


@contextmanager
def two_hosts(folder: Path) -> Iterator[HostsOnOne]:
    """Hosts with a scheduler on A; skips the test where they cannot be made."""
    with HostsOnOne(folder) as hosts:
        try:
            _join(hosts)
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", "") or str(error)).strip()
            pytest.skip(f"two hosts on one machine take root, Linux and iproute2: {why}")
        hosts.scheduler("--no-dashboard", host=hosts.addresses["A"], before=hosts.within("A"))
        yield hosts


def _join(hosts: HostsOnOne) -> None:
    """None, once there are namespaces that reach each other; they go with the hosts."""
    names = hosts.names
    for name in names.values():
        _ip("netns", "add", name)
        hosts.callback(_ip, "netns", "del", name)
    one, other = names.values()
    peer = ("peer", "name", f"v{other}", "netns", other)
    _ip("link", "add", "name", f"v{one}", "netns", one, "type", "veth", *peer)
    for host, name in names.items():
        _ip("-n", name, "addr", "add", f"{hosts.addresses[host]}/24", "dev", f"v{name}")
        _ip("-n", name, "link", "set", f"v{name}", "up")
        _ip("-n", name, "link", "set", "lo", "up")
    apart = [*hosts.within("B"), "true"]
    subprocess.run(apart, check=True, capture_output=True, text=True)


def said(log: Path, pattern: str) -> str:
    """The first group of ``pattern`` in a log, once it is there."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text("utf-8", "replace")):
            return found[1]
        time.sleep(0.05)
    raise DeadlineError(f"{log} did not say {pattern} in {START:g} s: {log.read_text()[-2000:]}")


def environment(**more: str) -> dict[str, str]:
    """This process's, with the package and what lies below its folder to be found: functions of
    tests, if they run now."""
    path = [_HOME, *(p for p in sys.path if p.startswith(_HOME + os.sep))]
    settings = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    # it drops copies that a later action needs: they would be fetched, and counted, again
    settings["DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START"] = "False"
    return os.environ | settings | more


def _end(process: subprocess.Popen[bytes]) -> None:
    # processes with numbers of their own end with unshare, which takes no other signal
    apart = isinstance(process.args, list) and "unshare" in process.args
    (process.kill if apart else process.terminate)()
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(8)


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        raise OSError("there is no ip")
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
