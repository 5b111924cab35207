"""What layers were planned to call beside what was counted: one row for each label and kind."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tiledask.dist.ranks.records import Records
from tiledask.plan.collectives.layers import Call

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compared"]


def compared(records: Records, calls: Iterable[Call], itemsize: int) -> "pd.DataFrame":
    """A table by label and kind: calls and bytes sent, of all ranks together, both ways.

    ``calls``: of `tiledask.plan.collectives.layers`, for elements of ``itemsize`` bytes; where
    labels are around a layer, `LayerCalls.inside` puts them around its plan. What only one side
    has, has 0 on the other. The column ``equal`` says whether both numbers are the same.

    >>> from tiledask.dist.ranks.records import Records
    >>> from tiledask.plan.collectives.layers import Stream, row_linear
    >>> table = compared(Records(()), row_linear(Stream(1, 2, 2, ranks=2)).calls, itemsize=8)
    >>> table.iloc[0].to_dict()  # nothing was run
    {'label': 'row_linear/forward', 'kind': 'all_reduce', 'planned_calls': 2, 'counted_calls': 0, \
'planned_bytes': 64, 'counted_bytes': 0, 'equal': False}
    """
    import pandas as pd

    sums: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        row = sums.setdefault((call.label, call.kind), [0, 0, 0, 0])
        row[0] += len(call.members)
        row[2] += sum(call.cost(itemsize).sent)
    for record in records:
        row = sums.setdefault((record.label, record.kind), [0, 0, 0, 0])
        row[1] += 1
        row[3] += record.sent
    names = [f"{side}_{what}" for what in ("calls", "bytes") for side in ("planned", "counted")]
    table = pd.DataFrame([[*key, *row] for key, row in sums.items()],
                         columns=["label", "kind", *names])  # fmt: skip
    same = (table["planned_calls"] == table["counted_calls"]) & (
        table["planned_bytes"] == table["counted_bytes"]
    )
    return table.assign(equal=same)
