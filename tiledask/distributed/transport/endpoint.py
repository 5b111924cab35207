"""Where the ranks of a run receive: a mailbox in each worker, open while the run lasts.

    client      opened ................................ closed
    rank 0          mailbox ---- send ----.                        by Dask's connections, or sockets
    rank 1          mailbox <-------------'

It is known by the run's name. A worker that was replaced meanwhile has none, and says so.
"""

import os
import pickle
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.transport.mailbox import CancelledError, Mailbox, answered
from tiledask.distributed.transport.transport import take_in
from tiledask.errors import ClusterLostError
from tiledask.tile.backend import array_namespace, as_dtype, name_of

__all__ = ["Where", "endpoint_of", "lost", "opened", "send_message"]

_LONGEST = 100
"""Characters that the path of a socket may have; systems stop at 104 or 108."""
_endpoints: dict[str, Mailbox] = {}
"""Of the runs under way in this worker, by name."""


class Where(NamedTuple):
    """Where a rank is."""

    path: str
    """Of the socket that it receives from; empty if it has none."""
    host: str
    """See `this_host`."""
    pid: int


def endpoint_of(run: str, rank: int) -> Mailbox:
    """The Mailbox of ``run`` in this worker. Raises ClusterLostError if there is none."""
    if run not in _endpoints:
        raise lost(rank)
    return _endpoints[run]


def lost(rank: int, why: object = "another has taken its place") -> ClusterLostError:
    """The error of a run whose rank ``rank`` is gone."""
    return ClusterLostError(
        f"the worker of rank {rank} died while the run was under way ({why}); what it had for the "
        f"run is gone. Run it again"
    )


async def send_message(
    worker: Any, here: Mailbox, to: int, key: Any, note: Any, parts: Sequence[Any]
) -> None:
    """Return when the mailbox of rank ``to`` has the message."""
    message = worker.rpc(here.addresses[to]).tiledask_message(
        run=here.run,
        about=pickle.dumps((key, note)),
        parts=[
            (to_serialize(part.reshape(-1).view(np.uint8)), name_of(part.dtype), part.shape)
            for part in parts
        ],
    )
    answer = await answered(message)
    if not answer["taken"]:
        raise lost(to)


# -- handlers of the worker ------------------------------------------------------------------------


async def _take_message(run: str, about: bytes, parts: list[Any]) -> dict[str, Any]:
    """Take in what another rank sends."""
    here, there = _endpoints.get(run), now()
    if here is not None:
        key, note = pickle.loads(about)
        # messages arrive unaligned, and then sums round otherwise
        arrays = [
            array_namespace(flat).array(flat).view(as_dtype(name)).reshape(shape)
            for flat, name, shape in parts
        ]
        take_in(here, key, note, arrays, sum(flat.nbytes for flat, *_ in parts), there)
    return {"status": "OK", "taken": here is not None}


async def _tell_doing(run: str) -> dict[str, Any]:
    """What the rank of ``run`` here does."""
    here = _endpoints.get(run)
    return {"status": "OK", "doing": pickle.dumps(here and here.doing())}


# -- the client ------------------------------------------------------------------------------------


@contextmanager
def opened(
    cluster: Cluster, run: str, slots: Sequence[int], folder: Path, timeout: float
) -> Iterator[tuple[Where, ...]]:
    """The mailboxes of ``run``, rank r's in ``slots[r]``, inside the block; however it ends, they
    are closed. By rank, where it is: its socket is in ``folder``, if its worker sees that."""
    workers = cluster.wait_for_slots(slots, timeout)
    addresses = tuple(workers[slot]["address"] for slot in slots)
    try:
        found = cluster.run(_open, run, addresses, str(folder), timeout=timeout)
        for rank, slot in enumerate(slots):
            if found[slot] is None:  # another worker is there by now
                raise lost(rank)
        yield tuple(found[slot] for slot in slots)
    except ClusterLostError:
        with suppress(Exception):  # where they are now: who is gone would be waited for
            cluster.wait_for_slots(slots, 0.0)
        raise
    finally:
        with suppress(Exception):  # of a cluster that is gone: nobody is left there
            cluster.run(_close, run, timeout=10.0)


def _open(run: str, addresses: tuple[str, ...], folder: str, dask_worker: Any) -> Where | None:
    """Where the rank of this worker is; None if it has none."""
    dask_worker.handlers["tiledask_message"] = _take_message
    dask_worker.handlers["tiledask_doing"] = _tell_doing
    if dask_worker.address not in addresses:
        return None
    rank = addresses.index(dask_worker.address)
    _endpoints[run] = here = Mailbox(run, rank, addresses)
    path = f"{folder}/{rank}"
    if sys.platform != "linux" or len(path) > _LONGEST or not Path(folder).is_dir():
        return Where("", this_host(), os.getpid())
    here.local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.at_end.append(here.local.close)
    Path(path).unlink(missing_ok=True)
    here.local.bind(path)
    return Where(path, this_host(), os.getpid())


def _close(run: str) -> None:
    here = _endpoints.pop(run, None)
    if here is not None:
        here.end(CancelledError(f"{run} was ended while rank {here.device} worked for it"))
        for end in here.at_end:
            end()
