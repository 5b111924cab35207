"""NCCL on the host: a stand-in that knows the rules, on the GPUs of cupy_twin.py.

NCCL calls that do not fit together never end, or mix up memory. Here they are told at once:

- a send is done when its recv is there, with as many bytes; calls of a group go together, groups of
  a stream one after the other, and calls to one peer in their order;
- streams that wait for each other are stuck; so is what is enqueued in a group that nobody ends;
- all ranks of a collective call the same, with as much and as many;
- NCCL begins behind the kernels that wrote what it reads, in memory of its GPU;
- a GPU works for one communicator at a time, and a communicator has one rank on each GPU.
"""

import itertools
import threading
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from numpy.lib.array_utils import byte_bounds
from twins.cupy_twin import Event, Gpu, TwinFault, cupy, here

from tiledask.distributed.ranks import nccl as ranks_nccl
from tiledask.distributed.ranks import threads
from tiledask.tile import backend

__all__ = [
    "Event",
    "NcclCommunicator",
    "NcclError",
    "TwinFault",
    "TwinGpus",
    "nccl",
    "ranks_on_gpus",
    "twin_gpus",
]

TYPES = {
    "INT8": "i1",
    "UINT8": "u1",
    "INT32": "i4",
    "UINT32": "u4",
    "INT64": "i8",
    "UINT64": "u8",
    "FLOAT16": "f2",
    "FLOAT32": "f4",
    "FLOAT64": "f8",
    "BFLOAT16": "bfloat16",
}
OPERATIONS = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum}


class NcclError(RuntimeError):
    """As NCCL raises it."""


class _Op:
    """A call of one rank: its memory, and what it needs of the others."""

    def __init__(self, end, kind, low, nbytes, *, into, peer=None, facts=(), also=None):
        self.end, self.kind, self.peer, self.facts, self.also = end, kind, peer, facts, also
        self.low, self.high, self.into = low, low + nbytes, into
        self.complete, self.staged = False, None

    def __str__(self):
        to = "" if self.peer is None else f" {'from' if self.into else 'to'} {self.peer}"
        return f"{self.kind}{to} of rank {self.end.rank} ({self.high - self.low} bytes)"

    @property
    def bytes(self):
        memory = self.end.gpu.memory(self.low, self.high)
        start = self.low - byte_bounds(memory.bytes)[0]
        return memory.bytes[start : start + self.high - self.low]

    def seen(self, gpu):
        if self in gpu.pending:
            gpu.pending.remove(self)
            if self.staged is not None:
                self.bytes[:] = self.staged


class NcclCommunicator:
    def __init__(self, size, unique, rank):
        self.gpu, self.rank, self.size, self.aborted = here.gpu, rank, size, False
        self.stream = None
        if type(unique) is not bytes:  # as CuPy 14 declares it
            raise TypeError(f"Argument 'commId' is not bytes (got {type(unique).__name__})")
        if len(unique) != 128:
            raise ValueError(f"commId length {len(unique)} != 128.")
        world = self.gpu.world
        with world.changed:
            self.ends = world.communicators.setdefault(unique, {})
            if rank in self.ends or self.gpu in [end.gpu for end in self.ends.values()]:
                raise TwinFault(f"two ranks of a communicator are on GPU {self.gpu.index}")
            self.ends[rank] = self
            world.made.append(self)
            world.changed.notify_all()
            if not world.changed.wait_for(lambda: len(self.ends) == size, world.patience):
                raise TwinFault(f"{len(self.ends)} of {size} ranks set up their communicator")

    def _submit(self, stream, *ops):
        if self.aborted:
            raise TwinFault("a communicator is used that was aborted")
        self.stream = self.gpu.world.streams[stream]
        here.group += ops
        if not here.depth:
            _enqueue()

    def send(self, pointer, count, dtype, peer, stream):
        nbytes = count * nccl.itemsize(dtype)
        self._submit(stream, _Op(self, "send", pointer, nbytes, into=False, peer=peer))

    def recv(self, pointer, count, dtype, peer, stream):
        nbytes = count * nccl.itemsize(dtype)
        self._submit(stream, _Op(self, "recv", pointer, nbytes, into=True, peer=peer))

    def _collective(self, kind, given, into, counts, dtype, stream, *facts):
        read, written = (c * nccl.itemsize(dtype) for c in counts)
        out = _Op(self, kind, into, written, into=True, facts=(counts, dtype, *facts))
        out.also = _Op(self, kind, given, read, into=False)
        self._submit(stream, out)

    def allReduce(self, given, into, count, dtype, op, stream):
        self._collective("all_reduce", given, into, (count, count), dtype, stream, op)

    def reduce(self, given, into, count, dtype, op, root, stream):
        self._collective("reduce", given, into, (count, count), dtype, stream, op, root)

    def reduceScatter(self, given, into, count, dtype, op, stream):
        counts = self.size * count, count
        self._collective("reduce_scatter", given, into, counts, dtype, stream, op)

    def allGather(self, given, into, count, dtype, stream):
        counts = count, self.size * count
        self._collective("all_gather", given, into, counts, dtype, stream)

    def broadcast(self, given, into, count, dtype, root, stream):
        self._collective("broadcast", given, into, (count, count), dtype, stream, root)

    def check_async_error(self):
        if self.gpu.world.broken:
            raise NcclError(self.gpu.world.broken)

    def abort(self):
        with self.gpu.world.changed:
            self.aborted = True
            self.gpu.pending[:] = [op for op in self.gpu.pending if op.end is not self]
            if self.stream:
                self.stream.groups.clear()


def _enqueue():
    """The calls of this thread's group go to their stream, together."""
    ops, here.group = here.group, []
    for end in {op.end: None for op in ops}:
        mine = [op for op in ops if op.end is end]
        every = [each for op in mine for each in (op, op.also) if each is not None]
        with end.gpu.world.changed:
            for op in every:
                _check(op)
            end.gpu.pending += every
            end.stream.groups.append(mine)
            end.stream.ops += every
            end.gpu.world.progress()


def _check(op):
    gpu, stream = op.end.gpu, op.end.stream
    if gpu is not here.gpu:
        raise TwinFault(f"NCCL was called for GPU {gpu.index} with GPU {here.gpu.index} in use")
    if other := [each for each in gpu.pending if each.end is not op.end]:
        raise TwinFault(f"{op} begins while another communicator has begun {other[0]}")
    memory = gpu.memory(op.low, op.high)
    if max(memory.written, memory.read if op.into else 0) > stream.knows:
        raise TwinFault(f"{op} may begin before the kernels that the program has enqueued")


def _heads(end):
    """The calls of ``end`` that may go on: those of its stream's first group."""
    return [
        op
        for op in (end.stream.groups[0] if end.stream and end.stream.groups else ())
        if op.end is end and not op.complete
    ]


class TwinGpus:
    """Some GPUs with NCCL between them, and the ranks that run on them."""

    def __init__(self, count, patience=120.0):
        self.changed = threading.Condition(threading.RLock())
        self.patience = patience
        self.gpus = [Gpu(self, i) for i in range(count)]
        self.streams, self.communicators, self.made = {}, {}, []
        self.broken = ""
        self.moved = 0
        """Bytes of sends that were received."""
        self.ids = itertools.count()

    def progress(self):
        while any(self._advance(ends) for ends in self.communicators.values()):
            pass
        for ends in self.communicators.values():
            _check_circle(ends)

    def _advance(self, ends):
        every = [op for end in ends.values() for op in _heads(end)]
        changed = False
        for op in every:
            if op.kind == "send" and not op.complete:
                partner = _counterpart(ends, op)
                first = next(
                    o
                    for o in every
                    if (o.end, o.kind, o.peer) == (op.end, "send", op.peer) and not o.complete
                )
                if partner and first is op:
                    if partner.high - partner.low != op.high - op.low:
                        raise TwinFault(f"{op} meets {partner}")
                    partner.staged = op.bytes.copy()
                    self.moved += op.high - op.low
                    op.complete = partner.complete = changed = True
        heads = {op.end.rank: op for op in every if op.peer is None}
        if heads and len(heads) == next(iter(heads.values())).end.size:
            _together([heads[rank] for rank in sorted(heads)])
            changed = True
        for end in ends.values():
            while end.stream and end.stream.groups and not _heads(end):
                end.stream.groups.popleft()
                changed = True
        return changed

    def use(self, index):
        """Let this thread work on GPU ``index``."""
        here.gpu = self.gpus[index]

    def run(self, program, shape, *args, timeout=240, **options):
        """As `run_threads`, each rank on a GPU of its own."""
        with ranks_on_gpus(self.use):
            done = threads.run_threads(program, shape, *args, timeout=timeout, **options)
        assert all(end.aborted for end in self.made), "communicators are left"
        assert not any(gpu.pending for gpu in self.gpus), "a rank went on before all was done"
        return done


@contextmanager
def ranks_on_gpus(use):
    """Ranks on threads have arrays of GPUs and ways between them; ``use(rank)`` sets the GPU."""
    opened, ran = [], threads.ran

    def on_gpu(program, shape, transport, _backend, args):
        use(transport.rank)
        transport.devices = ranks_nccl.Devices(transport)
        opened.append(transport.devices)
        return ran(program, shape, transport, "cupy", args)

    with patch.object(threads, "ran", on_gpu):
        try:
            yield
        finally:
            for devices in opened:
                devices.close()


def _counterpart(ends, op):
    other, kind = ends.get(op.peer), "recv" if op.kind == "send" else "send"
    found = [o for o in _heads(other) if (o.kind, o.peer) == (kind, op.end.rank)] if other else []
    return found[0] if found else None


def _check_circle(ends):
    """Raise if ranks have begun what can only go on after what others of them have begun."""
    waits = {rank: [] for rank in ends}
    for rank, end in ends.items():
        for op in _heads(end):
            for peer in [op.peer] if op.peer is not None else [r for r in ends if r != rank]:
                theirs = _heads(ends[peer]) if peer in ends else []
                if op.peer is not None:
                    fits = _counterpart(ends, op)
                else:
                    fits = any(o.peer is None for o in theirs)
                if theirs and not fits:
                    waits[rank].append((peer, op))
    while free := [r for r, each in waits.items() if not any(p in waits for p, _ in each)]:
        for rank in free:
            del waits[rank]
    if waits:
        stuck = "; ".join(str(each[0][1]) for each in waits.values())
        raise TwinFault(f"ranks wait for each other for ever: {stuck}")


def _together(ops):
    """A collective of all ranks."""
    kind, facts = ops[0].kind, ops[0].facts
    for op in ops:
        if (op.kind, op.facts) != (kind, facts):
            raise TwinFault(f"{ops[0]} meets {op}: {facts} and {op.facts}")
    (_, count), dtype, *more = facts
    given = [op.also.bytes.view(nccl.dtype(dtype)) for op in ops]
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        operate, total = nccl.operation(more[0]), given[0]
        for each in given[1:]:
            total = operate(total, each)
        results = [total] * len(ops)
        if kind == "reduce_scatter":
            results = [total[r * count : (r + 1) * count] for r in range(len(ops))]
        elif kind == "reduce":
            results = [total if r == more[1] else None for r in range(len(ops))]
    elif kind == "all_gather":
        results = [np.concatenate(given)] * len(ops)
    else:
        results = [given[more[0]]] * len(ops)
    for op, result in zip(ops, results, strict=True):
        op.staged = None if result is None else np.ascontiguousarray(result).view(np.uint8).copy()
        op.complete = op.also.complete = True


class _Nccl:
    """The module cupy.cuda.nccl."""

    available = True
    NcclError, NcclCommunicator = NcclError, NcclCommunicator

    def __init__(self):
        for i, name in enumerate(TYPES):
            setattr(self, f"NCCL_{name}", i)
        for i, name in enumerate(OPERATIONS):
            setattr(self, f"NCCL_{name}", i)

    def dtype(self, number):
        return backend.as_dtype(list(TYPES.values())[number])

    def itemsize(self, number):
        return self.dtype(number).itemsize

    def operation(self, number):
        return list(OPERATIONS.values())[number]

    def get_unique_id(self):
        # zero bytes first and in between, as an address has
        return bytes(2) + next(here.gpu.world.ids).to_bytes(4, "little") + bytes(122)

    def groupStart(self):
        here.depth += 1

    def groupEnd(self):
        here.depth -= 1
        if here.depth < 0:
            raise TwinFault("a group of calls ends that was never begun")
        if not here.depth:
            _enqueue()


nccl = _Nccl()


@contextmanager
def twin_gpus(count, **options):
    """A machine with so many GPUs, as tiledask sees it."""
    with (
        patch.object(backend, "probe", lambda: backend.Backend(True, "")),
        patch.object(backend, "_import_cupy", lambda: cupy),
        patch.object(backend, "_import_nccl", lambda: nccl),
    ):
        yield TwinGpus(count, **options)
