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
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest
from oracles.finished import ROOT, finished
from oracles.waiting import wait_until

PLAIN = ("--nthreads", "1", "--memory-limit", "2GB", "--no-dashboard")
"""Of a worker, unless it is told otherwise: loading what its own pages need takes half a second."""
_SETS = count()
"""Numbers of sets of hosts; one may be up beside another."""


class ByHand(ExitStack):
    """A scheduler and workers that were started by hand; ends them with a ``with`` block."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.address, self.running = folder, "", []

    def start(self, program, *options, before=(), **env):
        """The log of ``dask PROGRAM``."""
        log = self.folder / f"{program}-{len(self.running)}.log"
        command = [*before, sys.executable, "-m", f"distributed.cli.dask_{program}", *options]
        settings = {"env": environment(**env), "cwd": self.folder}
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, **settings)
        self.running.append(process)
        self.callback(_end, process)
        return log

    def scheduler(self, *options, host="127.0.0.1", **where):
        """The address of a scheduler."""
        listens = ("--host", host, "--port", "0", "--dashboard-address", f"{host}:0")
        log, found = self.start("scheduler", *listens, *options, **where), []

        def listening():
            found[:] = re.findall(r"Scheduler at:\s+(\S+)", log.read_text("utf-8", "replace"))
            return found

        wait_until(listening, f"{log} to say its address", seconds=240.0)
        self.address = found[0]
        return self.address

    def worker(self, *options, **where):
        """A worker's process, or its nanny's."""
        self.start("worker", self.address, *PLAIN, *options, **where)
        return self.running[-1]


@contextmanager
def dask_by_hand(folder, workers=2, *options):
    """A scheduler and ``workers`` of it on loopback."""
    with ByHand(folder) as dask:
        dask.scheduler()
        for _ in range(workers):
            dask.worker(*(options or ("--no-nanny",)))
        yield dask


class HostsOnOne(ByHand):
    """The same on hosts "A", where the client is, and "B"."""

    def __init__(self, folder):
        super().__init__(folder)
        self.shared = folder / "temporary"
        self.shared.mkdir()
        self.addresses = {"A": "10.77.0.1", "B": "10.77.0.2"}
        ours = f"{next(_SETS)}p{os.getpid()}"
        self.names = {host: f"td{host}{ours}" for host in self.addresses}

    def within(self, host):
        """What stands before a command that is to run on ``host``."""
        command = ("ip", "netns", "exec", self.names[host])
        if host == "A":
            return command
        own = f'mount -t tmpfs own {self.shared} && mount -t tmpfs own /dev/shm && exec "$@"'
        apart = ("--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", own, "sh")
        return (*command, "unshare", *apart)

    def on(self, host, *options):
        """A worker on ``host``."""
        there = ("--host", self.addresses[host])
        return self.worker(*there, *options, before=self.within(host), TMPDIR=str(self.shared))

    def client(self, program, *words, timeout=120):
        """What a client on host A prints."""
        env = environment(TMPDIR=str(self.shared))
        command = [*self.within("A"), sys.executable, "-c", program, self.address, *words]
        done = finished(*command, cwd=self.folder, env=env, timeout=timeout)
        assert done.returncode == 0, f"the client on host A: {done.stderr[-4000:]}"
        return done.stdout


@contextmanager
def two_hosts(folder):
    """Hosts with a scheduler on A; skips the test where they cannot be made."""
    with HostsOnOne(folder) as hosts:
        try:
            _join(hosts)
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", "") or str(error)).strip()
            pytest.skip(f"two hosts on one machine take root, Linux and iproute2: {why}")
        hosts.scheduler("--no-dashboard", host=hosts.addresses["A"], before=hosts.within("A"))
        yield hosts


def _join(hosts):
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
    finished(*hosts.within("B"), "true", check=True)


def environment(**more):
    """This process's, with the package and what lies below its folder to be found: functions of
    tests, if they run now."""
    path = [str(ROOT), *(p for p in sys.path if p.startswith(f"{ROOT}{os.sep}"))]
    settings = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    # it drops copies that a later action needs: they would be fetched, and counted, again
    settings["DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START"] = "False"
    return os.environ | settings | more


def _end(process):
    # processes with numbers of their own end with unshare, which takes no other signal
    (process.kill if "unshare" in process.args else process.terminate)()
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(8)


def _ip(*words):
    if shutil.which("ip") is None:
        raise OSError("there is no ip")
    finished("ip", *words, check=True, timeout=20)
