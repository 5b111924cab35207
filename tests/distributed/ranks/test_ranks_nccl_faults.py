"""Faults in what is given to NCCL, each planted once: on real GPUs wrong numbers, or no end."""

import ast
from contextlib import contextmanager
from inspect import getsource
from unittest.mock import patch

import numpy as np
import pytest
from oracles.device_programs import another_order, host, own
from twins.nccl_twin import TwinFault

from tiledask.distributed.ranks import nccl as ranks_nccl
from tiledask.distributed.transport import transport
from tiledask.errors import DeadlineError
from tiledask.tile import nccl as tile_nccl


@contextmanager
def planted(module, name, *pairs):
    """``name`` of ``module`` made anew from its text, in which each pair (before, after) counts."""
    text = getsource(module)
    for before, after in pairs:
        assert text.count(before) == 1, f"the text no longer reads {before!r} once"
        text = text.replace(before, after)
    code = compile(ast.parse(text), module.__file__, "exec")
    made = dict(vars(module))
    exec(code, made)
    with patch.object(module, name, made[name]):
        yield


def ragged_ring(rank):
    """Parts of 2, 1 and 1 rows, made by a kernel just before they are sent."""
    rows = (2, 1, 1)[rank.index]
    x = rank.on_device(np.ones((rows, 3))) * 2.0
    return host([rank.group().all_gather(x, algorithm="ring")])


COMM, DEVICES = (tile_nccl, "Communicator"), (ranks_nccl, "Devices")
SEND, RECV = (
    f"self._comm.{call}(x.data.ptr, x.nbytes, byte, peer, stream.ptr)" for call in ("send", "recv")
)
UNTIL = "self._until(exchange, lambda: pending.done)"
START, END = "self._nccl.groupStart()", "self._nccl.groupEnd()"
OWN = "given, into, x.nbytes, byte, stream"
FOR_EVER = "wait for each other for ever"
MINE = "for name, shape in coming.parts]", "for (name, _), shape in zip(coming.parts, self.mine)]"
POST = "exchange.port.put(to, [], call)"
BEGUN = 'send and receive"):', 'call its {kind}"):'
EARLY = "may begin before the kernels"
FAULTS = {
    "received from the wrong side": (
        COMM,
        FOR_EVER,
        (RECV, RECV.replace("peer", "(peer + 2) % 3")),
    ),
    "sent to the wrong side": (COMM, "ever|meets", (SEND, SEND.replace("peer", "(peer + 1) % 3"))),
    "a group that is never ended": (COMM, "in a group that has not ended", (END, "pass")),
    "calls one by one": (COMM, FOR_EVER, (START, "pass"), (END, "pass")),
    "elements for bytes": (COMM, "bytes. meets", (RECV, RECV.replace("nbytes", "size"))),
    "as much from a neighbour as one has oneself": (
        *(DEVICES, "bytes. meets", MINE),
        (POST, f"{POST}; self.mine = [part.shape for part in parts]"),
    ),
    "begun before the program's kernels": (
        *(COMM, EARLY),
        (f"{BEGUN[0]}\n            stream.wait_event(after)", BEGUN[0]),
    ),
    "read before it is done": (DEVICES, "a kernel reads what recv from", (UNTIL, "pass")),
    "used again before it is done": (
        *(DEVICES, "a kernel writes what send"),
        (UNTIL, f"sent = args[0][0][1]; sent.__iadd__(1); {UNTIL}"),
    ),
}
FAULTS_OF_NCCLS_OWN = {
    "more than there is": (
        COMM,
        "memory that is none of GPU",
        (OWN, OWN.replace("x.nb", "out.nb")),
    ),
    "another root": (
        *(COMM, "broadcast of rank . .* meets broadcast"),
        ("x.nbytes, byte, root, stream", "x.nbytes, byte, comm.rank, stream"),
    ),
    "their own, begun before the program's kernels": (
        *(COMM, EARLY),
        (f"{BEGUN[1]}\n            self._stream.wait_event(after)", BEGUN[1]),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_OF_NCCLS_OWN])
def test_a_planted_fault_is_found(gpus, fault):
    of_own = fault in FAULTS_OF_NCCLS_OWN
    (module, name), words, *pairs = (FAULTS | FAULTS_OF_NCCLS_OWN)[fault]
    with planted(module, name, *pairs), pytest.raises(TwinFault, match=words):
        gpus.run(*((own, 2) if of_own else (ragged_ring, 3)))


def test_without_a_fault_nothing_is_found(gpus):
    assert gpus.run(ragged_ring, 3).results[0][0].sum() == 24.0


@pytest.mark.long
def test_unless_all_meet_a_circle_is_not_found(gpus, monkeypatch):
    """NCCL would wait for a program: only the deadline ends it."""
    monkeypatch.setattr(transport, "LOOK", 0.1)
    gone = (
        "unique = self.meet(exchange, make)",
        "unique = None if known else self.meet(exchange, make)",
    )
    with planted(ranks_nccl, "Devices", gone), pytest.raises(DeadlineError):
        gpus.run(another_order, (2, 2), timeout=1.0)


def test_communicators_take_turns(gpus):
    gpus.use(0)
    one, other = (tile_nccl.Communicator(1, tile_nccl.unique_id(), 0) for _ in range(2))
    x, y = (tile_nccl.empty((3,), np.dtype("float32")) for _ in range(2))
    begun = one.move(tile_nccl.now(), [(0, x)], [(0, y)])
    with pytest.raises(TwinFault, match="begins while another communicator has begun"):
        other.move(tile_nccl.now(), [(0, x)], [(0, y)])
    while not begun.done:
        pass
    assert x.get().tobytes() == y.get().tobytes()
    other.move(tile_nccl.now(), [(0, x)], [(0, y)])
