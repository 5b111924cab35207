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

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tiledask.distributed.ranks.records import Record
from tiledask.extras import needed_for
from tiledask.plan.program.count import PlannedCall

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CallSite", "by_layer", "place_of"]

_OF_HEAD = ("norm", "w_head", "cross_entropy")


class CallSite(NamedTuple):
    """Where in the model, and in which part of a step, ranks talk to each other."""

    layer: str
    when: str
    """"forward", "backward", "gradients", "weights" or "norm"."""
    parallel: str
    """Which ranks do: "tensor", "data", "pipeline" or "all ranks"."""

    @property
    def unit(self) -> str:
        """The unit of the model that it is in: "layer 0" of "layer 0/attention/wo"."""
        return self.layer.partition("/")[0]


@cache
def place_of(label: str, kind: str) -> CallSite:
    """Where a training's call of this label is.

    >>> place_of("1B0/layer 2/mlp/w_1/backward", "all_reduce")
    CallSite(layer='layer 2/mlp/w_1', when='backward', parallel='tensor')
    >>> place_of("1B0", "send"), place_of("1B0", "recv")[0]
    (CallSite(layer='stages 0-1', when='backward', parallel='pipeline'), 'stages 1-2')
    """
    action, *layer = label.split("/")
    if not (action[:1].isdigit() or action == "update"):
        return CallSite(label, "", "")  # a LeNet's
    if kind in ("send", "recv"):
        stage, is_forward = int(action.partition("FB"["B" in action])[0]), "F" in action
        low = stage if is_forward == (kind == "send") else stage - 1
        return CallSite(f"stages {low}-{low + 1}", ("backward", "forward")[is_forward], "pipeline")
    if not layer:
        return CallSite(label, "", "all ranks")
    when = layer.pop()
    if when == "tied table":
        return CallSite(when, "gradients", "pipeline")
    if when == "replicas":
        return CallSite("/".join(layer), "gradients", "pipeline")
    if layer[-1:] == ["weights"]:
        when = layer.pop()
    if when in ("gradients", "weights"):
        return CallSite("/".join(layer), when, "data")
    if layer:
        inside = ["head"] if layer[0] in _OF_HEAD else []
        return CallSite("/".join(inside + layer), when, "tensor")
    return CallSite("all layers", when, "all ranks")


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
    steps = set(steps)
    ran = [(r.rank, r, r.barrier is not None, r.seconds) for r in records if r.step in steps]
    said = [
        (rank, call, call.kind not in ("send", "recv"), 0.0)
        for rank, calls in enumerate(planned)
        for call in calls
    ]
    counted, expected, count = _sums(ran), _sums(said), max(1, len(steps))
    order = {unit: n for n, unit in enumerate(units)}
    every = expected.index.append(counted.index).unique()
    places = sorted(every, key=lambda at: order.get(CallSite(*at).unit, len(order)))
    counted, expected = (each.reindex(places, fill_value=0) for each in (counted, expected))
    frame = counted[[]].copy()
    for name in ("calls", "barriers", "bytes", "messages", "seconds"):
        of_all = counted[name]  # of one step: whole numbers, if all steps can have the same
        frame[name] = of_all // count if (of_all % count == 0).all() else of_all / count
        if name in ("barriers", "bytes", "messages"):
            frame[f"predicted_{name}"] = expected[name]
    return frame.reset_index("parallel")


def _sums(calls: Iterable[tuple[int, Record | PlannedCall, bool, float]]) -> "pd.DataFrame":
    """By place, of (rank, call, whether it waits for others, its seconds)."""
    with needed_for("a frame"):
        import pandas as pd

    names = ["rank", *CallSite._fields, "calls", "barriers", "bytes", "messages", "seconds"]
    rows = [
        (rank, *place_of(call.label, call.kind), 1, int(waits), call.sent, call.messages, seconds)
        for rank, call, waits, seconds in calls
    ]
    frame = pd.DataFrame(rows, columns=names)
    ranks = frame.groupby(["rank", *CallSite._fields], sort=False).sum()
    how = dict.fromkeys(names[4:], "sum") | {"barriers": "max", "seconds": "max"}
    return ranks.groupby(list(CallSite._fields), sort=False).agg(how)
