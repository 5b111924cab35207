"""Processes that copy from each other's GPUs, on the stand-in for CuPy (twins/standin): cases.

python gpu_neighbours.py              runs all and prints {case: what went wrong}, as JSON
python gpu_neighbours.py cluster      the same with Dask's workers
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from unittest.mock import patch

import cupy
import numpy as np
import pytest
from cupy.cuda import function, runtime
from cupy.cuda.stream import _Null as Null

from tiledask.distributed.transport import loans, reader, remote_read, tickets
from tiledask.distributed.transport.loans import Loans
from tiledask.distributed.transport.tickets import LoanLostError
from tiledask.errors import KernelError
from tiledask.tile import ipc

FOLDER = os.environ["STANDIN_GPU_FOLDER"]


# -- the owner, a process of its own -------------------------------------------------------------


class Owner:
    """What a worker does: it has arrays, lends them, and takes them back."""

    address = "tcp://127.0.0.1:1"

    def __init__(self):
        self.arrays, self.streams = {}, []
        self.begin_again()

    def begin_again(self):
        self.exchange = loans.exchanges["of the test"] = Loans()

    def make(self, name, values, view="x"):
        x = cupy.asarray(values)
        self.arrays[name] = eval(view, {"x": x})

    def lend(self, name):
        return remote_read._ticket(self.exchange, self.arrays[name], name, Owner)

    def end(self):
        remote_read._end("of the test")
        self.arrays.clear()

    def free(self):
        cupy.get_default_memory_pool().free_all_blocks()

    def begin_to_write(self, name, values):
        """A copy that is not done when this returns."""
        self.streams.append((cupy.cuda.Stream(non_blocking=True), pinned := values.copy()))
        address, x = pinned.ctypes.data, self.arrays[name]
        stream = self.streams[-1][0].ptr
        runtime.memcpyAsync(x.data.ptr, address, x.nbytes, runtime.memcpyHostToDevice, stream)

    def serve(self, name, ends):
        import asyncio

        async def ask():
            return await remote_read.serve("of the test", name, ends, to_host=True)

        part = asyncio.run(ask())["part"]
        return part if part is None else part.data

    def make_managed(self, name, values):
        memory = cupy.cuda.ManagedMemory(values.nbytes)
        self.arrays[name] = cupy.ndarray(
            values.shape, values.dtype, cupy.cuda.MemoryPointer(memory, 0)
        )
        self.arrays[name][...] = cupy.asarray(values)


def live(pipe, gpu):
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    owner = Owner()
    while True:
        name, args = pipe.recv()
        try:
            pipe.send((getattr(owner, name)(*args), None))
        except Exception as error:
            pipe.send((None, error))


class Remote:
    def __init__(self, gpu):
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", remote_read.__name__])  # read once for all
        self.process = context.Process(target=live, args=(theirs, gpu), daemon=True)
        self.process.start()

    def __getattr__(self, name):
        def call(*args):
            self.pipe.send((name, args))
            assert self.pipe.poll(30), f"{name} did not return"
            result, error = self.pipe.recv()
            if error is not None:
                raise error
            return result

        return call

    def kill(self):
        self.process.kill()
        self.process.join()


_owners = {}


@contextmanager
def neighbour(gpu="1,0"):
    """An owner, the same as before if it lives, and what this process has open of it."""
    if gpu not in _owners or not _owners[gpu].process.is_alive():
        _owners[gpu] = Remote(gpu)
    owner, opened = _owners[gpu], ipc.Opened()
    try:
        yield owner, opened
    finally:
        opened.close()
        if owner.process.is_alive():
            owner.end()
            owner.free()
            owner.begin_again()


# -- cases ---------------------------------------------------------------------------------------


def numbers(*shape, dtype="f4"):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def read(opened, ticket, ends=None):
    """The part as NumPy's, with a check that nothing was written beyond its end."""
    ends = tuple((0, n) for n in ticket.shape) if ends is None else ends
    nbytes = int(np.prod([b - a for a, b in ends])) * np.dtype(ticket.dtype).itemsize
    buffer = cupy.full(nbytes + 64, 0x5A, np.uint8)
    part = reader.read_gpu(opened, ticket, ends, buffer).get()
    assert (buffer.get()[nbytes:] == 0x5A).all(), "written beyond the part's end"
    return part


def raises(kind, words, function, *args):
    with pytest.raises(kind, match=words):
        function(*args)


VIEWS = (
    "x",
    "x.transpose(2, 0, 1)",
    "x[::2]",
    "x[::-1]",
    "x[:, ::-1]",
    "x[:, 2:8, 1:4]",
    "x[:, :1]",
    "x[0]",
    "x[0, 0]",
    "x[0, :, ::2]",
)


def parts_of_every_layout():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 9, 5)).astype("f4")
    with neighbour() as (owner, opened), neighbour("0") as (beside, opened_too):
        for view in VIEWS:
            expected = eval(view, {"x": x})
            owner.make(view, x, view)
            beside.make(view, x, view)
            one, other = owner.lend(view), beside.lend(view)
            for _ in range(6):
                ends = [
                    tuple(sorted(rng.choice(n + 1, 2, replace=False).tolist()))
                    for n in expected.shape
                ]
                wanted = expected[tuple(slice(*e) for e in ends)]
                np.testing.assert_array_equal(read(opened, one, ends), wanted)
                np.testing.assert_array_equal(read(opened_too, other, ends), wanted)
                # and as a message, in the owner's order
                flat = np.frombuffer(owner.serve(view, ends), np.uint8)
                told = tickets.laid_out(one, ends, flat)
                np.testing.assert_array_equal(told, wanted)


def a_block_within_an_allocation():
    with neighbour() as (owner, opened):
        owner.make("large", numbers(4096))
        owner.end()  # its memory is now cut into pieces
        owner.make("first", numbers(100))
        owner.make("second", numbers(100) + 1000)
        tickets = [owner.lend(name) for name in ("first", "second")]
        assert len({t.shared.handle for t in tickets}) == 1, "the pool did not cut"
        assert len({t.shared.offset for t in tickets}) == 2
        assert read(opened, tickets[1])[0] == 1000
        assert read(opened, tickets[0])[0] == 0
        assert len(opened) == 1


def ones_own_memory_is_not_opened():
    ticket = remote_read._ticket(Loans(), cupy.arange(8), "mine", Owner)
    raises(ipc.Unreachable, "cannot be opened here", read, ipc.Opened(), ticket)


def what_was_begun_is_done_before_it_is_lent():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        owner.begin_to_write("x", numbers(1000) * 2)
        assert read(opened, owner.lend("x"))[999] == 1998


def taken_back_before_the_copy():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        ticket = owner.lend("x")
        owner.end()
        raises(LoanLostError, "does not lend", read, opened, ticket)


@contextmanager
def while_copying(act):
    """``act`` between the beginning of a copy and its end."""
    begin = runtime.memcpyAsync

    def begun(*args):
        begin(*args)
        act()

    with patch.object(runtime, "memcpyAsync", begun):
        yield


def taken_back_during_the_copy():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        ticket = owner.lend("x")

        def take_back():
            owner.end()
            owner.make("another", numbers(1000) * 3)

        with while_copying(take_back):
            raises(LoanLostError, "does not lend", read, opened, ticket)


def the_owner_dies():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        ticket = owner.lend("x")
        with while_copying(owner.kill):
            raises(LoanLostError, "No such process", read, opened, ticket)
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        ticket = owner.lend("x")
        owner.kill()
        raises(ipc.Unreachable, "cannot be opened here", read, opened, ticket)


def failing(*_):
    raise runtime.CUDARuntimeError(700)


def an_error_of_a_copy():
    """It belongs to the loan only if the owner is gone; and a GPU may be gone with it."""
    with neighbour() as (owner, opened), patch.object(runtime, "memcpyAsync", failing):
        owner.make("x", numbers(1000))
        ticket = owner.lend("x")
        raises(runtime.CUDARuntimeError, "IllegalAddress", read, opened, ticket)
        owner.end()
        with patch.object(remote_read.os, "_exit", lambda status: sys.exit(status)):
            raises(LoanLostError, "does not lend", read, opened, ticket)
            with patch.object(ipc, "lost", lambda: True):
                raises(SystemExit, "1", read, opened, ticket)


def an_address_that_is_used_again():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        before = owner.lend("x")
        assert read(opened, before)[999] == 999
        opened.close()
        owner.end()
        owner.free()
        owner.begin_again()
        owner.make("x", numbers(1000) * 5)
        after = owner.lend("x")
        assert after.shared.handle != before.shared.handle
        again = ipc.Opened()
        assert read(again, after)[999] == 4995
        raises(ipc.Unreachable, "cannot be opened here", read, again, before)
        again.close()


def memory_without_a_handle():
    with neighbour() as (owner, _):
        owner.make_managed("x", numbers(1000))
        ticket = owner.lend("x")
        assert ticket.shared is None
        flat = np.frombuffer(owner.serve("x", [(10, 20)]), np.uint8)
        np.testing.assert_array_equal(tickets.laid_out(ticket, [(10, 20)], flat), range(10, 20))
    managed = cupy.cuda.ManagedMemory(4000)
    x = cupy.ndarray((1000,), "f4", cupy.cuda.MemoryPointer(managed, 0))
    raises(KernelError, "cudaMallocAsync and managed memory cannot", ipc.share, x)
    assert ipc.why_no_handles() == ""


def few_are_open_at_a_time():
    with neighbour() as (owner, opened), patch.object(ipc, "MOST_OPEN", 2):
        for i in range(5):
            owner.make(f"{i}", numbers(1000) + i)
        tickets = [owner.lend(f"{i}") for i in range(5)]
        for _ in range(2):
            for i, ticket in enumerate(tickets):
                assert read(opened, ticket)[0] == i
                assert len(opened) <= 2
        mine = [name for name in os.listdir(FOLDER) if name.startswith("open-")]
        assert len(mine) == 2
        opened.close()
        assert not [name for name in os.listdir(FOLDER) if name.startswith("open-")]
        raises(LoanLostError, "exchange is over", read, opened, tickets[0])


def closing_waits_for_the_copy():
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        ticket, done = owner.lend("x"), []
        closing = threading.Thread(target=lambda: (opened.close(), done.append("closed")))
        with while_copying(lambda: (closing.start(), closing.join(0.2), done.append("copied"))):
            assert read(opened, ticket)[999] == 999
        closing.join()
        assert done == ["copied", "closed"]
        assert len(opened) == 0


def freed_while_it_is_open():
    """That the stand-in would tell: the order in which an exchange ends is there for this."""
    with neighbour() as (owner, opened):
        owner.make("x", numbers(1000))
        read(opened, owner.lend("x"))
        owner.end()
        owner.free()
        faults = os.path.join(FOLDER, "faults")
        assert os.path.exists(faults)
        os.remove(faults)


PROCESSES = (
    parts_of_every_layout,
    a_block_within_an_allocation,
    ones_own_memory_is_not_opened,
    what_was_begun_is_done_before_it_is_lent,
    taken_back_before_the_copy,
    taken_back_during_the_copy,
    the_owner_dies,
    an_error_of_a_copy,
    an_address_that_is_used_again,
    memory_without_a_handle,
    few_are_open_at_a_time,
    closing_waits_for_the_copy,
    freed_while_it_is_open,
)


# -- the same with Dask's workers ----------------------------------------------------------------


def of_cluster(cluster):
    """(case, function) on four workers, two on each of two GPUs."""
    import tiledask as td

    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (70, 50)).astype("f4")
    b = rng.integers(-4, 5, (50, 60)).astype("f4")
    grid = td.Shard(0), td.Shard(1)

    def operands(mesh, placed, dtype="float32"):
        mesh = td.Mesh(cluster, mesh)
        as_type = td.tile.as_dtype(dtype)
        return (td.distribute(x.astype(as_type), mesh, placed) for x in (a, b))

    def multiplied(*placed, **options):
        c = td.matmul(*operands(*placed), **options)
        np.testing.assert_array_equal(td.to_numpy(c).astype("f4"), a @ b)
        assert c.traffic.predicted == c.traffic.measured
        assert c.traffic.measured.total
        return c

    def nothing_is_left():
        names = os.listdir(FOLDER)
        assert not [name for name in names if name.startswith("open-")], names
        assert "faults" not in names
        assert cluster.run(lambda: len(loans.exchanges)) == [0] * 4

    def copied_from_gpu_to_gpu():
        assert remote_read.transport_of(cluster) == "ipc", cluster.transport_why
        for algorithm in ("summa", "column_parallel", "row_parallel", "2.5d"):
            multiplied((2, 2), grid, algorithm=algorithm)
        multiplied((4,), (td.Shard(0),), "bfloat16")
        nothing_is_left()

    def said_what_is_used():
        found = td.explain(*operands((2, 2), grid))
        assert "interprocess handles" in repr(found)

    def as_messages():
        with patch.object(cluster, "transport", "comm"):
            for dtype in ("float32", "bfloat16"):
                multiplied((2, 2), grid, dtype, algorithm="summa")
                multiplied((2, 2), grid, dtype, algorithm="row_parallel")
        nothing_is_left()

    def by_messages_if(name, status, *why):
        cluster.run(_refusing, name, status)
        try:
            multiplied((2, 2), grid, algorithm="summa")
            cluster.transport = ""
            assert remote_read.transport_of(cluster) == "comm"
            for words in why:
                assert words in cluster.transport_why
        finally:
            cluster.run(_refusing, name, None)
            cluster.transport = ""
        assert remote_read.transport_of(cluster) == "ipc"

    def blocks_without_handles():
        by_messages_if("ipcGetMemHandle", 1, "cudaMallocAsync and managed memory cannot")

    def handles_that_nobody_opens():
        why = "interprocess handles", "cudaErrorInvalidResourceHandle"
        by_messages_if("ipcOpenMemHandle", 400, *why)

    def copies_wait_for_kernels():
        cluster.run(_watch_order)
        for way in ("ipc", "comm"):
            with patch.object(cluster, "transport", way):
                multiplied((2, 2), grid, algorithm="summa", panel=5)
                for algorithm in ("column_parallel", "row_parallel", "2.5d"):
                    multiplied((2, 2), grid, algorithm=algorithm)
        nothing_is_left()

    def a_worker_dies():
        big = rng.integers(-4, 5, (600, 600)).astype("f4")
        mesh = td.Mesh(cluster, (2, 2))
        A, B = (td.distribute(big, mesh, grid) for _ in range(2))
        assert remote_read.transport_of(cluster) == "ipc"
        victim = cluster.run(os.getpid)[3]
        killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        cluster.run(_slowly)
        killer.start()
        c = td.matmul(A, B, algorithm="summa", panel=20, timeout=240)
        killer.join()
        np.testing.assert_array_equal(td.to_numpy(c, timeout=240), big @ big)
        assert cluster.run(os.getpid)[3] != victim

    cases = (
        copied_from_gpu_to_gpu,
        said_what_is_used,
        as_messages,
        blocks_without_handles,
        handles_that_nobody_opens,
        copies_wait_for_kernels,
        a_worker_dies,
    )
    return cases


def _refusing(name, status):
    """On a worker: the runtime's ``name`` fails with ``status``; with None it works again."""
    if status is None:
        setattr(runtime, name, runtime.before)
    else:
        runtime.before = getattr(runtime, name)
        setattr(runtime, name, lambda given: _refused(status))


def _refused(status):
    raise runtime.CUDARuntimeError(status)


def _watch_order():
    """From now on a copy on a stream of its own into memory that kernels may still use is a fault.

    Those are kernels of the default stream that nobody waited for since they began.
    """
    under_way, within = [], np.lib.array_utils.byte_bounds

    def before(owner, name, act):
        plain = getattr(owner, name)

        def watched(*args, **options):
            act(*args)
            return plain(*args, **options)

        setattr(owner, name, watched)

    def kernel(x):
        views = sys._getframe(2).f_code.co_name in ("__getitem__", "_method", "reshape", "ravel")
        if x.size and not views and not cupy.cuda.get_current_stream().ptr:
            under_way.append(within(x._view))

    def cublas(pointer, dtype, shape, strides):
        size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        under_way.append((pointer, pointer + size * np.dtype(dtype).itemsize))

    def waited(*_, **__):
        under_way.clear()

    def copy(into, nbytes, stream):
        for low, high in list(under_way):
            if getattr(stream, "ptr", stream) and low < into + nbytes and into < high:
                with open(os.path.join(FOLDER, "faults"), "a") as faults:
                    faults.write("copied into memory that kernels may still use\n")

    from tiledask.distributed.products.multiply import SUM_BYTES

    SUM_BYTES.update(dict.fromkeys(SUM_BYTES, 400))  # many rounds of a sum
    before(cupy.ndarray, "_host", kernel)
    before(function, "lies", cublas)
    for owner, name in ((Null, "synchronize"), (cupy.cuda.Device, "synchronize")):
        before(owner, name, waited)
    before(runtime, "memcpyAsync", lambda to, _, size, kind, stream: copy(to, size, stream))
    before(
        runtime,
        "memcpy2DAsync",
        lambda to, pitch, _, __, ___, rows, kind, stream: copy(to, pitch * rows, stream),
    )


def _slowly():
    import time

    begin = runtime.memcpy2DAsync

    def begun(*args):
        time.sleep(0.05)
        begin(*args)

    runtime.memcpy2DAsync = begun


def main():
    told = {}

    def tried(cases):
        for case in cases:
            try:
                case()
                told[case.__name__] = ""
            except BaseException:
                told[case.__name__] = traceback.format_exc()[-3000:]

    if sys.argv[1:] == ["cluster"]:
        import tiledask as td

        with td.start_cluster(device="cuda", per_gpu=2, quiet=True) as cluster:
            tried(of_cluster(cluster))
    else:
        tried(PROCESSES)
    print("TOLD " + json.dumps(told))


if __name__ == "__main__":
    main()
