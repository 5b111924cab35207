"""What the layers of a model cost in a step: barriers, bytes, messages and seconds, by label.

    label of a collective                  layer                  when        parallel
    0F1/layer 0/attention/wo/forward       layer 0/attention/wo   forward     tensor
    0B1/layer 0/weights/backward           layer 0                weights     data (ZeRO 3)
    0B1/layer 0/gradients                  layer 0                gradients   data (ZeRO 2, 3)
    update/layer 0/gradients               layer 0                gradients   data
    update/layer 0/replicas                layer 0                gradients   pipeline
    0F1 (send), 1F1 (recv)                 stages 0-1             forward     pipeline
    0F1/w_head/forward                     head/w_head            forward     tensor
    update/norm                            all layers             norm        all ranks

Predictions are of the program's calls, counts of the records; both have the same labels.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tiledask.distributed.ranks.records import Record
from tiledask.extras import needed_for
from tiledask.plan.program.count import PlannedCall

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["by_layer", "place_of"]

PLACE = ["layer", "when", "parallel"]
HOW = {"calls": "sum", "barriers": "max", "bytes": "sum", "messages": "sum", "seconds": "max"}
"""What is added up of the ranks' calls of a place, and what is that of the busiest."""
PAIRS = "send", "recv"
"""What nobody else waits for."""
OF_HEAD = ("norm", "w_head", "cross_entropy")


@cache
def place_of(label: str, kind: str) -> tuple[str, str, str]:
    """(layer, when, which ranks are among each other) of a training's call of this label.

    >>> place_of("1B0/layer 2/mlp/w_1/backward", "all_reduce")
    ('layer 2/mlp/w_1', 'backward', 'tensor')
    >>> place_of("1B0", "send"), place_of("1B0", "recv")[0]
    (('stages 0-1', 'backward', 'pipeline'), 'stages 1-2')
    """
    block, *layer = label.split("/")
    action = re.match(r"(\d+)([A-Z])", block)
    if not action and block != "update":
        return label, "", ""  # a LeNet's
    if action and kind in ("send", "recv"):
        stage, forward = int(action[1]), action[2] == "F"
        low = stage if forward == (kind == "send") else stage - 1
        return f"stages {low}-{low + 1}", "forward" if forward else "backward", "pipeline"
    if not layer:
        return label, "", "all ranks"
    when = layer.pop()
    if when in ("tied table", "replicas"):
        return "/".join(layer) or when, "gradients", "pipeline"
    if layer[-1:] == ["weights"]:
        when = layer.pop()
    if when in ("gradients", "weights"):
        return "/".join(layer), when, "data"
    if not layer:
        return "all layers", when, "all ranks"
    inside = ["head"] if layer[0] in OF_HEAD else []
    return "/".join(inside + layer), when, "tensor"


def by_layer(
    records: Iterable[Record],
    planned: Sequence[Sequence[PlannedCall]],
    units: Sequence[str],
    steps: Iterable[int],
) -> "pd.DataFrame":
    """A row per (layer, when): of one of ``steps``, what was counted beside what was planned.

    Of all ranks together: calls, bytes (sent) and messages; of the rank that has most of them, for
    ranks wait at the same time: barriers, and seconds, waiting included.
    """
    with needed_for("a frame"):
        import pandas as pd

    def summed(calls: Iterable[tuple[int, Any]]) -> "pd.DataFrame":
        rows = [
            (
                *(rank, *place_of(call.label, call.kind), 1, int(call.kind not in PAIRS)),
                *(call.sent, call.messages, getattr(call, "seconds", 0.0)),
            )
            for rank, call in calls
        ]
        frame = pd.DataFrame(rows, columns=["rank", *PLACE, *HOW])
        ranks = frame.groupby(["rank", *PLACE], sort=False).sum()
        return ranks.groupby(PLACE, sort=False).agg(HOW)

    steps = set(steps)
    counted = summed((record.rank, record) for record in records if record.step in steps)
    expected = summed((rank, call) for rank, calls in enumerate(planned) for call in calls)
    order, count = {unit: n for n, unit in enumerate(units)}, max(1, len(steps))
    every = expected.index.append(counted.index).unique()
    places = sorted(every, key=lambda at: order.get(at[0].partition("/")[0], len(order)))
    counted, expected = (each.reindex(places, fill_value=0) for each in (counted, expected))
    frame = counted[[]].copy()
    for name in HOW:
        of_all = counted[name]  # of one step: whole numbers, if all steps can have the same
        frame[name] = of_all // count if (of_all % count == 0).all() else of_all / count
        if name in ("barriers", "bytes", "messages"):
            frame[f"predicted_{name}"] = expected[name]
    return frame.reset_index("parallel")
