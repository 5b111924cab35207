"""A product on the dashboard's page: what it says before, and what it has counted at the end.

client   --- plan: bytes, memory, seconds --->  topic "tiledask-runs"      once
ranks    --- panels, bytes, spans ----------->  topic "tiledask-panels"    four times a second
client   --- counted bytes, peaks, seconds -->  topic "tiledask-panels"    once

Where there's no page nothing is said, and no product fails because of it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Counted
from tiledask.distributed.cluster.progress import PAGE, RUNS, TOPIC
from tiledask.distributed.products.explain import Choice
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.traffic import Traffic

__all__ = ["announced", "ended"]

_PATIENCE = 5.0
"""Seconds that the scheduler has to say whether there is a page."""


@contextmanager
def announced(
    cluster: Cluster,
    run: str,
    choice: Choice,
    predicted: Traffic,
    counted: Counted,
    resident: dict[str, tuple[int, ...]],
) -> Iterator[bool]:
    """Whether the page follows product ``run`` while the block runs; it is told if that fails.

    ``predicted`` is the product's Traffic, ``resident`` the bytes of each operand by rank, which
    the measured memory begins with.
    """
    there = False
    with suppress(Exception):  # a page is worth no product
        about = {"run": run, **_about(choice, predicted, counted, resident)}
        there = cluster.client.sync(_say, cluster, RUNS, about)
    try:
        yield there
    except BaseException as error:
        if there:
            words = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            _say_later(cluster, {"run": run, "failed": words})
        raise


def ended(
    cluster: Cluster, run: str, traffic: Traffic | None, memory: Ledger | None, seconds: float
) -> None:
    """Tell the page what product ``run`` counted; None where a worker did not say."""
    said = {
        "received": None if traffic is None else list(traffic.received),
        "memory": None if memory is None else list(memory.per_place.values()),
        "seconds": seconds,
    }
    _say_later(cluster, {"run": run, "ended": said})


def _about(
    choice: Choice, predicted: Traffic, counted: Counted, resident: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    plan, cost, ledger = choice.plan, choice.cost, choice.ledger
    assert plan is not None  # what cannot run is never chosen
    assert ledger is not None
    return {
        "algorithm": choice.algorithm,
        "options": choice.options,
        "shapes": [list(tiling.shape) for tiling in (plan.a, plan.b)],
        "panels": [len(panels) for panels in plan.panels],
        "received": list(predicted.received),
        "memory": list(ledger.per_place.values()),
        "seconds": cost and cost.total,
        "busy": cost and list(cost.busy),
        "held": list(counted.held),
        "resident": [sum(mine) for mine in zip(*resident.values(), strict=True)],
    }


async def _say(cluster: Cluster, topic: str, said: dict[str, Any]) -> bool:
    """Whether there is a page; it is told then. One message there, and the answer."""
    asked = cluster.client._run_on_scheduler(_told, topic, said)
    return bool(await asyncio.wait_for(asked, _PATIENCE))


def _say_later(cluster: Cluster, said: dict[str, Any]) -> None:
    async def say() -> None:
        with suppress(Exception):
            await _say(cluster, TOPIC, said)

    if (loop := cluster.client.loop) is not None:
        with suppress(Exception):  # of a client that is closed
            loop.add_callback(say)


def _told(topic: str, said: dict[str, Any], dask_scheduler: Any) -> bool:
    """Called on the scheduler."""
    there = PAGE in dask_scheduler.plugins
    if there:
        dask_scheduler.log_event(topic, said)
    return there
