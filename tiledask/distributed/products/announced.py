"""A product on the dashboard's page: what it says before, and what it has counted at the end.

client   --- plan: bytes, memory, seconds --->  topic "tiledask-runs"      once
ranks    --- panels, bytes, spans ----------->  topic "tiledask-panels"    four times a second
client   --- counted bytes, peaks, seconds -->  topic "tiledask-panels"    once

Where there's no page nothing is said, and no product fails because of it. A scheduler that is in
this process is looked at, and told on its own thread, without a message.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import RUNS, TOPIC
from tiledask.distributed.products.explain import Choice
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.traffic import Traffic

__all__ = ["about", "announced", "ended"]


def about(
    choice: Choice, predicted: Traffic, resident: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """What the page is told of a product before it runs.

    ``predicted`` is its Traffic, ``resident`` the bytes of each operand by rank, which the measured
    memory begins with.
    """
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
        "resident": [sum(mine) for mine in zip(*resident.values(), strict=True)],
    }


@contextmanager
def announced(
    cluster: Cluster, run: str, said: dict[str, Any], held: Sequence[int]
) -> Iterator[bool]:
    """Whether the page follows product ``run`` while the block runs; it is told if that fails.

    ``said``: what `about` says; ``held``: bytes that each rank's worker held before.
    """
    there = False
    with suppress(Exception):  # a page is worth no product
        there = cluster.tell_page(RUNS, {"run": run, **said, "held": list(held)})
    try:
        yield there
    except BaseException as error:
        if there:
            words = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            with suppress(Exception):
                cluster.tell_page(TOPIC, {"run": run, "failed": words})
        raise


def ended(
    cluster: Cluster,
    run: str,
    slots: Sequence[int],
    traffic: Traffic | None,
    memory: Ledger | None,
    seconds: float,
) -> None:
    """Tell the page what product ``run`` counted between slots, and of each rank, which are in
    ``slots``; None where a worker did not say."""
    counted = {
        "received": None if traffic is None else [traffic.received[slot] for slot in slots],
        "memory": None if memory is None else list(memory.per_place.values()),
        "seconds": seconds,
    }
    with suppress(Exception):  # of a cluster that is closed
        cluster.tell_page(TOPIC, {"run": run, "ended": counted})
