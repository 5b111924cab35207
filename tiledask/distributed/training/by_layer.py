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

from tiledask.distributed.ranks.records import Record, Records
from tiledask.extras import needed_for
from tiledask.plan.program.count import PlannedCall

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CallSite", "Sums", "by_layer", "frame_of", "ordered", "place_of", "tally", "together"]

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


class Sums(NamedTuple):
    """The sums of several collectives and messages."""

    calls: float = 0
    barriers: float = 0
    """Calls in which a rank waits for others of its group; a send or recv is none."""
    sent: float = 0
    """Bytes."""
    messages: float = 0
    """Sent."""
    seconds: float = 0.0
    """Seconds in these calls, waiting included."""

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        calls, barriers, sent, messages, seconds = other
        return Sums(
            self.calls + calls,
            self.barriers + barriers,
            self.sent + sent,
            self.messages + messages,
            self.seconds + seconds,
        )


@cache
def place_of(label: str, kind: str) -> CallSite:
    """Where a training's call of this label is.

    >>> place_of("1B0/layer 2/mlp/w_1/backward", "all_reduce")
    CallSite(layer='layer 2/mlp/w_1', when='backward', parallel='tensor')
    >>> place_of("1B0", "send"), place_of("1B0", "recv")[0]
    (CallSite(layer='stages 0-1', when='backward', parallel='pipeline'), 'stages 1-2')
    """
    action, *layer = label.split("/")
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


def tally(calls: Iterable[Record | PlannedCall]) -> dict[CallSite, Sums]:
    """The Sums of each CallSite, in the order in which they come; nobody predicts the seconds."""
    found: dict[CallSite, Sums] = {}
    for call in calls:
        if isinstance(call, Record):
            waits, seconds = call.barrier is not None, call.end - call.begin
        else:
            waits, seconds = call.kind not in ("send", "recv"), 0.0
        place = place_of(call.label, call.kind)
        mine = Sums(1, int(waits), call.sent, call.messages, seconds)
        found[place] = found[place].plus(mine) if place in found else mine
    return found


def together(ranks: Iterable[dict[CallSite, Sums]]) -> dict[CallSite, Sums]:
    """The Sums of all ranks: calls, bytes and messages added up.

    Barriers and seconds are of the rank that has most of them: ranks wait at the same time.
    """
    found: dict[CallSite, Sums] = {}
    for mine in ranks:
        for place, sums in mine.items():
            before = found.get(place, Sums())
            barriers = max(before.barriers, sums.barriers)
            seconds = max(before.seconds, sums.seconds)
            found[place] = before.plus(sums)._replace(barriers=barriers, seconds=seconds)
    return found


def ordered(places: Iterable[CallSite], units: Sequence[str]) -> list[CallSite]:
    """``places`` as the model has its units; what is no unit of its own comes last."""
    rank = {unit: n for n, unit in enumerate(units)}
    return sorted(places, key=lambda place: rank.get(place.unit, len(rank)))


def frame_of(records: Records, losses: Iterable[float], first: int = 0) -> "pd.DataFrame":
    """A row per step, the first of number ``first``: loss, bytes sent and messages of all ranks,
    barriers of the busiest."""
    with needed_for("a frame"):
        import pandas as pd

    totals, barriers = records.totals("step"), records.barriers
    rows = [
        (step, loss, t.sent if t else 0, t.messages if t else 0, barriers.get(step, 0))
        for step, loss in enumerate(losses, first)
        for t in [totals.get(step)]
    ]
    names = ["step", "loss", "bytes_sent", "messages", "barriers"]
    return pd.DataFrame(rows, columns=names).set_index("step")


def by_layer(
    records: Iterable[Record],
    planned: Sequence[Sequence[PlannedCall]],
    units: Sequence[str],
    steps: Iterable[int],
) -> "pd.DataFrame":
    """A row per (layer, when): of one of ``steps``, what was counted beside what was planned.

    Of all ranks together: calls, bytes (sent) and messages; of the rank that has most of them:
    barriers, and seconds, waiting included.
    """
    with needed_for("a frame"):
        import pandas as pd

    steps = set(steps)
    ranks: list[list[Record]] = [[] for _ in planned]
    for r in records:
        if r.step in steps:
            ranks[r.rank].append(r)
    counted, expected = together(map(tally, ranks)), together(map(tally, planned))
    rows, count = [], max(1, len(steps))
    for place in ordered({**expected, **counted}, units):
        mine, said = counted.get(place, Sums()), expected.get(place, Sums())
        # of one step: whole numbers, if all steps can have the same
        calls, barriers, sent, messages = (n / count if n % count else n // count for n in mine[:4])
        moved = sent, said.sent, messages, said.messages
        rows.append((*place, calls, barriers, said.barriers, *moved, mine.seconds / count))
    names = "layer when parallel calls barriers predicted_barriers bytes predicted_bytes messages"
    columns = [*names.split(), "predicted_messages", "seconds"]
    return pd.DataFrame(rows, columns=columns).set_index(["layer", "when"])
