"""The blocks of a product, compared once it ran: what is damaged is found, and named."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property
from secrets import randbits
from typing import Any

from distributed import Future

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.products.verifying.by_signs import (
    BlocksCompared,
    ExpectedSums,
    Weighed,
    Weigher,
    compare,
    expected_of,
    weigh,
    weighers,
)
from tiledask.plan.products.product_plan import ProductPlan

__all__ = ["Comparing"]

_MOST = 64
_known: OrderedDict[Any, tuple[int, tuple[ExpectedSums, ...]]] = OrderedDict()
"""By what was multiplied: the seed of the signs, and what they gave of operands that were right."""


class Comparing:
    """Looks whether the blocks of one product, ``what``, are A @ B."""

    def __init__(self, plan: ProductPlan, a: ShardedArray, b: ShardedArray, what: str) -> None:
        self.plan, self.a, self.b, self.what = plan, a, b, what
        self.keys = [[str(block.key) for block in x.blocks] for x in (a, b)]
        self.about = *map(tuple, self.keys), plan.result
        self.expected: tuple[ExpectedSums, ...] | None
        self.signs, self.expected = _known.get(self.about) or (randbits(32), None)

    @cached_property
    def weighers(self) -> tuple[Weigher, ...]:
        """By rank, what looks whether it multiplied right."""
        keys = list(zip(*self.keys, strict=True))
        return weighers(self.plan, self.signs, keys, self.expected is None)

    def compared(
        self, told: Iterable[Weighed], blocks: Sequence[Future[Any]], timeout: float
    ) -> BlocksCompared:
        """What is wrong, by what ranks ``told`` of C's ``blocks``.

        Where more was known than they looked at, and anything is off, all of them look at all.
        """
        found = self._of_all({each.rank: each for each in told}, blocks, timeout)
        if self.expected is not None:
            result = compare(self.plan, found, self.expected)
            if result.right and result.said:
                _known.move_to_end(self.about)
                return result
            del _known[self.about], self.weighers
            self.signs, self.expected = randbits(32), None
            found = self._of_all({}, blocks, timeout)
        expected = expected_of(self.plan, found)
        result = compare(self.plan, found, expected)
        if result.right:
            _known[self.about] = self.signs, expected
            while len(_known) > _MOST:
                _known.popitem(last=False)
        return result

    def _of_all(
        self, found: dict[int, Weighed], blocks: Sequence[Future[Any]], timeout: float
    ) -> list[Weighed]:
        """What each rank found; those that did not say so, as of workers that died, look again."""
        a, b, slots, cluster = self.a.blocks, self.b.blocks, self.a.mesh.at, self.a.mesh.cluster
        if missing := [rank for rank in range(len(blocks)) if rank not in found]:
            args = {slots[r]: (self.weighers[r], a[r], b[r], blocks[r]) for r in missing}
            again = cluster.submit_all(weigh, args, name="verify")
            told = cluster.gather(again, f"verifying the {self.what}", timeout, cancel=True)
            found |= zip(missing, told, strict=True)
        return [found[rank] for rank in range(len(blocks))]

    def named(self, fault: tuple[int, str]) -> str:
        """A block, and where it is."""
        (rank, name), plan = fault, self.plan
        region = {"A": plan.a, "B": plan.b, "C": plan.result}[name].regions[rank]
        ends = ", ".join(f"{start}:{stop}" for start, stop in region)
        return f"the block [{ends}] of {name} on rank {rank}, slot {self.a.mesh.at[rank]}"
