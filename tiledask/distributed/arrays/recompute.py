"""Parts of blocks that went down with their worker: asked of Dask, which makes the blocks again.

    run 1   a part is gone                 -> ask Dask for all parts, step aside (Reschedule)
    run 2   they are not all there yet     -> step aside
    run 3   they are                       -> go on with them

A task that waited in its slot would keep out the very tasks that it waits for. So that Dask still
knows how to make a block that its owner has let go, a task depends on an anchor of every block it
reads past Dask: a task of nothing but that block.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import Any

from distributed import Future, Reschedule, Worker, get_client, get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import TO_MAKE_AGAIN
from tiledask.distributed.cluster.tasks import slot_of
from tiledask.distributed.deadlines import DEADLINE
from tiledask.plan.products.regions import Region, slices
from tiledask.tile.backend import aligned, array_namespace

__all__ = ["Wanted", "anchor_of", "recovered"]

_STEP = 0.1  # seconds in the slot per run

Wanted = tuple[str, int, Region]
"""A part: the block's key, its slot, and where it lies in the block."""

_asked: dict[str, dict[Wanted, Future[Any]]] = {}
"""What each task of this worker waits for, as long as somebody waits for the task."""


def anchor_of(cluster: Cluster, block: Future[Any]) -> Future[Any]:
    """What keeps Dask able to make ``block`` again; made once, and let go with it."""
    known = vars(block)
    if "anchor" not in known:
        slot = slot_of(block)
        known["anchor"] = cluster.submit(slot, _anchor, block, name=TO_MAKE_AGAIN, beside=True)
    anchor: Future[Any] = known["anchor"]
    return anchor


def _anchor(block: Any) -> None:
    """Nothing, after what it depends on."""


def recovered(task: str, parts: Iterable[Wanted]) -> dict[Wanted, Any]:
    """The ``parts`` for the running ``task``; raises Reschedule until they are there."""
    if not (parts := [*parts]):
        return {}
    if task not in _asked:
        _asked[task] = {part: _ask(*part) for part in parts}
        get_worker().loop.add_callback(_dropped, get_worker(), task)
    end = time.monotonic() + _STEP
    while not all(future.done() for future in _asked[task].values()):
        if time.monotonic() > end:
            raise Reschedule  # which the worker keeps: not from an error whose frames have futures
        time.sleep(_STEP / 20)
    # what Dask brings is not aligned, and then sums round differently
    return {part: aligned(made.result(DEADLINE)) for part, made in _asked.pop(task).items()}


async def _dropped(worker: Worker, task: str) -> None:
    """Nobody waits for what a task has asked for that was cancelled while it stood aside."""
    while task in _asked:
        await asyncio.sleep(1)
        if (await worker.scheduler.get_task_status(keys=[task]))[task] is None:
            _asked.pop(task, None)


def _ask(key: str, slot: int, ends: Region) -> Future[Any]:
    client, name = get_client(), f"lost_part-{secrets.token_hex(16)}"
    beside = {f"beside{slot}": 1}
    made: Future[Any] = client.submit(_cut, Future(key, client), ends, key=name, resources=beside)
    return made


def _cut(block: Any, ends: Region) -> Any:
    return array_namespace(block).asarray(block[slices(ends)], order="C")
