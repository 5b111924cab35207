"""When the weights of a stage are whole on its device, where copies of the model share them out.

    keep="action"   0UNSHARD 0F0 0RESHARD 0UNSHARD 0F1 0RESHARD 0UNSHARD 0B0 0RESHARD ...
    keep="phase"    0UNSHARD 0F0 0F1 0RESHARD 0UNSHARD 0B0 0B1 0RESHARD
    keep="step"     0UNSHARD 0F0 0F1 0B0 0B1 0RESHARD
    keep=1          0UNSHARD 0F0 0F1 0RESHARD 2UNSHARD 2F0 2F1 2B0 2B1 2RESHARD 0UNSHARD 0B0 ...

Whoever keeps longer gathers less and holds more: that is all of the choice.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["KEEP", "REDUCE", "checked_keep", "shard_weights"]

KEEP = ("action", "phase", "step")
"""How long weights are kept; or a number of stages."""
REDUCE = ("action", "step")
"""How often gradients are summed over the copies."""


def shard_weights(schedule: Schedule, keep: str | int = "step", reduce: str = "step") -> Schedule:
    """``schedule``, with stages' weights gathered and dropped, and their gradients reduced.

    keep      "action": a stage's weights are gathered for every action and dropped after it
              (FSDP's reshard_after_forward=True); "phase": kept while its device goes on with it
              in the same direction; "step": gathered before its first action, dropped after its
              last; a number n: of every device the n stages that are used next are there, and
              others are dropped (PyTorch's max_active_stages), so that they are gathered ahead
    reduce    "step": gradients are added up as they are, and summed over the copies once, after
              the stage's last backward; "action": in every backward, layer by layer

    What was said of weights before is left out. Raises ScheduleError for other words, and numbers
    below 1.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> print(shard_weights(schedule("gpipe", stages=1, microbatches=2), "phase").to_text())
    0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0REDUCE_GRAD,0RESHARD
    """
    keep = checked_keep(keep)
    if reduce not in REDUCE:
        raise ScheduleError(
            f"gradients are reduced in every {' or once a '.join(map(repr, REDUCE))}, got "
            f"{short(reduce)}"
        )
    orders, pairs = [], []
    for device, order in enumerate(schedule.orders):
        paired = schedule.paired[slice(*schedule.turns[device : device + 2])].tolist()
        line = [*_line(list(_blocks(order, paired)), keep, reduce == "step")]
        pair = iter(paired)
        pairs.append([action.microbatch >= 0 and next(pair) for action in line])
        orders.append(line)
    return Schedule.of(orders, schedule.places, schedule.name, pairs)


def checked_keep(keep: Any) -> str | int:
    """``keep``, a word of KEEP or a number of stages. Raises ScheduleError for anything else."""
    if is_whole(keep, 1):
        return whole_number("keep", keep, 1)
    if not isinstance(keep, str) or keep not in KEEP:
        raise ScheduleError(
            f"weights are kept for an {', a '.join(map(repr, KEEP))}, or of the next n stages, a "
            f"whole number of 1 or more; got {short(keep)}"
        )
    return keep


def _blocks(order: Iterable[Action], paired: Iterable[bool]) -> Iterator[tuple[Action, ...]]:
    """What is done at once: an action, or both of a pair."""
    rest = iter(zip(order, paired, strict=True))
    for action, pair in rest:
        yield (action, *(a for a, _ in islice(rest, 1))) if pair else (action,)


def _line(blocks: list[tuple[Action, ...]], keep: str | int, reduced: bool) -> Iterator[Action]:
    """A device's actions, with those on weights."""
    nexts: list[list[int]] = [[]]
    for block in reversed(blocks):  # stages by how soon they are used
        here = list(dict.fromkeys(action.stage for action in block))
        nexts.append([*here, *(s for s in nexts[-1] if s not in here)])
    nexts = nexts[:0:-1]
    last = {a.stage: n for n, block in enumerate(blocks) for a in block if a.kind in "BW"}
    there: dict[int, str] = {}
    """Stages whose weights are there, and for which direction they were gathered."""
    for n, block in enumerate(blocks):
        ways = {a.stage: "F" if a.kind == "F" else "B" for a in block}
        if is_whole(keep):
            wanted = nexts[n][: max(keep, len(ways))]
        else:
            wanted = nexts[n] if keep == "step" else list(ways)
        for s in [*there]:
            again = keep == "action" or (keep == "phase" and there[s] != ways.get(s))
            if s not in wanted or again:
                del there[s]
                yield Action("RESHARD", s)
        for s in wanted:
            if s not in there:
                there[s] = ways.get(s, "")
                yield Action("UNSHARD", s)
        yield from block
        for s in ways:
            if reduced and last.get(s) == n:
                yield Action("REDUCE_GRAD", s)
    yield from (Action("RESHARD", s) for s in there)
