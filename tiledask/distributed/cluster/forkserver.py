"""Workers that start fast: forks of a process that has loaded what each of them needs.

    client ---- starts ----> server                 loads Dask, NumPy and tiledask, once
      |                        |
      '-- what to run, pipes --'-- forks --> worker     has them already

A fork inherits what its server read when it loaded libraries: BLAS's threads, malloc's thresholds,
the seed of hashes. So each server has an environment, an import path and limits of its own, and the
next cluster that has the same finds it there. It ends when its client does, however that ends, and
its workers with it. GPU workers never come from here: CUDA does not survive a fork.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import (
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.context import BaseContext, set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, NoReturn

import dask
import distributed.nanny
import distributed.process
from distributed import Nanny, Status
from distributed.utils import get_mp_context
from distributed.versions import get_versions

from tiledask.errors import ClusterLostError, ConfigError

__all__ = ["ForkingNanny", "Server", "refuse_here", "serve", "server_of_now"]

_LOADED = (
    "distributed.http.health",
    "distributed.http.prometheus",
    "distributed.http.statics",
    "distributed.http.worker.prometheus.core",
    "distributed.nanny",
    "multiprocessing.synchronize",
    "numpy.random",
    "prometheus_client",
    "scipy.linalg.cython_blas",
    "tiledask.distributed.cluster.worker",
    "tiledask.distributed.products.matmul",
    "tiledask.distributed.training.run",
)
"""What every worker loads, by itself or with its first product or training, if it is installed."""
_NEVER_READ = {"PYTEST_CURRENT_TEST"}  # by a library; it is another one all the time
_MOST_FDS = 64  # of one worker: its pipes
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

# what multiprocessing has for its own servers, and no types for
_process: Any = process
_tracker: Any = resource_tracker
_util: Any = util


# -- in the client -------------------------------------------------------------------------------


def refuse_here() -> None:
    """Raise where this process cannot start a worker's, and say why."""
    # what multiprocessing itself looks at before it refuses to start a process of its own
    if getattr(process.current_process(), "_inheriting", False):
        raise ClusterLostError(
            "start_cluster() was called while a worker process was importing your script; "
            "put the call under  if __name__ == '__main__':"
        )
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "workers begin in this process's working directory, which was removed: go to one that "
            "exists with os.chdir(), then start the cluster"
        ) from None


class Server:
    """A process that forks workers; it ends when nothing refers to it any more."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [
            entry or _process.ORIGINAL_DIR or "" for entry in sys.path if isinstance(entry, str)
        ]
        code = (
            f"import sys; sys.path[:] = {path}; import signal; signal.signal(2, signal.SIG_IGN); "
            f"from {__name__} import serve; serve({answering.fileno()})"
        )
        flags = _util._args_from_interpreter_flags()
        with answering:
            self._process = subprocess.Popen(
                [spawn.get_executable(), *flags, "-c", code],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[answering.fileno()],
            )
        # not at exit: Dask ends the workers in order then, and the system closes the socket
        weakref.finalize(self, _end, self._asking, self._process).atexit = False

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def ask(self, fds: list[int]) -> None:
        """Have it fork a worker that gets ``fds``; OSError if it is gone."""
        socket.send_fds(self._asking, [b"."], fds)


def _end(asking: socket.socket, server: "subprocess.Popen[bytes]") -> None:
    asking.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(1)


_servers: "weakref.WeakValueDictionary[Any, Server]" = weakref.WeakValueDictionary()
_newest: Server | None = None


def server_of_now() -> Server | None:
    """The server of workers that get Dask's settings of now, perhaps still loading; None where
    workers are spawned.

    The newest one stays for the next cluster, and each other one as long as it has workers.
    """
    global _newest
    asked = dask.config.get("distributed.worker.multiprocessing-method")
    if sys.platform != "linux" or asked != "spawn":  # as shipped
        return None
    # as a nanny has them
    own = distributed.nanny._get_env_variables("distributed.nanny.pre-spawn-environ")
    if own.get("PYTHONHASHSEED") in (None, "0"):
        own["PYTHONHASHSEED"] = "6640"
    environ = {**os.environ, **own, "__DASK_PARENT_PID": str(os.getpid())}
    # what a worker that is spawned now would get from this process, or read when it loads
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    inherited = (
        os.getpid(),
        frozenset((name, environ[name]) for name in environ.keys() - _NEVER_READ),
        # a scheduler that runs here adds folders of its own, none to import from
        tuple(entry for entry in sys.path if "dask-scratch-space" not in str(entry)),
        tuple(map(resource.getrlimit, limits)),
        frozenset(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
    )
    found = _servers.get(inherited)
    if found is None or not found.is_alive:
        try:
            found = Server(environ)
        except OSError:
            return None
        _servers[inherited] = found
    _newest = found
    return found


class ForkingNanny(Nanny):
    """A nanny whose workers come from ``server``, each one that replaces another too."""

    def __init__(self, *args: Any, server: Server, **options: Any) -> None:
        super().__init__(*args, **options)
        self._context = _Context(server)

    async def instantiate(self) -> Status:
        """Start a worker's process; returns when it is there."""
        # Dask asks for the context where it needs it, and takes none as an argument
        for module in (distributed.nanny, distributed.process):
            vars(module)["get_mp_context"] = _context_of_now
        before = _of_now.set(self._context)
        try:
            return await super().instantiate()
        finally:
            _of_now.reset(before)


_of_now: ContextVar[BaseContext | None] = ContextVar("tiledask-multiprocessing", default=None)


def _context_of_now() -> Any:
    return _of_now.get() or get_mp_context()


class _Context(BaseContext):
    """What Dask makes pipes and processes with."""

    _name = "spawn"  # its locks have names: they get to a process that is not forked from this one

    def __init__(self, server: Server) -> None:
        self._server = server

    def Process(self, *args: Any, **options: Any) -> "_Worker":
        worker = _Worker(*args, **options)
        worker._server = self._server
        return worker


class _Worker(BaseProcess):
    _start_method = "spawn"  # what a task starts is as it would be without the server
    _server: Server | None = None

    def _Popen(self, _: BaseProcess) -> Any:
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError, EOFError):  # the server has died: no faster way
                return _Fork(self, server)
        return popen_spawn_posix.Popen(self)


class _Sent:
    """A file descriptor that was sent to the worker that is asked for it."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return _sent[self._index]


class _Fork(popen_forkserver.Popen):
    """A process that the server forks; `poll` is the one of the base class."""

    DupFd: ClassVar[Any] = _Sent
    _fds: list[int]

    def __init__(self, worker: BaseProcess, server: Server) -> None:
        self._server = server  # it says how the worker ends
        super().__init__(worker)

    def _launch(self, worker: BaseProcess) -> None:
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(worker.name), message)
            reduction.dump(worker, message)
        finally:
            set_spawning_popen(None)
        read, write = os.pipe()
        self.sentinel, status = os.pipe()
        # the worker sees by the second one that this process lives
        self.finalizer = util.Finalize(self, _util.close_fds, (self.sentinel, os.dup(write)))
        with open(write, "wb") as sending:
            try:  # 1 and 2 are what this process prints to now, and not when the server began
                self._server.ask([read, status, 1, 2, _tracker.getfd(), *self._fds])
            finally:
                os.close(read)
                os.close(status)
            sending.write(message.getbuffer())
        self.pid = mp_forkserver.read_signed(self.sentinel)


# -- in the server -------------------------------------------------------------------------------

_sent: list[int] = []  # in a worker: the pipes that Dask made for it


def serve(asked: int) -> None:
    """Fork a worker for each message that comes from the socket ``asked``, until it is closed."""
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    get_versions()  # of packages, which every worker tells the scheduler: they are remembered
    gc.collect()
    gc.freeze()  # a worker that collects garbage would copy every page of what is loaded
    statuses: dict[int, int] = {}
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(fileno=asked) as asking:
        while True:
            ready, _, _ = select.select([asked, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                _tell_of_the_dead(statuses)
            if asked not in ready:
                continue
            message, fds, _, _ = socket.recv_fds(asking, 1, _MOST_FDS)
            if not message:
                break
            with contextlib.suppress(OSError):  # no room for a process: the client sees its end
                server = os.getpid()
                if not (worker := os.fork()):
                    for fd in (asked, woken, wake, *statuses.values()):
                        os.close(fd)
                    _work(fds, server)
                statuses[worker] = fds.pop(1)
                mp_forkserver.write_signed(statuses[worker], worker)
            for fd in fds:
                os.close(fd)
    for worker in statuses:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    os._exit(0)


def _tell_of_the_dead(statuses: dict[int, int]) -> None:
    """Tell the client how those of the workers that have ended did."""
    with contextlib.suppress(ChildProcessError):  # there are no others
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                mp_forkserver.write_signed(status, os.waitstatus_to_exitcode(ended[1]))
            os.close(status)


def _work(fds: list[int], server: int) -> NoReturn:
    """Be the worker that the client describes; ends with the server."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(code)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        read, status, out, err, tracker, *_sent[:] = fds
        for own, given in ((1, out), (2, err)):
            os.dup2(given, own)
        for fd in (status, out, err):
            os.close(fd)
        _tracker._resource_tracker._fd = tracker
        code = spawn._main(read, os.dup(read))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        os._exit(code)
