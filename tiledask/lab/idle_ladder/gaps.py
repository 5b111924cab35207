"""Level 11: which gap of a run is there for which reason."""

from random import Random
from typing import Any, NamedTuple

import numpy as np

from tiledask.lab.idle_ladder.level import Asked, IdleLevel, Run, level_of, listed, num
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["Gap", "gaps_of", "which_gap_is_which"]

_TINY = 1e-9
"""Seconds: rounding of sums."""
_CAUSES = {
    "warm-up": "warm.?(ing.?)?up|ramp.?up|fill(ing)?",
    "transfer": "transfers?|wait.*transfer|communication|latency|send(ing)?",
    "imbalance": "imbalanced?|unbalanced|uneven|slow stage",
    "drain": "drain(ing|ed)?|cool.?down|ramp.?down",
}
"""Why a worker is idle -> what else people call it."""
_UNEVEN = (
    *((2, 1, 2), (3, 2, 3), (1, 2, 1, 2), (2, 1, 2, 1), (2, 2, 1, 2), (2, 3, 2, 3)),
    *((3, 2, 1, 2), (3, 2, 1, 3), (3, 2, 3, 1), (3, 2, 3, 2), (3, 3, 2, 3)),
)
"""Forwards, over the time of a transfer, that often leave gaps of all kinds."""


class Gap(NamedTuple):
    """Seconds in which a worker is idle."""

    worker: int
    """Counted from 0, as the simulator does."""
    start: float
    end: float


def gaps_of(timeline: Timeline, worker: int) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> gaps_of(simulate("naive", 2, 1), 0)
    [Gap(worker=0, start=1.0, end=4.0)]
    """
    mine = timeline.device == worker
    ends = [0.0, *timeline.end[mine].tolist()]
    starts = [*timeline.start[mine].tolist(), timeline.makespan]
    found = (Gap(worker, a, b) for a, b in zip(ends, starts, strict=True))
    return [gap for gap in found if gap.end - gap.start > _TINY]


def _cause(run: Timeline, at_once: Timeline, gap: Gap) -> str:
    """Why the worker is idle in ``gap``: one of _CAUSES, or "" where several reasons share it.

    ``at_once``: the same run with transfers that take no time. A gap in the middle that stays there
    is a neighbour's who is slower; one that is gone was the way's.
    """
    mine = np.flatnonzero(run.device == gap.worker)
    kind, start = run.kind[mine], run.start[mine]
    if gap.end <= start[kind == "B"].min():
        return "warm-up"
    if gap.start >= run.end[mine][kind == "F"].max():
        return "drain"
    next_one = mine[np.flatnonzero(np.isclose(start, gap.end))[0]]
    still_made = run.waits.true_idle[next_one] > _TINY
    stays = at_once.start[next_one] - at_once.end[next_one - 1] > _TINY
    if still_made != stays:
        return ""
    return "imbalance" if stays else "transfer"


def which_gap_is_which(head: dict[str, Any], rng: Random) -> IdleLevel:
    """Five gaps of one run, each by its reason."""
    while True:
        latency, m = rng.choice((1, 2)), rng.randint(4, 7)
        forward = [latency * f for f in rng.choice(_UNEVEN)]
        order, backward = schedule("1f1b", len(forward), m), [2 * f for f in forward]
        run = simulate(order, forward, backward, latency=latency)
        at_once = simulate(order, forward, backward)
        every = [gap for w in range(len(forward)) for gap in gaps_of(run, w)]
        causes = {gap: _cause(run, at_once, gap) for gap in every}
        by_cause = {cause: [g for g in every if causes[g] == cause] for cause in _CAUSES}
        if not all(by_cause.values()):
            continue
        gaps = [rng.choice(found) for found in by_cause.values()]
        rest = [gap for found in by_cause.values() for gap in found if gap not in gaps]
        if rest:
            gaps.append(rng.choice(rest))
            rng.shuffle(gaps)
            break
    named = list(zip("ABCDE", gaps, strict=True))
    shown = [f"{a} worker {g.worker + 1}, {num(g.start)} to {num(g.end)} s" for a, g in named]
    lines = [f"{a}, {_because(run, gap)}" for a, gap in named]
    answer = [f"{line[0]} {line.rpartition(': ')[2]}" for line in lines]
    page = f"""
        Q: {run.devices} workers, counted from 1, run 1F1B with {m} micro-batches; a forward takes
           them {listed(forward)} s, a backward twice that, and a transfer {num(latency)} s from one
           to the next. Five of the gaps have a letter: {"; ".join(shown)}. Which is which?
           'warm-up' is before a worker's first backward, 'drain' after its last forward; in between
           it is 'transfer' if what the next action needs is already made and on its way when the
           gap begins, 'imbalance' if another worker still makes it.
        A: a word for each letter, for example 'A drain, B transfer, ...'
        H: Look first whether the worker has done a backward before the gap, and whether a forward
           follows after it.
        H: For a gap in the middle, find the action that comes after it, and the one on the
           neighbour that makes what it needs: the activation for a forward, the gradient for a
           backward.
        H: If that one ended {num(latency)} s before the gap ends and not later than the gap began,
           only the way took time. If it still ran when the gap began, the neighbour was slower.
        {chr(10).join(f"W: {line}" for line in lines)}
        W: Answer: {", ".join(answer)}
    """
    fields = [Asked(f"gap {a}", causes[gap], _CAUSES, label=a) for a, gap in named]
    facts = Run(f"1F1B, {run.devices} workers, {m} micro-batches", run)
    return level_of(head, page, fields, facts, shows_run=True)


def _because(run: Timeline, gap: Gap) -> str:
    """A gap's reason, from the spans around it."""
    ends = {
        (int(run.device[i]), f"{run.kind[i]}{run.microbatch[i]}"): float(run.end[i])
        for i in range(len(run))
    }
    mine = [(action, end) for (worker, action), end in ends.items() if worker == gap.worker]
    later = [action for action, end in mine if end > gap.end + _TINY]
    where = f"worker {gap.worker + 1}, {num(gap.end - gap.start)} s"
    if not any(action[0] == "B" and end <= gap.start + _TINY for action, end in mine):
        return f"{where}, no backward done before it: warm-up"
    if not any(action[0] == "F" for action in later):
        return f"{where}, no forward to come after it: drain"
    action = later[0]
    neighbour = gap.worker + (-1 if action[0] == "F" else 1)
    made = ends[neighbour, action]
    transfer = made <= gap.start + _TINY
    return (
        f"{where}, then {action}: worker {neighbour + 1} finished it at {num(made)} s, and the gap "
        f"began at {num(gap.start)} s; it was "
        f"{'on its way: transfer' if transfer else 'not made yet: imbalance'}"
    )
