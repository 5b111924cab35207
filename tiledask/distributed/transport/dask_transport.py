"""Messages of ranks by Dask, from worker to worker: to other machines, and encrypted with TLS.

    task -- copy --> event loop == Dask's comm ==> event loop -- take_in --> mailbox -- task

Four threads have a hand in every message, which is most of its time on one machine.
"""

import asyncio
import pickle
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.ranks.mismatch import Doing
from tiledask.distributed.transport.mailbox import answered
from tiledask.distributed.transport.meeting import Meeting, of_run
from tiledask.distributed.transport.transport import Transport, take_in
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.tile.backend import as_dtype, name_of

__all__ = ["ByDask", "DaskTransport", "prepare"]

ANSWER = 2.0
"""Seconds that a worker gets to say what its rank does."""


class ByDask(Transport):
    """What is common to ways between workers: their clock, and asking what others do."""

    def __init__(self, rank: int, here: Meeting, deadline: float, worker: Any) -> None:
        self._here, self._worker = here, worker
        super().__init__(rank, len(here.addresses), here, deadline)

    def now(self) -> float:
        return now()

    def ask(self, rank: int) -> Doing | None:
        peer = self._worker.rpc(self._here.addresses[rank])

        async def asked() -> dict[str, Any]:
            return await asyncio.wait_for(answered(peer.tiledask_doing(run=self._here.run)), ANSWER)

        try:
            coroutine = asyncio.run_coroutine_threadsafe(asked(), self._worker.loop.asyncio_loop)
            doing: Doing | None = pickle.loads(coroutine.result(2 * ANSWER)["doing"])
        except (OSError, TimeoutError):  # of a worker that is frozen or gone
            return None
        return doing

    def _by_dask(
        self, to: int, key: tuple[Any, ...], note: Any, parts: Sequence[np.ndarray] = ()
    ) -> Future[None]:
        """Done when rank ``to``'s mailbox has the message."""
        sending: Future[None] = asyncio.run_coroutine_threadsafe(
            self._bring(to, pickle.dumps((key, note)), parts), self._worker.loop.asyncio_loop
        )
        return sending

    async def _bring(self, to: int, about: bytes, parts: Sequence[np.ndarray]) -> None:
        message = self._worker.rpc(self._here.addresses[to]).tiledask_message(
            run=self._here.run,
            about=about,
            parts=[
                (to_serialize(part.reshape(-1).view(np.uint8)), name_of(part.dtype), part.shape)
                for part in parts
            ],
        )
        answer = await answered(message)
        if not answer["taken"]:
            raise OSError("another worker has taken its place")


class DaskTransport(ByDask):
    """Messages through Dask's own connections."""

    def __init__(self, rank: int, here: Meeting, deadline: float, worker: Any) -> None:
        self._sending: set[Future[Any]] = set()
        super().__init__(rank, here, deadline, worker)

    @property
    def flying(self) -> bool:
        return bool(self._sending)

    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        # they are sent later
        copies = [np.array(part, order="C", copy=None if lend else True) for part in parts]
        sending = self._by_dask(to, key, note, copies)
        self._sending.add(sending)
        sending.add_done_callback(partial(self._sent, to))
        return sum(part.nbytes for part in copies)

    def _sent(self, to: int, sending: Future[Any]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            self.box.tell(over=gone(self.rank, to, error))
        self._sending.discard(sending)

    def arrived(self) -> None:
        left = wait(list(self._sending), max(0.0, self.deadline - monotonic())).not_done
        self.box.check()
        if left:
            raise DeadlineError(
                f"{len(left)} messages that rank {self.rank} sent had not arrived at the run's "
                f"deadline; a worker is frozen or gone, or the run needs longer: timeout="
            )


def gone(rank: int, to: int, why: object) -> ClusterLostError:
    """The error of a rank whose peer's worker has died."""
    return ClusterLostError(
        f"rank {rank} lost rank {to}, whose worker died while the program ran ({why}); what it "
        f"had computed is gone. Run the program again"
    )


# -- on the other side ----------------------------------------------------------------------------


def prepare(here: Meeting, worker: Any) -> None:
    """Let the worker take messages; called as a run opens there."""
    worker.handlers["tiledask_message"] = _take_message
    worker.handlers["tiledask_doing"] = _tell_doing


async def _take_message(run: str, about: bytes, parts: list[Any]) -> dict[str, Any]:
    try:
        here = of_run(run, 0)
    except ClusterLostError:
        return {"status": "OK", "taken": False}
    key, note = pickle.loads(about)
    # messages arrive unaligned, and then sums round otherwise
    arrays = [np.array(flat).view(as_dtype(name)).reshape(shape) for flat, name, shape in parts]
    take_in(here, key, note, arrays, sum(flat.nbytes for flat, *_ in parts))
    here.ring()
    return {"status": "OK", "taken": True}


async def _tell_doing(run: str) -> dict[str, Any]:
    try:
        return {"status": "OK", "doing": pickle.dumps(of_run(run, 0).doing())}
    except ClusterLostError:
        return {"status": "OK", "doing": pickle.dumps(None)}
