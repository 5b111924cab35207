"""What a product needs on every rank, in bytes, known before anything runs."""

from math import prod
from typing import Any

from tiledask.distributed.products.worker import SUM_BYTES, summed_in
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.product_plan import AHEAD, RUNTIME, ProductPlan
from tiledask.tile import accumulator, workspace
from tiledask.tile.table import lookup

__all__ = ["PANELS", "ledger_of"]

PANELS = "fetched panels"
"""The tensor class that narrower panels make smaller."""
_SEEN = "measured: 0.5 to 6 MB above the blocks on CPU workers"


def ledger_of(
    plan: ProductPlan, dtype: Any, kernel: str = "blas", tile: Any = None, messages: bool = False
) -> Ledger:
    """What every rank holds while it multiplies and while it sums, in bytes.

    Beside its operands and its part of C: the panels fetched ahead, and for half types the part
    of C in float32 before it is rounded, unless on a GPU one panel is all of it.
    """
    rows = []
    for rank in range(plan.ranks):
        mine = _arrays(plan, rank, dtype, kernel, tile)
        if messages:
            mine += _messages(plan, rank, dtype.itemsize, accumulator(dtype).itemsize)
        for moment in ("product", "sum") if plan.sums else ("product",):
            total = sum(row.bytes for row in mine if row.moment in (ALWAYS, moment))
            rows.append(Row(rank, "runtime", moment, RUNTIME + total // 50, "8 MiB + 2 %", _SEEN))
        rows += mine
    return Ledger.of(rows)


def _arrays(plan: ProductPlan, rank: int, dtype: Any, kernel: str, tile: Any) -> list[Row]:
    size, panels = dtype.itemsize, plan.panels[rank]
    in_a, in_b, in_c = (
        prod(t.block_shape(t.coordinates[rank])) * size for t in (plan.a, plan.b, plan.result)
    )
    m, n, _ = plan.extents(rank)
    arrays = lookup(kernel).arrays
    wide = summed_in(dtype, arrays, len(panels), bool(plan.sums)).itemsize
    depth = max((panel.size for panel in panels), default=0)
    work = 0
    if min(m, n, depth):
        work = workspace(m, n, depth, size, kernel, tile, True, out_itemsize=wide)
    fetching = sum(bool(panel.fetched(rank)) for panel in panels)
    # of C that this rank multiplies before the sum; its own part may come later, in place
    before_sum = (m * n - (in_c // size if plan.sums_in_place else 0)) * wide
    extent, at_work = "rows x columns x itemsize", f"td.tile.workspace, {kernel}"
    rows = [
        ("A", ALWAYS, in_a, extent),
        ("B", ALWAYS, in_b, extent),
        (PANELS, "product", min(AHEAD, fetching) * plan.held(rank) * size,
         f"{AHEAD} x the largest panel"),
        ("C", "product", before_sum, extent),
        ("tile workspace", "product", work, at_work),
    ]  # fmt: skip
    if wide != size and not plan.sums:
        rows.append(("rounded C", "product", in_c, extent))
    if plan.sums:
        some = SUM_BYTES[arrays]
        others = min(some, max((p.size for p in plan.summed[rank]), default=0) * wide)
        held = in_c // size * wide + (in_c if wide != size else 0)
        rows += [
            ("partial sum of C", "sum", before_sum, extent),
            ("tile workspace", "sum", work if plan.sums_in_place else 0, at_work),
            ("C", "sum", held, extent),
            ("fetched partial sums", "sum", others, f"{some >> 20} MiB at most"),
        ]
    return [Row(rank, *row) for row in rows]


def _messages(plan: ProductPlan, rank: int, size: int, wide: int) -> list[Row]:
    """What is on its way from and to ``rank`` where parts travel as messages: copies of them."""
    words = "a part per reader, cut and packed, and one that arrives"
    rows = []
    for moment, pieces, each in (("product", plan.fetched, size), ("sum", plan.summed, wide)):
        sent = (max((p.size for p in mine if p.source == rank), default=0) for mine in pieces)
        total = 2 * (sum(sent) + max((p.size for p in pieces[rank]), default=0)) * each
        if moment == "sum":
            total = min(total, SUM_BYTES["numpy"] * plan.ranks * 2)
        if total:
            rows.append(Row(rank, "messages", moment, total, words))
    return rows
