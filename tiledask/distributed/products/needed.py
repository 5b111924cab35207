"""What a product needs on every rank, in bytes, known before anything runs."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.products.worker import SUM_BYTES, summed_in
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.product_plan import AHEAD, RUNTIME, ProductPlan
from tiledask.tile import accumulator, workspace
from tiledask.tile.table import lookup

__all__ = ["PANELS", "ProductNeeds", "ledger_of"]

PANELS = "fetched panels"
"""The tensor class that narrower panels make smaller."""
_SEEN = "measured: 0.5 to 6 MB above the blocks on CPU workers"


class ProductNeeds(NamedTuple):
    """What a plan's memory follows from, beside the plan: called with one, it gives the Ledger."""

    dtype: np.dtype[Any]
    kernel: str
    tile: Any
    transport: str

    def __call__(self, plan: ProductPlan) -> Ledger:
        return ledger_of(plan, *self)


def ledger_of(
    plan: ProductPlan, dtype: Any, kernel: str = "blas", tile: Any = None, transport: str = "memory"
) -> Ledger:
    """What every rank holds while it multiplies and while it sums, in bytes.

    Beside its operands and its part of C: the panels fetched ahead, and for half types the part
    of C in float32 before it is rounded, unless on a GPU one panel is all of it.
    """
    size, sums = dtype.itemsize, accumulator(dtype).itemsize
    arrays = lookup(kernel).arrays
    blocks = [[prod(t.block_shape(at)) for at in t.coordinates()] for t in (plan.a, plan.b)]
    rows = []
    for rank, at in enumerate(plan.result.coordinates()):
        m, n, _ = plan.extents(rank)
        wide = summed_in(dtype, arrays, len(plan.panels[rank]), bool(plan.sums)).itemsize
        depth = max((p.depth[1] - p.depth[0] for p in plan.panels[rank]), default=0)
        fetching = sum(any(p.source != rank for p in (*x.a, *x.b)) for x in plan.panels[rank])
        work = 0
        if min(m, n, depth):
            work = workspace(m, n, depth, size, kernel, tile, True, out_itemsize=wide)
        block = prod(plan.result.block_shape(at)) * size
        # of C that this rank multiplies before the sum; its own part may come later, in place
        partial_sum = m * n - (block // size if plan.sums_in_place else 0)
        extent, at_work = "rows x columns x itemsize", f"td.tile.workspace, {kernel}"
        panels = min(AHEAD, fetching) * plan.held(rank) * size
        found = [
            ("A", ALWAYS, blocks[0][rank] * size, extent),
            ("B", ALWAYS, blocks[1][rank] * size, extent),
            (PANELS, "product", panels, f"{AHEAD} x the largest panel"),
            ("C", "product", partial_sum * wide, extent),
            ("tile workspace", "product", work, at_work),
        ]
        if wide != size and not plan.sums:
            found.append(("rounded C", "product", block, extent))
        if plan.sums:
            others = max((p.size for p in plan.summed[rank]), default=0) * wide
            some = SUM_BYTES[transport]
            held = block // size * wide + (block if wide != size else 0)
            found += [
                ("partial sum of C", "sum", partial_sum * wide, extent),
                ("tile workspace", "sum", work if plan.sums_in_place else 0, at_work),
                ("C", "sum", held, extent),
                ("fetched partial sums", "sum", min(others, some), f"{some >> 20} MiB at most"),
            ]
        mine = [Row(rank, *row) for row in found]
        if transport in ("comm", "mixed"):
            mine += _messages(plan, rank, size, sums)
        for moment in ("product", "sum") if plan.sums else ("product",):
            total = sum(row.bytes for row in mine if row.moment in (ALWAYS, moment))
            rows.append(Row(rank, "runtime", moment, RUNTIME + total // 50, "8 MiB + 2 %", _SEEN))
        rows += mine
    return Ledger.of(rows)


def _messages(plan: ProductPlan, rank: int, size: int, wide: int) -> list[Row]:
    """What is on its way from and to ``rank`` where parts travel as messages: copies of them."""
    sent, words = {}, "a part per reader, cut and packed, and one that arrives"
    for moment, pieces, each in (("product", plan.fetched, size), ("sum", plan.summed, wide)):
        parts = [[p for p in mine if p.source == rank] for mine in pieces]
        out = sum(max((p.size for p in mine), default=0) for mine in parts)
        come = max((p.size for p in pieces[rank]), default=0)
        limit = SUM_BYTES["comm"] * plan.ranks * 2 if moment == "sum" else None
        total = 2 * (out + come) * each
        if total:
            sent[moment] = total if limit is None else min(total, limit)
    return [Row(rank, "messages", moment, n, words) for moment, n in sent.items()]
