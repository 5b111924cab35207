"""A product on the dashboard's page: what it is and what is predicted, and what was counted."""

from collections.abc import Iterator, Sequence
from typing import Any

from tiledask.distributed.products.explain import Choice
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.traffic import Traffic

__all__ = ["about", "counts", "memory_before"]


def about(choice: Choice, predicted: Traffic) -> dict[str, Any]:
    """What is known of a product before it runs; ``predicted`` is its Traffic."""
    plan, cost, ledger = choice.plan, choice.cost, choice.ledger
    assert plan is not None  # what cannot run is never chosen
    assert ledger is not None
    a, b = ("x".join(f"{n:,}" for n in tiling.shape) for tiling in (plan.a, plan.b))
    return {
        "kind": "product",
        "lanes": [f"rank {rank}" for rank in range(len(plan.panels))],
        "facts": {"product": f"{a} @ {b}", "algorithm": f"{choice.algorithm} {choice.options}"},
        "predicted": {
            "panels": [len(panels) for panels in plan.panels],
            "received": list(predicted.received),
            "memory": list(ledger.per_place.values()),
            "seconds": cost and cost.total,
            "busy": cost and list(cost.busy),
        },
    }


def memory_before(
    resident: dict[str, tuple[int, ...]], held: Sequence[int]
) -> list[tuple[int, dict[str, int]]]:
    """By rank: the bytes of its operands, with which its measured memory begins, and those that its
    worker ``held`` then."""
    operands = map(sum, zip(*resident.values(), strict=True))
    return [
        (rank, {"resident": mine, "held": there})
        for rank, (mine, there) in enumerate(zip(operands, held, strict=True))
    ]


def counts(
    slots: Sequence[int], traffic: Traffic | None, memory: Ledger | None, seconds: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """By rank, in its slot: what was counted when it was over; None where a worker did not say."""
    most = list(memory.per_place.values()) if memory else [None] * len(slots)
    for rank, slot in enumerate(slots):
        received = traffic.received[slot] if traffic else None
        yield rank, {"received": received, "memory": most[rank], "seconds": seconds}
