"""Where the devices of a run meet: all begin at one moment, and blocks are posted to each other.

    client     open ....... begin at 12:00:00.000 ............................ close
    rank 0         wait   |[F0]----post F0--.
    rank 1         wait   |                 '->[F0] take

One meeting per run in every worker, known by the run's name. A worker that was replaced meanwhile
has none, and says so.
"""

import asyncio
import concurrent.futures
import pickle
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.clocks import now, time_there
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.transport.mailbox import CancelledError, Mailbox, answered
from tiledask.distributed.transport.transport import take_in
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.tile.backend import array_namespace, as_dtype, name_of

__all__ = ["Meeting", "Met", "begin", "meeting", "of_run"]

LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every worker."""
REACHED = 5.0
"""Seconds in which a worker connects to the others: Dask would try one that died for 10."""


@dataclass
class Meeting(Mailbox):
    """One run, in one of its workers."""

    addresses: tuple[str, ...]
    """Addresses of the workers of all devices."""
    moves: list[tuple[int, int]] = field(default_factory=list)
    """(source device, bytes) of every block that came."""
    start: float | None = None
    """The moment at which all begin, by the scheduler's clock."""
    door: Any = None
    """What ``prepare`` left here for the run's tasks."""

    def _wait(self, ready: Any, deadline: float, what: str) -> None:
        if not self.wait(ready, deadline):
            raise DeadlineError(
                f"rank {self.device} waited until its deadline for {what}; give the run longer "
                f"with timeout="
            )

    def wait_for_start(self, deadline: float) -> None:
        """Return when all begin."""
        self._wait(lambda: self.start is not None, deadline, "the word to begin")
        if self.start is not None:
            time.sleep(max(0.0, self.start - now()))

    def take(self, action: Hashable, deadline: float) -> tuple[Any, float, float, float]:
        """The block that ``action`` made on another device, when it is there; and when it was made
        and sent, and came."""
        self._wait(lambda: action in self.parcels, deadline, f"what {action} makes")
        message = self.parcels.pop(action)
        source, made, sent = message.call
        self.moves.append((source, message.nbytes))
        return message.parts[0], made, sent, message.there

    def post(self, worker: Any, to: int, action: tuple[Any, ...], block: Any, made: float) -> None:
        """Send a block to device ``to``; returns at once. If it cannot be sent, the run is over."""
        note = self.device, made, now()
        sending = self.send(worker, to, tuple(action), note, [block])
        sending.add_done_callback(partial(self._sent, action, to))

    def send(
        self, worker: Any, to: int, key: tuple[Any, ...], note: Any, parts: Sequence[Any]
    ) -> concurrent.futures.Future[None]:
        """Done when the mailbox of device ``to`` has the message."""
        return asyncio.run_coroutine_threadsafe(
            self._bring(worker, to, pickle.dumps((key, note)), parts), worker.loop.asyncio_loop
        )

    async def _bring(self, worker: Any, to: int, about: bytes, parts: Sequence[Any]) -> None:
        message = worker.rpc(self.addresses[to]).tiledask_message(
            run=self.run,
            about=about,
            parts=[
                (to_serialize(part.reshape(-1).view(np.uint8)), name_of(part.dtype), part.shape)
                for part in parts
            ],
        )
        answer = await answered(message)
        if not answer["taken"]:
            raise _replaced(to)

    def _sent(self, action: tuple[Any, ...], to: int, sending: Any) -> None:
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, OSError):  # Dask's comm errors are
            error = ClusterLostError(
                f"rank {self.device} could not send what {action} made to rank {to}, whose "
                f"worker is gone ({error}); run the schedule again"
            )
        if error is not None:
            self.tell(over=error)


_meetings: dict[str, Meeting] = {}
"""The runs under way in this worker, by name."""


def of_run(run: str, device: int) -> Meeting:
    """The Meeting of ``run`` in this worker. Raises ClusterLostError if there is none."""
    if run not in _meetings:
        raise _replaced(device)
    return _meetings[run]


def _replaced(device: int) -> ClusterLostError:
    return ClusterLostError(
        f"the worker of rank {device} died while the run was under way, and another has taken "
        f"its place; what it kept for the run is gone. Run it again"
    )


async def _take_message(run: str, about: bytes, parts: list[Any]) -> dict[str, Any]:
    """Take in what another device sends (a handler of the worker)."""
    here, there = _meetings.get(run), now()
    if here is not None:
        key, note = pickle.loads(about)
        # messages arrive unaligned, and then sums round otherwise
        arrays = [
            array_namespace(flat).array(flat).view(as_dtype(name)).reshape(shape)
            for flat, name, shape in parts
        ]
        take_in(here, key, note, arrays, sum(flat.nbytes for flat, *_ in parts), there)
    return {"status": "OK", "taken": here is not None}


# -- the client ----------------------------------------------------------------------------------


class Met(NamedTuple):
    """The devices of a run, by number."""

    addresses: tuple[str, ...]
    """Of their workers."""
    prepared: tuple[Any, ...]
    """What was prepared there."""


@contextmanager
def meeting(
    cluster: Cluster,
    run: str,
    peers: Sequence[Iterable[int]],
    timeout: float,
    prepare: Callable[[Meeting, Any], Any] | None = None,
    slots: Sequence[int] | None = None,
) -> Iterator["Met"]:
    """Open for the devices of ``run`` inside the block, closed however it ends.

    ``peers``: for each device, those that it will exchange blocks with. ``prepare``: called with
    the Meeting and the worker, in each, before anything can arrive. ``slots``: of each device;
    default: device d is in slot d.
    """
    slots = range(len(peers)) if slots is None else slots
    workers = cluster.wait_for_slots(slots, timeout)
    addresses = tuple(workers[slot]["address"] for slot in slots)
    try:
        known = [sorted(each) for each in peers]
        prepared = cluster.run(_open, run, addresses, known, prepare, timeout=timeout)
        yield Met(addresses, tuple(prepared[slot] for slot in slots))
    except ClusterLostError:
        with suppress(Exception):  # where they are now: who is gone would be waited for
            cluster.wait_for_slots(slots, 0.0)
        raise
    finally:
        with suppress(Exception):  # of a cluster that is gone: nobody meets there any more
            cluster.run(_close, run, timeout=10.0)


def begin(cluster: Cluster, run: str, timeout: float, lead: float = LEAD) -> None:
    """Let all devices of ``run`` begin at one moment of the scheduler's clock, in ``lead`` seconds;
    each when it hears of it, if that is later."""
    cluster.run(_begin, run, time_there(cluster, timeout) + lead, timeout=timeout)


async def _open(
    run: str,
    addresses: tuple[str, ...],
    peers: list[list[int]],
    prepare: Callable[[Meeting, Any], Any] | None,
    dask_worker: Any,
) -> Any:
    """What ``prepare`` returns."""
    dask_worker.handlers["tiledask_message"] = _take_message
    if dask_worker.address not in addresses:
        return None
    device = addresses.index(dask_worker.address)
    _meetings[run] = here = Meeting(run, device, addresses)
    prepared = None if prepare is None else prepare(here, dask_worker)
    # connections take milliseconds to make: do that before anybody waits for a block
    reached = (answered(dask_worker.rpc(addresses[d]).identity()) for d in peers[device])
    try:
        await asyncio.wait_for(asyncio.gather(*reached), REACHED)
    except (OSError, TimeoutError) as error:
        others = ", ".join(map(str, peers[device]))
        raise ClusterLostError(
            f"rank {device} cannot reach all of the devices that it exchanges blocks with, "
            f"{others}: the worker of one died as the run began ({error or 'no answer'})"
        ) from None
    return prepared


def _begin(run: str, start: float) -> None:
    if run in _meetings:
        _meetings[run].tell(start=start)


def _close(run: str) -> None:
    here = _meetings.pop(run, None)
    if here is not None:
        here.tell(over=CancelledError(f"{run} was ended while rank {here.device} worked for it"))
        for end in here.at_end:
            end()
