"""Sums of blocks, taken where they are made: whether a block still is what it was.

    make a block    sum 7f31...  kept under the block's key, in the worker's memory
    verify=True     sum 7f31...  the block as it was made
                    sum 7b31...  a bit has changed since

Elements are added up as whole numbers, 8 bytes at a time and modulo 2**64: any change of one of
those words changes the sum.
"""

import secrets
import time
from typing import Any

from dask.context import thread_state
from distributed import Future
from distributed.worker_state_machine import FreeKeysEvent

from tiledask.distributed.cluster.cluster import Cluster, slot_of, slot_on
from tiledask.tile.backend import array_namespace

__all__ = ["changed", "make_again", "remember", "sum_of"]

_MOST = 2**12
_sums: dict[str, tuple[bool, int]] = {}
"""By the key of a block of this worker, the latest last."""


def sum_of(block: Any) -> int:
    """The sum of the bytes of ``block``, as they lie in memory."""
    xp = array_namespace(block)
    flat = block.ravel(order="K").view(xp.uint8)
    whole = len(flat) // 8 * 8
    total = int(flat[:whole].view(xp.uint64).sum()) if whole else 0
    # the last few are a word of their own
    return (total + int.from_bytes(flat[whole:].tolist(), "little")) % 2**64


def remember(block: Any) -> Any:
    """``block``, which the running task has made; its sum is kept."""
    if (key := getattr(thread_state, "key", None)) is not None:
        _keep(str(key), block)
    return block


def changed(key: str, block: Any) -> bool:
    """Whether the block under ``key`` is another than the one that was made; of one whose sum is
    not known it is kept from now on."""
    known = _sums.get(key)
    if known is None or known[0] != _in_rows(block):  # laid out anew, as by a message
        _keep(key, block)
        return False
    return known[1] != sum_of(block)


def _keep(key: str, block: Any) -> None:
    _sums.pop(key, None)
    while len(_sums) >= _MOST:
        del _sums[next(iter(_sums))]
    _sums[key] = _in_rows(block), sum_of(block)


def _in_rows(block: Any) -> bool:
    return bool(block.flags.c_contiguous)


def make_again(cluster: Cluster, block: Future[Any], timeout: float) -> None:
    """None, once the worker that had ``block`` let go of it and has it again, made once more;
    or cannot be made, or ``timeout`` seconds are over."""
    key, slot, end = str(block.key), slot_of(block), time.monotonic() + timeout
    cluster.run(_let_go, slot, key, timeout=timeout)
    while time.monotonic() < end and block.status != "error":
        if any(cluster.run(_has, slot, key, timeout=timeout)):
            return
        time.sleep(0.01)


async def _let_go(slot: int, key: str, dask_worker: Any) -> None:
    if slot_on(dask_worker) == slot:
        _sums.pop(key, None)
        name = f"damaged-{secrets.token_hex(8)}"
        dask_worker.handle_stimulus(FreeKeysEvent(keys=[key], stimulus_id=name))


async def _has(slot: int, key: str, dask_worker: Any) -> bool:
    return slot_on(dask_worker) == slot and key in dask_worker.data
