"""Whether a run called what was predicted: labels, kinds, bytes, messages, barriers, in order."""

from collections.abc import Iterable

import numpy as np
from oracles.expected_calls import Expected

from tiledask.distributed.ranks.records import Records

PAIRS = ("send", "recv")


def takes_part(call: Expected, rank: int) -> bool:
    return call.kind not in PAIRS or bool(call.cost.sent[rank] or call.cost.received[rank])


def assert_calls(records: Records, calls: Iterable[Expected], ranks: int) -> None:
    """Every rank's collectives are ``calls``, and what they moved is counted as predicted."""
    calls = list(calls)
    for r in range(ranks):
        said = [(c.label, c.kind, *c.cost.of_rank(r)) for c in calls if takes_part(c, r)]
        ran = [(x.label, x.kind, x.sent, x.received, x.messages) for x in records.where(rank=r)]
        assert ran == said, f"rank {r}"
        barriers = [x.barrier for x in records.where(rank=r) if x.kind not in PAIRS]
        assert barriers == list(range(len(barriers))), f"rank {r}"
    assert len(records.mismatches) == 0


def assert_close(got, expected, tolerance: float = 2e-14) -> None:
    """Nowhere further apart than ``tolerance`` of the largest element."""
    assert got.shape == expected.shape
    if expected.size:
        error = np.max(np.abs(got - expected)) / max(np.max(np.abs(expected)), 1e-300)
        assert error <= tolerance, f"{error:.2e} of the largest element, {tolerance:.0e} allowed"
